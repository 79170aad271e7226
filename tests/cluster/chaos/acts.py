"""What happens to a table under chaos, and what goes wrong meanwhile. Pure."""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


@dataclass(frozen=True)
class Batch:
    """A batch that a producer writes. Its ids are used by no other batch of the table."""

    id: str
    first_id: int
    rows: int
    day: int  # of January 2024

    @property
    def ids(self) -> frozenset[int]:
        return frozenset(range(self.first_id, self.first_id + self.rows))


@dataclass(frozen=True)
class Put:
    """The batch is written to the buffer, for a consolidation to promote."""

    batch: Batch


@dataclass(frozen=True)
class Revert:
    name: str
    batches: tuple[str, ...]


@dataclass(frozen=True)
class Undo:
    name: str
    of: Revert


@dataclass(frozen=True)
class Erase:
    """Erase whole batches."""

    name: str
    batches: tuple[str, ...]


@dataclass(frozen=True)
class EraseRows:
    """Erase records by their column id."""

    name: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Replay:
    name: str
    batches: tuple[str, ...]
    by: Batch


@dataclass(frozen=True)
class Change:
    """A Replay with the key column id: a row of the batch `by` replaces each updated one."""

    name: str
    by: str
    updates: tuple[int, ...]
    deletes: tuple[int, ...]


@dataclass(frozen=True)
class Vacuum:
    """A vacuum on demand."""

    value: str  # of the annotation lethe.dev/vacuum-now


Request: TypeAlias = Revert | Undo | Erase | EraseRows | Replay | Change
Act: TypeAlias = Put | Request | Vacuum
# Acts that are applied at once. They concern different rows, so their order does not matter.
Step: TypeAlias = tuple[Act, ...]


class FaultKind(Enum):
    KILL_LEADER = "the operator's leader is killed"
    KILL_COMMITTER = "the committer is killed"
    KILL_DRIVER = "the driver of a Job is killed"
    KILL_EXECUTOR = "an executor is killed"
    KILL_WARM_DRIVER = "the warm driver is killed"
    EVICT = "a pod is evicted"
    PAUSE_API_SERVER = "the API server is paused"
    RESTART_S3 = "S3 restarts during a commit"
    RESTART_POSTGRES = "PostgreSQL restarts during a commit"
    SHIFT_COMMITTER_CLOCK = "the committer's clock is an hour ahead"
    SHIFT_RUN_CLOCK = "the clocks of a Dataset's runs are an hour behind"
    FILL_DISK = "the scratch volume of a driver is full"


@dataclass(frozen=True)
class Fault:
    kind: FaultKind
    after_seconds: float  # since the end of the fault before
    lasts_seconds: float  # for kinds that last
    choice: int  # chooses among the possible targets, modulo their number


@dataclass(frozen=True)
class Injected:
    """A fault that happened, or could not."""

    kind: FaultKind
    at_seconds: float  # since the start of the run
    seconds: float  # until it was over, or was given up
    target: str  # "": there was none
    error: str = ""  # why it could not happen, if there was a target

    @property
    def happened(self) -> bool:
        return bool(self.target)

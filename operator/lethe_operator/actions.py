"""What the operator will do, as values; `apply` does it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from lethe.base.errors import Verdict
from lethe.contract.run import RunSpec
from lethe.contract.status import DatasetStatus, PolicyDataset, RestatementStatus
from lethe.guards.claim import Owner

from lethe_operator.resources.observed import NO_FAILURES, Attempt, Engine, Failures, VacuumLimit, WarmEngine
from lethe_operator.resources.restatement import SecretFile


class Decision(StrEnum):
    """Whether a consolidation or a vacuum starts, as statuses and metrics show it."""

    DUE = "Due"
    LATER = "Later"
    RUNNING = "Running"
    NEEDS_APPROVAL = "NeedsApproval"
    """Of vacuums."""


@dataclass(frozen=True)
class Launch:
    """Start a run."""

    run: RunSpec
    bytes: int
    """How much the run reads at most; its size follows from it."""
    generation: int
    """Of the Dataset."""
    why: str
    """For the event and the log, without a final period."""
    for_uid: str = ""
    """UID of the Restatement that the run serves, FOR_HEAD or FOR_ERASURES; "": none."""
    engine: Engine = Engine.JOB
    """What carries out the run."""
    failures: Failures = NO_FAILURES
    """Of earlier attempts of the run."""
    secrets: tuple[SecretFile, ...] = ()
    """Mounted into the pod."""
    place: VacuumLimit | None = None
    """The run starts only if one of these places is still free; None: it needs none."""


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event about one resource."""

    kind: str
    """Of the resource."""
    name: str
    """Of the resource."""
    verdict: Verdict
    warning: bool = False
    """False: a normal event."""


@dataclass(frozen=True)
class Actions:
    """Everything to do for one Dataset. Statuses are whole; `apply` writes only differences."""

    dataset_status: DatasetStatus | None = None
    """None: leave it."""
    restatement_statuses: Mapping[str, RestatementStatus] = field(default_factory=dict)
    """By the Restatement's name."""
    policy_entries: Mapping[str, PolicyDataset] = field(default_factory=dict)
    """The Dataset's entry in the status of each VacuumPolicy that selects it, by the policy's name."""
    launches: tuple[Launch, ...] = ()
    remind: tuple[Attempt, ...] = ()
    """Attempts whose entry the mailbox of their engine lacks: write it again."""
    withdraw: tuple[Attempt, ...] = ()
    """Attempts whose entry to remove from the mailbox of their engine."""
    cancel: tuple[Attempt, ...] = ()
    """Attempts that the warm driver is to stop."""
    start_warm_drivers: Mapping[WarmEngine, tuple[SecretFile, ...]] = field(default_factory=dict)
    """Warm drivers of the namespace to start, for runs that they have received; with the Secrets that these runs need."""
    sweep: int = 0
    """How many batches to delete from the buffer after their retention, if `owner` holds its claim."""
    owner: Owner | None = None
    """As whom the Dataset claims its buffer; None: delete nothing."""
    delete_jobs: tuple[str, ...] = ()
    """Names of Jobs."""
    drop_keys: tuple[str, ...] = ()
    """Keys to remove from the Dataset's ConfigMap."""
    # Names of Restatements.
    delete_restatements: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    look_again: datetime | None = None
    """When to reconcile again; None: when something changes."""


def earliest(*times: datetime | None) -> datetime | None:
    """The earliest of the times that are not None; None if all are."""
    return min((t for t in times if t is not None), default=None)

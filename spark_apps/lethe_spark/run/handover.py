"""What the supervisor of a warm driver and its Spark session send each other: one JSON document per line. Pure.

The session reads from its standard input, and writes to a pipe whose number is in the environment, because libraries print to
its standard output.
"""

import json
from dataclasses import asdict, dataclass
from typing import Final

from lethe.contract.settings import RunFamily

ANSWERS: Final = "LETHE_WARM_ANSWERS"
"""The number of the pipe for answers."""


@dataclass(frozen=True)
class Handover:
    """One run for the session."""

    run_id: str
    family: RunFamily
    attempt: int
    run_file: str
    """Path of its `run.json`."""
    folder: str
    """Its own working directory, which exists and is empty."""
    # Where its progress and result go: the name of the ConfigMap, and the prefix of the keys.
    config_map: str
    prefix: str

    def line(self) -> str:
        """The run as JSON, without a line break at the end."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, line: str) -> "Handover":
        """Read a line that `line` wrote. All fields are required."""
        fields = json.loads(line)
        return cls(**{**fields, "family": RunFamily(fields["family"])})


@dataclass(frozen=True)
class SessionAnswer:
    """What the session reports."""

    ready: bool
    """True: it is ready for a run; False: it has just ended one, and cleans up before it is ready."""
    delivered: bool = False
    """Whether the result of the run that ended is in the ConfigMap."""
    # Of the JVM after a garbage collection, in bytes; 0: not measured.
    heap_used: int = 0
    heap_max: int = 0

    def line(self) -> str:
        """The answer as JSON, without a line break at the end."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, line: str) -> "SessionAnswer":
        """Read a line that `line` wrote. Only `ready` is required."""
        return cls(**json.loads(line))

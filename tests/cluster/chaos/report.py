"""What a run of chaos tells: a line for people and a document for programs. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.cluster.chaos.plan import Act, FaultKind


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


@dataclass(frozen=True)
class Report:
    seed: int
    duration_seconds: float  # in which steps and faults began
    settled_seconds: float  # from the end of the last fault until all is ready; 0 of a run that failed before
    acts: Sequence[Act]
    faults: Sequence[Injected]
    refused: Sequence[str]  # Undos of purged rows
    failed_vacuums: Sequence[str]
    leftovers: Sequence[str]  # of killed runs, for which erasures waited
    failure: str  # "": everything was as it must be

    def line(self) -> str:
        happened = sum(f.happened for f in self.faults)
        outcome = f"settled after {self.settled_seconds:.0f} s" if not self.failure else "FAILED"
        return (
            f"chaos seed={self.seed} duration={self.duration_seconds:.0f} s: {len(self.acts)} acts, {happened} faults, "
            f"{len(self.faults) - happened} that could not happen, {outcome}"
        )

    def document(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "durationSeconds": self.duration_seconds,
            "settledSeconds": round(self.settled_seconds, 1),
            "acts": dict(sorted(Counter(type(act).__name__ for act in self.acts).items())),
            "faults": [
                {
                    "kind": f.kind.name,
                    "atSeconds": round(f.at_seconds, 1),
                    "seconds": round(f.seconds, 1),
                    "target": f.target or None,
                    "error": f.error or None,
                }
                for f in self.faults
            ],
            "refused": list(self.refused),
            "failedVacuums": list(self.failed_vacuums),
            "leftovers": list(self.leftovers),
            "failure": self.failure or None,
        }

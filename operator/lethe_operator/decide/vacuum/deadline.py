"""When a vacuum has to start so that bytes are gone by their evictBy, and whether that can still be. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Any, Final

from lethe.contract.result import RunResult
from lethe.ledger.ledger import Ledger

from lethe_operator.decide.actions import earliest
from lethe_operator.resources.quantity import written
from lethe_operator.resources.vacuum_policy import VacuumPolicySpec

MIB: Final = 1024 * 1024
# What is assumed of a table that was never vacuumed, or only for so short a time that it says nothing.
BYTES_PER_SECOND: Final = 20 * MIB
EXPIRY_SECONDS: Final = 600.0
MEASURED_FROM_SECONDS: Final = 60.0
# Until a run has a driver and executors, once per run.
START_SECONDS: Final = 300.0
# For a failed attempt, a busy cluster, or a clock that is an hour off.
MARGIN_SECONDS: Final = 3600.0
NEEDED_AT_MOST_SECONDS: Final = 10 * 365 * 86_400.0


@dataclass(frozen=True)
class Measured:
    """Throughput of the last vacuums, older ones counting for less, and how long the expiry of snapshots took after them; `run`:
    the last Job that was looked at."""

    bytes: float = 0
    seconds: float = 0
    expiry_seconds: float | None = None
    run: str = ""

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds if self.bytes and self.seconds else float(BYTES_PER_SECOND)

    def after(self, job: str, result: RunResult) -> "Measured":
        """With what a run has shown; the same when it was looked at before."""
        if job == self.run:
            return self
        read, seconds = self.bytes, self.seconds
        if result.purge_seconds >= MEASURED_FROM_SECONDS and result.bytes_rewritten:
            read, seconds = read / 2 + result.bytes_rewritten, seconds / 2 + result.purge_seconds
        expiry, took = self.expiry_seconds, result.expiry_seconds
        if took:
            expiry = took if expiry is None else max(took, (expiry + took) / 2)
        return Measured(read, seconds, expiry, job)

    def as_status(self) -> dict[str, Any]:
        document: dict[str, Any] = {"run": self.run}
        if self.seconds:
            document |= {"bytes": round(self.bytes), "seconds": ceil(self.seconds)}
        if self.expiry_seconds is not None:
            document["expirySeconds"] = ceil(self.expiry_seconds)
        return document

    @classmethod
    def of_status(cls, document: Mapping[str, Any]) -> "Measured":
        expiry = document.get("expirySeconds")
        return cls(
            float(document.get("bytes") or 0),
            float(document.get("seconds") or 0),
            None if expiry is None else float(expiry),
            str(document.get("run") or ""),
        )


UNMEASURED: Final = Measured()


@dataclass(frozen=True)
class Deadline:
    """`evict_by`: the first moment by which bytes must be gone; `starts_by`: when a vacuum is due for it; `possible_until`: one
    that starts later cannot be done by then, as far as is known; `work`: what there is to do, in words."""

    evict_by: datetime
    starts_by: datetime
    possible_until: datetime
    work: str


def first_evict_by(ledger: Ledger) -> datetime | None:
    """Of all that waits to be purged: tombstones, and rows of Erases."""
    return earliest(ledger.next_evict_by, *(e.evict_by for e in ledger.unpurged_erasures))


def deadline(evict_by: datetime, bytes: int, measured: Measured, policy: VacuumPolicySpec) -> Deadline:
    """What follows from an evictBy.

    Args:
        bytes: Of data files that would be rewritten by then.
    """
    limits = policy.limits
    purge_seconds = bytes / measured.bytes_per_second
    runs = max(
        1,
        ceil(bytes / limits.max_bytes_per_run) if limits.max_bytes_per_run else 1,
        ceil(purge_seconds / limits.max_run_seconds) if limits.max_run_seconds else 1,
    )
    expiry = EXPIRY_SECONDS if measured.expiry_seconds is None else measured.expiry_seconds
    needed = timedelta(seconds=min(purge_seconds + runs * START_SECONDS + expiry, NEEDED_AT_MOST_SECONDS))
    latest = evict_by - needed
    starts_by = min(
        latest - timedelta(seconds=MARGIN_SECONDS), evict_by - timedelta(seconds=policy.triggers.evict_by_lead_seconds)
    )
    rate = written(int(measured.bytes_per_second))
    work = f"{written(bytes)} at {rate} a second, {runs} run{'s' if runs > 1 else ''} and the expiry of snapshots"
    return Deadline(evict_by, starts_by, latest, work)

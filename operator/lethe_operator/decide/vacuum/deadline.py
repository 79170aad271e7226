"""When a vacuum must start so that bytes are gone by their evictBy, and whether that is still possible. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Any, Final

from lethe.contract.result import VacuumResult
from lethe.ledger.ledger import Ledger

from lethe_operator.decide.actions import earliest
from lethe_operator.resources.quantity import written
from lethe_operator.resources.vacuum_policy import VacuumPolicySpec

MIB: Final = 1024 * 1024
# Assumed for a table without a vacuum of at least MEASURED_FROM_SECONDS.
BYTES_PER_SECOND: Final = 20 * MIB
EXPIRY_SECONDS: Final = 600.0
MEASURED_FROM_SECONDS: Final = 60.0
# Until the driver and the executors of a run have started.
START_SECONDS: Final = 300.0
# Reserve for a failed attempt, a busy cluster, or a clock that is wrong by up to an hour.
MARGIN_SECONDS: Final = 3600.0
NEEDED_AT_MOST_SECONDS: Final = 10 * 365 * 86_400.0


@dataclass(frozen=True)
class Measured:
    """Throughput of previous vacuums; older ones count less."""

    bytes: float = 0  # rewritten, weighted
    seconds: float = 0  # of rewriting, weighted
    expiry_seconds: float | None = None  # duration of the expiry of snapshots; None: not measured
    run: str = ""  # name of the last measured Job; "": none

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds if self.bytes and self.seconds else float(BYTES_PER_SECOND)

    def after(self, job: str, result: VacuumResult) -> "Measured":
        """The measurements including those of a run; unchanged if they already include it."""
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
    """The times that follow from the first evictBy of a table."""

    evict_by: datetime  # bytes must be gone by then
    starts_by: datetime  # a vacuum is due from then on
    possible_until: datetime  # a vacuum that starts later is not expected to finish in time
    work: str  # the estimate, in words


def first_evict_by(ledger: Ledger) -> datetime | None:
    """The first evictBy of tombstones and of rows of Erases that are not purged yet."""
    return earliest(ledger.next_evict_by, *(e.evict_by for e in ledger.unpurged_erasures))


def deadline(evict_by: datetime, bytes: int, measured: Measured, policy: VacuumPolicySpec) -> Deadline:
    """Compute the deadline of a vacuum that rewrites `bytes`."""
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
    work = f"{written(bytes)} at {rate} per second, {runs} run{'s' if runs > 1 else ''} and the expiry of snapshots"
    return Deadline(evict_by, starts_by, latest, work)

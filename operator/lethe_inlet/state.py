"""What is known of a source, as the Dataset's status shows it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from lethe_operator.decide.conditions import timestamp
from lethe_operator.reasons import Reason

from lethe_inlet.epochs import NOTHING, Counts


@dataclass(frozen=True)
class SourceState:
    """`status.source` of a Dataset."""

    reason: str = Reason.SOURCE_STARTING
    message: str = ""
    # The number of the last complete epoch; None: there is none yet.
    epoch: int | None = None
    epoch_time: datetime | None = None
    partitions: int | None = None
    # Offsets that the brokers have and that are in no complete epoch; None: unknown.
    lag: int | None = None
    counts: Counts = NOTHING

    def failing(self, reason: str, message: str) -> "SourceState":
        return replace(self, reason=reason, message=message)

    def reading(self) -> "SourceState":
        return replace(self, reason=Reason.SOURCE_READ, message="")

    def as_status(self, now: datetime) -> Mapping[str, Any]:
        document: dict[str, Any] = {
            "observedTime": timestamp(now),
            "reason": str(self.reason),
            "message": self.message,
            "rows": self.counts.rows,
            "refusedMessages": self.counts.refused,
            "lostOffsets": self.counts.lost,
            "epoch": self.epoch,
            "epochTime": timestamp(self.epoch_time) if self.epoch_time is not None else None,
            "partitions": self.partitions,
            "lag": self.lag,
        }
        return {k: v for k, v in document.items() if v is not None}

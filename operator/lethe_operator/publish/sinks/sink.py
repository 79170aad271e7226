"""What a sink promises, and how it fails."""

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from lethe_operator.decide.publishing.cloud_event import CloudEvent
from lethe_operator.reasons import Reason


class Scope(Enum):
    """What a failure concerns."""

    SINK = "all messages"  # other Datasets would fail as well, so they wait too
    MESSAGE = "this message"  # other Datasets go on


class SinkError(Exception):
    """An event was not delivered. The events before it were; of those after it, none was."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        delivered: int = 0,
        scope: Scope = Scope.SINK,
        retry_after_seconds: float | None = None,
    ) -> None:
        """Args:
        message: For users, without secrets and without the content of the event.
        delivered: How many events of the call were delivered.
        retry_after_seconds: The pause for which the sink asks; None: it asks for none.
        """
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.delivered = delivered
        self.scope = scope
        self.retry_after_seconds = retry_after_seconds


class Sink(Protocol):
    """Threads share a sink."""

    # How many events a call gets at most. Between two calls it is checked whether this process may still act.
    at_once: int

    def send(self, events: Sequence[CloudEvent]) -> None:
        """Deliver events in order. Returns when all are delivered.

        Raises: SinkError. The delivered events are always a prefix, so the order is kept when the rest is sent again.
        """
        ...

    def close(self) -> None:
        """Release connections. Nothing is sent afterwards."""
        ...

"""Gives the events of a step their identity. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from lethe_operator.decide.publishing.cloud_event import CloudEvent
from lethe_operator.decide.publishing.cursor import Cursor
from lethe_operator.decide.publishing.event_types import (
    BatchData,
    ErasureVerified,
    EventData,
    HistoryGap,
    PublishingStarted,
    RestatementCommitted,
    TableRolledBack,
    TombstonesPurged,
    type_of,
)
from lethe_operator.resources.common import API_VERSION

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Origin:
    """Whose events they are."""

    namespace: str
    name: str  # of the Dataset
    prefix: str = ""  # of the attribute `source`, such as the URL of the cluster

    @property
    def source(self) -> str:
        return f"{self.prefix}/apis/{API_VERSION}/namespaces/{self.namespace}/datasets/{self.name}"

    @property
    def partition_key(self) -> str:
        return f"{self.namespace}/{self.name}"


def numbered(contents: Iterable[EventData], cursor: Cursor, origin: Origin) -> Iterator[CloudEvent]:
    """The events of the cursor's step, each with its id and its place in the order."""
    for index, data in enumerate(contents):
        yield identity(cursor, origin, index, str(type_of(data)), _subject(data), data.to_json())


def identity(cursor: Cursor, origin: Origin, index: int, type: str, subject: str, data: str) -> CloudEvent:
    """The event of this index in the cursor's step."""
    assert cursor.step is not None
    to, epoch = cursor.step.to, cursor.epoch
    return CloudEvent(
        id=f"{cursor.table_uuid}/{epoch}/{to.version}/{index}",
        source=origin.source,
        type=type,
        subject=subject,
        # Whole milliseconds: a float would round them.
        time=_EPOCH + timedelta(milliseconds=to.time_ms) if to.time_ms is not None else None,
        sequence=f"{epoch:016d}-{to.version:010d}-{index:08d}",
        partition_key=origin.partition_key,
        data=data,
    )


def _subject(data: EventData) -> str:
    """What an event is about: a batch or a Restatement; "": the whole table."""
    match data:
        case BatchData():
            return data.batch_id
        case RestatementCommitted() | ErasureVerified():
            return data.restatement
        case TombstonesPurged() | PublishingStarted() | HistoryGap() | TableRolledBack():
            return ""
        case _:
            raise AssertionError(f"{type(data).__name__} has no subject")

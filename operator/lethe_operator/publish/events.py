"""The types of status events, the content of each, and events as CloudEvents 1.0 defines them. Pure.

`docs/reference/events/` contains the JSON Schema of each type. To add a type, add a member and a model: a test fails while a
type has no model or an outdated schema. Fields may be added to a type, and never removed or changed: that is a new version.

Both content modes, of HTTP and Kafka, are written here because the official SDK (a dependency of the tests, which compare both)
would be the only part of it that the operator needs.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

from lethe.contract.kubernetes import API_VERSION
from lethe.contract.run import Recorded
from lethe.contract.settings import Operation
from lethe.ledger.ledger import BatchState
from pydantic import Field

from lethe_operator.publish.cursor import Cursor
from lethe_operator.resources.observed import ContentMode, StartedFrom


class EventType(StrEnum):
    """The attribute `type` of an event."""

    BATCH_PROMOTED = "dev.lethe.batch.promoted.v1"
    BATCH_REFUSED = "dev.lethe.batch.refused.v1"
    BATCH_HELD = "dev.lethe.batch.held.v1"
    BATCH_REVERTED = "dev.lethe.batch.reverted.v1"
    BATCH_REPLACED = "dev.lethe.batch.replaced.v1"
    BATCH_ERASED = "dev.lethe.batch.erased.v1"
    BATCH_RESTORED = "dev.lethe.batch.restored.v1"
    BATCH_FORGOTTEN = "dev.lethe.batch.forgotten.v1"
    RESTATEMENT_COMMITTED = "dev.lethe.restatement.committed.v1"
    TOMBSTONES_PURGED = "dev.lethe.tombstones.purged.v1"
    ERASURE_VERIFIED = "dev.lethe.erasure.verified.v1"
    PUBLISHING_STARTED = "dev.lethe.publishing.started.v1"
    HISTORY_GAP = "dev.lethe.history.gap.v1"
    TABLE_ROLLED_BACK = "dev.lethe.table.rolled-back.v1"


class GapReason(StrEnum):
    """Why the events of some ledger versions are missing."""

    VERSIONS_EXPIRED = "VersionsExpired"
    """Versions in between are gone; the net changes follow."""
    HISTORY_EXPIRED = "HistoryExpired"
    """The last published version is gone; the present state of what is newer follows."""


class TableOf(Recorded):
    """The Iceberg table that an event is about."""

    catalog: str = Field(description="The name of the catalog in the Dataset.")
    name: str = Field(description="namespace.table")
    uuid: str = Field(description="The UUID of the Iceberg table. Another UUID is another table.")


class EventData(Recorded):
    """What all types have in common."""

    table: TableOf
    ledger_version: int = Field(
        description="The version of the ledger with which this became true; 0: the empty ledger."
    )
    snapshot_id: int | None = Field(
        default=None, description="The snapshot that carries this ledger; absent: unknown, or there is none."
    )
    run_id: str = Field(default="", description="The run that committed it; empty: no run did.")


class BatchData(EventData):
    """What all types about one batch have in common."""

    batch_id: str
    state_time: datetime | None = Field(
        default=None, description="When the run decided this; absent: the ledger no longer knows the batch."
    )
    rows: int | None = Field(default=None, description="Rows of the batch; absent: unknown, Lethe did not promote it.")
    bytes: int | None = Field(default=None, description="Bytes of the batch in the buffer; absent: unknown.")
    restatement: str | None = Field(
        default=None, description="The key of the request that caused it, namespace/name/digest; absent: none did."
    )


class BatchPromoted(BatchData):
    """A batch became part of the table."""

    promoted_by_snapshot_id: int | None = Field(default=None, description="The snapshot that added its rows.")


class BatchRefused(BatchData):
    """A consolidation refused a batch. The batch may be corrected and promoted later."""

    reason: str = Field(description="A CamelCase word for programs; empty: an earlier version stored none.")
    message: str = Field(description="For people, at most 2000 characters.")


class BatchHeld(BatchRefused):
    """A batch fails a check of its Dataset, and waits in the buffer until a person approves or reverts it."""


class BatchReverted(BatchData):
    """The rows of a batch are deleted. The id is never promoted again."""

    evict_by: datetime | None = Field(default=None, description="When its bytes must be gone; absent: no deadline.")


class BatchReplaced(BatchData):
    """The rows of a batch are deleted, and another batch replaces them."""

    replaced_by: str = Field(description="The id of the other batch; empty: unknown.")
    evict_by: datetime | None = Field(default=None, description="When its bytes must be gone; absent: no deadline.")


class BatchErased(BatchData):
    """The rows of a batch are deleted, and their bytes must be gone. `erasure.verified` says when they are."""

    evict_by: datetime | None = Field(default=None, description="When its bytes must be gone; absent: the next vacuum.")


class BatchRestored(BatchData):
    """The rows of a batch that was deleted are part of the table again: by an Undo, or because the table was rolled back."""


class BatchForgotten(BatchData):
    """The ledger does not know a batch any more, so that its id may be promoted.

    This happens after an Undo for a batch that was never promoted, or because the table was rolled back.
    """

    previous_state: BatchState


class RestatementCommitted(EventData):
    """A Restatement was committed. Each of its batches has an event of its own."""

    restatement: str = Field(description="The key of the request, namespace/name/digest.")
    name: str = Field(description="namespace/name of the Restatement.")
    operation: Operation | None = Field(default=None, description="Absent: unknown to this version of Lethe.")
    undoes: str = Field(
        default="", description="The key of the request that this Undo took back; empty: it is no Undo."
    )
    rows_deleted: int = 0
    rows_added: int = 0
    rows_erased: int = Field(default=0, description="Rows that were found by values or keys.")
    rows_redacted: int = Field(default=0, description="Rows whose values a Redact replaced.")
    rows_restored: int = Field(default=0, description="By an Undo.")
    reason: str | None = Field(default=None, description="Why it was requested; absent: it does not say.")
    ticket: str | None = Field(default=None, description="Where it was requested; absent: it does not say.")
    requested_by: str | None = Field(
        default=None,
        description="Who requested it: the annotation lethe.dev/requested-by, else the program that created the Restatement.",
    )


class TombstonesPurged(EventData):
    """A vacuum has removed the rows of these batches from the table's data files.

    Snapshots may still retain older files. A long list is divided into several events.
    """

    batch_ids: tuple[str, ...] = Field(min_length=1)
    part: int = Field(default=1, ge=1, description="The number of this event, of all about the same commit.")
    parts: int = Field(default=1, ge=1)


class ErasureVerified(EventData):
    """No file that held rows of a Restatement is left in the storage."""

    restatement: str = Field(description="The key of the request, namespace/name/digest.")
    verified_time: datetime
    record: str = Field(description="The URI of the erasure record.")
    record_sha256: str


class PublishingStarted(EventData):
    """The first event of each table: publishing starts at this version."""

    start: StartedFrom
    replaces_table: str | None = Field(
        default=None, description="The UUID of the table that was at this location before; absent: none was."
    )
    states: Mapping[str, int] = Field(default_factory=dict, description="The number of batches in each state.")


class HistoryGap(EventData):
    """Some versions of the ledger were removed before they were published. `ledgerVersion` is the version after the gap."""

    reason: GapReason
    from_version: int = Field(
        description="The last version that was published; what follows it up to the gap's end is missing."
    )
    states: Mapping[str, int] = Field(
        default_factory=dict, description="The number of batches in each state after the gap."
    )


class TableRolledBack(EventData):
    """The table was set back to an earlier snapshot, or to another line of its history. The net changes follow."""

    from_version: int = Field(
        description="The version that was published last, which is not part of the history any more."
    )


MODELS: Final[Mapping[EventType, type[EventData]]] = MappingProxyType(
    {
        EventType.BATCH_PROMOTED: BatchPromoted,
        EventType.BATCH_REFUSED: BatchRefused,
        EventType.BATCH_HELD: BatchHeld,
        EventType.BATCH_REVERTED: BatchReverted,
        EventType.BATCH_REPLACED: BatchReplaced,
        EventType.BATCH_ERASED: BatchErased,
        EventType.BATCH_RESTORED: BatchRestored,
        EventType.BATCH_FORGOTTEN: BatchForgotten,
        EventType.RESTATEMENT_COMMITTED: RestatementCommitted,
        EventType.TOMBSTONES_PURGED: TombstonesPurged,
        EventType.ERASURE_VERIFIED: ErasureVerified,
        EventType.PUBLISHING_STARTED: PublishingStarted,
        EventType.HISTORY_GAP: HistoryGap,
        EventType.TABLE_ROLLED_BACK: TableRolledBack,
    }
)
_TYPES: Final[Mapping[type[EventData], EventType]] = MappingProxyType({model: type for type, model in MODELS.items()})


def type_of(data: EventData) -> EventType:
    """The type of an event with this content: each model has exactly one."""
    return _TYPES[type(data)]


def schema_of(type: EventType) -> dict[str, Any]:
    """The JSON Schema of the content of a type, as consumers receive it."""
    schema = _without_titles(MODELS[type].model_json_schema(by_alias=True))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": str(type)}


def _without_titles(schema: Any) -> Any:
    """Pydantic makes titles of the names of fields."""
    if isinstance(schema, list):
        return [_without_titles(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    return {k: _without_titles(v) for k, v in schema.items() if k != "title" or not isinstance(v, str)}


def schema_file(type: EventType) -> str:
    """The name of the file with the schema of a type."""
    return f"{type.removeprefix('dev.lethe.')}.json"


SPEC_VERSION: Final = "1.0"
JSON: Final = "application/json"
STRUCTURED: Final = "application/cloudevents+json"
# Printable ASCII without the characters that a header of a CloudEvent must encode: space, double quote and percent.
_AS_IS: Final = "".join(c for c in map(chr, range(0x21, 0x7F)) if c not in '"%')


@dataclass(frozen=True)
class CloudEvent:
    """One event."""

    id: str
    """The same whenever the event is sent again."""
    source: str
    """The Dataset."""
    type: str
    """An EventType, or another specification's."""
    subject: str
    """What it is about, such as a batch id; "": the whole table."""
    time: datetime | None
    """Of the commit; None: unknown."""
    sequence: str
    """Orders the events of one source; sorts as text."""
    partition_key: str
    """All events of a Dataset have the same."""
    data: str
    """JSON."""

    def attributes(self) -> Iterator[tuple[str, str]]:
        """All context attributes, except for the content type."""
        yield "specversion", SPEC_VERSION
        yield "id", self.id
        yield "source", self.source
        yield "type", self.type
        if self.subject:
            yield "subject", self.subject
        if self.time is not None:
            yield "time", self.time.isoformat().replace("+00:00", "Z")
        yield "sequence", self.sequence
        yield "partitionkey", self.partition_key


def structured(event: CloudEvent) -> bytes:
    """The whole event as JSON."""
    envelope = {**dict(event.attributes()), "datacontenttype": JSON}
    head = json.dumps(envelope, ensure_ascii=False, separators=(",", ":"))
    return f'{head[:-1]},"data":{event.data}}}'.encode()


def http_message(event: CloudEvent, mode: ContentMode) -> tuple[dict[str, str], bytes]:
    """Headers and body of an HTTP request."""
    if mode is ContentMode.STRUCTURED:
        return {"content-type": f"{STRUCTURED}; charset=utf-8"}, structured(event)
    headers = {f"ce-{name}": quote(value, safe=_AS_IS) for name, value in event.attributes()}
    return {"content-type": JSON, **headers}, event.data.encode()


def kafka_message(event: CloudEvent, mode: ContentMode) -> tuple[list[tuple[str, bytes]], bytes]:
    """Headers and value of a Kafka record; its key is `partition_key`."""
    if mode is ContentMode.STRUCTURED:
        return [("content-type", f"{STRUCTURED}; charset=utf-8".encode())], structured(event)
    headers = [(f"ce_{name}", value.encode()) for name, value in event.attributes()]
    return [("content-type", JSON.encode()), *headers], event.data.encode()


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Origin:
    """Whose events they are."""

    namespace: str
    name: str
    """Of the Dataset."""
    prefix: str = ""
    """Of the attribute `source`, such as the URL of the cluster."""

    @property
    def source(self) -> str:
        """The path of the Dataset in the Kubernetes API, after the prefix."""
        return f"{self.prefix}/apis/{API_VERSION}/namespaces/{self.namespace}/datasets/{self.name}"

    @property
    def partition_key(self) -> str:
        """The Dataset as `namespace/name`: as the key of Kafka records, it keeps its events in one partition."""
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

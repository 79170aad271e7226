"""What an index says of batches, restatements and erasures. Pure."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from lethe.buffer.batch_rows import BatchRow
from lethe.contract.result import RequestResult
from lethe.ledger.erasure import Erasure
from pydantic import BaseModel, ConfigDict

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def micros(time: datetime) -> int:
    return (time - _EPOCH) // _MICROSECOND


def time_of(value: int) -> datetime:
    return _EPOCH + value * _MICROSECOND


class IndexState(BaseModel):
    """What an index shows."""

    model_config = ConfigDict(frozen=True)

    table_uuid: str
    batch_field_id: int | None  # the id of the batch column; None: the table has none
    tracking_snapshot: int | None  # of the table of batches; None: it is empty
    ledger_version: int  # that the table of batches shows
    shown_ledger: str  # the root of the ledger that the table of batches shows
    ledger: str  # the root of the head's ledger; "": the empty ledger
    head_ledger_version: int
    location: str  # of the table
    metadata_location: str  # of the table: another one may have fewer snapshots
    listed_time: datetime | None  # of the buffer; None: it was not listed
    data_files: int | None = None  # of the table's head; None: unknown
    data_bytes: int | None = None  # the size of these files; None: unknown


@dataclass(frozen=True)
class Position:
    """The place of a batch in the order of pages: newest first."""

    time: int  # of its state, in microseconds
    id: str


@dataclass(frozen=True)
class BatchQuery:
    """Which batches to show."""

    states: tuple[str, ...] = ()  # empty: all
    since: datetime | None = None  # reached their state at this time or later; None: any
    until: datetime | None = None  # reached their state before this time; None: any
    id_prefix: str = ""  # "": any
    restatement: str = ""  # namespace/name of the Restatement that set the state; "": any
    after: Position | None = None  # begin after this batch; None: with the newest


@dataclass(frozen=True)
class TombstoneFacts:
    """The active tombstone of a batch."""

    added: datetime
    evict_by: datetime | None  # when its bytes must be gone; None: no deadline
    partly: bool  # a vacuum has removed some of its rows


@dataclass(frozen=True)
class PurgeFacts:
    """The vacuum that removed the rows of a batch."""

    snapshot_id: int
    time: datetime


@dataclass(frozen=True)
class KnownErasure:
    """An erasure of the ledger."""

    key: str  # of its request
    result: RequestResult | None  # None: a later version of Lethe wrote it
    pending: Erasure | None  # None: it is verified


@dataclass(frozen=True)
class BatchFacts:
    """Everything that is known of one batch."""

    row: BatchRow
    promoted_time: datetime | None  # when its snapshot was committed; None: unknown, because that snapshot has expired
    tombstone: TombstoneFacts | None  # None: it has none
    purge: PurgeFacts | None  # None: no retained vacuum removed its rows
    request: RequestResult | None  # of the Restatement that set its state; None: none did
    erasure: Erasure | None  # open, of that Restatement; None: there is none
    shows_head: bool = True  # False: the state of the batch and the tombstone are of different ledgers

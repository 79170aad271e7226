"""What the routes ask of tables. Implementations may be called from any thread."""

from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol

from lethe.buffer.batch_rows import BatchRow

from lethe_gateway.etags import TableFreshness
from lethe_gateway.tables.records import BatchFacts, BatchQuery, KnownErasure, TableTarget


class IndexedTable(Protocol):
    """One table at one moment."""

    @property
    def freshness(self) -> TableFreshness: ...

    @property
    def head_files(self) -> tuple[int | None, int | None]:
        """Data files of the table's head, and their bytes. None: unknown."""

    def batches(self, query: BatchQuery, limit: int) -> list[BatchRow]:
        """The newest first, by the time of their state, then by id."""

    def batch(self, id: str) -> BatchFacts | None:
        """None: there is no such batch."""

    def promotions(self, since: datetime) -> list[tuple[datetime, int]]:
        """The number of promoted batches of each day in UTC that has any, in the order of the days."""

    def erasures(self, after: str, limit: int, open_only: bool) -> list[KnownErasure]:
        """In the order of their keys, after this key."""

    def erasures_named(self, name: str) -> list[KnownErasure]:
        """Those of the Restatements of this namespace/name; a Restatement may have been created again with another spec."""

    def record(self, uri: str, max_bytes: int) -> bytes | None:
        """A file of an erasure record; None: there is none, or it is not where Lethe writes records.

        Raises:
            Problem: The request fails; the type of the problem says why.
        """


class TableStore(Protocol):
    """Opens tables."""

    def view(self, target: TableTarget) -> AbstractContextManager[IndexedTable]:
        """Open the state of a table for one request.

        Raises:
            Problem: `no-table`, `not-tracked`, `table-unreadable`, `catalog-away`, `index-building`.
        """

    def close(self) -> None: ...

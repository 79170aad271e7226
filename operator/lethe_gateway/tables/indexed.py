"""Tables by indexes on the local disk: refreshed when they are asked for, removed when they are not. I/O: threads, files.

A request that finds a fresh index reads it. Otherwise it waits for a refresh, which all requests for the table share. One refresh
at a time reads files, so memory is bounded.

What the routes ask of tables. Implementations may be called from any thread.
"""

import fcntl
import hashlib
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDoneYet
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import astuple, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from lethe.base import names
from lethe.base.errors import InvalidSettings
from lethe.buffer.batch_rows import BatchRow
from lethe.contract.dataset import HoldSpec
from lethe.contract.run import RetentionSpec
from pyiceberg.io import FileIO

from lethe_gateway.freshness import TableFreshness, commits_behind
from lethe_gateway.problems import Kind, Problem
from lethe_gateway.settings import IndexSettings
from lethe_gateway.tables import reading
from lethe_gateway.tables.looking import TableDescription, bring_up_to_date, building, describe, look, problem_of
from lethe_gateway.tables.records import BatchFacts, BatchQuery, IndexState, KnownErasure, TableTarget

log = logging.getLogger(__name__)

SUFFIX: Final = ".db"
WORKERS: Final = 4
# How long a request waits for a refresh if there is an index that is not too old.
PATIENCE_SECONDS: Final = 1.0
# How long a failed look is not repeated.
RETRY_SECONDS: Final = 1.0
HOUSEKEEPING_SECONDS: Final = 30.0


@dataclass
class _IndexEntry:
    """What the process knows of one table."""

    target: TableTarget
    key: str
    """Of its files."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    path: Path | None = None
    """Of the index; None: there is none."""
    io: FileIO | None = None
    """Of the table."""
    looked: float | None = None
    """Monotonic time of the last look that succeeded; None: there was none."""
    read_time: datetime | None = None
    """Of the same look."""
    failed: float | None = None
    """Monotonic time of the last look that failed, after the last that succeeded."""
    problem: Problem | None = None
    """Why it failed."""
    used: float = 0
    """Monotonic time of the end of the last request."""
    requests: int = 0
    """The requests that are being answered from it."""
    rows: int = 0
    """Read by the refresh that is going on."""
    refresh: Future[None] | None = None
    is_removed: bool = False
    """Nothing knows the entry any more, so its next index would stay on the disk."""


@dataclass(frozen=True)
class IndexView:
    """One index, opened for one request."""

    connection: sqlite3.Connection
    state: IndexState
    freshness: TableFreshness
    io: FileIO | None
    target: TableTarget

    @property
    def head_files(self) -> tuple[int | None, int | None]:
        """Data files of the table's head, and their bytes, as of the last refresh of the index. None: unknown."""
        return self.state.data_files, self.state.data_bytes

    def batches(self, query: BatchQuery, limit: int) -> list[BatchRow]:
        """Batches from the index, newest first by the time of their state, then by id."""
        return reading.batches(self.connection, query, limit)

    def batch(self, id: str) -> BatchFacts | None:
        """A batch from the index, and whether the index shows the ledger of the head. None: there is no such batch."""
        record = reading.batch(self.connection, id)
        return None if record is None else replace(record, shows_head=self.state.shown_ledger == self.state.ledger)

    def promotions(self, since: datetime) -> list[tuple[datetime, int]]:
        """The number of promoted batches of each day in UTC that has any, in the order of the days."""
        return reading.promotions(self.connection, since)

    def erasures(self, after: str, limit: int, open_only: bool) -> list[KnownErasure]:
        """Erasures after this key, in the order of their keys; with `open_only`, without the verified ones."""
        return reading.erasures(self.connection, after, limit, open_only)

    def erasures_named(self, name: str) -> list[KnownErasure]:
        """Erasures of this namespace/name by key, at most `reading.RESTATEMENTS_OF_A_NAME`, open or verified."""
        return reading.erasures_named(self.connection, name)

    def record(self, uri: str, max_bytes: int) -> bytes | None:
        """A file of an erasure record; None: there is none, or it is not where Lethe writes records.

        A writer of the ledger names the file, and the gateway can read more than that.
        """
        assert self.io is not None
        if uri.rpartition("/")[0] != f"{self.state.location.rstrip('/')}/{names.ERASURES_FOLDER}":
            return None
        try:
            with self.io.new_input(uri).open() as stream:
                return bytes(stream.read(max_bytes))
        except FileNotFoundError:
            return None
        except Exception as e:
            raise problem_of(e, self.target) from e


class IndexedTables:
    """Use one for each folder."""

    def __init__(self, folder: Path, settings: IndexSettings, clock: Callable[[], float] = time.monotonic) -> None:
        """Create `IndexedTables`.

        Raises:
            InvalidSettings: The folder cannot be written, or another process uses it.
        """
        self._folder = folder
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()  # of the entries
        self._files = threading.Lock()  # held by the one refresh that reads files
        self._entries: dict[TableTarget, _IndexEntry] = {}
        self._ended = threading.Event()
        self._held = self._claim()
        self._found = self._left_behind()
        self._pool = ThreadPoolExecutor(WORKERS, "look")
        self._housekeeper = threading.Thread(target=self._keep_house, name="indexes", daemon=True)
        self._housekeeper.start()

    def close(self) -> None:
        """Wait for the refreshes that have begun, stop the threads, and release the folder to other processes."""
        self._ended.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._housekeeper.join()
        os.close(self._held)

    @contextmanager
    def view(self, target: TableTarget) -> Iterator[IndexView]:
        """Open the index of a table for one request.

        Raises:
            Problem: The request fails; the type of the problem says why.
        """
        with self._in_use(target) as entry, ExitStack() as stack:
            self._freshen(entry)
            try:
                connection, state = self._opened(stack, entry)
                yield IndexView(connection, state, _freshness(state, entry.read_time), entry.io, target)
            except (sqlite3.ProgrammingError, sqlite3.InterfaceError):
                raise  # the question is wrong, not the index
            except sqlite3.Error as e:
                log.warning("the index of %s cannot be read (%s) and is built again", target, type(e).__name__)
                self._forget(entry)
                raise building(0) from e

    def describe(
        self, target: TableTarget, retention: RetentionSpec | None = None, holds: Sequence[HoldSpec] = ()
    ) -> TableDescription:
        """Read a table's metadata and manifests, without an index.

        Args:
            retention: Which rows are too old. None: no row is.
            holds: The active ones.

        Raises:
            Problem: `no-table`, `table-unreadable`, `catalog-away`.
        """
        return describe(target, retention, holds)

    def _opened(self, stack: ExitStack, entry: _IndexEntry) -> tuple[sqlite3.Connection, IndexState]:
        """Open the index file of an entry.

        Raises:
            sqlite3.Error: the index is damaged.
        """
        while True:
            path = entry.path
            if path is None:
                raise building(entry.rows)
            try:
                connection = stack.enter_context(reading.opened(path))
                state = reading.state_of(connection)
            except sqlite3.Error:
                if entry.path == path:
                    raise
                continue  # a refresh has just replaced it
            if state is None:
                raise sqlite3.DatabaseError("this is not an index")
            return connection, state

    def housekeeping(self) -> None:
        """Remove the indexes without requests, and the least recently used ones if there are too many."""
        now = self._clock()
        with self._lock:
            by_use = sorted(self._entries.values(), key=lambda e: e.used, reverse=True)
        total = 0
        for entry in by_use:
            size = _size(entry.path)
            total += size
            if now - entry.used > self._settings.idle_seconds or (total > self._settings.max_bytes and size < total):
                with self._lock:
                    if entry.requests:
                        continue  # the next round may remove it
                    self._entries.pop(entry.target, None)
                    entry.is_removed = True
                self._forget(entry)
                total -= size

    def _freshen(self, entry: _IndexEntry) -> None:
        """Return once the index may be shown.

        Raises:
            Problem: The request fails; the type of the problem says why.
        """
        now = self._clock()
        if entry.looked is not None and now - entry.looked <= self._settings.fresh_seconds:
            return
        if entry.failed is None or now - entry.failed > RETRY_SECONDS:
            showable = entry.looked is not None and entry.path is not None
            refresh = self._refresh(entry)
            with suppress(NotDoneYet):
                refresh.result(PATIENCE_SECONDS if showable else self._settings.wait_seconds)
        if entry.looked is not None and entry.path is not None:
            is_away = entry.problem is None or entry.problem.kind is Kind.CATALOG_AWAY
            if is_away and self._clock() - entry.looked <= self._settings.stale_seconds:
                return
        raise entry.problem or building(entry.rows)

    @contextmanager
    def _in_use(self, target: TableTarget) -> Iterator[_IndexEntry]:
        """The entry of a table, whose index stays until the request is answered."""
        with self._lock:
            entry = self._entries.get(target)
            if entry is None:
                key = hashlib.sha256(json.dumps(astuple(target)).encode()).hexdigest()[:32]
                entry = self._entries[target] = _IndexEntry(target, key, path=self._found.pop(key, None))
            entry.requests += 1
        try:
            yield entry
        finally:
            with self._lock:
                entry.requests -= 1
                entry.used = self._clock()

    def _refresh(self, entry: _IndexEntry) -> Future[None]:
        """The look that is going on, or a new one."""
        with entry.lock:
            if entry.refresh is None or entry.refresh.done():
                entry.refresh = self._pool.submit(self._look, entry)
            return entry.refresh

    def _look(self, entry: _IndexEntry) -> None:
        started, read_time = self._clock(), datetime.now(UTC)
        try:
            seen = look(entry.target)
            with self._files:
                if entry.is_removed:
                    return
                entry.rows = 0

                def progress(rows: int) -> None:
                    if self._ended.is_set():
                        raise InterruptedError
                    entry.rows += rows

                new_path = self._folder / f"{entry.key}.{os.urandom(4).hex()}{SUFFIX}"
                old = entry.path
                entry.path = bring_up_to_date(old, new_path, seen, progress)
            if old is not None and old != entry.path:
                reading.remove(old)
            entry.io = seen.io
            entry.looked, entry.read_time, entry.failed, entry.problem = started, read_time, None, None
        except Exception as e:
            entry.problem, entry.failed = problem_of(e, entry.target), self._clock()
            log.warning("%s cannot be shown: %s", entry.target, entry.problem)

    def _forget(self, entry: _IndexEntry) -> None:
        with self._files:
            path, entry.path, entry.looked = entry.path, None, None
        if path is not None:
            reading.remove(path)

    def _keep_house(self) -> None:
        while not self._ended.wait(min(HOUSEKEEPING_SECONDS, self._settings.idle_seconds)):
            self.housekeeping()

    def _claim(self) -> int:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            held = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidSettings(f"LETHE_GATEWAY_INDEX_FOLDER: another gateway uses {self._folder}") from None
        except OSError as e:
            raise InvalidSettings(
                f"LETHE_GATEWAY_INDEX_FOLDER: {self._folder} cannot be written ({e.strerror})"
            ) from None
        return held

    def _left_behind(self) -> dict[str, Path]:
        """The indexes of an earlier process, by key; what it did not finish, and what was unused for long, is removed."""
        folders: dict[str, Path] = {}
        for path in sorted(self._folder.iterdir(), key=lambda p: p.stat().st_mtime, reverse=True):
            if path.suffix == reading.DRAFT:
                reading.remove(path)
            elif path.suffix == SUFFIX:
                key = path.name.partition(".")[0]
                if key in folders or time.time() - path.stat().st_mtime > self._settings.idle_seconds:
                    reading.remove(path)
                else:
                    folders[key] = path
        return folders


def _freshness(state: IndexState, read_time: datetime | None) -> TableFreshness:
    assert read_time is not None
    return TableFreshness(
        read_time=read_time,
        snapshot_id=state.tracking_snapshot,
        ledger_version=state.ledger_version,
        head_ledger_version=state.head_ledger_version,
        commits_behind=commits_behind(state.ledger_version, state.head_ledger_version),
        listed_time=state.listed_time,
    )


def _size(path: Path | None) -> int:
    if path is None:
        return 0
    try:
        return path.stat().st_size
    except OSError:
        return 0


class IndexedTable(Protocol):
    """One table at one moment."""

    @property
    def freshness(self) -> TableFreshness:
        """Which state of the table is shown, and when the catalog was last asked for it."""

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

    def describe(
        self, target: TableTarget, retention: RetentionSpec | None = None, holds: Sequence[HoldSpec] = ()
    ) -> TableDescription:
        """Read a table's metadata and manifests.

        Args:
            retention: Which rows are too old. None: no row is.
            holds: The active ones.

        Raises:
            Problem: `no-table`, `table-unreadable`, `catalog-away`.
        """

    def close(self) -> None:
        """Release what the store holds, such as threads and files, once no request needs it any more."""

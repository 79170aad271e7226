"""Writes an index: rows of data files, and parts of a ledger, as they change. I/O: SQLite, and files of tables.

A refresh is one transaction. It reads only files that the index has not read: data files and chunks of ledgers never change.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from lethe.base import names
from lethe.batches_table.files import ARROW, TrackingFile
from lethe.iceberg.facts import TableFacts
from lethe.ledger.ledger import Ledger, RequestEntry
from lethe.ledger.tombstone import META_PURGED_BY, Tombstone
from lethe.ledger_store.chunks import ChunkedPart, ChunkReader
from lethe.ledger_store.store import read_tombstones
from pyiceberg.io import FileIO

from lethe_gateway.tables.reading import COLUMNS, ERASURE
from lethe_gateway.tables.records import IndexState, micros
from lethe_gateway.tables.schema import INDEXES, STATES, TABLES, VERSION

DRAFT: Final = ".new"  # ending of a file that is being built
GROUP_ROWS: Final = 2048  # that are in memory as Python objects
CACHE_KIB: Final = 6144
_NAMES: Final = tuple(ARROW.names)
_STATE_NUMBERS: Final = {s: n for n, s in enumerate(STATES)}
_MARKS: Final = ", ".join("?" * (len(_NAMES) + 1))
_SET: Final = ", ".join(f"{c} = excluded.{c}" for c in (*COLUMNS.split(", ")[1:], "file"))
_INSERT: Final = f"INSERT INTO batches ({COLUMNS}, file) VALUES ({_MARKS})"
_UPSERT: Final = f"{_INSERT} ON CONFLICT (id) DO UPDATE SET {_SET}"


@contextmanager
def new_index(path: Path) -> Iterator[sqlite3.Connection]:
    """A new file, which is at `path` once the block ends without an error. Until then, a crash may damage it."""
    draft = path.with_suffix(DRAFT)
    connection = sqlite3.connect(draft, isolation_level=None)
    try:
        connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA temp_store = FILE;")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.executescript(TABLES)
        connection.execute("BEGIN")
        yield connection
        connection.execute("COMMIT")
        connection.executescript(INDEXES)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.close()
        draft.replace(path)
    finally:
        connection.close()
        remove(draft)


@contextmanager
def changing(path: Path) -> Iterator[sqlite3.Connection]:
    """One transaction on an existing index. Readers see the state before it until it ends. Raises: sqlite3.Error."""
    connection = sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=30, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()


def remove(path: Path) -> None:
    """Remove an index. A request that reads it goes on."""
    for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        file.unlink(missing_ok=True)


def known_files(connection: sqlite3.Connection) -> dict[str, int]:
    """The data files whose rows are in the index, with their numbers."""
    return dict(connection.execute("SELECT path, number FROM files").fetchall())


def set_state(connection: sqlite3.Connection, state: IndexState) -> None:
    connection.execute("INSERT OR REPLACE INTO state (one, document) VALUES (1, ?)", (state.model_dump_json(),))


def sync_files(
    connection: sqlite3.Connection, io: FileIO, files: Sequence[TrackingFile], progress: Callable[[int], None]
) -> None:
    """Let the index have the rows of these data files and of no others.

    Args:
        progress: Called with numbers of rows, as they are read.
    """
    known = known_files(connection)
    wanted = {f.file.file_path for f in files}
    statement = _UPSERT if known else _INSERT
    # In the order of ids, which is that of the file: rows are appended to it.
    for file in sorted((f for f in files if f.file.file_path not in known), key=lambda f: f.lower or ""):
        number = connection.execute("INSERT INTO files (path) VALUES (?)", (file.file.file_path,)).lastrowid
        assert number is not None
        for rows in _rows(io, file, number):
            connection.executemany(statement, rows)
            progress(len(rows))
    # A row that moved to another file has that file's number now. What still has the number of a removed file is gone.
    for path, number in known.items():
        if path not in wanted:
            connection.execute("DELETE FROM batches INDEXED BY by_file WHERE file = ?", (number,))
            connection.execute("DELETE FROM files WHERE number = ?", (number,))


def _rows(io: FileIO, file: TrackingFile, number: int) -> Iterator[list[tuple[Any, ...]]]:
    with io.new_input(file.file.file_path).open(seekable=True) as stream:
        parquet = pq.ParquetFile(stream)
        for batch in parquet.iter_batches(GROUP_ROWS, columns=list(_NAMES), use_threads=False):
            columns = [_values(batch.column(name), name) for name in _NAMES]
            yield list(zip(*columns, [number] * batch.num_rows, strict=True))


def _values(column: pa.Array, name: str) -> list[Any]:
    if name == "state":
        return [_STATE_NUMBERS[s] for s in column.to_pylist()]
    if pa.types.is_timestamp(column.type):
        return list(column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist())
    return list(column.to_pylist())


def sync_ledger(connection: sqlite3.Connection, io: FileIO, facts: TableFacts, ledger: Ledger) -> None:
    """Let the index have the requests, tombstones, erasures, snapshots and purges of a ledger and its table."""
    field_id = facts.batch_field_id

    def set_requests(entries: Sequence[RequestEntry]) -> None:
        connection.executemany("INSERT OR REPLACE INTO requests VALUES (?, ?, ?)", (_request(e) for e in entries))

    def set_tombstones(entries: Sequence[Tombstone]) -> None:
        own = (t for t in entries if t.namespace == field_id)
        connection.executemany("INSERT OR REPLACE INTO tombstones VALUES (?, ?, ?, ?)", (_tombstone(t) for t in own))

    def remove_tombstones(entries: Sequence[Tombstone]) -> None:
        gone = ((t.id,) for t in entries if t.namespace == field_id)
        connection.executemany("DELETE FROM tombstones WHERE id = ?", gone)

    def no_removal(entries: Sequence[RequestEntry]) -> None:
        connection.executemany("DELETE FROM requests WHERE key = ?", ((e.key,) for e in entries))

    _sync_part(connection, "requests", ledger.requests, set_requests, no_removal)
    _sync_part(connection, "tombstones", ledger.tombstones, set_tombstones, remove_tombstones)
    connection.execute("DELETE FROM erasures")
    connection.executemany(
        "INSERT INTO erasures VALUES (?, ?)",
        ((e.restatement, ERASURE.dump_json(e).decode()) for e in ledger.open_erasures),
    )
    _sync_snapshots(connection, io, facts)


def _sync_part(
    connection: sqlite3.Connection,
    name: str,
    part: Any,
    set_entries: Callable[[Sequence[Any]], None],
    remove_entries: Callable[[Sequence[Any]], None],
) -> None:
    """Apply the chunks that the index has not applied; all of them, if some were merged."""
    chunks: Sequence[ChunkReader[Any, Any]] = part.chunks if isinstance(part, ChunkedPart) else ()
    rows = connection.execute("SELECT file FROM chunks WHERE part = ? ORDER BY position", (name,))
    applied = [file for (file,) in rows.fetchall()]
    files = [c.chunk.file for c in chunks]
    if files[: len(applied)] != applied:
        connection.execute(f"DELETE FROM {name}")
        connection.execute("DELETE FROM chunks WHERE part = ?", (name,))
        applied = []
    for position, chunk in enumerate(chunks[len(applied) :], start=len(applied)):
        entries = list(chunk.apart().entries().values())
        (remove_entries if chunk.chunk.removes else set_entries)(entries)
        connection.execute("INSERT INTO chunks VALUES (?, ?, ?)", (name, position, chunk.chunk.file))


def _sync_snapshots(connection: sqlite3.Connection, io: FileIO, facts: TableFacts) -> None:
    """The retained snapshots, and the batches whose rows they purged. What expired is forgotten, so that two indexes of one table
    say the same."""
    connection.execute("DELETE FROM snapshots")
    times = ((s.id, s.timestamp_ms * 1000) for s in facts.snapshots.values())
    connection.executemany("INSERT INTO snapshots VALUES (?, ?)", times)
    connection.execute("DELETE FROM purges WHERE snapshot NOT IN (SELECT id FROM snapshots)")
    connection.execute("DELETE FROM vacuums WHERE snapshot NOT IN (SELECT id FROM snapshots)")
    known = {id for (id,) in connection.execute("SELECT snapshot FROM vacuums")}
    for snapshot in facts.snapshots.values():
        file = snapshot.summary.get(names.TOMBSTONE_VACUUM_FILE)
        if not file or snapshot.id in known:
            continue
        purged = (t.id for t in read_tombstones(io, facts, file) if t.namespace == facts.batch_field_id)
        connection.executemany("INSERT OR IGNORE INTO purges VALUES (?, ?)", ((id, snapshot.id) for id in purged))
        connection.execute("INSERT INTO vacuums VALUES (?)", (snapshot.id,))


def _tombstone(t: Tombstone) -> tuple[Any, ...]:
    return (
        t.id,
        micros(t.added_on),
        micros(t.evict_by) if t.evict_by is not None else None,
        META_PURGED_BY in t.meta,
    )


def _request(entry: RequestEntry) -> tuple[Any, ...]:
    """Without its batch ids, which may be many, and without the digest of erased values."""
    kept = {k: v for k, v in entry.result.items() if k not in ("batchIds", "valuesDigest", "unknownBatchIds")}
    verified = bool((kept.get("erasure") or {}).get("verifiedTime"))
    return entry.key, verified, json.dumps(kept, separators=(",", ":"))

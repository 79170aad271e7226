"""Reads and writes an index of a table. I/O: SQLite, and files of tables.

A page walks one index of the file in its order and stops when it is full, so its cost does not depend on where it begins.

A refresh is one transaction. It reads only files that the index has not read: data files and chunks of ledgers never change.
"""

import heapq
import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from lethe.base import names
from lethe.batches_table import ARROW, REQUESTED, TrackingFile
from lethe.buffer.batch_rows import BatchRow
from lethe.contract.result import RequestResult
from lethe.iceberg.facts import TableFacts
from lethe.ledger.ledger import Ledger, RequestEntry
from lethe.ledger.tombstone import META_PURGED_BY, Erasure, Tombstone
from lethe.ledger_chunks import ChunkedPart, ChunkReader
from lethe.ledger_store import read_tombstones
from pydantic import TypeAdapter, ValidationError
from pyiceberg.io import FileIO

from lethe_gateway.tables.records import (
    INDEXES,
    STATES,
    TABLES,
    VERSION,
    BatchFacts,
    BatchPosition,
    BatchQuery,
    IndexedState,
    IndexState,
    KnownErasure,
    PurgeFacts,
    TombstoneFacts,
    micros,
    time_of,
)

ERASURE: Final[TypeAdapter[Erasure]] = TypeAdapter(Erasure)
# The columns of a batch, in the order of BatchRow's fields, without those about its Restatement.
COLUMNS: Final = (
    "id, state, time, rows, bytes, objects, snapshot, run, restatement, replaced_by, refusal_reason, refusal_message, "
    "evict_by, reference"
)
# With so few ids of a prefix, they are sorted at once.
FEW_OF_A_PREFIX: Final = 4000
# With more, so many entries of the order are searched before all ids of the prefix are sorted.
WALKED_AT_MOST: Final = 30_000
_PREFIX: Final = "id >= :low AND id < :high"
RESTATEMENTS_OF_A_NAME: Final = 20  # the same name with other specs, at most
READ_CACHE_KIB: Final = 4096
DAY_MICROS: Final = 86_400_000_000


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that only reads, for one thread.

    Raises:
        sqlite3.Error: The file is missing or damaged.
    """
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5, isolation_level=None)
    try:
        connection.execute(f"PRAGMA cache_size = -{READ_CACHE_KIB}")
        connection.execute("BEGIN")  # all reads see one state
        yield connection
    finally:
        connection.close()


def state_of(connection: sqlite3.Connection) -> IndexState | None:
    """None: the file is not an index of this version."""
    if connection.execute("PRAGMA user_version").fetchone()[0] != VERSION:
        return None
    row = connection.execute("SELECT document FROM state").fetchone()
    return IndexState.model_validate_json(row[0]) if row else None


def batches(connection: sqlite3.Connection, query: BatchQuery, limit: int) -> list[BatchRow]:
    """The newest first, by the time of their state, then by id."""
    keys = list(islice(_places(connection, query, limit), limit))
    rows = (connection.execute(f"SELECT {COLUMNS} FROM batches WHERE id = ?", (k.id,)).fetchone() for k in keys)
    return [_row(r) for r in rows]


def batch(connection: sqlite3.Connection, id: str) -> BatchFacts | None:
    """None: there is no such batch."""
    columns = connection.execute(f"SELECT {COLUMNS} FROM batches WHERE id = ?", (id,)).fetchone()
    if columns is None:
        return None
    row = _row(columns)
    promoted = _one(connection, "SELECT time FROM snapshots WHERE id = ?", row.snapshot_id)
    tombstone = _one(connection, "SELECT added, evict_by, partly FROM tombstones WHERE id = ?", id)
    purged = _one(
        connection,
        "SELECT s.id, s.time FROM purges p JOIN snapshots s ON s.id = p.snapshot WHERE p.id = ? ORDER BY s.time DESC LIMIT 1",
        id,
    )
    request = _one(connection, "SELECT document FROM requests WHERE key = ?", row.restatement)
    pending = _one(connection, "SELECT document FROM erasures WHERE key = ?", row.restatement)
    return BatchFacts(
        row=row,
        promoted_time=time_of(promoted[0]) if promoted else None,
        tombstone=TombstoneFacts(time_of(tombstone[0]), _time(tombstone[1]), bool(tombstone[2])) if tombstone else None,
        purge=PurgeFacts(purged[0], time_of(purged[1])) if purged else None,
        request=_result(request[0]) if request else None,
        erasure=ERASURE.validate_json(pending[0]) if pending else None,
    )


def promotions(connection: sqlite3.Connection, since: datetime) -> list[tuple[datetime, int]]:
    """The number of promoted batches of each day in UTC that has any, in the order of the days."""
    days = connection.execute(
        "SELECT time / :day AS day, count(*) FROM batches INDEXED BY by_state "
        "WHERE state = :promoted AND time >= :since GROUP BY day ORDER BY day",
        {"day": DAY_MICROS, "promoted": STATES.index(IndexedState.PROMOTED), "since": micros(since)},
    )
    return [(time_of(day * DAY_MICROS), count) for day, count in days]


def erasures(connection: sqlite3.Connection, after: str, limit: int, open_only: bool) -> list[KnownErasure]:
    """In the order of their keys, after this key."""
    verified = (
        "" if open_only else "UNION SELECT key FROM requests INDEXED BY verified WHERE verified = 1 AND key > :after "
    )
    keys = connection.execute(
        f"SELECT key FROM erasures WHERE key > :after {verified}ORDER BY key LIMIT :limit",
        {"after": after, "limit": limit},
    )
    return [_erasure(connection, key) for (key,) in keys.fetchall()]


def erasures_named(connection: sqlite3.Connection, name: str) -> list[KnownErasure]:
    """Those of the Restatements of this namespace/name."""
    low, high = f"{name}/", after_prefix(f"{name}/")
    keys = connection.execute(
        "SELECT key FROM erasures WHERE key >= ? AND key < ? "
        "UNION SELECT key FROM requests INDEXED BY verified WHERE verified = 1 AND key >= ? AND key < ? ORDER BY key LIMIT ?",
        (low, high, low, high, RESTATEMENTS_OF_A_NAME),
    )
    return [_erasure(connection, key) for (key,) in keys.fetchall()]


def after_prefix(prefix: str) -> str:
    """The first text, in the order of code points, after all texts with this prefix."""
    kept = prefix.rstrip("\U0010ffff")
    if not kept:
        return "\U0010ffff" * 300  # longer than any id
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(0xE000 if 0xD800 <= following <= 0xDFFF else following)


def _places(connection: sqlite3.Connection, query: BatchQuery, limit: int) -> Iterator[BatchPosition]:
    """The batches of a query in their order. May yield more than `limit`."""
    conditions, given = _conditions(query)
    if query.restatement:
        conditions += _of_states(query)
        keys = _restatement_keys(connection, query.restatement)
        return _merged(connection, "by_restatement", "restatement", keys, conditions, given, limit)
    if query.id_prefix:
        return iter(_of_prefix(connection, query, (conditions, given), limit))
    if query.states:
        numbers = [STATES.index(s) for s in dict.fromkeys(query.states)]
        return _merged(connection, "by_state", "state", numbers, conditions, given, limit)
    return _walk(connection, "INDEXED BY by_time", conditions, given, limit)


def _of_prefix(
    connection: sqlite3.Connection, query: BatchQuery, chosen: tuple[list[str], dict[str, Any]], limit: int
) -> list[BatchPosition]:
    """The first batches of a query by prefix.

    If many ids have it, the first entries of the order often hold a page. Else all ids of the prefix are sorted, and only `limit`
    are kept in memory.
    """
    conditions, given = chosen
    of_states = _of_states(query)
    if not _is_rare(connection, query.id_prefix):
        in_order = [c for c in conditions if c is not _PREFIX]
        where = f"WHERE {' AND '.join(in_order)} " if in_order else ""
        walked = (
            f"SELECT time, id, state FROM batches INDEXED BY by_time {where}ORDER BY time DESC, id DESC LIMIT :most"
        )
        matching = " AND ".join([_PREFIX, *of_states])
        statement = f"SELECT time, id FROM ({walked}) WHERE {matching} LIMIT :limit"
        rows = connection.execute(statement, {**given, "most": WALKED_AT_MOST, "limit": limit}).fetchall()
        if len(rows) == limit:
            return [BatchPosition(*row) for row in rows]
    return list(_walk(connection, "INDEXED BY by_id", [*conditions, *of_states], given, limit))


def _of_states(query: BatchQuery) -> list[str]:
    numbers = ", ".join(str(STATES.index(s)) for s in query.states)
    return [f"state IN ({numbers})"] if numbers else []


def _conditions(query: BatchQuery) -> tuple[list[str], dict[str, Any]]:
    clauses: list[str] = []
    given: dict[str, Any] = {}
    if query.after is not None:
        clauses.append("(time, id) < (:time, :id)")
        given |= {"time": query.after.time, "id": query.after.id}
    if query.since is not None:
        clauses.append("time >= :since")
        given["since"] = micros(query.since)
    if query.until is not None:
        clauses.append("time < :until")
        given["until"] = micros(query.until)
    if query.id_prefix:
        clauses.append(_PREFIX)
        given |= {"low": query.id_prefix, "high": after_prefix(query.id_prefix)}
    return clauses, given


def _merged(
    connection: sqlite3.Connection,
    index: str,
    column: str,
    values: Sequence[Any],
    conditions: Sequence[str],
    given: dict[str, Any],
    limit: int,
) -> Iterator[BatchPosition]:
    """The walks through the parts of an index with these values of its first column, merged."""
    walks = [
        _walk(connection, f"INDEXED BY {index}", [f"{column} = :value", *conditions], {**given, "value": value}, limit)
        for value in values
    ]
    return heapq.merge(*walks, key=lambda place: (place.time, place.id.encode()), reverse=True)


def _walk(
    connection: sqlite3.Connection, how: str, conditions: Sequence[str], given: dict[str, Any], limit: int
) -> Iterator[BatchPosition]:
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    statement = f"SELECT time, id FROM batches {how} {where}ORDER BY time DESC, id DESC LIMIT :limit"
    return (BatchPosition(*row) for row in connection.execute(statement, {**given, "limit": limit}))


def _restatement_keys(connection: sqlite3.Connection, name: str) -> list[str]:
    """The keys of the Restatements of this name that set the state of a batch. Jumps from one to the next."""
    keys: list[str] = []
    low, high = f"{name}/", after_prefix(f"{name}/")
    statement = (
        "SELECT restatement FROM batches INDEXED BY by_restatement WHERE restatement > ? AND restatement < ? "
        "ORDER BY restatement LIMIT 1"
    )
    while len(keys) < RESTATEMENTS_OF_A_NAME and (row := connection.execute(statement, (low, high)).fetchone()):
        low = row[0]
        keys.append(low)
    return keys


def _is_rare(connection: sqlite3.Connection, prefix: str) -> bool:
    statement = "SELECT count(*) FROM (SELECT 1 FROM batches INDEXED BY by_id WHERE id >= ? AND id < ? LIMIT ?)"
    (count,) = connection.execute(statement, (prefix, after_prefix(prefix), FEW_OF_A_PREFIX)).fetchone()
    return bool(count < FEW_OF_A_PREFIX)


def _erasure(connection: sqlite3.Connection, key: str) -> KnownErasure:
    request = _one(connection, "SELECT document FROM requests WHERE key = ?", key)
    pending = _one(connection, "SELECT document FROM erasures WHERE key = ?", key)
    return KnownErasure(
        key, _result(request[0]) if request else None, ERASURE.validate_json(pending[0]) if pending else None
    )


def _one(connection: sqlite3.Connection, statement: str, value: Any) -> Any:
    return None if value is None else connection.execute(statement, (value,)).fetchone()


def _result(document: str) -> RequestResult | None:
    try:
        return RequestResult.model_validate_json(document)
    except ValidationError:
        return None  # a later version of Lethe wrote it


def _row(values: Sequence[Any]) -> BatchRow:
    id, state, time, *rest, evict_by, reference = values
    fields: list[Any] = [id, STATES[state], time_of(time), *rest, _time(evict_by)]
    return replace(BatchRow(*fields), reference=reference)


def _time(value: int | None) -> Any:
    return None if value is None else time_of(value)


DRAFT: Final = ".new"  # ending of a file that is being built
GROUP_ROWS: Final = 2048  # that are in memory as Python objects
WRITE_CACHE_KIB: Final = 6144
_NAMES: Final = tuple(name for name in ARROW.names if name not in REQUESTED)  # the index has the requests themselves
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
        connection.execute(f"PRAGMA cache_size = -{WRITE_CACHE_KIB}")
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
    """One transaction on an existing index. Readers see the state before it until it ends.

    Raises:
        sqlite3.Error: SQLite cannot read the index.
    """
    connection = sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=30, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA cache_size = -{WRITE_CACHE_KIB}")
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
    """Replace what the index says that it shows, as part of the transaction of the caller."""
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
            # A file of an earlier build lacks the columns that the table got since.
            there = frozenset(batch.schema.names)
            columns = [
                _values(batch.column(name), name) if name in there else [None] * batch.num_rows for name in _NAMES
            ]
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
    """The retained snapshots, and the batches whose rows they purged.

    What expired is forgotten, so that two indexes of one table say the same.
    """
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

"""Reading and writing ledgers beside a table, through PyIceberg's FileIO.

I/O. Files are immutable and lie under `<table location>/_tombstones/`; each attempt writes under names of its own, so a
failed attempt never harms a ledger that somebody reads. Parts that did not change are named again, not written again.
"""

import uuid
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pyiceberg.io import FileIO

from lethe import names
from lethe.errors import LedgerError
from lethe.ledger import avro
from lethe.ledger.ledger import EMPTY, Ledger, settle
from lethe.ledger.lineage import Resolution, resolve
from lethe.ledger.root import Chunk, Root, decode_root
from lethe.ledger.summary import WrittenLedger
from lethe.ledger.tombstone import Tombstone
from lethe.table.facts import TableFacts

_FORMATS: dict[str, avro.PartFormat[Any]] = {
    "tombstones": avro.TOMBSTONES,
    "batches": avro.BATCHES,
    "requests": avro.REQUESTS,
    "erasures": avro.ERASURES,
    "carriers": avro.CARRIERS,
}


@dataclass(frozen=True)
class Loaded:
    """A settled ledger, how it was found, and its root (None: the empty ledger)."""

    ledger: Ledger
    resolution: Resolution
    root: Root | None = None


def load(io: FileIO, facts: TableFacts, snapshot_id: int | None = None) -> Loaded:
    """The ledger of a snapshot, the head's when `snapshot_id` is None.

    Raises: LedgerError (LedgerLost, LedgerMissing, LedgerUnreadable, LedgerTooNew, LedgerOfAnotherTable, LedgerOutside):
    reading must stop then, since going on would show deleted rows.
    """
    start = facts.head_id if snapshot_id is None else snapshot_id
    since = facts.ledger_since
    try:
        resolution = resolve(facts.snapshots, start, (), facts.name, since)
    except LedgerError:
        # The walk ended at an expired parent: only now are the carriers of the newest ledger worth reading.
        resolution = resolve(facts.snapshots, start, _newest_carriers(io, facts), facts.name, since)
    if resolution.pointer is None:
        return Loaded(EMPTY, resolution)
    root = read_root(io, facts, resolution.pointer)
    return Loaded(settle(_read(io, resolution.pointer, root), resolution.carrier_id), resolution, root)


def read_root(io: FileIO, facts: TableFacts, pointer: str) -> Root:
    folder = ledger_folder(facts.location)
    if _plain(pointer).rpartition("/")[0] != _plain(folder):
        raise LedgerError("LedgerOutside", f"{facts.name}: the ledger {pointer} does not lie in {folder}.")
    return decode_root(_content(io, pointer, facts.name), pointer, facts.uuid)


def ledger_folder(location: str) -> str:
    return f"{location.rstrip('/')}/{names.LEDGER_FOLDER}"


def write(
    io: FileIO,
    facts: TableFacts,
    ledger: Ledger,
    base: Loaded,
    vacuumed: Collection[Tombstone] | None = None,
) -> WrittenLedger:
    """Write a ledger that is to follow `base`. Nothing points to it until a snapshot does."""
    folder = ledger_folder(facts.location)
    stem = f"{ledger.version:08d}-{ledger.pending_run[:12]}-{uuid.uuid4().hex[:8]}"
    before = base.ledger
    values: dict[str, tuple[Any, Any]] = {
        "tombstones": (ledger.tombstones, before.tombstones),
        "batches": (ledger.batches, before.batches),
        "requests": (ledger.requests, before.requests),
        "erasures": (ledger.erasures, before.erasures),
        "carriers": (ledger.carriers, before.carriers),
    }
    parts: dict[str, tuple[Chunk, ...]] = {}
    contents: dict[str, bytes] = {}
    for name, (now, then) in values.items():
        if base.root is not None and now == then and not (name in ("batches", "requests") and before.pending_run):
            parts[name] = tuple(base.root.parts.get(name, ()))
            if parts[name] or name != "tombstones":
                continue
        entries = list(now.values()) if hasattr(now, "values") else list(now)
        if not entries and name != "tombstones":
            parts[name] = ()
            continue
        content = _FORMATS[name].encode(entries)
        file = f"{stem}-{name}.avro"
        contents[file] = content
        parts[name] = (Chunk(file, len(entries), len(content)),)
    vacuum_uri = None
    if vacuumed is not None:
        vacuum_file = f"{stem}-vacuumed.avro"
        contents[vacuum_file] = avro.TOMBSTONES.encode(vacuumed)
        vacuum_uri = f"{folder}/{vacuum_file}"
    root = Root(facts.uuid, ledger.version, ledger.pending_run, parts)
    with ThreadPoolExecutor(max_workers=4) as pool:
        list(pool.map(lambda item: _create(io, f"{folder}/{item[0]}", item[1]), contents.items()))
    root_uri = f"{folder}/{stem}-root.json"
    _create(io, root_uri, root.encode())  # last: a root never names a part that is not there
    return WrittenLedger(root_uri, f"{folder}/{parts['tombstones'][0].file}", vacuum_uri)


def _read(io: FileIO, pointer: str, root: Root) -> Ledger:
    folder = pointer.rpartition("/")[0]
    wanted = [(name, chunk) for name, chunks in root.parts.items() for chunk in chunks]
    with ThreadPoolExecutor(max_workers=4) as pool:
        decoded = list(pool.map(lambda item: (item[0], _entries(io, folder, *item)), wanted))
    parts: dict[str, list[Any]] = {name: [] for name in _FORMATS}
    for name, entries in decoded:
        parts[name] += entries
    return Ledger(
        version=root.ledger_version,
        pending_run=root.run,
        tombstones={t.key: t for t in parts["tombstones"]},
        batches={b.id: b for b in parts["batches"]},
        requests={r.key: r for r in parts["requests"]},
        erasures=tuple(parts["erasures"]),
        carriers=tuple(parts["carriers"]),
    )


def _entries(io: FileIO, folder: str, name: str, chunk: Chunk) -> list[Any]:
    uri = f"{folder}/{chunk.file}"
    content = _content(io, uri, "ledger")
    try:
        entries = _FORMATS[name].decode(content)
    except Exception as e:  # fastavro raises a dozen types for a damaged file
        raise LedgerError(
            "LedgerUnreadable",
            f"{uri} is not readable as {name} ({type(e).__name__}): restore the file, or roll the table back.",
        ) from e
    if len(entries) != chunk.records:
        raise LedgerError("LedgerUnreadable", f"{uri} holds {len(entries)} {name}, its root says {chunk.records}.")
    return entries


def _newest_carriers(io: FileIO, facts: TableFacts) -> tuple[Any, ...]:
    carried = [s for s in facts.snapshots.values() if s.ledger is not None]
    if not carried:
        return ()
    newest = max(carried, key=lambda s: s.sequence_number)
    assert newest.ledger is not None
    return _read(io, newest.ledger, read_root(io, facts, newest.ledger)).carriers


def _content(io: FileIO, uri: str, table: str) -> bytes:
    try:
        with io.new_input(uri).open() as stream:
            return bytes(stream.read())
    except FileNotFoundError as e:
        raise LedgerError(
            "LedgerMissing", f"{table}: the ledger file {uri} is not there: restore it, or roll the table back."
        ) from e


def _create(io: FileIO, uri: str, content: bytes) -> None:
    with io.new_output(uri).create(overwrite=False) as stream:
        stream.write(content)


def _plain(uri: str) -> str:
    """`file:/x`, `file:///x` and `/x` are one place."""
    if uri.startswith("file:"):
        return "/" + uri.removeprefix("file:").lstrip("/")
    return uri

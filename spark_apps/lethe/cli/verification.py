"""Reads all entries of all ledgers of a table and compares them with the roots and the snapshot summaries. I/O."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyiceberg.io import FileIO

from lethe.base import names
from lethe.base.errors import LedgerError
from lethe.cli.history import count
from lethe.cli.layers import ChunkKeys, Layers
from lethe.cli.opening import Opened
from lethe.cli.roots import PARALLEL_READS, Roots, name_of
from lethe.ledger import avro
from lethe.ledger.lineage import Snapshot
from lethe.ledger.root import Chunk, Root
from lethe.ledger_store import store as ledger_store
from lethe.ledger_store.chunks import read_file


@dataclass(frozen=True)
class Verified:
    """How much was verified, and one line for each problem."""

    snapshots: int
    ledgers: int
    files: int
    problems: tuple[str, ...]


def verify(opened: Opened, roots: Roots, tick: Callable[[int], object]) -> Verified:
    """Read each chunk of each root once. Calls `tick` with the number of files to read, then with 0 after each."""
    io = opened.table.io
    problems = [f"snapshot {i}: {why}" for i, why in sorted(roots.lost.items())]
    problems += [f"{_needed_by(opened, roots, p)}: {why}" for p, why in sorted(roots.broken.items())]
    chunks = {(part, c.file): None for r in roots.found.values() for part, cs in r.parts.items() for c in cs}
    folder = ledger_store.ledger_folder(opened.facts.location)
    tick(len(chunks))
    read: dict[str, ChunkKeys] = {}
    with ThreadPoolExecutor(PARALLEL_READS) as pool:
        for (_, file), found in zip(chunks, pool.map(lambda c: _keys(io, folder, *c), chunks), strict=True):
            if isinstance(found, str):
                needed = [p for p, r in roots.found.items() if file in r.files]
                problems.append(f"{_needed_by(opened, roots, *needed)}: {found}")
            else:
                read[file] = found
            tick(0)
    layers = Layers(read)
    for pointer, root in sorted(roots.found.items()):
        problems += _root(pointer, root, read, layers)
    problems += _summaries(opened, roots, layers)
    files = len(chunks) + len(roots.vacuum_files)
    return Verified(len(opened.facts.snapshots), len(roots.found) + len(roots.broken), files, tuple(problems))


def _keys(io: FileIO, folder: str, part: str, file: str) -> ChunkKeys | str:
    """The keys of a chunk's entries, or what is wrong with the chunk. A key may not occur twice."""
    uri, form = f"{folder}/{file}", avro.FORMATS[part]
    try:
        entries = form.decode(read_file(io, uri))
    except LedgerError as e:
        return e.message
    except Exception as e:  # fastavro raises a dozen types for a damaged file
        return f"{uri} is not readable as {part} ({type(e).__name__})."
    found = frozenset(form.key(e) for e in entries)
    if len(found) != len(entries):
        return f"{uri} holds {len(entries)} {part} under {len(found)} keys."
    texts = [form.text(k) for k in found]
    return ChunkKeys(found, min(texts, default=None), max(texts, default=None))


def _root(pointer: str, root: Root, read: Mapping[str, ChunkKeys], layers: Layers) -> Iterator[str]:
    """Compare a root with its chunks, each and in total."""
    name = name_of(pointer)
    for part, chunks in root.parts.items():
        for chunk in chunks:
            found = read.get(chunk.file)
            if found is None:
                continue  # `verify` has reported it
            if chunk.records != len(found.keys):
                yield f"{name}: {chunk.file} holds {len(found.keys)} {part}; the root says {chunk.records}."
            if (chunk.lower, chunk.upper) != (found.lower, found.upper):
                yield f"{name}: the bounds of the keys in {chunk.file} differ from those in the root."
    recorded = root.statistics
    for part, number in (
        ("tombstones", recorded.tombstones),
        ("batches", recorded.batches),
        ("requests", recorded.requests),
    ):
        chunks = root.parts.get(part, ())
        if layers.has_read(chunks) and (actual := layers.size(chunks)) != number:
            yield f"{name}: its chunks hold {actual} {part} in total; the root says {number}."
    if sum(recorded.states.values()) != recorded.batches:
        yield f"{name}: the root counts {sum(recorded.states.values())} batches by state, and {recorded.batches} in total."


def _summaries(opened: Opened, roots: Roots, layers: Layers) -> Iterator[str]:
    """Compare the summary of each snapshot with the files that it points to."""

    def active(pointer: str | None) -> tuple[Chunk, ...] | None:
        """The chunks of its tombstones; None: a file is unreadable, so they are unknown."""
        if pointer is None:
            return ()
        root = roots.found.get(pointer)
        return root.parts["tombstones"] if root is not None and layers.has_read(root.parts["tombstones"]) else None

    for s in sorted(opened.facts.snapshots.values(), key=lambda s: s.sequence_number):
        after = active(s.ledger) if s.ledger is not None else None
        if after is None:
            continue
        expected = {names.TOMBSTONE_TOTAL: layers.size(after)}
        if s.parent_id is None or s.parent_id in roots.pointer_of:
            before = active(roots.pointer_of[s.parent_id] if s.parent_id is not None else None)
            if before is not None:
                added, deleted = layers.changed(before, after)
                expected |= {names.TOMBSTONE_ADDED: added, names.TOMBSTONE_DELETED: deleted}
        for key, actual in expected.items():
            if count(s.summary, key) != actual:
                yield f"snapshot {s.id}: {key} is {s.summary.get(key, 'missing')}, but the files hold {actual}."
        yield from _vacuum(opened, s)


def _vacuum(opened: Opened, snapshot: Snapshot) -> Iterator[str]:
    uri = snapshot.summary.get(names.TOMBSTONE_VACUUM_FILE)
    if uri is None:
        return
    folder, _, file = uri.rpartition("/")
    found = _keys(opened.table.io, folder, "tombstones", file)
    if isinstance(found, str):
        yield f"snapshot {snapshot.id}: {found}"
    elif count(snapshot.summary, names.TOMBSTONE_VACUUM_COUNT) != len(found.keys):
        recorded = snapshot.summary.get(names.TOMBSTONE_VACUUM_COUNT, "missing")
        yield (
            f"snapshot {snapshot.id}: {names.TOMBSTONE_VACUUM_COUNT} is {recorded}, but {file} holds {len(found.keys)}."
        )


def _needed_by(opened: Opened, roots: Roots, *pointers: str) -> str:
    wanted = frozenset(pointers)
    ids = sorted(i for i, p in roots.pointer_of.items() if p in wanted)
    if not ids:
        return "a ledger that no snapshot points to"
    head = " (one is the head)" if opened.facts.head_id in ids and len(ids) > 1 else ""
    few = ", ".join(map(str, ids[:3])) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
    return f"snapshot{'s' if len(ids) > 1 else ''} {few}{head}"

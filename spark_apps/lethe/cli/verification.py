"""Every ledger of a table read to the last entry, and compared with what its root and its snapshot say. I/O."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pyiceberg.io import FileIO

from lethe import names
from lethe.cli.history import count
from lethe.cli.opening import Opened
from lethe.cli.roots import AT_ONCE, Roots, name_of
from lethe.errors import LedgerError
from lethe.ledger import avro
from lethe.ledger.lineage import Snapshot
from lethe.ledger.merge import fold
from lethe.ledger.root import Chunk, Root
from lethe.table import ledger_store
from lethe.table.chunks import read_file

_FORMATS: Mapping[str, avro.PartFormat[Any, Any]] = {
    "tombstones": avro.TOMBSTONES,
    "batches": avro.BATCHES,
    "requests": avro.REQUESTS,
    "erasures": avro.ERASURES,
    "carriers": avro.CARRIERS,
}

Keys = frozenset[Hashable]


@dataclass(frozen=True)
class Verified:
    """What was looked at, and each thing that is wrong, in a line of its own."""

    snapshots: int
    ledgers: int
    files: int
    problems: tuple[str, ...]


def verify(opened: Opened, roots: Roots, tick: Callable[[int], object]) -> Verified:
    """Read every chunk of every root once. `tick` is told how many files there are to read, then 0 after each."""
    io = opened.table.io
    problems = [f"snapshot {i}: {why}" for i, why in sorted(roots.lost.items())]
    problems += [f"{_needed_by(opened, roots, p)}: {why}" for p, why in sorted(roots.broken.items())]
    chunks = {(part, c.file): None for r in roots.found.values() for part, cs in r.parts.items() for c in cs}
    folder = ledger_store.ledger_folder(opened.facts.location)
    tick(len(chunks))
    keys: dict[str, Keys] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for (_, file), read in zip(chunks, pool.map(lambda c: _keys(io, folder, *c), chunks), strict=True):
            if isinstance(read, str):
                needed = [
                    p for p, r in roots.found.items() if any(c.file == file for cs in r.parts.values() for c in cs)
                ]
                problems.append(f"{_needed_by(opened, roots, *needed)}: {read}")
            else:
                keys[file] = read
            tick(0)
    for pointer, root in sorted(roots.found.items()):
        problems += _root(pointer, root, keys)
    problems += _summaries(opened, roots, keys)
    files = len(chunks) + len(roots.vacuum_files)
    return Verified(len(opened.facts.snapshots), len(roots.found) + len(roots.broken), files, tuple(problems))


def _keys(io: FileIO, folder: str, part: str, file: str) -> Keys | str:
    """The keys of a chunk's entries, or what is wrong with it. A key that is there twice is wrong, too."""
    uri = f"{folder}/{file}"
    try:
        entries = _FORMATS[part].decode(read_file(io, uri))
    except LedgerError as e:
        return e.message
    except Exception as e:  # fastavro raises a dozen types for a damaged file
        return f"{uri} is not readable as {part} ({type(e).__name__})."
    found = frozenset(_FORMATS[part].key(e) for e in entries)
    return found if len(found) == len(entries) else f"{uri} holds {len(entries)} {part} under {len(found)} keys."


def _root(pointer: str, root: Root, keys: Mapping[str, Keys]) -> Iterator[str]:
    """What a root says of its chunks and of all of them together."""
    name = name_of(pointer)
    whole = True
    for part, chunks in root.parts.items():
        for chunk in chunks:
            if chunk.file not in keys:
                whole = False
            elif chunk.records != len(keys[chunk.file]):
                yield f"{name}: {chunk.file} holds {len(keys[chunk.file])} {part}, the root says {chunk.records}."
    if not whole:
        return  # said already; totals of what is left would only repeat it
    said = root.statistics
    for part, number in (("tombstones", said.tombstones), ("batches", said.batches), ("requests", said.requests)):
        actual = len(_folded(root.parts.get(part, ()), keys))
        if actual != number:
            yield f"{name}: its chunks hold {actual} {part} together, the root says {number}."
    if sum(said.states.values()) != said.batches:
        yield f"{name}: the root counts {sum(said.states.values())} batches by state, {said.batches} altogether."


def _summaries(opened: Opened, roots: Roots, keys: Mapping[str, Keys]) -> Iterator[str]:
    """What each snapshot's summary says, beside the files it points to."""

    @lru_cache(maxsize=4)
    def active(pointer: str | None) -> Keys | None:
        """None: not to be told, since something cannot be read."""
        if pointer is None:
            return frozenset()
        root = roots.found.get(pointer)
        if root is None or any(c.file not in keys for c in root.parts["tombstones"]):
            return None
        return _folded(root.parts["tombstones"], keys)

    for s in sorted(opened.facts.snapshots.values(), key=lambda s: s.sequence_number):
        if s.ledger is None:
            continue
        after = active(s.ledger)
        if after is None:
            continue
        expected = {names.TOMBSTONE_TOTAL: len(after)}
        if s.parent_id is None or s.parent_id in roots.pointer_of:
            before = active(roots.pointer_of[s.parent_id] if s.parent_id is not None else None)
            if before is not None:
                expected[names.TOMBSTONE_ADDED] = len(after - before)
                expected[names.TOMBSTONE_DELETED] = len(before - after)
        for key, actual in expected.items():
            if count(s.summary, key) != actual:
                yield f"snapshot {s.id}: {key} is {s.summary.get(key, 'missing')}, the files say {actual}."
        yield from _vacuum(opened, s)


def _vacuum(opened: Opened, snapshot: Snapshot) -> Iterator[str]:
    uri = snapshot.summary.get(names.TOMBSTONE_VACUUM_FILE)
    if uri is None:
        return
    folder, _, file = uri.rpartition("/")
    found = _keys(opened.table.io, folder, "tombstones", file)
    if isinstance(found, str):
        yield f"snapshot {snapshot.id}: {found}"
    elif count(snapshot.summary, names.TOMBSTONE_VACUUM_COUNT) != len(found):
        said = snapshot.summary.get(names.TOMBSTONE_VACUUM_COUNT, "missing")
        yield f"snapshot {snapshot.id}: {names.TOMBSTONE_VACUUM_COUNT} is {said}, {file} holds {len(found)}."


def _folded(chunks: tuple[Chunk, ...], keys: Mapping[str, Keys]) -> Keys:
    """The keys that chunks, oldest first, leave set."""
    entries, _ = fold((c.removes, dict.fromkeys(keys[c.file])) for c in chunks)
    return frozenset(entries)


def _needed_by(opened: Opened, roots: Roots, *pointers: str) -> str:
    wanted = frozenset(pointers)
    ids = sorted(i for i, p in roots.pointer_of.items() if p in wanted)
    if not ids:
        return "a ledger that no snapshot points to"
    head = " (one is the head)" if opened.facts.head_id in ids and len(ids) > 1 else ""
    few = ", ".join(map(str, ids[:3])) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
    return f"snapshot{'s' if len(ids) > 1 else ''} {few}{head}"

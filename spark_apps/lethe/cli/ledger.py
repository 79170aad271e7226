"""`lethe ledger`: shows, logs and verifies the ledgers of a table. I/O.

`show` and `log` read the ledger roots of retained snapshots; `verify` reads all entries of all ledgers, and compares them with
the roots and the snapshot summaries.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import click
from pyiceberg.io import FileIO

from lethe import ledger_store
from lethe.base import names
from lethe.base.errors import LedgerError
from lethe.cli import history
from lethe.cli.history import ChunkKeys, Layers, count
from lethe.cli.opening import Opened, open_table, table_or_dataset
from lethe.cli.output import (
    json_option,
    number_text,
    print_json,
    print_pairs,
    print_table,
    progress,
    time_text,
    working,
)
from lethe.ledger import format
from lethe.ledger.ledger import Carrier
from lethe.ledger.lineage import Snapshot, resolve
from lethe.ledger.root import PARTS, Chunk, Root
from lethe.ledger_chunks import read_file

PARALLEL_READS = 8


@dataclass(frozen=True)
class Roots:
    """The ledger roots of a table."""

    pointer_of: Mapping[int, str | None] = field(default_factory=dict)
    """Snapshot id -> URI of its root; None: empty ledger."""
    found: Mapping[str, Root] = field(default_factory=dict)
    """The roots that were read, by URI."""
    broken: Mapping[str, str] = field(default_factory=dict)
    """URI -> what is wrong with the root."""
    lost: Mapping[int, str] = field(default_factory=dict)
    """Snapshot id -> why its ledger is unknown."""
    vacuum_files: tuple[str, ...] = ()
    """URIs."""

    @property
    def files(self) -> frozenset[str]:
        """The names, without folder, of all files that the snapshots need: roots, chunks, and the files of vacuums."""
        chunks = {c.file for root in self.found.values() for part in root.parts.values() for c in part}
        return frozenset(map(name_of, (*self.found, *self.broken, *self.vacuum_files))) | chunks


def name_of(uri: str) -> str:
    """The part after the last slash: the name of a ledger file without its folder."""
    return uri.rpartition("/")[2]


def roots_of(opened: Opened, tick: Callable[[], object] = lambda: None) -> Roots:
    """Read the root of each retained snapshot's ledger; call `tick` after each."""
    facts = opened.facts
    own = dict.fromkeys(s.ledger for s in facts.snapshots.values() if s.ledger is not None)
    found, broken = _read(opened, own, tick)
    carriers = _carriers(opened)
    pointer_of: dict[int, str | None] = {}
    lost: dict[int, str] = {}
    for snapshot_id in facts.snapshots:
        try:
            pointer_of[snapshot_id] = resolve(
                facts.snapshots, snapshot_id, carriers, facts.name, facts.ledger_since
            ).pointer
        except LedgerError as e:
            lost[snapshot_id] = e.message
    further = dict.fromkeys(p for p in pointer_of.values() if p is not None and p not in own)
    more, also_broken = _read(opened, further, tick)
    vacuums = tuple(
        v for s in facts.snapshots.values() if (v := s.summary.get(names.TOMBSTONE_VACUUM_FILE)) is not None
    )
    return Roots(pointer_of, found | more, broken | also_broken, lost, vacuums)


def _read(
    opened: Opened, pointers: Iterable[str], tick: Callable[[], object]
) -> tuple[dict[str, Root], dict[str, str]]:
    def one(pointer: str) -> Root | LedgerError:
        try:
            return ledger_store.read_root(opened.table.io, opened.facts, pointer)
        except LedgerError as e:
            return e

    roots_by_file: dict[str, Root] = {}
    broken: dict[str, str] = {}
    root_uris = list(pointers)
    with ThreadPoolExecutor(PARALLEL_READS) as pool:
        for pointer, root in zip(root_uris, pool.map(one, root_uris), strict=True):
            if isinstance(root, LedgerError):
                broken[pointer] = root.message
            else:
                roots_by_file[pointer] = root
            tick()
    return roots_by_file, broken


def _carriers(opened: Opened) -> tuple[Carrier, ...]:
    """The carriers list of the newest ledger; () if it is unreadable, which `_read` reports."""
    try:
        return ledger_store.newest_carriers(opened.table.io, opened.facts)
    except LedgerError:
        return ()


@dataclass(frozen=True)
class Verified:
    """How much was verified, and one line for each problem."""

    snapshots: int
    ledgers: int
    files: int
    problems: tuple[str, ...]


def verify_ledgers(opened: Opened, roots: Roots, tick: Callable[[int], object]) -> Verified:
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
    uri, form = f"{folder}/{file}", format.FORMATS[part]
    try:
        entries = form.decode(read_file(io, uri))
    except LedgerError as e:
        return e.message
    except Exception as e:  # fastavro raises a dozen types for a damaged file
        return f"{uri} is not readable as {part} ({type(e).__name__})."
    keys = frozenset(form.key(e) for e in entries)
    if len(keys) != len(entries):
        return f"{uri} holds {len(entries)} {part} under {len(keys)} keys."
    texts = [form.text(k) for k in keys]
    return ChunkKeys(keys, min(texts, default=None), max(texts, default=None))


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
    keys = _keys(opened.table.io, folder, "tombstones", file)
    if isinstance(keys, str):
        yield f"snapshot {snapshot.id}: {keys}"
    elif count(snapshot.summary, names.TOMBSTONE_VACUUM_COUNT) != len(keys.keys):
        recorded = snapshot.summary.get(names.TOMBSTONE_VACUUM_COUNT, "missing")
        yield (
            f"snapshot {snapshot.id}: {names.TOMBSTONE_VACUUM_COUNT} is {recorded}, but {file} holds {len(keys.keys)}."
        )


def _needed_by(opened: Opened, roots: Roots, *pointers: str) -> str:
    pointer_set = frozenset(pointers)
    ids = sorted(i for i, p in roots.pointer_of.items() if p in pointer_set)
    if not ids:
        return "a ledger that no snapshot points to"
    head = " (one is the head)" if opened.facts.head_id in ids and len(ids) > 1 else ""
    few = ", ".join(map(str, ids[:3])) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
    return f"snapshot{'s' if len(ids) > 1 else ''} {few}{head}"


@click.group()
def ledger() -> None:
    """Inspect the ledgers of a table: active tombstones, batches, history."""


@ledger.command()
@table_or_dataset
@click.option("--snapshot", "snapshot_id", type=int, help="The ledger of this snapshot instead of the head.")
@json_option
def show(table: str, snapshot_id: int | None, as_json: bool, batch_column: str) -> None:
    """Show the counts of one ledger."""
    with working("loading the ledger"):
        shown = _shown(open_table(table, batch_column), snapshot_id)
    if as_json:
        print_json(shown)
        return
    batches = ", ".join(f"{n} {state}" for state, n in shown["batches"].items())
    chunks = ", ".join(f"{len(cs)} of {part}" for part, cs in shown["chunks"].items() if cs)
    bare = f"; bare snapshots: {shown['bare']}" if shown["bare"] else ""
    pairs = [
        ("table", shown["table"]),
        ("snapshot", str(shown["snapshotId"] or "none: the table is empty")),
        ("ledger", str(shown["ledger"] or "none: Lethe has deleted no rows")),
        ("carrier", f"snapshot {shown['carrierId']}{bare}" if shown["carrierId"] else f"none{bare}"),
        ("version", str(shown["version"])),
        ("tombstones", str(shown["tombstones"])),
        ("oldest", time_text(shown["oldestTombstoneTime"])),
        ("next evictBy", time_text(shown["nextEvictByTime"])),
        ("batches", batches or "none"),
        ("requests", str(shown["requests"])),
        ("erasures", str(shown["erasures"])),
        ("files", f"{chunks}: {shown['bytes']} bytes" if chunks else "none"),
    ]
    print_pairs(pairs)


def _shown(opened: Opened, snapshot_id: int | None) -> dict[str, Any]:
    loaded = opened.load_ledger(snapshot_id)
    root, ledger_ = loaded.root, loaded.ledger
    chunks = {p: [c.to_json() for c in root.parts.get(p, ())] if root else [] for p in PARTS}
    return {
        "table": opened.name,
        "snapshotId": opened.facts.head_id if snapshot_id is None else snapshot_id,
        "ledger": loaded.resolution.pointer,
        "carrierId": loaded.resolution.carrier_id,
        "bare": len(loaded.resolution.bare),
        "version": ledger_.version,
        "run": ledger_.pending_run or None,
        "tombstones": len(ledger_.tombstones),
        "oldestTombstoneTime": ledger_.oldest_added_on,
        "nextEvictByTime": ledger_.next_evict_by,
        "batches": {str(state): n for state, n in sorted(ledger_.states.items()) if n},
        "requests": len(ledger_.requests),
        "erasures": len(ledger_.open_erasures),
        "chunks": chunks,
        "bytes": sum(c["bytes"] for part in chunks.values() for c in part),
    }


@ledger.command()
@table_or_dataset
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="The largest number of snapshots to list.",
)
@click.option("--all", "everything", is_flag=True, help="List all, including staged snapshots and other branches.")
@json_option
def log(table: str, limit: int, everything: bool, as_json: bool, batch_column: str) -> None:
    """List snapshots, newest first, and how each changed the tombstones.

    Another writer committed a bare snapshot. Its ledger is that of the nearest older snapshot that is not bare.
    """
    facts = open_table(table, batch_column).facts
    lines = history.lines(facts.snapshots, facts.head_id, facts.refs, everything=everything)
    shown = lines if everything else lines[:limit]
    if as_json:
        print_json([_document(line) for line in shown])
        return
    print_table(
        ("TIME", "SNAPSHOT", "OPERATION", "RUN", "ID", "+", "-", "TOTAL", "VACUUMED", "REFS"),
        (
            (
                time_text(line.time),
                str(line.snapshot_id),
                line.operation,
                "(bare)" if line.bare else line.run_kind or "",
                line.run_id or "",
                number_text(line.added),
                number_text(line.deleted),
                number_text(line.total),
                number_text(line.vacuumed),
                ", ".join(line.refs),
            )
            for line in shown
        ),
        right=("SNAPSHOT", "+", "-", "TOTAL", "VACUUMED"),
        optional=("OPERATION", "VACUUMED", "TOTAL", "ID", "-", "+"),
    )
    if len(shown) < len(lines):
        click.echo(f"{len(shown)} of {len(lines)} snapshots. Use --limit to list more.", err=True)


def _document(line: history.SnapshotLine) -> dict[str, Any]:
    words = {"snapshot_id": "snapshotId", "run_kind": "runKind", "run_id": "runId"}
    return {words.get(k, k): v for k, v in asdict(line).items()}


@ledger.command()
@table_or_dataset
@click.pass_context
def verify(context: click.Context, table: str, batch_column: str) -> None:
    """Read all ledger files of all retained snapshots and compare them with their roots and with the snapshot summaries.

    Exit code 1 if there is a problem.
    """
    opened = open_table(table, batch_column)
    carried = sum(s.ledger is not None for s in opened.facts.snapshots.values())
    with progress() as bar:
        roots_bar = bar.add_task("roots", total=carried)
        roots = roots_of(opened, lambda: bar.advance(roots_bar))
        files_bar = bar.add_task("files", total=None)
        failures = verify_ledgers(
            opened, roots, lambda n: bar.update(files_bar, total=n) if n else bar.advance(files_bar)
        )
    for problem in failures.problems:
        click.echo(problem)
    verdict = f"{len(failures.problems)} problems" if failures.problems else "no problems"
    click.echo(
        f"{table}: {failures.snapshots} snapshots, {failures.ledgers} ledgers, {failures.files} files: {verdict}"
    )
    context.exit(1 if failures.problems else 0)

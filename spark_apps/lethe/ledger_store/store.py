"""Reading and writing ledgers beside a table, through PyIceberg's FileIO.

I/O. Files are immutable and lie under `<table location>/_tombstones/`; each attempt writes under names of its own, so a
failed attempt never harms a ledger that somebody reads. A commit writes what it changed, and now and then merges chunks.
"""

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.io import FileIO

from lethe.base import names
from lethe.base.errors import LedgerError
from lethe.iceberg.facts import TableFacts
from lethe.ledger import avro, merge
from lethe.ledger.erasure import purged_after
from lethe.ledger.ledger import EMPTY, Carrier, Delta, Ledger, changes, settled_batch, settled_request
from lethe.ledger.lineage import Resolution, line_of, resolve
from lethe.ledger.root import Chunk, Location, Root, decode_root
from lethe.ledger.summary import WrittenLedger
from lethe.ledger.tombstone import Tombstone
from lethe.ledger_store.chunks import ChunkedPart, ChunkReader, read_file
from lethe.uri import local_path

THRESHOLDS = merge.Thresholds()


@dataclass(frozen=True)
class Loaded:
    """A ledger, how it was found, and its root (None: the empty ledger)."""

    ledger: Ledger
    resolution: Resolution
    root: Root | None = None
    # What later readers need to know of snapshots that lost their ledger and were accepted with this one.
    accepted: tuple[Carrier, ...] = ()

    @property
    def carriers(self) -> tuple[Carrier, ...]:
        """The ledgers of snapshots that do not lead to one by themselves, as far as is known."""
        return (*self.ledger.carriers, *self.accepted)


def load(io: FileIO, facts: TableFacts, snapshot_id: int | None = None) -> Loaded:
    """The ledger of a snapshot, the head's when `snapshot_id` is None. Reads its root; its large parts when asked for.

    Raises: LedgerError (LedgerLost, LedgerMissing, LedgerUnreadable, LedgerTooNew, LedgerOfAnotherTable, LedgerOutside),
    here or when the ledger is asked: reading must stop then, since going on would show deleted rows.
    """
    start = facts.head_id if snapshot_id is None else snapshot_id
    since = facts.ledger_since
    try:
        resolution = resolve(facts.snapshots, start, (), facts.name, since)
    except LedgerError:
        # The walk ended at an expired parent: only now are the carriers of the newest ledger worth reading.
        resolution = resolve(facts.snapshots, start, newest_carriers(io, facts), facts.name, since)
    if resolution.pointer is None:
        return Loaded(EMPTY, resolution)
    with naming(facts, start):
        root = read_root(io, facts, resolution.pointer)
        return Loaded(_ledger(io, resolution.pointer, root, resolution.carrier_id), resolution, root)


def load_accepted(io: FileIO, facts: TableFacts, pointer: str) -> Loaded:
    """The ledger of a root, for a head that has lost its own: its snapshots have no carrier. Raises: LedgerError.

    They are listed under a number that no snapshot has, so that a reader of them finds this ledger, and takes any of their files
    for one that came after it.
    """
    assert facts.head_id is not None
    line = line_of(facts.snapshots, facts.head_id)
    with naming(facts, facts.head_id):
        root = read_root(io, facts, pointer)
        accepted = Carrier(-facts.head_id, 0, pointer, tuple(sorted(line)))
        return Loaded(_ledger(io, pointer, root, None), Resolution(None, None, line), root, (accepted,))


def load_root(io: FileIO, facts: TableFacts, pointer: str, carrier_id: int | None) -> Ledger:
    """The ledger of a root that some snapshot, retained or not, once pointed to. Raises: LedgerError.

    Args:
        carrier_id: That snapshot, for entries that do not name one.
    """
    return _ledger(io, pointer, read_root(io, facts, pointer), carrier_id)


@contextmanager
def naming(facts: TableFacts, snapshot_id: int | None) -> Iterator[None]:
    """Let what is wrong with a ledger file also say of which table and snapshot it is."""
    try:
        yield
    except LedgerError as e:
        raise LedgerError(e.reason, f"{facts.name}, snapshot {snapshot_id}: {e.message}") from e


def read_root(io: FileIO, facts: TableFacts, pointer: str) -> Root:
    folder = ledger_folder(facts.location)
    if local_path(pointer).rpartition("/")[0] != local_path(folder):
        raise LedgerError("LedgerOutside", f"the ledger {pointer} does not lie in {folder}.")
    return decode_root(read_file(io, pointer), pointer, facts.uuid)


def ledger_folder(location: str) -> str:
    return f"{location.rstrip('/')}/{names.LEDGER_FOLDER}"


def newest_carriers(io: FileIO, facts: TableFacts) -> tuple[Carrier, ...]:
    """The carriers list of the table's newest ledger, whichever lineage that is on."""
    carried = [s for s in facts.snapshots.values() if s.ledger is not None]
    if not carried:
        return ()
    newest = max(carried, key=lambda s: s.sequence_number)
    assert newest.ledger is not None
    return _ledger(io, newest.ledger, read_root(io, facts, newest.ledger), newest.id).carriers


def read_tombstones(io: FileIO, facts: TableFacts, uri: str) -> list[Tombstone]:
    """A file of tombstones that a summary names, such as a vacuum's. Raises: LedgerError."""
    if local_path(uri).rpartition("/")[0] != local_path(ledger_folder(facts.location)):
        raise LedgerError("LedgerOutside", f"the file {uri} does not lie in {ledger_folder(facts.location)}.")
    content = read_file(io, uri)
    try:
        return avro.TOMBSTONES.decode(content)
    except Exception as e:
        raise LedgerError(
            "LedgerUnreadable", f"{uri} is not readable as tombstones ({type(e).__name__}): restore the file."
        ) from e


def write(
    io: FileIO,
    facts: TableFacts,
    base: Loaded,
    delta: Delta,
    carriers: tuple[Carrier, ...] = (),
    vacuumed: Collection[Tombstone] | None = None,
) -> WrittenLedger:
    """Write the ledger that `delta` makes of `base`. Nothing points to it until a snapshot does.

    Time and bytes are those of the change, amortised, not those of the ledger.
    """
    made = changes(base.ledger, delta)
    version = base.ledger.version + 1
    out = _Writer(io, ledger_folder(facts.location), f"{version:08d}-{delta.run[:12]}-{uuid.uuid4().hex[:8]}")
    live = made.statistics
    before = base.ledger
    parts = {
        "tombstones": out.merged(
            "tombstones", _readers(before.tombstones), made.tombstones, made.untombstoned, live.tombstones
        ),
        "batches": out.merged("batches", _readers(before.batches), made.batches, made.forgotten, live.batches),
        "requests": out.merged("requests", _readers(before.requests), made.requests, {}, live.requests),
        "erasures": _named(base.root, "erasures")
        if made.erasures == before.erasures
        else out.whole("erasures", made.erasures),
        "carriers": _named(base.root, "carriers") if carriers == before.carriers else out.whole("carriers", carriers),
        "purged-files": out.purged_files(base, delta),
    }
    settled = base.resolution.carrier_id
    for name in ("batches", "requests"):
        parts[name] = tuple(
            replace(c, snapshot_id=settled) if c.snapshot_id is None and c.file not in out.contents else c
            for c in parts[name]
        )
    vacuum_file = out.add("vacuumed", avro.TOMBSTONES.encode(vacuumed).content) if vacuumed is not None else None
    root_uri = out.finish(Root(facts.uuid, version, delta.run, parts, live, _locations(base.root, facts)))
    tombstones = parts["tombstones"]
    only = tombstones[0].file if len(tombstones) == 1 and not tombstones[0].removes else None
    return WrittenLedger(
        root=root_uri,
        tombstones=f"{out.folder}/{only}" if only else root_uri,
        added=made.added,
        deleted=made.deleted,
        total=live.tombstones,
        vacuumed=f"{out.folder}/{vacuum_file}" if vacuum_file else None,
        vacuumed_count=len(vacuumed) if vacuumed is not None else 0,
    )


class _Writer:
    """Collects the files of one ledger and writes them, the root last: it never names a part that is not there."""

    def __init__(self, io: FileIO, folder: str, stem: str) -> None:
        self.io = io
        self.folder = folder
        self.stem = stem
        self.contents: dict[str, bytes] = {}

    def add(self, kind: str, content: bytes) -> str:
        """Returns the file's name."""
        taken = sum(n.startswith(f"{self.stem}-{kind}") for n in self.contents)
        name = f"{self.stem}-{kind}{f'-{taken}' if taken else ''}.avro"
        self.contents[name] = content
        return name

    def merged(
        self,
        name: str,
        chunks: Sequence[ChunkReader[Any, Any]],
        entries: Mapping[Any, Any],
        removed: Mapping[Any, Any],
        live: int,
    ) -> tuple[Chunk, ...]:
        """The chunks of a large part after a change: most of those before, and what was changed or merged."""
        known = tuple(c.chunk for c in chunks)
        if not entries and not removed and (known or name != "tombstones"):
            return known
        stay = merge.kept(known, len(entries) + len(removed), live, THRESHOLDS)
        layers: list[tuple[bool, Mapping[Any, Any]]] = []
        if live or stay:
            layers = [(c.chunk.removes, c.entries()) for c in chunks[stay:]]
        set_, gone = merge.fold([*layers, (True, removed), (False, entries)])
        new = list(known[:stay])
        if gone and stay:
            new += self.chunks(name, list(gone.values()), removes=True)
        if set_ or (name == "tombstones" and not new):
            new += self.chunks(name, list(set_.values()))
        if stay == 0 and len(set_) != live:
            raise LedgerError(
                "LedgerUnreadable",
                f"{self.folder}: the ledger's chunks hold {len(set_)} {name}, its root says {live}: restore its files, or "
                "roll the table back.",
            )
        return tuple(new)

    def whole(self, name: str, entries: Sequence[Any]) -> tuple[Chunk, ...]:
        """A small part, written anew."""
        return self.chunks(name, entries) if entries else ()

    def purged_files(self, base: Loaded, delta: Delta) -> tuple[Chunk, ...]:
        """Written anew when an erasure comes a step further, which is seldom."""
        if not delta.set_purged_files and not delta.forget_purged_files:
            return _named(base.root, "purged-files")
        made = purged_after(base.ledger.purged_files, delta.set_purged_files, delta.forget_purged_files)
        return self.whole("purged-files", list(made.values()))

    def chunks(self, name: str, entries: Sequence[Any], removes: bool = False) -> tuple[Chunk, ...]:
        """Entries as files of at most the cap, sorted by key."""
        format = avro.FORMATS[name]
        keyed = sorted(((format.text(format.key(e)), e) for e in entries), key=lambda pair: pair[0])
        found: list[Chunk] = []
        for start in range(0, max(1, len(keyed)), THRESHOLDS.cap):
            piece = keyed[start : start + THRESHOLDS.cap]
            encoded = format.encode([e for _, e in piece])
            file = self.add(f"{name}-removed" if removes else name, encoded.content)
            lower, upper = (piece[0][0], piece[-1][0]) if piece else (None, None)
            found.append(Chunk(file, len(piece), len(encoded.content), removes, lower, upper, encoded.header_bytes))
        return tuple(found)

    def finish(self, root: Root) -> str:
        """Write everything. Returns the root's URI."""
        with ThreadPoolExecutor(max_workers=4) as pool:
            list(pool.map(lambda item: self._create(*item), self.contents.items()))
        name = f"{self.stem}-root.json"
        self._create(name, root.encode())
        return f"{self.folder}/{name}"

    def _create(self, name: str, content: bytes) -> None:
        with self.io.new_output(f"{self.folder}/{name}").create(overwrite=False) as stream:
            stream.write(content)


# What is filled into an entry when it is read: the snapshot of the commit that wrote it.
_FINISH: Mapping[str, Callable[[Any, int | None], Any]] = {"batches": settled_batch, "requests": settled_request}


def _ledger(io: FileIO, pointer: str, root: Root, carrier_id: int | None) -> Ledger:
    folder = pointer.rpartition("/")[0]
    statistics = root.statistics

    def part(name: str, count: int) -> ChunkedPart[Any, Any]:
        finish = _FINISH.get(name, lambda entry, _: entry)
        readers = [
            ChunkReader(
                io,
                folder,
                chunk,
                avro.FORMATS[name],
                lambda entry, own=chunk.snapshot_id: finish(entry, carrier_id if own is None else own),  # type: ignore[misc]
            )
            for chunk in root.parts[name]
        ]
        return ChunkedPart(readers, count, name)

    return Ledger(
        version=root.ledger_version,
        pending_run=root.run,
        tombstones=part("tombstones", statistics.tombstones),
        batches=part("batches", statistics.batches),
        requests=part("requests", statistics.requests),
        erasures=tuple(part("erasures", sum(c.records for c in root.parts["erasures"])).values()),
        carriers=tuple(part("carriers", sum(c.records for c in root.parts["carriers"])).values()),
        purged_files=part("purged-files", sum(c.records for c in root.parts["purged-files"])),
        recorded=statistics,
    )


def _named(root: Root | None, name: str) -> tuple[Chunk, ...]:
    """The chunks of a part that did not change: named again, not written again."""
    return () if root is None else tuple(root.parts[name])


def _locations(root: Root | None, facts: TableFacts) -> tuple[Location, ...]:
    """Where the table's files lay so far, and lie now."""
    known = root.locations if root is not None else ()
    now = (facts.location, {k: v for k, v in facts.properties.items() if k in names.LOCATION_PROPERTIES})
    return known if now in known else (*known, now)


def _readers(part: Mapping[Any, Any]) -> tuple[ChunkReader[Any, Any], ...]:
    """The chunks that a part was read from; the empty ledger has none."""
    if isinstance(part, ChunkedPart):
        return part.chunks
    assert not part, "a ledger is written on one that was loaded"
    return ()

"""Loads and writes the ledgers of a table, through PyIceberg's FileIO. I/O.

Files are immutable, in `<table location>/_tombstones/`, and cached as long as the ledger is used. Each attempt writes files with
new names, so a failed attempt never affects a ledger in use. A commit writes its changes, and sometimes merges chunks.
"""

import uuid
from collections.abc import (
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.io import FileIO

from lethe.base import names
from lethe.base.errors import LedgerError
from lethe.iceberg.facts import TableFacts
from lethe.ledger import format as ledger_format
from lethe.ledger import overlay
from lethe.ledger.ledger import (
    EMPTY,
    Carrier,
    Delta,
    Ledger,
    resolve_delta,
    settled_batch,
    settled_request,
)
from lethe.ledger.lineage import Resolution, WrittenLedger, line_of, resolve
from lethe.ledger.root import Chunk, Location, Root, decode_root
from lethe.ledger.tombstone import Tombstone, purged_after
from lethe.ledger_chunks import ChunkedPart, ChunkReader, read_file
from lethe.uri import local_path

THRESHOLDS = overlay.Thresholds()

_FINISH: Mapping[str, Callable[[Any, int | None], Any]] = {"batches": settled_batch, "requests": settled_request}
"""Sets the snapshot id of an entry when it is read."""


@dataclass(frozen=True)
class Loaded:
    """A loaded ledger."""

    ledger: Ledger
    resolution: Resolution
    """How the ledger was found."""
    root: Root | None = None
    """The root of the ledger; None: the empty ledger."""
    accepted: tuple[Carrier, ...] = ()
    """Carriers for snapshots that lost their ledger and continue with this one."""

    @property
    def carriers(self) -> tuple[Carrier, ...]:
        """All known carriers of snapshots whose own ancestors do not lead to a ledger."""
        return (*self.ledger.carriers, *self.accepted)


def load(io: FileIO, facts: TableFacts, snapshot_id: int | None = None) -> Loaded:
    """Load the ledger of a snapshot; None: of the head. Reads its root now, and its large parts when they are used.

    The caller must then stop reading, because going on would show deleted rows.

    Raises:
        LedgerError: LedgerLost, LedgerMissing, LedgerUnreadable, LedgerTooNew, LedgerOfAnotherTable, LedgerOutside, here or
            when the ledger is used.
    """
    start = facts.head_id if snapshot_id is None else snapshot_id
    since = facts.ledger_since
    try:
        resolution = resolve(facts.snapshots, start, (), facts.name, since)
    except LedgerError:
        # The walk ended at an expired parent: only now read the carriers of the newest ledger.
        resolution = resolve(facts.snapshots, start, newest_carriers(io, facts), facts.name, since)
    if resolution.pointer is None:
        return Loaded(EMPTY, resolution)
    with naming(facts, start):
        root = read_root(io, facts, resolution.pointer)
        return Loaded(ledger_of(io, resolution.pointer, root, resolution.carrier_id), resolution, root)


def load_accepted(io: FileIO, facts: TableFacts, pointer: str) -> Loaded:
    """Load the ledger of a root for a head that has lost its ledger, so that its snapshots have no carrier.

    Raises:
        LedgerError: A ledger file is unusable.

    These snapshots get a carrier with an id that no snapshot has, so that readers find this ledger and treat all their files as
    added after it.
    """
    assert facts.head_id is not None
    line = line_of(facts.snapshots, facts.head_id)
    with naming(facts, facts.head_id):
        root = read_root(io, facts, pointer)
        accepted = Carrier(-facts.head_id, 0, pointer, tuple(sorted(line)))
        return Loaded(ledger_of(io, pointer, root, None), Resolution(None, None, line), root, (accepted,))


def load_root(io: FileIO, facts: TableFacts, pointer: str, carrier_id: int | None) -> Ledger:
    """Load the ledger of a root to which a snapshot, retained or not, pointed.

    Raises:
        LedgerError: A ledger file is unusable.

    Args:
        carrier_id: That snapshot, for entries without a snapshot id.
    """
    return ledger_of(io, pointer, read_root(io, facts, pointer), carrier_id)


@contextmanager
def naming(facts: TableFacts, snapshot_id: int | None) -> Iterator[None]:
    """Add the table and the snapshot to the message of a LedgerError."""
    try:
        yield
    except LedgerError as e:
        raise LedgerError(e.reason, f"{facts.name}, snapshot {snapshot_id}: {e.message}") from e


def read_root(io: FileIO, facts: TableFacts, pointer: str) -> Root:
    """Read the root that a snapshot of the table points to. Nothing outside of the table's ledger folder is read.

    Raises:
        LedgerError: LedgerOutside, LedgerMissing, LedgerUnreadable, LedgerTooNew, LedgerOfAnotherTable.
    """
    folder = ledger_folder(facts.location)
    if local_path(pointer).rpartition("/")[0] != local_path(folder):
        raise LedgerError("LedgerOutside", f"the ledger {pointer} is not in {folder}.")
    return decode_root(read_file(io, pointer), pointer, facts.uuid)


def ledger_folder(location: str) -> str:
    """The URI of the folder with all ledger files of a table at this location, without a slash at its end."""
    return f"{location.rstrip('/')}/{names.LEDGER_FOLDER}"


def newest_carriers(io: FileIO, facts: TableFacts) -> tuple[Carrier, ...]:
    """The carriers list of the table's newest ledger, on any lineage."""
    carried = [s for s in facts.snapshots.values() if s.ledger is not None]
    if not carried:
        return ()
    newest = max(carried, key=lambda s: s.sequence_number)
    assert newest.ledger is not None
    return ledger_of(io, newest.ledger, read_root(io, facts, newest.ledger), newest.id).carriers


def read_tombstones(io: FileIO, facts: TableFacts, uri: str) -> list[Tombstone]:
    """Read a file of tombstones that a summary names, such as that of a vacuum.

    Raises:
        LedgerError: A ledger file is unusable.
    """
    if local_path(uri).rpartition("/")[0] != local_path(ledger_folder(facts.location)):
        raise LedgerError("LedgerOutside", f"the file {uri} is not in {ledger_folder(facts.location)}.")
    content = read_file(io, uri)
    try:
        return ledger_format.TOMBSTONES.decode(content)
    except Exception as e:
        raise LedgerError(
            "LedgerUnreadable", f"{uri} is not a readable file of tombstones ({type(e).__name__}). Restore the file."
        ) from e


def write(
    io: FileIO,
    facts: TableFacts,
    base: Loaded,
    delta: Delta,
    carriers: tuple[Carrier, ...] = (),
    vacuumed: Collection[Tombstone] | None = None,
) -> WrittenLedger:
    """Write the ledger that results from `delta` on `base`. It has no effect until a snapshot points to it.

    Time and bytes depend on the change, amortised, not on the size of the ledger.
    """
    made = resolve_delta(base.ledger, delta)
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
    vacuum_file = (
        out.add("vacuumed", ledger_format.TOMBSTONES.encode(vacuumed).content) if vacuumed is not None else None
    )
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
    """Collects the files of one ledger and writes them. The root is written last, so that it never names a missing file."""

    def __init__(self, io: FileIO, folder: str, stem: str) -> None:
        self.io = io
        self.folder = folder
        self.stem = stem
        self.contents: dict[str, bytes] = {}

    def add(self, kind: str, content: bytes) -> str:
        """Add a file. Returns its name."""
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
        """The chunks of a large part after a change: the chunks that stay, and new ones with changed or merged entries."""
        existing = tuple(c.chunk for c in chunks)
        if not entries and not removed and (existing or name != "tombstones"):
            return existing
        stay = overlay.kept(existing, len(entries) + len(removed), live, THRESHOLDS)
        layers: list[tuple[bool, Mapping[Any, Any]]] = []
        if live or stay:
            layers = [(c.chunk.removes, c.entries()) for c in chunks[stay:]]
        set_, gone = overlay.fold([*layers, (True, removed), (False, entries)])
        new = list(existing[:stay])
        if gone and stay:
            new += self.chunks(name, list(gone.values()), removes=True)
        if set_ or (name == "tombstones" and not new):
            new += self.chunks(name, list(set_.values()))
        if stay == 0 and len(set_) != live:
            raise LedgerError(
                "LedgerUnreadable",
                f"{self.folder}: the ledger's chunks hold {len(set_)} {name}; its root says {live}. Restore its files, or "
                "roll the table back.",
            )
        return tuple(new)

    def whole(self, name: str, entries: Sequence[Any]) -> tuple[Chunk, ...]:
        """Write a small part completely."""
        return self.chunks(name, entries) if entries else ()

    def purged_files(self, base: Loaded, delta: Delta) -> tuple[Chunk, ...]:
        """Written completely when an erasure progresses, which is rare."""
        if not delta.set_purged_files and not delta.forget_purged_files:
            return _named(base.root, "purged-files")
        made = purged_after(base.ledger.purged_files, delta.set_purged_files, delta.forget_purged_files)
        return self.whole("purged-files", list(made.values()))

    def chunks(self, name: str, entries: Sequence[Any], removes: bool = False) -> tuple[Chunk, ...]:
        """Add the entries as files of at most `cap` entries, sorted by key."""
        format = ledger_format.FORMATS[name]
        keyed = sorted(((format.text(format.key(e)), e) for e in entries), key=lambda pair: pair[0])
        chunks_read: list[Chunk] = []
        for start in range(0, max(1, len(keyed)), THRESHOLDS.cap):
            piece = keyed[start : start + THRESHOLDS.cap]
            encoded = format.encode([e for _, e in piece])
            file = self.add(f"{name}-removed" if removes else name, encoded.content)
            lower, upper = (piece[0][0], piece[-1][0]) if piece else (None, None)
            chunks_read.append(
                Chunk(file, len(piece), len(encoded.content), removes, lower, upper, encoded.header_bytes)
            )
        return tuple(chunks_read)

    def finish(self, root: Root) -> str:
        """Write all files. Returns the URI of the root."""
        with ThreadPoolExecutor(max_workers=4) as pool:
            list(pool.map(lambda item: self._create(*item), self.contents.items()))
        name = f"{self.stem}-root.json"
        self._create(name, root.encode())
        return f"{self.folder}/{name}"

    def _create(self, name: str, content: bytes) -> None:
        # The name is new, so whether there is such a file is not asked first.
        with self.io.new_output(f"{self.folder}/{name}").create(overwrite=True) as stream:
            stream.write(content)


def ledger_of(io: FileIO, pointer: str, root: Root, carrier_id: int | None) -> Ledger:
    """The ledger of a root that was read.

    Args:
        pointer: URI of the root.
        carrier_id: As for `load_root`.

    Raises:
        LedgerError: Here or when the ledger is used.
    """
    folder = pointer.rpartition("/")[0]
    statistics = root.statistics

    def part(name: str, count: int) -> ChunkedPart[Any, Any]:
        finish = _FINISH.get(name, lambda entry, _: entry)
        readers = [
            ChunkReader(
                io,
                folder,
                chunk,
                ledger_format.FORMATS[name],
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
    """The chunks of a part that did not change. They are not written again."""
    return () if root is None else tuple(root.parts[name])


def _locations(root: Root | None, facts: TableFacts) -> tuple[Location, ...]:
    """All locations of the table until now, and the current one."""
    recorded = root.locations if root is not None else ()
    now = (facts.location, {k: v for k, v in facts.properties.items() if k in names.LOCATION_PROPERTIES})
    return recorded if now in recorded else (*recorded, now)


def _readers(part: Mapping[Any, Any]) -> tuple[ChunkReader[Any, Any], ...]:
    """The chunks that a part was read from. The empty ledger has none."""
    if isinstance(part, ChunkedPart):
        return part.chunks
    assert not part, "the base of a written ledger must be a loaded ledger"
    return ()

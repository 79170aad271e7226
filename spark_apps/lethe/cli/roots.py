"""Reads the ledger root of every retained snapshot. I/O."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from lethe.base import names
from lethe.base.errors import LedgerError
from lethe.cli.opening import Opened
from lethe.ledger.ledger import Carrier
from lethe.ledger.lineage import resolve
from lethe.ledger.root import Root
from lethe.ledger_store import store as ledger_store

PARALLEL_READS = 8


@dataclass(frozen=True)
class Roots:
    """The ledger roots of a table."""

    pointer_of: Mapping[int, str | None] = field(
        default_factory=dict
    )  # snapshot id -> URI of its root; None: empty ledger
    found: Mapping[str, Root] = field(default_factory=dict)  # by URI
    broken: Mapping[str, str] = field(default_factory=dict)  # URI -> what is wrong with the root
    lost: Mapping[int, str] = field(default_factory=dict)  # snapshot id -> why its ledger is unknown
    vacuum_files: tuple[str, ...] = ()  # URIs

    @property
    def files(self) -> frozenset[str]:
        """The names, without folder, of all files that the snapshots need: roots, chunks, and the files of vacuums."""
        chunks = {c.file for root in self.found.values() for part in root.parts.values() for c in part}
        return frozenset(map(name_of, (*self.found, *self.broken, *self.vacuum_files))) | chunks


def name_of(uri: str) -> str:
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

    found: dict[str, Root] = {}
    broken: dict[str, str] = {}
    wanted = list(pointers)
    with ThreadPoolExecutor(PARALLEL_READS) as pool:
        for pointer, root in zip(wanted, pool.map(one, wanted), strict=True):
            if isinstance(root, LedgerError):
                broken[pointer] = root.message
            else:
                found[pointer] = root
            tick()
    return found, broken


def _carriers(opened: Opened) -> tuple[Carrier, ...]:
    """The carriers list of the newest ledger; () if it is unreadable, which `_read` reports."""
    try:
        return ledger_store.newest_carriers(opened.table.io, opened.facts)
    except LedgerError:
        return ()

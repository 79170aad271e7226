"""The ledger of every retained snapshot at once: which root each has, and which roots cannot be told or read. I/O."""

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

AT_ONCE = 8  # requests to the storage


@dataclass(frozen=True)
class Roots:
    """`pointer_of`: snapshot id -> URI of the root of its ledger, None for the empty one. `found`: pointer -> root.
    `broken`: pointer -> what is wrong with the root. `lost`: snapshot id -> why its ledger cannot be told."""

    pointer_of: Mapping[int, str | None] = field(default_factory=dict)
    found: Mapping[str, Root] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[int, str] = field(default_factory=dict)
    vacuum_files: tuple[str, ...] = ()

    @property
    def files(self) -> frozenset[str]:
        """The names of every file that they need, without its folder: roots, chunks, and the files of vacuums."""
        chunks = {c.file for root in self.found.values() for part in root.parts.values() for c in part}
        return frozenset(map(name_of, (*self.found, *self.broken, *self.vacuum_files))) | chunks


def name_of(uri: str) -> str:
    return uri.rpartition("/")[2]


def roots_of(opened: Opened, tick: Callable[[], object] = lambda: None) -> Roots:
    """Read the root of each ledger that a retained snapshot has; `tick` is called after each."""
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
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for pointer, root in zip(wanted, pool.map(one, wanted), strict=True):
            if isinstance(root, LedgerError):
                broken[pointer] = root.message
            else:
                found[pointer] = root
            tick()
    return found, broken


def _carriers(opened: Opened) -> tuple[Carrier, ...]:
    """The carriers list of the newest ledger; () when that cannot be read, which is told of it elsewhere."""
    try:
        return ledger_store.newest_carriers(opened.table.io, opened.facts)
    except LedgerError:
        return ()

"""The ledger of a table at a snapshot, and a change to it. Pure: nothing is mutated.

Each snapshot that Lethe commits points to a ledger: the active tombstones, all batches that were ever promoted, reverted or
refused, the restatements, the open erasures, and the carriers of retained bare snapshots. Its large parts are mappings, which
`lethe.ledger_store` reads piece by piece.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from lethe.base.errors import Verdict
from lethe.base.objects import BufferedObject
from lethe.ledger.root import Statistics
from lethe.ledger.tombstone import Erasure, PurgedFile, Tombstone, merged, purged_after

K = TypeVar("K")
V = TypeVar("V")

Interval: TypeAlias = tuple[str | None, str | None]
"""A range of ids. Both ends are inclusive; None: open."""

_EMPTY: Mapping[Any, Any] = MappingProxyType({})


@runtime_checkable
class LedgerPart(Protocol):
    """A mapping in files: `len`, `in` and get are cheap; iterating reads everything.

    Any Mapping is a part. One that can look up many keys, or a range of keys, with less reading has these methods.
    """

    def get_many(self, keys: Iterable) -> dict:
        """Look up many keys with fewer reads than one by one; keys that the part does not have are left out."""

    def within(self, intervals: Sequence[Interval]) -> list:
        """The values whose keys are in one of the intervals, in any order. Reads only files that may have some."""

    def apart(self) -> Mapping:
        """A copy for another thread: it shares no mutable state and caches no answers."""


def get_many(mapping: Mapping[K, V], keys: Iterable[K]) -> dict[K, V]:
    """The values of those keys that the mapping has."""
    if isinstance(mapping, LedgerPart):
        return mapping.get_many(keys)
    return {k: mapping[k] for k in keys if k in mapping}


def apart(mapping: Mapping[K, V]) -> Mapping[K, V]:
    """A copy of the part for looking up very many keys in another thread: it shares no mutable state and caches no answers."""
    return mapping.apart() if isinstance(mapping, LedgerPart) else mapping


def within(mapping: Mapping[K, V], intervals: Sequence[Interval], text: Callable[[K], str]) -> list[V]:
    """The values whose keys are in one of the intervals. `text` gives the text of a key."""
    if isinstance(mapping, LedgerPart):
        return mapping.within(intervals)
    ranges = Ranges(intervals)
    return [v for k, v in mapping.items() if text(k) in ranges]


class Ranges:
    """A set of intervals, searched in O(log n)."""

    def __init__(self, intervals: Iterable[Interval]) -> None:
        self.intervals = _united(intervals)
        self._lowers = [lo or "" for lo, _ in self.intervals]  # nothing sorts before the empty text

    def __contains__(self, text: str) -> bool:
        index = bisect_right(self._lowers, text) - 1
        if index < 0:
            return False
        upper = self.intervals[index][1]
        return upper is None or text <= upper

    @property
    def is_everything(self) -> bool:
        """Whether the intervals together contain every text."""
        return self.intervals == ((None, None),)


def _united(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """The ranges as disjoint intervals, in order."""
    found: list[Interval] = []
    for lo, hi in sorted(intervals, key=lambda i: (i[0] is not None, i[0] or "")):
        if found:
            last_lo, last_hi = found[-1]
            if last_hi is None:
                break
            if lo is None or lo <= last_hi:
                found[-1] = (last_lo, None if hi is None else max(last_hi, hi))
                continue
        found.append((lo, hi))
    return tuple(found)


class BatchState(StrEnum):
    """What became of a batch that the ledger knows. Of these, only a refused and a held one may still be promoted."""

    PROMOTED = "promoted"
    REVERTED = "reverted"
    REPLACED = "replaced"
    ERASED = "erased"
    REFUSED = "refused"
    HELD = "held"
    """It failed a check, and stays in the buffer until a person approves or reverts it."""


@dataclass(frozen=True)
class BatchEntry:
    """What the ledger keeps of a batch, for ever, because its id is never reused."""

    id: str
    state: BatchState
    run: str
    """The run that set this state."""
    time: datetime
    restatement: str | None = None
    """Key of the request that reverted, replaced, added or approved it; None: none did."""
    replaced_by: str | None = None
    """The id of the batch that replaced it; None: not replaced."""
    rows: int | None = None
    """The number of its rows; None: unknown, because Lethe did not promote it."""
    bytes: int | None = None
    """The size of its rows; None: unknown."""
    snapshot_id: int | None = None
    """The snapshot of the commit that promoted it; filled in when it is read."""
    objects: tuple[BufferedObject, ...] = ()
    refusal: Verdict | None = None
    """Why it was refused or held; None: neither."""
    partitions: tuple[str, ...] | None = None
    """The partitions that its rows may be in, as `lethe.files.bounds` writes them; None: any."""
    evict_by: datetime | None = None
    """When the bytes of a deleted batch must be gone; None: no deadline."""
    registered: bool = False
    """Its objects are data files of the table, so retention does not delete them."""
    reference: str | None = None
    """The id of the run of another program that delivered it, as the producer named it; None: it named none."""

    @property
    def blocks_promotion(self) -> bool:
        """Whether it is promoted already, or was reverted, perhaps before it was promoted."""
        return self.state not in (BatchState.REFUSED, BatchState.HELD)

    @property
    def is_approved(self) -> bool:
        """Whether it is held, and a person has approved these objects."""
        return self.state is BatchState.HELD and self.restatement is not None


@dataclass(frozen=True)
class RequestEntry:
    """The result of one Restatement."""

    key: str
    """Request key."""
    run: str
    time: datetime
    result: Mapping[str, Any]
    """A RequestResult as JSON values."""


@dataclass(frozen=True)
class Carrier:
    """A snapshot whose ledger is that of retained bare snapshots. The list is kept because the carrier itself may expire."""

    snapshot_id: int
    sequence_number: int
    ledger: str
    """URI of its root."""
    bare: tuple[int, ...] = ()
    """These bare snapshots; the carrier says nothing about others."""


@dataclass(frozen=True)
class Ledger:
    """A ledger. Its mappings may be in files: `len`, `in` and get are cheap, iterating reads everything."""

    version: int = 0
    """The number of Lethe's commits in this lineage."""
    pending_run: str = ""
    """The run that wrote it."""
    tombstones: Mapping[tuple[int, str], Tombstone] = field(default_factory=lambda: _EMPTY)
    batches: Mapping[str, BatchEntry] = field(default_factory=lambda: _EMPTY)
    requests: Mapping[str, RequestEntry] = field(default_factory=lambda: _EMPTY)
    erasures: tuple[Erasure, ...] = ()
    carriers: tuple[Carrier, ...] = ()
    purged_files: Mapping[str, PurgedFile] = field(default_factory=lambda: _EMPTY)
    """The files to delete from the storage, by path."""
    recorded: Statistics | None = field(default=None, compare=False)
    """The statistics that are stored with the ledger; None: compute them."""

    @property
    def open_erasures(self) -> tuple[Erasure, ...]:
        """The erasures that are not verified."""
        return tuple(e for e in self.erasures if e.is_open)

    @property
    def unpurged_erasures(self) -> tuple[Erasure, ...]:
        """The open erasures of which the table's data files may hold rows."""
        return tuple(e for e in self.open_erasures if not e.is_purged)

    def ids(self, field_id: int) -> frozenset[str]:
        """All tombstoned values of one column."""
        return frozenset(t.id for t in self.tombstones.values() if t.namespace == field_id)

    def tombstones_within(self, field_id: int, intervals: Sequence[Interval]) -> list[Tombstone]:
        """The tombstones of one column whose ids are in one of the intervals (ends inclusive, None open)."""
        tombstones = within(self.tombstones, intervals, lambda key: key[1])
        return [t for t in tombstones if t.namespace == field_id]

    @property
    def statistics(self) -> Statistics:
        """The statistics that are stored with the ledger. If nothing is stored, each access reads the whole ledger and counts."""
        return self.recorded if self.recorded is not None else counted(self)

    @property
    def states(self) -> Mapping[str, int]:
        """The number of batches in each state."""
        return self.statistics.states

    @property
    def oldest_added_on(self) -> datetime | None:
        """When the oldest active tombstone was set; None: there is none."""
        return self.statistics.oldest_added_on

    @property
    def next_evict_by(self) -> datetime | None:
        """The earliest deadline of the active tombstones; None: there is none."""
        return self.statistics.next_evict_by


EMPTY = Ledger()


@dataclass(frozen=True)
class Delta:
    """A change to a ledger. It is valid only for the ledger that it was planned on. Erasures are named by their restatement."""

    run: str
    add_tombstones: tuple[Tombstone, ...] = ()
    remove_tombstones: frozenset[tuple[int, str]] = frozenset()
    set_batches: tuple[BatchEntry, ...] = ()
    set_requests: tuple[RequestEntry, ...] = ()
    forget_batches: frozenset[str] = frozenset()
    set_erasures: tuple[Erasure, ...] = ()
    close_erasures: frozenset[str] = frozenset()
    set_purged_files: tuple[PurgedFile, ...] = ()
    forget_purged_files: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether it changes no entry. Its `run` does not count."""
        return not (
            self.add_tombstones
            or self.remove_tombstones
            or self.set_batches
            or self.set_requests
            or self.forget_batches
            or self.set_erasures
            or self.close_erasures
            or self.set_purged_files
            or self.forget_purged_files
        )

    def then(self, other: "Delta") -> "Delta":
        """One change with the effect of this change and then of `other`, which was planned on the result of this one."""
        tombstones = [t for t in self.add_tombstones if t.key not in other.remove_tombstones]
        batches = {b.id: b for b in self.set_batches if b.id not in other.forget_batches}
        batches |= {b.id: b for b in other.set_batches}
        requests = {r.key: r for r in (*self.set_requests, *other.set_requests)}
        erasures = erasures_after(self.set_erasures, other)
        purged = {f.path: f for f in self.set_purged_files}
        purged = purged_after(purged, other.set_purged_files, other.forget_purged_files)
        return Delta(
            other.run,
            add_tombstones=tuple(merged({}, (*tombstones, *other.add_tombstones)).values()),
            remove_tombstones=self.remove_tombstones | other.remove_tombstones,
            set_batches=tuple(batches.values()),
            set_requests=tuple(requests.values()),
            forget_batches=(self.forget_batches | other.forget_batches).difference(batches),
            set_erasures=erasures,
            close_erasures=(self.close_erasures | other.close_erasures) - {e.restatement for e in erasures},
            set_purged_files=tuple(purged.values()),
            forget_purged_files=(self.forget_purged_files | other.forget_purged_files).difference(purged),
        )


@dataclass(frozen=True)
class ResolvedDelta:
    """A delta, resolved on its ledger."""

    tombstones: Mapping[tuple[int, str], Tombstone]
    """The tombstones that are set."""
    untombstoned: Mapping[tuple[int, str], Tombstone]
    """The tombstones that are removed, as they were."""
    batches: Mapping[str, BatchEntry]
    """The batches that are set."""
    forgotten: Mapping[str, BatchEntry]
    """The batches that are removed, as they were."""
    requests: Mapping[str, RequestEntry]
    """The requests that are set."""
    erasures: tuple[Erasure, ...]
    """All, afterwards."""
    added: int
    """Tombstones that are active only afterwards."""
    deleted: int
    """Tombstones that were active only before."""
    statistics: Statistics
    """Afterwards."""


def resolve_delta(ledger: Ledger, delta: Delta) -> ResolvedDelta:
    """Resolve a delta.

    Looks up only the keys that it names, unless it removes the oldest or the most urgent tombstone: then reads all tombstones to
    find the next one.

    Removals are applied before additions, so a delta may restore a tombstone that it removes.
    """
    current = get_many(ledger.tombstones, {t.key for t in delta.add_tombstones} | delta.remove_tombstones)
    tombstones = merged({k: t for k, t in current.items() if k not in delta.remove_tombstones}, delta.add_tombstones)
    untombstoned = {k: t for k, t in current.items() if k not in tombstones}
    batches = {b.id: b for b in delta.set_batches}
    old_batches = get_many(ledger.batches, batches.keys() | delta.forget_batches)
    forgotten = {i: b for i, b in old_batches.items() if i not in batches}
    requests = {r.key: r for r in delta.set_requests}
    added = sum(k not in current for k in tombstones)
    deleted = len(untombstoned)
    states = Counter(ledger.states)
    states.subtract(str(b.state) for b in old_batches.values())
    states.update(str(b.state) for b in batches.values())
    before = ledger.statistics
    oldest, due = before.oldest_added_on, before.next_evict_by
    removed = [t for k, t in current.items() if k in delta.remove_tombstones]
    if any(t.added_on == oldest or (due is not None and t.evict_by == due) for t in removed):
        unchanged = [t for k, t in ledger.tombstones.items() if k not in current]
        oldest, due = _earliest(unchanged)
    new_oldest, new_due = _earliest(tombstones.values())
    active = before.tombstones + added - deleted
    return ResolvedDelta(
        tombstones,
        untombstoned,
        batches,
        forgotten,
        requests,
        erasures_after(ledger.erasures, delta),
        added,
        deleted,
        Statistics(
            tombstones=active,
            batches=before.batches + sum(i not in old_batches for i in batches) - len(forgotten),
            requests=before.requests + len(requests) - len(get_many(ledger.requests, requests)),
            states={k: n for k, n in states.items() if n},
            oldest_added_on=min((t for t in (oldest, new_oldest) if t is not None), default=None),
            next_evict_by=min((t for t in (due, new_due) if t is not None), default=None),
            tombstoned_rows=_tombstoned_rows(ledger, current, tombstones, old_batches, batches) if active else 0,
        ),
    )


def _tombstoned_rows(
    ledger: Ledger,
    current: Mapping[tuple[int, str], Tombstone],
    tombstones: Mapping[tuple[int, str], Tombstone],
    old_batches: Mapping[str, BatchEntry],
    batches: Mapping[str, BatchEntry],
) -> int:
    """The number of rows in the batches of all active tombstones after a change.

    Batches of tombstones that the change does not name keep their number of rows: a batch gets its tombstone in the commit that
    deletes it.

    Args:
        current: The tombstones that the change names, as the ledger has them.
        tombstones: Those of them that are active afterwards.
        old_batches, batches: The batches that the change sets, before and after.
    """
    before = ledger.statistics.tombstoned_rows
    if before is None:  # an earlier version wrote it without this number
        before = _rows_of(ledger, ledger.tombstones)
    unchanged = {i for _, i in (*current, *tombstones)} - old_batches.keys() - batches.keys()
    old = {**get_many(ledger.batches, unchanged), **old_batches}
    new = {**old, **batches}
    change = sum(_rows(new.get(i)) for _, i in tombstones) - sum(_rows(old.get(i)) for _, i in current)
    return max(before + change, 0)


def _rows_of(ledger: Ledger, keys: Iterable[tuple[int, str]]) -> int:
    ids = [i for _, i in keys]
    entries = get_many(ledger.batches, set(ids))
    return sum(_rows(entries.get(i)) for i in ids)


def _rows(entry: BatchEntry | None) -> int:
    return entry.rows or 0 if entry is not None else 0


def erasures_after(before: Iterable[Erasure], delta: Delta) -> tuple[Erasure, ...]:
    """The erasures after a delta. One that it both closes and sets is set."""
    kept = {e.restatement: e for e in before if e.restatement not in delta.close_erasures}
    return tuple((kept | {e.restatement: e for e in delta.set_erasures}).values())


def apply(ledger: Ledger, delta: Delta, carriers: tuple[Carrier, ...] = ()) -> Ledger:
    """The ledger after a delta, in memory; reads the whole ledger."""
    made = resolve_delta(ledger, delta)
    kept = {k: t for k, t in ledger.tombstones.items() if k not in made.untombstoned}
    kept_batches = {k: b for k, b in ledger.batches.items() if k not in made.forgotten}
    return replace(
        ledger,
        version=ledger.version + 1,
        pending_run=delta.run,
        tombstones={**kept, **made.tombstones},
        batches={**kept_batches, **made.batches},
        requests={**ledger.requests, **made.requests},
        erasures=made.erasures,
        carriers=carriers,
        purged_files=purged_after(ledger.purged_files, delta.set_purged_files, delta.forget_purged_files),
        recorded=made.statistics,
    )


def counted(ledger: Ledger) -> Statistics:
    """Compute the statistics of a ledger; reads the whole ledger."""
    oldest, due = _earliest(ledger.tombstones.values())
    states = Counter(str(b.state) for b in ledger.batches.values())
    rows = _rows_of(ledger, ledger.tombstones)
    return Statistics(
        len(ledger.tombstones), len(ledger.batches), len(ledger.requests), dict(states), oldest, due, rows
    )


def _earliest(tombstones: Iterable[Tombstone]) -> tuple[datetime | None, datetime | None]:
    """The earliest `addedOn` and the earliest `evictBy`."""
    oldest: datetime | None = None
    due: datetime | None = None
    for t in tombstones:
        oldest = t.added_on if oldest is None else min(oldest, t.added_on)
        if t.evict_by is not None:
            due = t.evict_by if due is None else min(due, t.evict_by)
    return oldest, due


def settled_batch(entry: BatchEntry, snapshot_id: int | None) -> BatchEntry:
    """The entry with the snapshot id of its commit, which was unknown when the entry was written."""
    if entry.snapshot_id is not None or snapshot_id is None:
        return entry
    return replace(entry, snapshot_id=snapshot_id)


def settled_request(entry: RequestEntry, snapshot_id: int | None) -> RequestEntry:
    """The entry with the snapshot id of its commit in its result, if the request succeeded and the id was unknown."""
    if snapshot_id is None or entry.result.get("snapshotId") is not None or not entry.result.get("succeeded"):
        return entry
    return replace(entry, result={**entry.result, "snapshotId": snapshot_id})

"""Decides from metadata which data files cannot, may, or must hold tombstoned or too old rows. Pure.

A row is too old if its time is before the cutoff, the start of a UTC day. A row without a time never is. All rows of a file are
too old only if its metadata proves this: a bound without a count of nulls does not.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from itertools import accumulate
from typing import Protocol

from lethe.contract.run import RetentionSpec
from lethe.contract.vacuum_policy import Retention
from lethe.ledger.tombstone import Tombstone
from lethe.uri import without_values


class Age(StrEnum):
    """What is known of the rows of a data file."""

    YOUNG = "Young"
    """No row is too old."""
    UNKNOWN = "Unknown"
    """Some rows may be too old: only the file itself says it."""
    MIXED = "Mixed"
    """At least one row is too old, and others may not be."""
    OLD = "Old"
    """All rows are too old."""


def cutoff_day(now: datetime, max_age_days: int) -> date:
    """The UTC day before which rows are too old. It stays the same within a UTC day."""
    return (now.astimezone(UTC) - timedelta(days=max_age_days)).date()


def rule_at(retention: Retention, now: datetime) -> RetentionSpec:
    """Which rows a policy's retention finds too old today."""
    cutoff = cutoff_day(now, retention.max_age_days)
    return RetentionSpec(column=retention.column or "", max_age_days=retention.max_age_days, cutoff=cutoff)


def due_time(cutoff: date, max_age_days: int) -> datetime:
    """The first moment at which this day is the cutoff."""
    return datetime(cutoff.year, cutoff.month, cutoff.day, tzinfo=UTC) + timedelta(days=max_age_days)


@dataclass(frozen=True)
class FileTimes:
    """What metadata says of the times in a file, as Iceberg stores them: days or microseconds since 1970."""

    lower: int | None = None
    """No time is earlier; None: unknown."""
    upper: int | None = None
    """No time is later; None: unknown."""
    nulls: bool | None = None
    """Whether a row may have no time; None: unknown."""
    tight: bool = False
    """Some row has the time `lower`."""
    empty: bool = False
    """No row has a time."""

    @property
    def contradicts_itself(self) -> bool:
        """Whether no time fits between the bounds."""
        return self.lower is not None and self.upper is not None and self.lower > self.upper

    def and_also(self, other: "FileTimes") -> "FileTimes":
        """What both say together; nothing, if they contradict each other."""
        lowers = [n for n in (self.lower, other.lower) if n is not None]
        uppers = [n for n in (self.upper, other.upper) if n is not None]
        known = [n for n in (self.nulls, other.nulls) if n is not None]
        both = FileTimes(
            max(lowers, default=None),
            min(uppers, default=None),
            any(known) if known else None,
            self.tight or other.tight,
            self.empty or other.empty,
        )
        has_times = bool(lowers or uppers)
        return FileTimes() if both.contradicts_itself or (both.empty and has_times) else both


def age_of(times: FileTimes, cutoff: int) -> Age:
    """The age of a file with such times.

    Args:
        cutoff: The first time that is not too old, as Iceberg stores it.
    """
    if times.empty or (times.lower is not None and times.lower >= cutoff):
        return Age.YOUNG
    if times.upper is not None and times.upper < cutoff and times.nulls is False:
        return Age.OLD
    return Age.MIXED if times.tight and times.lower is not None else Age.UNKNOWN


MAX_PARTITIONS = 64
"""The ledger lists at most this many partitions of a batch. A longer list would cost each commit more than it saves readers."""
_EPOCH = date(1970, 1, 1).toordinal()

NEVER = datetime.max.replace(tzinfo=UTC)


class Bounded(Protocol):
    """Anything with bounds of the batch column. None: unknown, so open."""

    @property
    def lower(self) -> str | None:
        """A text that no batch id of the file is below. Writers may truncate it, so the file need not contain it."""
        ...

    @property
    def upper(self) -> str | None:
        """A text that no batch id of the file is above. Writers may truncate it, so the file need not contain it."""
        ...


@dataclass(frozen=True, slots=True)
class FileBounds:
    """A data file of one snapshot."""

    path: str
    records: int
    size: int
    """Bytes."""
    lower: str | None
    """Bound of the batch column; None: unknown."""
    upper: str | None
    """Bound of the batch column; None: unknown."""
    null_count: int | None
    """The number of nulls in the batch column; None: unknown."""
    deletes: frozenset[str] = frozenset()
    """The names of native deletes that may apply to it."""
    partition: str | None = None
    """The text of the partition (`partition_text`); None: it has none."""
    added_by: int | None = None
    """The id of the snapshot that added it; None: unknown."""


def outdated(planned: Iterable[FileBounds], files_now: Iterable[FileBounds]) -> str:
    """Why files written to replace these files must not be committed; empty: they may.

    New tombstones are no reason: they hide the rows of their batches in any file.

    Args:
        files_now: The data files of the head to commit on.
    """
    by_path = {f.path: f for f in files_now}
    for f in planned:
        now = by_path.get(f.path)
        if now is None:
            return f"{without_values(f.path)} is no longer part of the table"
        if not now.deletes <= f.deletes:
            return f"rows of {without_values(f.path)} were deleted since the plan"
    return ""


def has_one_batch(file: FileBounds) -> bool:
    """Whether all rows have the same batch id, which both bounds are."""
    return file.lower is not None and file.lower == file.upper and file.null_count == 0


@dataclass(frozen=True)
class BoundsSplit:
    """All files, divided by what their bounds prove; each part in the given order."""

    cannot: tuple[FileBounds, ...]
    """Hold no row of the ids."""
    may_contain_deleted_rows: tuple[FileBounds, ...]
    """Might hold some."""
    all_rows_deleted: tuple[FileBounds, ...]
    """Hold no other rows."""


class IdIndex:
    """Sorted ids, searched in O(log n)."""

    def __init__(self, ids: Collection[str]) -> None:
        self._ids = sorted(ids)
        self._set = frozenset(ids)

    def __len__(self) -> int:
        return len(self._ids)

    def might_hold(self, file: Bounded) -> bool:
        """Whether one of the ids is within the bounds. An unknown bound is open."""
        if not self._ids:
            return False
        index = 0 if file.lower is None else bisect_left(self._ids, file.lower)
        return index < len(self._ids) and (file.upper is None or self._ids[index] <= file.upper)

    def must_hold(self, file: FileBounds) -> bool:
        """Whether all rows have one of the ids: the bounds are equal and one of the ids, and the null count is 0."""
        return has_one_batch(file) and file.lower in self._set

    def within(self, file: Bounded) -> list[str]:
        """The ids that the file might hold."""
        start, end = self.span(file)
        return self._ids[start:end]

    def span(self, file: Bounded) -> tuple[int, int]:
        """The range of the ids that the file might hold: start and end in the sorted ids."""
        start = 0 if file.lower is None else bisect_left(self._ids, file.lower)
        end = len(self._ids) if file.upper is None else bisect_right(self._ids, file.upper)
        return start, max(start, end)

    def covered(self, files: Iterable[Bounded]) -> set[str]:
        """The ids that one of the files might hold. O(files x log ids + ids), however wide their bounds are."""
        edges = [0] * (len(self._ids) + 1)
        for f in files:
            start, end = self.span(f)
            edges[start] += 1
            edges[end] -= 1
        return {i for i, depth in zip(self._ids, accumulate(edges), strict=False) if depth > 0}


def split_by_bounds(files: Iterable[FileBounds], ids: Collection[str]) -> BoundsSplit:
    """Divide data files by what their bounds prove about the ids. O(files x log ids); reads nothing."""
    index = IdIndex(ids)
    cannot: list[FileBounds] = []
    may_contain_deleted_rows: list[FileBounds] = []
    all_rows_deleted: list[FileBounds] = []
    for f in files:
        if not index.might_hold(f):
            cannot.append(f)
        elif index.must_hold(f):
            all_rows_deleted.append(f)
        else:
            may_contain_deleted_rows.append(f)
    return BoundsSplit(tuple(cannot), tuple(may_contain_deleted_rows), tuple(all_rows_deleted))


class Partitioned(Bounded, Protocol):
    """A data file with bounds of the batch column and the text of its partition."""

    @property
    def partition(self) -> str | None:
        """The text as `partition_text` makes it; None: the partition has no exact text, and may be any."""
        ...


def partition_text(spec_id: int, values: Iterable[object]) -> str | None:
    """The canonical text of a partition tuple.

    A text is `<spec id>/<JSON list of the partition tuple>`, with Iceberg's physical values: a day is the number of days since
    1970. Texts are only compared. A partition without an exact text counts as any partition: a wrong text would show deleted
    rows, while a missing text only makes a reader filter a file needlessly.

    Args:
        values: Iceberg's physical values, in the order of the spec's fields.

    Returns:
        None, if a value is not an integer, string, boolean or null.
    """
    plain = list(values)
    if not all(v is None or type(v) in (int, str, bool) for v in plain):
        return None
    text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    # Libraries write lone surrogates differently, and the replacement character may replace anything.
    return None if any("\ud800" <= c <= "\udfff" or c == "\ufffd" for c in text) else f"{spec_id}/{text}"


def partition_text_of_json(spec_id: int, types: Iterable[str], values: Iterable[object]) -> str | None:
    """The same text from Iceberg's JSON single-value form, in which a date is `2013-01-31`.

    Args:
        types: The names of the partition fields' Iceberg types, as many as `values`.
    """
    return partition_text(spec_id, [_physical(t, v) for t, v in zip(types, values, strict=True)])


def _physical(type_name: str, value: object) -> object:
    match type_name, value:
        case _, None:
            return None
        case ("int" | "long", int()) | ("string", str()) | ("boolean", bool()):
            return value
        case "date", str():
            try:
                return date.fromisoformat(value).toordinal() - _EPOCH
            except ValueError:  # Python supports only the years 1 to 9999
                return 0.0
    return 0.0  # a type without a text


def spec_of(partition: str) -> str:
    """The spec id in a text."""
    return partition.partition("/")[0]


def partitions_of_batches(
    files: Iterable[Partitioned], batch_ids: Collection[str]
) -> dict[str, tuple[str, ...] | None]:
    """The partitions that each batch may have rows in, by the files that its rows were written to.

    A superset: a file counts for every batch between its bounds.

    Args:
        files: All files that hold rows of these batches, with bounds of the batch column.

    Returns:
        For each id, the sorted texts. None (any partition), if there are more than 64, if a file has no text, or if no file can
        hold the batch.
    """
    index = IdIndex(batch_ids)
    partitions: dict[str, set[str] | None] = {i: set() for i in batch_ids}
    for f in files:
        for i in index.within(f):
            batch_partitions = partitions[i]
            if batch_partitions is None:
                continue
            if f.partition is None:
                partitions[i] = None
                continue
            batch_partitions.add(f.partition)
            if len(batch_partitions) > MAX_PARTITIONS:
                partitions[i] = None
    return {i: tuple(sorted(texts)) if texts else None for i, texts in partitions.items()}


def widened(
    partitions: Mapping[str, tuple[str, ...] | None], foreign_files: Iterable[Partitioned]
) -> dict[str, tuple[str, ...] | None]:
    """Add partitions of files in which another writer may have added rows of known batches.

    Args:
        partitions: By batch id, the partitions in the ledger; None: any.
        foreign_files: The files that bare snapshots added.

    Returns:
        Only the ids whose value changes, with the new value.
    """
    limited = {i: batch_partitions for i, batch_partitions in partitions.items() if batch_partitions is not None}
    index = IdIndex(limited)
    more: dict[str, set[str] | None] = {}
    for f in foreign_files:
        for i in index.within(f):
            seen = more.setdefault(i, set(limited[i]))
            if seen is None:
                continue
            if f.partition is None:
                more[i] = None
            else:
                seen.add(f.partition)
    changed: dict[str, tuple[str, ...] | None] = {}
    for i, texts in more.items():
        now = tuple(sorted(texts)) if texts is not None and len(texts) <= MAX_PARTITIONS else None
        if now != limited[i]:
            changed[i] = now
    return changed


class Layer:
    """Tombstones that apply to the same files, in the order of their ids."""

    def __init__(self, tombstones: Iterable[Tombstone]) -> None:
        self.tombstones = sorted(tombstones, key=lambda t: t.id)
        self.index = IdIndex([t.id for t in self.tombstones])

    @cached_property
    def deadlines(self) -> "Deadlines":
        """An index of the times by which rows must be deleted, in the order of `tombstones`. Built at the first use."""
        return Deadlines([t.evict_by for t in self.tombstones])


class Suspects:
    """An index of tombstones of the batch column, to find the files that might hold their rows.

    A search takes O(log n) per file. A tombstone excludes a file by partition only if all its partitions are of the file's spec
    and none is the file's: rows written under another spec may have been rewritten into any partition of this spec.
    """

    def __init__(self, tombstones: Iterable[Tombstone]) -> None:
        every = list(tombstones)
        anywhere: list[Tombstone] = []
        in_partition: dict[str, list[Tombstone]] = {}
        of_spec: dict[str, list[Tombstone]] = {}
        for t in every:
            partitions = t.partitions
            specs = {spec_of(p) for p in partitions or ()}
            if partitions is None or len(specs) != 1:
                anywhere.append(t)
                continue
            of_spec.setdefault(specs.pop(), []).append(t)
            for p in partitions:
                in_partition.setdefault(p, []).append(t)
        self.ids = IdIndex([t.id for t in every])
        self._anywhere = [Layer(anywhere)] if anywhere else []
        self._in_partition = {p: Layer(ts) for p, ts in in_partition.items()}
        self._of_spec = {s: Layer(ts) for s, ts in of_spec.items()}

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def layers(self) -> list[Layer]:
        """All layers. A tombstone may be in several, which apply to different files."""
        return [*self._anywhere, *self._in_partition.values(), *self._of_spec.values()]

    def layers_of(self, file: FileBounds) -> list[Layer]:
        """The layers that the file's partition does not exclude. Each tombstone is in at most one of them."""
        if file.partition is None:
            return [*self._anywhere, *self._of_spec.values()]
        spec = spec_of(file.partition)
        layers = self._anywhere + [layer for s, layer in self._of_spec.items() if s != spec]
        here = self._in_partition.get(file.partition)
        return layers if here is None else [*layers, here]

    def might_hold(self, file: FileBounds) -> bool:
        """Whether bounds and partition leave it open that the file holds a row of a tombstone. O(log n) per layer."""
        return any(layer.index.might_hold(file) for layer in self.layers_of(file))

    def must_hold(self, file: FileBounds) -> bool:
        """Whether all its rows are tombstoned, by the bounds. The partitions do not matter then."""
        return self.ids.must_hold(file)

    def within(self, file: FileBounds) -> list[str]:
        """The ids that the file might hold."""
        return [i for layer in self.layers_of(file) for i in layer.index.within(file)]

    def covered(self, files: Iterable[FileBounds]) -> set[str]:
        """The ids that one of the files might hold. O(files x log ids + ids), however wide their bounds are."""
        by_layer: dict[int, tuple[Layer, list[FileBounds]]] = {}
        for f in files:
            for layer in self.layers_of(f):
                by_layer.setdefault(id(layer), (layer, []))[1].append(f)
        return set[str]().union(*(layer.index.covered(file) for layer, file in by_layer.values()))

    def earliest(self, file: FileBounds) -> datetime:
        """The earliest deadline of the tombstones whose rows the file might hold; `NEVER`: there is none."""
        return min((layer.deadlines.within(*layer.index.span(file)) for layer in self.layers_of(file)), default=NEVER)


class Deadlines:
    """Finds the earliest time in any part of a sequence in O(log n), with a tree of minima."""

    def __init__(self, times: Sequence[datetime | None]) -> None:
        self._size = len(times) if any(t is not None for t in times) else 0
        self._tree = [NEVER] * self._size + [t or NEVER for t in times[: self._size]]
        for n in range(self._size - 1, 0, -1):
            self._tree[n] = min(self._tree[2 * n], self._tree[2 * n + 1])

    def within(self, start: int, end: int) -> datetime:
        """The earliest time from position `start` up to, and without, `end`."""
        smallest = NEVER
        if not self._size:
            return smallest
        start, end = start + self._size, end + self._size
        while start < end:
            if start % 2:
                smallest = min(smallest, self._tree[start])
                start += 1
            if end % 2:
                end -= 1
                smallest = min(smallest, self._tree[end])
            start, end = start // 2, end // 2
        return smallest

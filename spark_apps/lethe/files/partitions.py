"""Which partitions a batch may have rows in, as texts that a ledger remembers. Pure.

A text is `<spec id>/<JSON list of the partition tuple>`, made of Iceberg's own values: a day is its number of days since
1970. It is compared, never taken apart for its values. What has no sure text has none, and then counts as anywhere: a
wrong text would show deleted rows, a missing one costs a reader a file that it need not have filtered.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from datetime import date
from typing import Protocol

from lethe.files.bounds import Bounded, IdIndex

# A batch in more partitions than that is remembered as being anywhere: its list would cost every commit more than it
# saves a reader.
PARTITIONS_AT_MOST = 64
_EPOCH = date(1970, 1, 1).toordinal()


class Partitioned(Bounded, Protocol):
    """What is asked of a data file here: bounds of the batch column, and the partition's text."""

    @property
    def partition(self) -> str | None: ...


def partition_text(spec_id: int, values: Iterable[object]) -> str | None:
    """The canonical text of a partition tuple.

    Args:
        values: Iceberg's physical values, in the order of the spec's fields.
    Returns: None, when one of them is neither integer, string, boolean nor null.
    """
    plain = list(values)
    if not all(v is None or type(v) in (int, str, bool) for v in plain):
        return None
    text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    # A lone surrogate is no character, and each library writes something else for it; the replacement character may
    # stand for anything.
    return None if any("\ud800" <= c <= "\udfff" or c == "\ufffd" for c in text) else f"{spec_id}/{text}"


def partition_text_of_json(spec_id: int, types: Iterable[str], values: Iterable[object]) -> str | None:
    """The same text from Iceberg's JSON single-value form, where a date is written `2013-01-31`.

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
            except ValueError:  # Python knows the years 1 to 9999 only
                return 0.0
    return 0.0  # of no type that has a text


def spec_of(partition: str) -> str:
    """The spec id of a text, as it is written there."""
    return partition.partition("/")[0]


def partitions_of_batches(
    files: Iterable[Partitioned], batch_ids: Collection[str]
) -> dict[str, tuple[str, ...] | None]:
    """The partitions that each batch may have rows in, judged by the files that its rows were written to.

    A superset: a file counts for every batch that sorts between its bounds.

    Args:
        files: All files that hold rows of these batches, with bounds of the batch column.
    Returns: Texts in their order, for every id. None, anywhere, when there are more than 64, when a file has no text,
        or when no file can hold the batch.
    """
    index = IdIndex(batch_ids)
    found: dict[str, set[str] | None] = {i: set() for i in batch_ids}
    for f in files:
        for i in index.within(f):
            known = found[i]
            if known is None:
                continue
            if f.partition is None:
                found[i] = None
                continue
            known.add(f.partition)
            if len(known) > PARTITIONS_AT_MOST:
                found[i] = None
    return {i: tuple(sorted(texts)) if texts else None for i, texts in found.items()}


def widened(
    partitions: Mapping[str, tuple[str, ...] | None], foreign_files: Iterable[Partitioned]
) -> dict[str, tuple[str, ...] | None]:
    """What has to change in remembered partitions because files of another writer may hold rows of old batches.

    Args:
        partitions: By batch id, what is remembered; None is anywhere.
        foreign_files: SnapshotFiles that bare snapshots added.
    Returns: The new value of those ids only whose value changes.
    """
    limited = {i: known for i, known in partitions.items() if known is not None}
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
        now = tuple(sorted(texts)) if texts is not None and len(texts) <= PARTITIONS_AT_MOST else None
        if now != limited[i]:
            changed[i] = now
    return changed

"""Finds the partitions that a batch may have rows in, as texts for the ledger. Pure.

A text is `<spec id>/<JSON list of the partition tuple>`, with Iceberg's physical values: a day is the number of days since 1970.
Texts are only compared. A partition without an exact text counts as any partition: a wrong text would show deleted rows, while a
missing text only makes a reader filter a file needlessly.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from datetime import date
from typing import Protocol

from lethe.files.bounds import Bounded, IdIndex

# The ledger lists at most this many partitions of a batch. A longer list would cost each commit more than it saves readers.
MAX_PARTITIONS = 64
_EPOCH = date(1970, 1, 1).toordinal()


class Partitioned(Bounded, Protocol):
    """A data file with bounds of the batch column and the text of its partition."""

    @property
    def partition(self) -> str | None: ...


def partition_text(spec_id: int, values: Iterable[object]) -> str | None:
    """The canonical text of a partition tuple.

    Args:
        values: Iceberg's physical values, in the order of the spec's fields.
    Returns: None, if a value is not an integer, string, boolean or null.
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
    Returns: For each id, the sorted texts. None (any partition), if there are more than 64, if a file has no text, or if no file
        can hold the batch.
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
            if len(known) > MAX_PARTITIONS:
                found[i] = None
    return {i: tuple(sorted(texts)) if texts else None for i, texts in found.items()}


def widened(
    partitions: Mapping[str, tuple[str, ...] | None], foreign_files: Iterable[Partitioned]
) -> dict[str, tuple[str, ...] | None]:
    """Add partitions of files in which another writer may have added rows of known batches.

    Args:
        partitions: By batch id, the partitions in the ledger; None: any.
        foreign_files: The files that bare snapshots added.
    Returns: Only the ids whose value changes, with the new value.
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
        now = tuple(sorted(texts)) if texts is not None and len(texts) <= MAX_PARTITIONS else None
        if now != limited[i]:
            changed[i] = now
    return changed

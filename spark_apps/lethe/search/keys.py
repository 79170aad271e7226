"""Finds the positions of rows with given keys in a data file. A key is the values of several columns together. I/O: reads one
column at a time, with Arrow, without Spark.

As in `lethe.search.positions`, `Unsure` is raised if the answer is not certain, and errors contain no values.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, assert_never
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64, FrozenBitMap64

from lethe.files.values import ValueKind, Values, ValueType
from lethe.search.columns import Columns
from lethe.search.positions import SearchedFile, Wanted, as_arrow, frozen, is_one_of, plain

_AT: Final = "at"


@dataclass(frozen=True, eq=False)
class WantedKeys:
    """The keys to search for."""

    columns: tuple[Wanted, ...]  # the distinct values of each key column
    rows: pa.Table = field(repr=False)  # the sorted keys; its columns are named 0, 1, … in the order of `columns`

    @classmethod
    def of(cls, columns: Sequence[tuple[int, ValueKind]], keys: pa.Table) -> "WantedKeys":
        """Args:
        columns: Iceberg field id and kind of each column of `keys`.
        keys: Without nulls, in Spark's types for these kinds.
        """
        arrays = {str(n): _as_stored(keys.column(n), kind) for n, (_, kind) in enumerate(columns)}
        wanted = tuple(
            Wanted.of(field_id, Values(kind, _distinct(arrays[str(n)], kind)))
            for n, (field_id, kind) in enumerate(columns)
        )
        rows = pa.table(arrays)
        return cls(wanted, rows.sort_by([(name, "ascending") for name in rows.column_names]))

    @classmethod
    def none(cls, columns: Sequence[tuple[int, ValueKind]]) -> "WantedKeys":
        """No keys."""
        empty = [as_arrow(Values(kind, ())) for _, kind in columns]
        return cls.of(columns, pa.table(empty, names=[str(n) for n in range(len(empty))]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WantedKeys) and self.columns == other.columns and self.rows.equals(other.rows)

    __hash__ = None  # type: ignore[assignment]

    @property
    def field_id(self) -> int:
        """The field id of the first column."""
        return self.columns[0].field_id


AnyWanted: TypeAlias = Wanted | WantedKeys


def columns_of(wanted: AnyWanted) -> tuple[Wanted, ...]:
    """Each column to search, with its values."""
    return wanted.columns if isinstance(wanted, WantedKeys) else (wanted,)


def find_keys(
    searched: SearchedFile,
    wanted: Mapping[str, WantedKeys],
    absent: Mapping[str, Sequence[int | None]] | None = None,
) -> dict[str, FrozenBitMap64]:
    """Find the positions of the rows with the wanted keys, as `lethe.search.positions.find` does for values.

    Args:
        absent: By the key of a search, for each of its columns: the index of the value that all rows hold if the file lacks
            that column; None: no wanted value.
    Raises: Unsure; what the storage raises.
    """
    found: dict[str, FrozenBitMap64] = {}
    with searched.open() as (file, ids):
        for key, w in wanted.items():
            positions = BitMap64()
            for start, columns in _pieces(file, ids, w, (absent or {}).get(key, ()), searched.format_name):
                positions.update(matches(columns, w) + np.uint64(start))
            if positions:
                found[key] = frozen(positions)
    return found


def _pieces(
    file: Columns, names: Mapping[int, str], wanted: WantedKeys, absent: Sequence[int | None], format_name: str
) -> Iterator[tuple[int, list[pa.Array]]]:
    """The pieces of the key columns in which each column might hold a wanted value, each with the position of its first row."""
    held = {w.field_id: at for w, at in zip(wanted.columns, absent, strict=False) if w.field_id not in names}
    present = [w for w in wanted.columns if w.field_id in names]
    if any(held.get(w.field_id) is None for w in wanted.columns if w.field_id not in names):
        return
    constants = {w.field_id: w.array[held[w.field_id]] for w in wanted.columns if w.field_id not in names}
    if not present:
        yield 0, [pa.repeat(constants[w.field_id], file.rows) for w in wanted.columns]
        return
    read = (file.read(names[w.field_id], [w.values]) for w in present)
    # An Avro file is read from its start for each column.
    columns = [iter(list(pieces)) if format_name == "AVRO" else pieces for pieces in read]
    for start, parts in aligned(columns):
        found = {w.field_id: part.combine_chunks() for w, part in zip(present, parts, strict=True)}
        rows = len(parts[0])
        yield start, [found.get(w.field_id, _repeated(constants.get(w.field_id), rows)) for w in wanted.columns]


def _repeated(value: pa.Scalar | None, rows: int) -> pa.Array:
    return pa.nulls(rows) if value is None else pa.repeat(value, rows)


def aligned(
    columns: Sequence[Iterator[tuple[int, pa.ChunkedArray]]],
) -> Iterator[tuple[int, list[pa.ChunkedArray]]]:
    """The pieces of several columns that begin at the same row; skips pieces that another column leaves out."""
    heads = [next(c, None) for c in columns]
    while True:
        now = [h for h in heads if h is not None]
        if len(now) < len(heads):
            return
        start = max(at for at, _ in now)
        if all(at == start for at, _ in now):
            yield start, [piece for _, piece in now]
            start += 1
        heads = [h if h[0] >= start else next(c, None) for h, c in zip(now, columns, strict=True)]


def matches(columns: Sequence[pa.Array], wanted: WantedKeys) -> np.ndarray[Any, Any]:
    """The positions, from 0 and in order, of the rows with one of the keys. Nulls match nothing.

    Raises: pa.ArrowException, if a column is not of its values' kind. Its text may contain a value.
    """
    hits: Any = is_one_of(columns[0], wanted.columns[0])
    for column, w in zip(columns[1:], wanted.columns[1:], strict=True):
        hits = pc.and_(hits, is_one_of(column, w))
    at = np.flatnonzero(hits.to_numpy(zero_copy_only=False)).astype(np.uint64)
    if len(columns) == 1 or not at.size:
        return at
    # Each value belongs to a key, but not necessarily to the same key.
    rows = {str(n): plain(c.take(pa.array(at)), wanted.columns[n]) for n, c in enumerate(columns)}
    found = pa.table({**rows, _AT: pa.array(at)}).join(
        wanted.rows, list(rows), join_type="left semi", use_threads=False
    )
    return np.sort(found.column(_AT).to_numpy())


def _as_stored(column: pa.ChunkedArray, kind: ValueKind) -> pa.ChunkedArray:
    wanted = as_arrow(Values(kind, ())).type
    if kind.type is ValueType.UUID and pa.types.is_string(column.type):
        return pa.chunked_array([pa.array([UUID(text).bytes for text in column.to_pylist()], wanted)])
    return column if column.type == wanted else column.cast(wanted)


def _distinct(column: pa.ChunkedArray, kind: ValueKind) -> tuple[Any, ...]:
    found = pc.unique(column)
    match kind.type:
        case ValueType.DATE:
            found = found.cast(pa.int32())
        case ValueType.TIMESTAMP | ValueType.TIMESTAMPTZ:
            found = found.cast(pa.int64())
        case ValueType.UUID:
            return tuple(sorted(UUID(bytes=v) for v in found.to_pylist()))
        case ValueType.STRING | ValueType.INT | ValueType.LONG | ValueType.DECIMAL:
            pass
        case _:
            assert_never(kind.type)
    return tuple(sorted(found.to_pylist()))

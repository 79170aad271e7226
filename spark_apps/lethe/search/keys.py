"""At which positions of a data file rows with some keys lie: values of several columns together. I/O: reads one column at a time,
with Arrow; no Spark.

As in `lethe.search.positions`, what cannot be answered with certainty is not answered (`Unsure`), and no error tells a value.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyroaring import BitMap64, FrozenBitMap64

from lethe.files.values import Kind, Values
from lethe.search.columns import Columns, open_columns
from lethe.search.positions import Wanted, as_arrow, columns_by_id, frozen, is_one_of, plain, unsure_at

_AT: Final = "at"


@dataclass(frozen=True, eq=False)
class WantedKeys:
    """Keys, rows with one of which are looked for.

    Args:
        columns: The distinct values of each key column, as `Wanted` has them.
        rows: The keys themselves, in order, a column named by its number for each of `columns`.
    """

    columns: tuple[Wanted, ...]
    rows: pa.Table = field(repr=False)

    @classmethod
    def of(cls, columns: Sequence[tuple[int, Kind]], keys: pa.Table) -> "WantedKeys":
        """The rows with one of these keys.

        Args:
            columns: Iceberg field id and kind of each of the columns of `keys`.
            keys: Without nulls; of the types that Spark has for these kinds.
        """
        arrays = {str(n): _as_stored(keys.column(n), kind) for n, (_, kind) in enumerate(columns)}
        wanted = tuple(
            Wanted.of(field_id, Values(kind, _distinct(arrays[str(n)], kind)))
            for n, (field_id, kind) in enumerate(columns)
        )
        rows = pa.table(arrays)
        return cls(wanted, rows.sort_by([(name, "ascending") for name in rows.column_names]))

    @classmethod
    def none(cls, columns: Sequence[tuple[int, Kind]]) -> "WantedKeys":
        """No rows."""
        empty = [as_arrow(Values(kind, ())) for _, kind in columns]
        return cls.of(columns, pa.table(empty, names=[str(n) for n in range(len(empty))]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WantedKeys) and self.columns == other.columns and self.rows.equals(other.rows)

    __hash__ = None  # type: ignore[assignment]

    @property
    def field_id(self) -> int:
        """Of the first column."""
        return self.columns[0].field_id


AnyWanted: TypeAlias = Wanted | WantedKeys


def columns_of(wanted: AnyWanted) -> tuple[Wanted, ...]:
    """Each column that is looked at, with its values."""
    return wanted.columns if isinstance(wanted, WantedKeys) else (wanted,)


def find_keys(
    io: FileIO,
    path: str,
    wanted: Mapping[str, WantedKeys],
    format_name: str = "PARQUET",
    names: Mapping[str, int] | None = None,
    absent: Mapping[str, Sequence[int | None]] | None = None,
) -> dict[str, FrozenBitMap64]:
    """As `lethe.search.positions.find`, for keys.

    Args:
        absent: By the key of a search, for each of its columns which of its values rows hold in a file without that column;
            None: none of them.
    Raises: Unsure; whatever the storage raises.
    """
    found: dict[str, FrozenBitMap64] = {}
    with io.new_input(path).open() as stream, unsure_at(path):
        file = open_columns(stream, format_name)
        ids = columns_by_id(file, names)
        for key, w in wanted.items():
            positions = BitMap64()
            for start, columns in _pieces(file, ids, w, (absent or {}).get(key, ()), format_name):
                positions.update(matches(columns, w) + np.uint64(start))
            if positions:
                found[key] = frozen(positions)
    return found


def _pieces(
    file: Columns, names: Mapping[int, str], wanted: WantedKeys, absent: Sequence[int | None], format_name: str
) -> Iterator[tuple[int, list[pa.Array]]]:
    """The key columns piece by piece, where each of them may hold one of its values, each piece with its first position."""
    held = {w.field_id: at for w, at in zip(wanted.columns, absent, strict=False) if w.field_id not in names}
    there = [w for w in wanted.columns if w.field_id in names]
    if any(held.get(w.field_id) is None for w in wanted.columns if w.field_id not in names):
        return
    constants = {w.field_id: w.array[held[w.field_id]] for w in wanted.columns if w.field_id not in names}
    if not there:
        yield 0, [pa.repeat(constants[w.field_id], file.rows) for w in wanted.columns]
        return
    read = (file.read(names[w.field_id], [w.values]) for w in there)
    # Avro is read from its beginning for each column.
    columns = [iter(list(pieces)) if format_name == "AVRO" else pieces for pieces in read]
    for start, parts in aligned(columns):
        found = {w.field_id: part.combine_chunks() for w, part in zip(there, parts, strict=True)}
        rows = len(parts[0])
        yield start, [found.get(w.field_id, _repeated(constants.get(w.field_id), rows)) for w in wanted.columns]


def _repeated(value: pa.Scalar | None, rows: int) -> pa.Array:
    return pa.nulls(rows) if value is None else pa.repeat(value, rows)


def aligned(
    columns: Sequence[Iterator[tuple[int, pa.ChunkedArray]]],
) -> Iterator[tuple[int, list[pa.ChunkedArray]]]:
    """Pieces of several columns of one file that begin at the same row; those that another column leaves out are passed over."""
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
    """Which of the rows that these columns make have one of the keys, from 0 and in order. Nulls match nothing.

    Raises: pa.ArrowException, with a text that may hold a value, for a column that is not of its values' kind.
    """
    hits: Any = is_one_of(columns[0], wanted.columns[0])
    for column, w in zip(columns[1:], wanted.columns[1:], strict=True):
        hits = pc.and_(hits, is_one_of(column, w))
    at = np.flatnonzero(hits.to_numpy(zero_copy_only=False)).astype(np.uint64)
    if len(columns) == 1 or not at.size:
        return at
    # Each value is one of some key, which need not be the same.
    rows = {str(n): plain(c.take(pa.array(at)), wanted.columns[n]) for n, c in enumerate(columns)}
    found = pa.table({**rows, _AT: pa.array(at)}).join(
        wanted.rows, list(rows), join_type="left semi", use_threads=False
    )
    return np.sort(found.column(_AT).to_numpy())


def _as_stored(column: pa.ChunkedArray, kind: Kind) -> pa.ChunkedArray:
    wanted = as_arrow(Values(kind, ())).type
    if kind.name == "uuid" and pa.types.is_string(column.type):
        return pa.chunked_array([pa.array([UUID(text).bytes for text in column.to_pylist()], wanted)])
    return column if column.type == wanted else column.cast(wanted)


def _distinct(column: pa.ChunkedArray, kind: Kind) -> tuple[Any, ...]:
    found = pc.unique(column)
    match kind.name:
        case "date":
            found = found.cast(pa.int32())
        case "timestamp" | "timestamptz":
            found = found.cast(pa.int64())
    values = found.to_pylist()
    return tuple(sorted(UUID(bytes=v) for v in values) if kind.name == "uuid" else sorted(values))

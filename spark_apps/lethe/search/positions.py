"""Finds the positions of rows with given values or keys in a data file. I/O: reads one column at a time, with Arrow.

A position is that of Iceberg's position deletes: the number of the row in the file, from 0, whether the row is deleted or not. If
the answer is not certain, `Unsure` is raised. Errors contain no values. Columns, and fields of structs, also in lists, are found
by Iceberg field ids, in Parquet, ORC and Avro.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import partial
from itertools import count
from typing import Any, Final, TypeAlias, assert_never
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc
import pyarrow.parquet as pq
from fastavro.schema import expand_schema
from pyiceberg.io import FileIO
from pyroaring import BitMap64, FrozenBitMap64

from lethe.base.avro import block_reader, reader
from lethe.files.values import ValueKind, Values, ValueType
from lethe.iceberg.column_path import ELEMENT, ColumnName, Step, any_value, values_at
from lethe.ingest.avro_format import open_avro
from lethe.ingest.buffer_store import BadFile, Damaged
from lethe.ingest.exact_values import is_list
from lethe.uri import without_values

_AT: Final = "at"
_INT96: Final = "us"
"""As Iceberg reads these times. In nanoseconds, those before 1677 and after 2262 would be others."""


class Unsure(Exception):
    """The file cannot be searched with certainty. The text says why, and contains no values."""


@dataclass(frozen=True)
class Bounds:
    """What the statistics of a file say of a part of a column."""

    lower: Any = None
    """In Python's type. None: unknown."""
    upper: Any = None
    """In Python's type. None: unknown."""

    def might_hold(self, values: Values) -> bool:
        """Whether one of the values may be between them."""
        lower, upper = self.lower, self.upper
        match values.kind.type:
            case ValueType.STRING if isinstance(lower, str) and isinstance(upper, str):
                return values.might_lie_in(lower, upper)
            case ValueType.INT | ValueType.LONG if isinstance(lower, int) and isinstance(upper, int):
                return values.might_lie_in(lower, upper)
            case ValueType.DATE if _is_day(lower) and _is_day(upper):
                return values.might_lie_in(_day(lower), _day(upper))
            case _:
                return True


def _is_day(value: Any) -> bool:
    return isinstance(value, date) and not isinstance(value, datetime)


def _day(moment: date) -> int:
    return (moment - date(1970, 1, 1)).days


@dataclass(frozen=True)
class Part:
    """Consecutive rows of a column."""

    start: int
    """The position of the first row."""
    bounds: Bounds
    read: Callable[[], pa.ChunkedArray]


@dataclass(frozen=True)
class FileColumn:
    """A column of a file, or a field of one: of structs, also of structs in lists."""

    name: ColumnName
    field_id: int | None
    """The field id in the file; None: the file does not say it."""
    type: pa.DataType
    steps: tuple[Step, ...]
    """From the values of the file's column to those of the field."""
    leaf: int | None
    """The index among the columns that the file stores; None: it is a struct or a list."""


@dataclass(frozen=True)
class Columns:
    """An open data file."""

    named: tuple[tuple[ColumnName, int | None], ...]
    """The names of all columns and fields, except those in maps, and their field ids in the file."""
    rows: int
    """The number of rows."""
    parts: Callable[[ColumnName], Iterator[Part]]
    """The parts of the column of this name, in their order."""

    @property
    def by_id(self) -> dict[int, ColumnName]:
        """The names by field id; empty: the file has no field ids."""
        return {field_id: name for name, field_id in self.named if field_id is not None}

    def require_ids(self) -> None:
        """Check that a field whose id the file does not have is not in the file.

        Raises:
            Unsure: The columns have field ids, but not the fields of a struct.
        """
        fields = [field_id for name, field_id in self.named if len(name) > 1 and name[-1] != ELEMENT]
        if None in fields and self.by_id:
            raise Unsure("the file has field ids of columns, but not of fields in them")

    def read(self, name: ColumnName, searches: Iterable[Values]) -> Iterator[tuple[int, pa.ChunkedArray]]:
        """Read the parts of a column that may hold one of the values, each with the position of its first row."""
        wanted = tuple(searches)
        for part in self.parts(name):
            if any(part.bounds.might_hold(values) for values in wanted):
                yield part.start, part.read()


def open_columns(stream: Any, format_name: str) -> Columns:
    """Open a file of the format `PARQUET`, `ORC` or `AVRO`.

    Raises:
        Unsure: The file cannot be searched with certainty.
        Exception: What the decoder and the storage raise.
    """
    match format_name:
        case "PARQUET":
            return _parquet(stream)
        case "ORC":
            return _orc(stream)
        case "AVRO":
            return _avro(stream)
        case _:
            raise Unsure(f"Lethe does not read files of the format {format_name}")


def _file_columns(
    fields: Iterable[tuple[str, Step, pa.Field]],
    id_key: bytes,
    leaves: Iterator[int],
    name: ColumnName = (),
    steps: tuple[Step, ...] = (),
) -> Iterator[FileColumn]:
    """The columns of a file and their fields, without those in maps, in the order in which a Parquet file stores them."""
    for part, step, stored in fields:
        kind, metadata = stored.type, stored.metadata or {}
        path, way, field_id = (*name, part), (*steps, step), int(metadata[id_key]) if id_key in metadata else None
        below: list[tuple[str, Step, pa.Field]] = []
        if pa.types.is_map(kind):
            below = [("key", None, kind.key_field), ("value", None, kind.item_field)]
        elif pa.types.is_struct(kind):
            below = [(f.name, n, f) for n, f in enumerate(kind)]
        elif is_list(kind):
            below = [(ELEMENT, None, kind.value_field)]
        yield FileColumn(path, field_id, kind, way[1:], None if pa.types.is_nested(kind) else next(leaves))
        inner = _file_columns(below, id_key, leaves, path, way)
        if pa.types.is_map(kind):
            deque(inner, 0)  # counts what it stores
        else:
            yield from inner


def _columns(schema: pa.Schema, id_key: bytes) -> tuple[FileColumn, ...]:
    return tuple(_file_columns(((f.name, None, f) for f in schema), id_key, count()))


def _opened(columns: Sequence[FileColumn], rows: int, parts: Callable[[FileColumn], Iterator[Part]]) -> Columns:
    names = tuple(c.name for c in columns)

    def parts_of(name: ColumnName) -> Iterator[Part]:
        if names.count(name) != 1:
            raise Unsure("several columns have this name")
        column = columns[names.index(name)]
        if column.leaf is None:
            raise Unsure("the column is nested")
        return parts(column)

    return Columns(tuple((c.name, c.field_id) for c in columns), rows, parts_of)


def _values_of(chunks: Iterable[pa.Array], kind: pa.DataType, steps: Sequence[Step]) -> pa.ChunkedArray:
    """The values of a column, or of a field of it for each row.

    Args:
        kind: The type of the column, for a column without chunks.
    """
    return pa.chunked_array([values_at(chunk, steps) for chunk in [*chunks] or [pa.nulls(0, kind)]])


# --- Parquet --------------------------------------------------------------------------------------------------------


def _parquet(stream: Any) -> Columns:
    opened = pq.ParquetFile(stream, coerce_int96_timestamp_unit=_INT96)
    schema = opened.schema_arrow
    paths = [opened.schema.column(n).path for n in range(len(opened.schema))]

    def parts(column: FileColumn) -> Iterator[Part]:
        path = paths[column.leaf or 0]
        # Arrow selects columns by path: a column named `a.b` has the same path as the field `b` of `a`.
        if paths.count(path) != 1 or any(p.startswith(f"{path}.") for p in paths):
            raise Unsure("several columns have this name")
        texts = [path] if pa.types.is_string(column.type) and not column.steps else []
        parquet = pq.ParquetFile(
            stream, metadata=opened.metadata, read_dictionary=texts, coerce_int96_timestamp_unit=_INT96
        )
        return _row_groups(parquet, path, column)

    return _opened(_columns(schema, b"PARQUET:field_id"), opened.metadata.num_rows, parts)


def _row_groups(parquet: pq.ParquetFile, path: str, column: FileColumn) -> Iterator[Part]:
    start = 0
    for n in range(parquet.metadata.num_row_groups):
        group = parquet.metadata.row_group(n)
        bounds = _bounds_in(group.column(column.leaf).statistics)
        yield Part(start, bounds, partial(_row_group, parquet, n, path, column))
        start += group.num_rows


def _bounds_in(statistics: Any) -> Bounds:
    """The bounds that the statistics of a Parquet file have. Those that are no values of Python are unknown."""
    if statistics is None or not statistics.has_min_max:
        return Bounds()
    try:
        return Bounds(statistics.min, statistics.max)
    except (
        OverflowError,
        ValueError,
    ):  # a date after the year 9999, such as that of infinity, or text that is not UTF-8
        return Bounds()


def _row_group(parquet: pq.ParquetFile, n: int, path: str, column: FileColumn) -> pa.ChunkedArray:
    values = parquet.read_row_group(n, columns=[path], use_threads=False).column(0)
    # The structs have no other fields.
    steps = [step if step is None else 0 for step in column.steps]
    return _values_of(values.chunks, values.type, steps) if steps else values


# --- ORC and Avro ---------------------------------------------------------------------------------------------------


def _orc(stream: Any) -> Columns:
    opened = orc.ORCFile(stream)

    def parts(column: FileColumn) -> Iterator[Part]:
        start = 0
        for n in range(opened.nstripes):
            stripe = opened.read_stripe(n, columns=[column.name[0]])
            values = stripe.column(0)
            yield Part(start, Bounds(), partial(_values_of, [values], values.type, column.steps))
            start += stripe.num_rows

    return _opened(_columns(opened.schema, b"iceberg.id"), opened.nrows, parts)


def _avro(stream: Any) -> Columns:
    rows = sum(block.num_records for block in block_reader(stream))
    stream.seek(0)
    schema: Any = expand_schema(reader(stream).writer_schema)

    def parts(name: ColumnName) -> Iterator[Part]:
        stream.seek(0)
        start = 0
        # fastavro itself has no times outside the years 1 to 9999.
        for table in open_avro(stream, pa.schema([]), name[0]).tables:
            values = table.column(0)
            yield Part(start, Bounds(), partial(_values_of, values.chunks, values.type, _steps(values.type, name[1:])))
            start += table.num_rows

    return Columns(tuple(_avro_columns(schema["fields"])), rows, parts)


def _avro_columns(fields: Iterable[dict[str, Any]], outer: ColumnName = ()) -> Iterator[tuple[ColumnName, int | None]]:
    """The columns of a file and their fields, without those in maps: their names and field ids."""
    for stored in fields:
        name = (*outer, str(stored["name"]))
        yield name, stored.get("field-id")
        yield from _below(stored["type"], name)


def _below(kind: Any, name: ColumnName) -> Iterator[tuple[ColumnName, int | None]]:
    kinds: list[Any] = [k for k in kind if k != "null"] if isinstance(kind, list) else [kind]
    match kinds:
        case [{"type": "record", "fields": fields}]:
            yield from _avro_columns(fields, name)
        case [{"type": "array", "items": items}] if kinds[0].get("logicalType") != "map":
            yield (*name, ELEMENT), kinds[0].get("element-id")
            yield from _below(items, (*name, ELEMENT))


def _steps(kind: pa.DataType, names: ColumnName) -> list[Step]:
    """The steps from the values of a column to a field of it, by the names on the way."""
    steps: list[Step] = []
    for name in names:
        steps.append(None if is_list(kind) else name)
        kind = kind.value_type if is_list(kind) else kind.field(name).type
    return steps


@dataclass(frozen=True)
class Wanted:
    """The values of a column to search for."""

    field_id: int
    """The Iceberg field id of the column."""
    values: Values
    array: pa.Array = field(repr=False, compare=False)
    """The values as an Arrow array."""

    @classmethod
    def of(cls, field_id: int, values: Values) -> "Wanted":
        """Make the Arrow array of the values once, for all files that are searched."""
        return cls(field_id, values, as_arrow(values))


def as_arrow(values: Values) -> pa.Array:
    """The values as an Arrow array of their kind."""
    items, kind = values.items, values.kind
    match kind.type:
        case ValueType.STRING:
            return pa.array(items, pa.string())
        case ValueType.INT | ValueType.LONG:
            return pa.array(items, pa.int64())
        case ValueType.DATE:
            return pa.array(items, pa.int32()).cast(pa.date32())
        case ValueType.TIMESTAMP:
            return pa.array(items, pa.int64()).cast(pa.timestamp("us"))
        case ValueType.TIMESTAMPTZ:
            return pa.array(items, pa.int64()).cast(pa.timestamp("us", "UTC"))
        case ValueType.DECIMAL:
            return pa.array(items, pa.decimal128(kind.precision, kind.scale))
        case ValueType.UUID:
            return pa.array([u.bytes for u in items], pa.binary(16))
        case _:
            assert_never(kind.type)


@dataclass(frozen=True)
class SearchedFile:
    """A data file to search."""

    io: FileIO
    path: str
    format_name: str = "PARQUET"
    """Or ORC, AVRO."""
    names: Mapping[ColumnName, int] | None = None
    """The field ids of a file that has none itself, by name. None: do not read such a file."""

    @contextmanager
    def open(self) -> Iterator[tuple[Columns, dict[int, ColumnName]]]:
        """The open file, and its names of columns by field id.

        Raises:
            Unsure: The file cannot be searched with certainty.
            Exception: What the storage raises.
        """
        with self.io.new_input(self.path).open() as stream, unsure_at(self.path):
            file = open_columns(stream, self.format_name)
            yield file, columns_by_id(file, self.names)


def find(
    searched: SearchedFile, searches_by_key: Mapping[str, Wanted], if_absent: Collection[str] = ()
) -> dict[str, FrozenBitMap64]:
    """Find the positions of the rows with the wanted values.

    Args:
        searches_by_key: By any key.
        if_absent: The keys that match every row of a file without their column: the table says what such rows hold.

    Returns:
        Positions by key; only keys with rows.

    Raises:
        Unsure: The file cannot be searched with certainty.
        Exception: What the storage raises.
    """
    found = {key: BitMap64() for key in searches_by_key}
    with searched.open() as (file, columns):
        for field_id in {w.field_id for w in searches_by_key.values()}:
            searches = {key: w for key, w in searches_by_key.items() if w.field_id == field_id}
            if field_id not in columns:
                file.require_ids()
                for key in searches.keys() & set(if_absent):
                    found[key].update(range(file.rows))
                continue
            for start, piece in file.read(columns[field_id], [w.values for w in searches.values()]):
                for key, w in searches.items():
                    found[key].update(matches(piece, w, start))
    return {key: frozen(positions) for key, positions in found.items() if positions}


@contextmanager
def unsure_at(path: str) -> Iterator[None]:
    """Turn errors about a file into `Unsure`, without values.

    Raises:
        Unsure: The file cannot be searched with certainty.
    """
    try:
        yield
    except (Unsure, BadFile, Damaged) as e:
        raise Unsure(f"{without_values(path)}: {e}") from None
    except pa.ArrowException as e:
        # Its text may contain a value.
        raise Unsure(f"{without_values(path)}: {type(e).__name__}") from None


def columns_by_id(file: Columns, names: Mapping[ColumnName, int] | None) -> dict[int, ColumnName]:
    """The names of columns and fields in the file, by field id.

    Raises:
        Unsure: The file cannot be searched with certainty.
    """
    if by_id := file.by_id:
        return by_id
    if names is None:
        raise Unsure("the file has no field ids, and the table has no name mapping")
    return {names[name]: name for name, _ in file.named if name in names}


def frozen(positions: BitMap64) -> FrozenBitMap64:
    """A copy that cannot change. `positions` is compressed in place before."""
    positions.run_optimize()
    return FrozenBitMap64(positions)


def matches(column: pa.ChunkedArray, search: Wanted, start: int = 0) -> np.ndarray[Any, Any]:
    """The positions of the rows with one of the values; the first row has the position `start`. Nulls match nothing.

    Its text may contain a value.

    Raises:
        pa.ArrowException: The column is not of the values' kind.
    """
    masks: list[np.ndarray[Any, Any]] = []
    for chunk in column.chunks:
        hits = np.flatnonzero(is_one_of(chunk, search).to_numpy(zero_copy_only=False))
        masks.append(hits.astype(np.uint64) + np.uint64(start))
        start += len(chunk)
    return np.concatenate(masks) if masks else np.empty(0, np.uint64)


def is_one_of(rows: pa.Array, search: Wanted) -> pa.BooleanArray:
    """Whether each row has one of the values, or several of which one is.

    Raises:
        Exception: As `matches`.
    """
    return any_value(rows, lambda values: _is_one_of(values, search))


def _is_one_of(chunk: pa.Array, search: Wanted) -> pa.BooleanArray:
    if isinstance(chunk, pa.ExtensionArray):
        chunk = chunk.storage
    if pa.types.is_dictionary(chunk.type):
        is_match = pc.is_in(_cast(chunk.dictionary, search.array.type), value_set=search.array)
        return is_match.take(chunk.indices)
    return pc.is_in(_cast(chunk, search.array.type), value_set=search.array)


def plain(values: pa.Array, search: Wanted) -> pa.Array:
    """The values of a column in the Arrow type of the wanted values.

    Raises:
        Exception: As `matches`.
    """
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return _cast(values, search.array.type)


def _cast(values: pa.Array, target: pa.DataType) -> pa.Array:
    return values if values.type == target else values.cast(target)


@dataclass(frozen=True, eq=False)
class WantedKeys:
    """The keys to search for."""

    columns: tuple[Wanted, ...]
    """The distinct values of each key column."""
    rows: pa.Table = field(repr=False)
    """The sorted keys; its columns are named 0, 1, … in the order of `columns`."""

    @classmethod
    def of(cls, columns: Sequence[tuple[int, ValueKind]], keys: pa.Table) -> "WantedKeys":
        """Make `WantedKeys`.

        Args:
            columns: Iceberg field id and kind of each column of `keys`.
            keys: Without nulls, in Spark's types for these kinds.
        """
        arrays = {str(n): _as_stored(keys.column(n), kind) for n, (_, kind) in enumerate(columns)}
        searches = tuple(
            Wanted.of(field_id, Values(kind, distinct_values(arrays[str(n)], kind)))
            for n, (field_id, kind) in enumerate(columns)
        )
        rows = pa.table(arrays)
        return cls(searches, rows.sort_by([(name, "ascending") for name in rows.column_names]))

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


def _as_stored(column: pa.ChunkedArray, kind: ValueKind) -> pa.ChunkedArray:
    stored_type = as_arrow(Values(kind, ())).type
    if kind.type is ValueType.UUID and pa.types.is_string(column.type):
        return pa.chunked_array([pa.array([UUID(text).bytes for text in column.to_pylist()], stored_type)])
    return column if column.type == stored_type else column.cast(stored_type)


def distinct_values(column: pa.ChunkedArray, kind: ValueKind) -> tuple[Any, ...]:
    """The distinct values of a column in order, as `Values` has them, without null."""
    values = pc.unique(_as_stored(column, kind)).drop_null()
    match kind.type:
        case ValueType.DATE:
            values = values.cast(pa.int32())
        case ValueType.TIMESTAMP | ValueType.TIMESTAMPTZ:
            values = values.cast(pa.int64())
        case ValueType.UUID:
            return tuple(sorted(UUID(bytes=v) for v in values.to_pylist()))
        case ValueType.STRING | ValueType.INT | ValueType.LONG | ValueType.DECIMAL:
            pass
        case _:
            assert_never(kind.type)
    return tuple(sorted(values.to_pylist()))


AnyWanted: TypeAlias = Wanted | WantedKeys


def columns_of(search: AnyWanted) -> tuple[Wanted, ...]:
    """Each column to search, with its values."""
    return search.columns if isinstance(search, WantedKeys) else (search,)


def find_keys(
    searched: SearchedFile,
    searches_by_key: Mapping[str, WantedKeys],
    absent: Mapping[str, Sequence[int | None]] | None = None,
) -> dict[str, FrozenBitMap64]:
    """Find the positions of the rows with the wanted keys, as `lethe.search.positions.find` does for values.

    Args:
        absent: By the key of a search, for each of its columns: the index of the value that all rows hold if the file lacks
            that column; None: no wanted value.

    Raises:
        Unsure: The file cannot be searched with certainty.
        Exception: What the storage raises.
    """
    found: dict[str, FrozenBitMap64] = {}
    with searched.open() as (file, ids):
        for key, w in searches_by_key.items():
            positions = BitMap64()
            for start, columns in _pieces(file, ids, w, (absent or {}).get(key, ()), searched.format_name):
                positions.update(matches_keys(columns, w) + np.uint64(start))
            if positions:
                found[key] = frozen(positions)
    return found


def _pieces(
    file: Columns, names: Mapping[int, ColumnName], search: WantedKeys, absent: Sequence[int | None], format_name: str
) -> Iterator[tuple[int, list[pa.Array]]]:
    """The pieces of the key columns in which each column might hold a wanted value, each with the position of its first row."""
    held = {w.field_id: index for w, index in zip(search.columns, absent, strict=False) if w.field_id not in names}
    present = [w for w in search.columns if w.field_id in names]
    if held:
        file.require_ids()
    if any(held.get(w.field_id) is None for w in search.columns if w.field_id not in names):
        return
    constants = {w.field_id: w.array[held[w.field_id]] for w in search.columns if w.field_id not in names}
    if not present:
        yield 0, [pa.repeat(constants[w.field_id], file.rows) for w in search.columns]
        return
    read = (file.read(names[w.field_id], [w.values]) for w in present)
    # An Avro file is read from its start for each column.
    columns = [iter(list(pieces)) if format_name == "AVRO" else pieces for pieces in read]
    for start, parts in aligned(columns):
        found = {w.field_id: part.combine_chunks() for w, part in zip(present, parts, strict=True)}
        rows = len(parts[0])
        yield start, [found.get(w.field_id, _repeated(constants.get(w.field_id), rows)) for w in search.columns]


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
        start = max(position for position, _ in now)
        if all(position == start for position, _ in now):
            yield start, [piece for _, piece in now]
            start += 1
        heads = [h if h[0] >= start else next(c, None) for h, c in zip(now, columns, strict=True)]


def matches_keys(columns: Sequence[pa.Array], search: WantedKeys) -> np.ndarray[Any, Any]:
    """The positions, from 0 and in order, of the rows with one of the keys. Nulls match nothing.

    Its text may contain a value.

    Raises:
        pa.ArrowException: A column is not of its values' kind.
    """
    hits: Any = is_one_of(columns[0], search.columns[0])
    for column, w in zip(columns[1:], search.columns[1:], strict=True):
        hits = pc.and_(hits, is_one_of(column, w))
    positions = np.flatnonzero(hits.to_numpy(zero_copy_only=False)).astype(np.uint64)
    if len(columns) == 1 or not positions.size:
        return positions
    # Each value belongs to a key, but not necessarily to the same key.
    rows = {str(n): plain(c.take(pa.array(positions)), search.columns[n]) for n, c in enumerate(columns)}
    joined = pa.table({**rows, _AT: pa.array(positions)}).join(
        search.rows, list(rows), join_type="left semi", use_threads=False
    )
    return np.sort(joined.column(_AT).to_numpy())

"""At which positions of a data file rows with some values lie. I/O: reads one column at a time, with Arrow; no Spark.

Positions are those of Iceberg's deletes: a file's rows in their order, counted from 0, whatever is deleted of them. What
Arrow cannot answer with certainty it does not answer (`Unsure`). No error tells a value.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import accumulate
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyroaring import BitMap64, FrozenBitMap64

from lethe.plan.erasing import Kind, Values

_FIELD_ID: Final = b"PARQUET:field_id"


class Unsure(Exception):
    """Arrow cannot tell of this file. The text says why, and holds no value."""


@dataclass(frozen=True)
class Wanted:
    """Values of the column with this Iceberg field id, rows with one of which are looked for."""

    field_id: int
    values: Values
    array: pa.Array = field(repr=False, compare=False)  # the same, as Arrow has them

    @classmethod
    def of(cls, field_id: int, values: Values) -> "Wanted":
        return cls(field_id, values, as_arrow(values))


def as_arrow(values: Values) -> pa.Array:
    """The values as Arrow holds a column of their kind."""
    items = values.items
    match values.kind:
        case Kind("string"):
            return pa.array(items, pa.string())
        case Kind("int" | "long"):
            return pa.array(items, pa.int64())
        case Kind("date"):
            return pa.array(items, pa.int32()).cast(pa.date32())
        case Kind("timestamp"):
            return pa.array(items, pa.int64()).cast(pa.timestamp("us"))
        case Kind("timestamptz"):
            return pa.array(items, pa.int64()).cast(pa.timestamp("us", "UTC"))
        case Kind("decimal", precision, scale):
            return pa.array(items, pa.decimal128(precision, scale))
        case Kind("uuid"):
            return pa.array([u.bytes for u in items], pa.binary(16))
    raise AssertionError(values.kind)


def find(
    io: FileIO, path: str, wanted: Mapping[str, Wanted], names: Mapping[str, int] | None = None
) -> dict[str, FrozenBitMap64]:
    """The positions of the rows that are wanted, for each of `wanted` of which there are any, by its key.

    Args:
        path: Of a Parquet file.
        names: Field ids by the names of columns, for a file without field ids of its own; None: such a file is not read.
    Raises: Unsure; whatever the storage raises.
    """
    with io.new_input(path).open() as stream:
        try:
            opened = pq.ParquetFile(stream)
            columns = _columns(opened, {w.field_id for w in wanted.values()}, names)
            texts = [n for f, n in columns.items() if pa.types.is_string(opened.schema_arrow.field(n).type)]
            parquet = pq.ParquetFile(stream, metadata=opened.metadata, read_dictionary=texts)
            found = {key: BitMap64() for key in wanted}
            for field_id, name in columns.items():
                asked = {key: w for key, w in wanted.items() if w.field_id == field_id}
                for start, group in _row_groups(parquet, name, asked.values()):
                    for key, w in asked.items():
                        found[key].update(matches(group, w, start))
        except pa.ArrowException as e:
            # Its text may quote what could not be converted.
            raise Unsure(f"{path}: {type(e).__name__}") from None
    return {key: frozen(positions) for key, positions in found.items() if positions}


def frozen(positions: BitMap64) -> FrozenBitMap64:
    positions.run_optimize()
    return FrozenBitMap64(positions)


def matches(column: pa.ChunkedArray, wanted: Wanted, start: int = 0) -> np.ndarray[Any, Any]:
    """The positions of the rows of a column with one of the values, the first row being at `start`. Nulls match nothing.

    Raises: pa.ArrowException, with a text that may hold a value, for a column that is not of the values' kind.
    """
    found: list[np.ndarray[Any, Any]] = []
    for chunk in column.chunks:
        hits = np.flatnonzero(_is_one_of(chunk, wanted).to_numpy(zero_copy_only=False))
        found.append(hits.astype(np.uint64) + np.uint64(start))
        start += len(chunk)
    return np.concatenate(found) if found else np.empty(0, np.uint64)


def _is_one_of(chunk: pa.Array, wanted: Wanted) -> pa.BooleanArray:
    if isinstance(chunk, pa.ExtensionArray):
        chunk = chunk.storage
    if pa.types.is_dictionary(chunk.type):
        known = pc.is_in(_cast(chunk.dictionary, wanted.array.type), value_set=wanted.array)
        return pc.fill_null(known.take(chunk.indices), False)
    if wanted.values.kind == Kind("uuid") and not pa.types.is_fixed_size_binary(chunk.type):
        # To Spark a UUID is a text.
        texts = pa.array([str(UUID(bytes=b)) for b in wanted.array.to_pylist()], pa.string())
        return pc.is_in(pc.utf8_lower(chunk.cast(pa.string())), value_set=texts)
    return pc.is_in(_cast(chunk, wanted.array.type), value_set=wanted.array)


def _cast(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    return values if values.type == wanted else values.cast(wanted)


def _columns(parquet: pq.ParquetFile, field_ids: set[int], names: Mapping[str, int] | None) -> dict[int, str]:
    """The file's own names of the columns. Raises: Unsure, for a file that lacks one: the table says what it is then."""
    schema = parquet.schema_arrow
    ids = {f.name: int(f.metadata[_FIELD_ID]) for f in schema if f.metadata and _FIELD_ID in f.metadata}
    if not ids and names is None:
        raise Unsure("the file has no field ids")
    known = {field_id: name for name, field_id in (ids or names or {}).items() if name in schema.names}
    if missing := field_ids - known.keys():
        raise Unsure(f"the file has no columns {sorted(missing)}")
    paths = [parquet.schema.column(n).path for n in range(len(parquet.schema))]
    found = {f: known[f] for f in field_ids}
    for name in found.values():
        # Arrow is asked by paths, in which a column `a.b` looks like `b` in `a`.
        if paths.count(name) != 1 or schema.names.count(name) != 1 or any(p.startswith(f"{name}.") for p in paths):
            raise Unsure("the file has several columns of one name")
    return found


def _row_groups(parquet: pq.ParquetFile, column: str, wanted: Any) -> Iterator[tuple[int, pa.ChunkedArray]]:
    """The column in each row group that may hold one of the values, and the position of its first row."""
    metadata = parquet.metadata
    sizes = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
    for n, start in enumerate(accumulate(sizes[:-1], initial=0) if sizes else ()):
        if any(_might_hold(metadata.row_group(n), column, w.values) for w in wanted):
            yield start, parquet.read_row_group(n, columns=[column], use_threads=False).column(0)


def _might_hold(group: Any, column: str, values: Values) -> bool:
    at = next(n for n in range(group.num_columns) if group.column(n).path_in_schema == column)
    statistics = group.column(at).statistics
    if statistics is None or not statistics.has_min_max:
        return True
    lower, upper = statistics.min, statistics.max
    match values.kind.name:
        case "string" if isinstance(lower, str) and isinstance(upper, str):
            return values.might_lie_in(lower, upper)
        case "int" | "long" if isinstance(lower, int) and isinstance(upper, int):
            return values.might_lie_in(lower, upper)
        case "date" if isinstance(lower, date) and isinstance(upper, date) and not isinstance(lower, datetime):
            return values.might_lie_in(_day(lower), _day(upper))
        case _:
            return True


def _day(moment: date) -> int:
    return (moment - date(1970, 1, 1)).days

"""Turns the columns of a data file into those of a table, by field ids. Pure: Arrow in, Arrow out.

A file keeps the names, the types and the fields that the table had when it was written. For the table's schema of a read

- columns and the fields of structs, also in lists and maps, are found by their ids, in any order and under any name;
- a field that the file lacks has its `initial-default`, else it is null;
- a type that was widened later is cast;
- a null stays a null: that of a struct, a list or a map is none with null or no parts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from uuid import UUID

import numpy as np
import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.types import DoubleType, IcebergType, ListType, MapType, NestedField, StructType

from lethe.ingest.exact_values import is_list, plain_list

_ID_KEYS: Final = (b"PARQUET:field_id", b"iceberg.id")  # of Parquet, of ORC
_DOC: Final = "doc"
Step: TypeAlias = Callable[[pa.Array], pa.Array]


class Unprojectable(Exception):
    """The columns of a file cannot be read as those of the table. The text contains no values."""


# --- the table ------------------------------------------------------------------------------------------------------


def arrow_field(field: NestedField) -> pa.Field:
    """The Arrow field of a column of the table, in the rows of a read."""
    metadata = {_DOC: field.doc} if field.doc else None
    return pa.field(field.name, arrow_type(field.field_type), field.optional, metadata)


def arrow_type(kind: IcebergType) -> pa.DataType:
    """The Arrow type of a type of the table, in the rows of a read."""
    match kind:
        case StructType(fields=fields):
            return pa.struct([arrow_field(f) for f in fields])
        case ListType():
            return pa.list_(arrow_field(kind.element_field))
        case MapType():
            return pa.map_(arrow_field(kind.key_field), arrow_field(kind.value_field))
    arrow: pa.DataType = schema_to_pyarrow(kind, include_field_ids=False)
    if pa.types.is_large_string(arrow):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(arrow) else arrow


# --- the file -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileField:
    """A column of a file, or a part of one.

    Args:
        field_id: None: the table does not know it.
        parts: Of a struct its fields; of a list its element; of a map its key and its value.
    """

    field_id: int | None
    type: pa.DataType
    parts: tuple["FileField", ...] = ()


def file_fields(schema: pa.Schema, names: NameMapping | None) -> tuple[FileField, ...]:
    """The columns of a file.

    Args:
        names: The table's name mapping, for a file without field ids.

    Raises:
        Unprojectable: There are no ids.
    """
    if any(_own_id(f) is not None for f in schema):
        return tuple(_with_own_ids(f) for f in schema)
    if names is None:
        raise Unprojectable(
            "it has no field ids, and the table has no name mapping (the property schema.name-mapping.default)"
        )
    return tuple(_with_mapped_ids(f, f.name, names.root) for f in schema)


def _own_id(field: pa.Field) -> int | None:
    metadata = field.metadata or {}
    return next((int(metadata[key]) for key in _ID_KEYS if key in metadata), None)


def _with_own_ids(field: pa.Field) -> FileField:
    return FileField(_own_id(field), field.type, tuple(_with_own_ids(f) for _, f in _parts(field.type)))


def _with_mapped_ids(field: pa.Field, name: str, mapped: Iterable[MappedField]) -> FileField:
    mapping = next((m for m in mapped if name in m.names), None)
    own, of_parts = (None, []) if mapping is None else (mapping.field_id, mapping.fields)
    return FileField(own, field.type, tuple(_with_mapped_ids(f, part, of_parts) for part, f in _parts(field.type)))


def _parts(kind: pa.DataType) -> list[tuple[str, pa.Field]]:
    if pa.types.is_struct(kind):
        return [(f.name, f) for f in kind]
    if pa.types.is_map(kind):
        return [("key", kind.key_field), ("value", kind.item_field)]
    return [("element", kind.value_field)] if is_list(kind) else []


# --- the projection -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Projection:
    """How rows of a file become rows of a read."""

    # For each column of the read: its place among the columns of the file that are read, and the step; or a value for all rows.
    _columns: tuple[tuple[int | None, Step | pa.Scalar], ...]
    _schema: pa.Schema
    needed: tuple[int, ...]
    """The places of the columns to read, in the file."""

    @classmethod
    def of(
        cls,
        file: Sequence[FileField],
        wanted: Sequence[NestedField],
        constants: Mapping[int, Any],
        as_they_are: Iterable[int] = (),
    ) -> "Projection":
        """Make `Projection`.

        Args:
            wanted: Columns of the table.
            constants: By field id, the values of columns that the file may lack, for all its rows: those of its partition.
            as_they_are: Ids of columns whose dictionaries are kept.

        Raises:
            Unprojectable: The columns of a file cannot be read as those of the table.
        """
        places = {f.field_id: n for n, f in enumerate(file) if f.field_id is not None}
        needed = sorted({places[f.field_id] for f in wanted if f.field_id in places})
        columns: list[tuple[int | None, Step | pa.Scalar]] = []
        kept = frozenset(as_they_are)
        for field in wanted:
            place = places.get(field.field_id)
            if place is not None:
                kind = file[place].type
                is_kept = field.field_id in kept and pa.types.is_dictionary(kind)
                stays = is_kept or _is_large(kind, arrow_type(field.field_type))
                columns.append((needed.index(place), _same if stays else _step(file[place], field)))
            elif field.field_id in constants:
                if isinstance(field.field_type, DoubleType) and constants[field.field_id] is not None:
                    # PyIceberg reads such a number as a float.
                    raise Unprojectable(
                        f"it lacks the column {field.name}, and only Spark reads a double of its partition. Use lethe_spark.read"
                    )
                columns.append((None, _scalar(constants[field.field_id], field)))
            else:
                columns.append((None, _default(field)))
        return cls(tuple(columns), pa.schema([arrow_field(f) for f in wanted]), tuple(needed))

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Turn rows of a file into rows of the table.

        Args:
            rows: The needed columns of the file.
        """
        arrays, fields = [], []
        for (place, step), field in zip(self._columns, self._schema, strict=True):
            if place is None:
                array = _repeated(step, rows.num_rows)
            else:
                assert not isinstance(step, pa.Scalar)
                array = step(rows.column(place))
            arrays.append(array)
            fields.append(field if array.type == field.type else field.with_type(array.type))
        if not arrays:
            return rows.select([])
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _same(array: pa.Array) -> pa.Array:
    return array


def _is_large(file: pa.DataType, target: pa.DataType) -> bool:
    """Whether a column may have more bytes in one record batch than its type has offsets for."""
    texts = pa.types.is_large_string(file) and pa.types.is_string(target)
    return texts or (pa.types.is_large_binary(file) and pa.types.is_binary(target))


def _step(file: FileField, wanted: NestedField) -> Step:
    kind, target = wanted.field_type, arrow_type(wanted.field_type)
    if pa.types.is_dictionary(file.type):
        inner = _step(FileField(file.field_id, file.type.value_type), wanted)
        return lambda array: inner(array.dictionary_decode())
    if pa.types.is_null(file.type):
        return lambda array: pa.nulls(len(array), target)
    match kind:
        case StructType(fields=fields) if pa.types.is_struct(file.type):
            return _struct(file, fields, target)
        case ListType() if is_list(file.type):
            return _list(file, kind, target)
        case MapType() if pa.types.is_map(file.type):
            return _map(file, kind, target)
        case StructType() | ListType() | MapType():
            raise Unprojectable(
                f"its column {wanted.name} is {_name(file.type)}, which cannot be read as {_kind(kind)}"
            )
    return _plain(file.type, target, wanted)


def _struct(file: FileField, fields: Sequence[NestedField], target: pa.DataType) -> Step:
    places = {f.field_id: n for n, f in enumerate(file.parts) if f.field_id is not None}
    steps: list[tuple[int | None, Step | pa.Scalar]] = []
    for field in fields:
        place = places.get(field.field_id)
        steps.append((None, _default(field)) if place is None else (place, _step(file.parts[place], field)))

    def project(array: pa.Array) -> pa.Array:
        children = [_repeated(step, len(array)) if place is None else step(array.field(place)) for place, step in steps]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)

    return project


def _list(file: FileField, kind: ListType, target: pa.DataType) -> Step:
    step = _step(file.parts[0], kind.element_field)

    def project(array: pa.Array) -> pa.Array:
        if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
            array = plain_list(array)
        values = step(array.values)
        made = pa.large_list if pa.types.is_large_list(array.type) else pa.list_
        rebuilt = _rebuilt(array, made(target.value_field), [values])
        return rebuilt if rebuilt.type == target else rebuilt.cast(target)

    return project


def _map(file: FileField, kind: MapType, target: pa.DataType) -> Step:
    key, value = (_step(f, w) for f, w in zip(file.parts, (kind.key_field, kind.value_field), strict=True))
    fields = [target.key_field, target.item_field]

    def project(array: pa.Array) -> pa.Array:
        entries = pa.StructArray.from_arrays([key(array.keys), value(array.items)], fields=fields)
        return _rebuilt(array, target, [entries])

    return project


def _rebuilt(array: pa.Array, kind: pa.DataType, children: list[pa.Array]) -> pa.Array:
    """The lists or maps with other parts: which are null, and where each begins, stays as it is."""
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], array.null_count, array.offset, children)


def _plain(file: pa.DataType, target: pa.DataType, wanted: NestedField) -> Step:
    if file == target:
        return _same
    if isinstance(file, pa.ExtensionType):
        inner = _plain(file.storage_type, target, wanted)
        return lambda array: inner(array.storage)
    if isinstance(target, pa.ExtensionType):
        storage = target.storage_type
        inner = _plain(file, storage, wanted)
        return lambda array: pa.ExtensionArray.from_storage(target, inner(array))
    if pa.types.is_temporal(file) and _unit(file) == "ns" and _unit(target) == "us":
        return lambda array: _microseconds(array).cast(target)
    if not _is_widened(file, target):
        raise Unprojectable(
            f"its column {wanted.name} is {_name(file)}, which cannot be read as {_kind(wanted.field_type)}"
        )
    return lambda array: array.cast(target)


def _is_widened(file: pa.DataType, target: pa.DataType) -> bool:
    """Whether a cast keeps all values."""
    types = pa.types
    if types.is_integer(file) and types.is_signed_integer(target):
        return bool(file.bit_width < target.bit_width or (types.is_signed_integer(file) and file == target))
    if types.is_floating(file) and types.is_floating(target):
        return bool(file.bit_width <= target.bit_width)
    if types.is_decimal(file) and types.is_decimal(target):
        return bool(file.scale == target.scale and file.precision <= target.precision)
    if types.is_timestamp(target):
        return bool(types.is_timestamp(file) or types.is_date(file))
    if types.is_date(file) and types.is_date(target):
        return True
    if types.is_time(file) and types.is_time(target):
        return True
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary, types.is_string_view)
    if (types.is_string(target) or types.is_binary(target)) and any(is_text(file) for is_text in texts):
        return True
    return bool(types.is_fixed_size_binary(target) and (types.is_binary(file) or types.is_large_binary(file)))


def _unit(kind: pa.DataType) -> str | None:
    return getattr(kind, "unit", None)


def _microseconds(array: pa.Array) -> pa.Array:
    """Nanoseconds as whole microseconds, rounded down as Iceberg does; Arrow's cast rounds towards 1970."""
    zone = getattr(array.type, "tz", None)
    kind = pa.time64("us") if pa.types.is_time(array.type) else pa.timestamp("us", zone)
    numbers = np.asarray(array.view(pa.int64()).fill_null(0)) // 1000
    return pa.array(numbers, pa.int64(), mask=np.asarray(array.is_null())).view(kind)


def _default(field: NestedField) -> pa.Scalar:
    """What a file has that was written before the field was added.

    Raises:
        Unprojectable: The columns of a file cannot be read as those of the table.
    """
    if field.initial_default is None and field.required:
        raise Unprojectable(
            f"it lacks the column {field.name}, which the table requires and has no initial default for"
        )
    return _scalar(field.initial_default, field)


def _scalar(value: Any, field: NestedField) -> pa.Scalar:
    return pa.scalar(value.bytes if isinstance(value, UUID) else value, arrow_type(field.field_type))


def _repeated(value: Any, times: int) -> pa.Array:
    return pa.repeat(value, times) if value.is_valid else pa.nulls(times, value.type)


def _kind(kind: IcebergType) -> str:
    return str(kind).partition("<")[0]


def _name(kind: pa.DataType) -> str:
    return str(kind).partition("<")[0]

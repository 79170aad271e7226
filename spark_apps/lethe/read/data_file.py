"""Reads the rows of data files as Arrow record batches of the table's schema, without those that are deleted. I/O: reads data.

Rows may be deleted by position, in delete files and deletion vectors, or by tombstones of their batches.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any, Final, TypeAlias
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DoubleType,
    FloatType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
)
from pyiceberg.utils.concurrent import ExecutorFactory

from lethe.base.ahead import ahead
from lethe.base.errors import InputError
from lethe.files.bounds import FileBounds, IdIndex, has_one_batch, split_by_bounds
from lethe.files.increment import ReadPlan
from lethe.iceberg.column_path import ColumnPath
from lethe.iceberg.conditions import RowCondition
from lethe.iceberg.native_deletes import PositionDeletes
from lethe.iceberg.position_deletes import PositionArray, as_array, read_deletes
from lethe.iceberg.snapshot_files import PlannedFile, SnapshotView
from lethe.ingest.exact_values import is_list, plain_list
from lethe.uri import without_values

_ID_KEYS: Final = (b"PARQUET:field_id", b"iceberg.id")
"""The metadata key of a field id in Parquet, and in ORC."""
_DOC: Final = "doc"
Step: TypeAlias = Callable[[pa.Array], pa.Array]

Deleted: TypeAlias = Mapping[str, PositionArray]
RecordBatches: TypeAlias = Iterable[pa.RecordBatch]

_BUFFER: Final = 8 * 1024**2

FILES_AHEAD: Final = 16
"""How many files are read at once, with their rows in memory."""
BYTES_AHEAD: Final = 1024**3
"""The most bytes of these files, as they are stored, in the columns that are read."""


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
    """How rows of a file become rows of a read.

    A file keeps the names, the types and the fields that the table had when it was written. For the table's schema of a read

    - columns and the fields of structs, also in lists and maps, are found by their ids, in any order and under any name;
    - a field that the file lacks has its `initial-default`, else it is null;
    - a type that was widened later is cast;
    - a null stays a null: a null struct, list or map does not become one with null parts, or without parts.
    """

    # For each column of the read: its place among the columns of the file that are read, and the step; or a value for all rows.
    _columns: tuple[tuple[int | None, Step | pa.Scalar], ...]
    _schema: pa.Schema
    needed: tuple[int, ...]
    """The places of the columns to read, in the file."""

    @classmethod
    def of(
        cls,
        file: Sequence[FileField],
        columns_to_read: Sequence[NestedField],
        constants: Mapping[int, Any],
        as_they_are: Iterable[int] = (),
    ) -> "Projection":
        """Make `Projection`.

        Args:
            columns_to_read: Columns of the table.
            constants: By field id, the values of columns that the file may lack, for all its rows: those of its partition.
            as_they_are: Ids of columns whose dictionaries are kept.

        Raises:
            Unprojectable: The columns of a file cannot be read as those of the table.
        """
        places = {f.field_id: n for n, f in enumerate(file) if f.field_id is not None}
        needed = sorted({places[f.field_id] for f in columns_to_read if f.field_id in places})
        columns: list[tuple[int | None, Step | pa.Scalar]] = []
        kept = frozenset(as_they_are)
        for field in columns_to_read:
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
        return cls(tuple(columns), pa.schema([arrow_field(f) for f in columns_to_read]), tuple(needed))

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


def _step(file: FileField, column: NestedField) -> Step:
    kind, target = column.field_type, arrow_type(column.field_type)
    if pa.types.is_dictionary(file.type):
        inner = _step(FileField(file.field_id, file.type.value_type), column)
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
                f"its column {column.name} is {_name(file.type)}, which cannot be read as {_kind(kind)}"
            )
    return _plain(file.type, target, column)


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


def _plain(file: pa.DataType, target: pa.DataType, column: NestedField) -> Step:
    if file == target:
        return _same
    if isinstance(file, pa.BaseExtensionType):
        inner = _plain(file.storage_type, target, column)
        return lambda array: inner(array.storage)
    if isinstance(target, pa.BaseExtensionType):
        storage = target.storage_type
        inner = _plain(file, storage, column)
        return lambda array: pa.ExtensionArray.from_storage(target, inner(array))
    if pa.types.is_temporal(file) and _unit(file) == "ns" and _unit(target) == "us":
        return lambda array: _microseconds(array).cast(target)
    if not _is_widened(file, target):
        raise Unprojectable(
            f"its column {column.name} is {_name(file)}, which cannot be read as {_kind(column.field_type)}"
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


def deleted_rows(io: FileIO, files: Sequence[PlannedFile]) -> Deleted:
    """The sorted positions of deleted rows of some data files, by path, for those that have any. A position may occur twice."""
    applied: dict[PositionDeletes, list[str]] = {}
    for file in files:
        for deletes in _deletes_of(file):
            applied.setdefault(deletes, []).append(file.bounds.path)
    parts: dict[str, list[PositionArray]] = {}
    for found in read_deletes(io, applied).values():
        for path, positions in found.items():
            parts.setdefault(path, []).append(as_array(positions))
    return {path: np.sort(np.concatenate(arrays), kind="stable") for path, arrays in parts.items()}


def _deletes_of(file: PlannedFile) -> Iterator[PositionDeletes]:
    """The deletes that apply to a data file. A deletion vector replaces all others."""
    for found in file.delete_files:
        if found.file_format == FileFormat.PUFFIN:
            yield from (v for v in file.vectors if v.path == found.file_path)
        elif not file.vectors:
            yield PositionDeletes(found.file_path, found.file_format)


def identity_values(specs: Mapping[int, PartitionSpec], file: DataFile) -> dict[int, Any]:
    """The values of the file's partition that are those of columns, by the ids of the columns."""
    spec = specs.get(file.spec_id or 0)
    fields = enumerate(spec.fields if spec is not None else ())
    return {f.source_id: file.partition[n] for n, f in fields if isinstance(f.transform, IdentityTransform)}


@dataclass(frozen=True)
class Reading:
    """What to read of data files."""

    columns: tuple[NestedField, ...]
    condition: RowCondition
    names: NameMapping | None
    specs: Mapping[int, PartitionSpec]
    dictionaries: tuple[str, ...] = ()
    """Columns whose text is read as dictionaries, if files have them under this name."""

    def rows(self, io: FileIO, file: DataFile, deleted: PositionArray | None) -> Iterator[pa.RecordBatch]:
        """The rows that are not deleted, and for which the condition is true; no empty record batch.

        Args:
            deleted: The sorted positions of deleted rows. None: there are none.

        Raises:
            InputError: UnreadableFile.
            Exception: What the storage raises.
        """
        form = self._format(file)
        with io.new_input(file.file_path).open() as stream:
            fragment = form.make_fragment(stream)
            physical = fragment.physical_schema
            try:
                fields_of_file = file_fields(physical, self.names)
                kept = [f.field_id for f in self.columns if f.name in self.dictionaries]
                projection = Projection.of(fields_of_file, self.columns, identity_values(self.specs, file), kept)
            except Unprojectable as e:
                text = f"the data file {without_values(file.file_path)} cannot be read: {e}."
                raise InputError("UnreadableFile", text) from None
            if deleted is None and file.file_format == FileFormat.PARQUET:
                fragment = self._promising(fragment, physical, fields_of_file)
            names = [physical.names[n] for n in projection.needed]
            position = 0
            try:
                for rows in ds.Scanner.from_fragment(fragment, schema=physical, columns=names).to_batches():
                    begin, position = position, position + rows.num_rows
                    left = rows if deleted is None else _without(rows, begin, deleted)
                    batch = projection(left) if left.num_rows else left
                    if batch.num_rows and not self.condition.is_always_true:
                        batch = batch.filter(self.condition.true_in(batch))
                    if batch.num_rows:
                        yield batch
            except pa.ArrowInvalid:  # its text may contain a value
                name = without_values(file.file_path)
                text = f"the data file {name} has a value that cannot be read here. Use lethe_spark.read."
                raise InputError("UnreadableFile", text) from None

    def _format(self, file: DataFile) -> ds.FileFormat:
        match file.file_format:
            case FileFormat.PARQUET:
                return ds.ParquetFileFormat(
                    dictionary_columns=self.dictionaries,
                    pre_buffer=True,
                    buffer_size=_BUFFER,
                    coerce_int96_timestamp_unit="us",
                )
            case FileFormat.ORC:
                return ds.OrcFileFormat()
        raise InputError(
            "UnreadableFile",
            f"the data file {without_values(file.file_path)} has the format {file.file_format.value}, which can only be read by "
            "Spark. Use lethe_spark.read.",
        )

    def _promising(self, fragment: Any, physical: pa.Schema, fields_of_file: Sequence[FileField]) -> Any:
        """The row groups that may hold a row of the condition, by the statistics in the footer."""
        types = {f.field_id: (name, f.type) for name, f in zip(physical.names, fields_of_file, strict=True)}

        def is_exact(column: ColumnPath) -> bool:
            field = column.top
            return types.get(field.field_id) == (field.name, arrow_type(field.field_type))

        expression = self.condition.of_groups(is_exact)
        return fragment if expression is None else fragment.subset(filter=expression, schema=physical)


def _without(rows: pa.RecordBatch, begin: int, deleted: PositionArray) -> pa.RecordBatch:
    """The rows of the batch without the deleted ones.

    Args:
        begin: The position of the first row.
    """
    low, high = np.searchsorted(deleted, (begin, begin + rows.num_rows))
    if low == high:
        return rows
    stays = np.ones(rows.num_rows, bool)
    stays[deleted[low:high] - begin] = False
    return rows.filter(pa.array(stays))


_ONE_ROW: Final = pa.record_batch([pa.nulls(1)], names=["none"])
"""For a condition that names no column."""
_INEXACT: Final = (FloatType, DoubleType, TimestampType, TimestampNanoType)
"""Types whose values in partitions may be others: PyIceberg reads doubles as floats, and times may have been days before."""


class MetadataFilter:
    """Decides the condition of a view for files in which all rows have the same values of its columns, without opening them.

    These are the values of the partition, and a batch id that is the lower and the upper bound.
    """

    def __init__(self, view: SnapshotView) -> None:
        self._condition, self._batch_column = view.condition, view.field_id
        self._specs = view.metadata.specs()
        by_name = {f.name: f for f in view.schema.fields}
        self._columns = [by_name[name] for name in view.condition.columns]
        self._schema = pa.schema([arrow_field(f) for f in self._columns])
        self._decided: dict[tuple[Any, ...], bool] = {}

    def __call__(self, file: PlannedFile) -> bool | None:
        """Whether the condition is true for all rows, or for none. None: the rows decide."""
        if self._condition.is_always_true:
            return True
        values: list[Any] = []
        of_partition = identity_values(self._specs, file.data_file)
        for field in self._columns:
            if field.field_id in of_partition and not isinstance(field.field_type, _INEXACT):
                values.append(of_partition[field.field_id])
            elif self._is_batch_column(field) and has_one_batch(file.bounds):
                values.append(file.bounds.lower)
            else:
                return None
        key = tuple(values)
        if key not in self._decided:
            arrays = [_repeated(_scalar(v, field), 1) for v, field in zip(values, self._columns, strict=True)]
            row = pa.record_batch(arrays, schema=self._schema) if arrays else _ONE_ROW
            self._decided[key] = self._condition.true_in(row)[0].as_py()
        return self._decided[key]

    def _is_batch_column(self, field: NestedField) -> bool:
        return field.field_id == self._batch_column and isinstance(field.field_type, StringType)


@dataclass(frozen=True)
class ReadPart:
    """Files to read in the same way."""

    files: tuple[PlannedFile, ...]
    ids: frozenset[str] = frozenset()
    """The ids of batches."""
    of_ids: bool = False
    """True: read the rows of these batches; False: read all other rows."""

    @property
    def reads_all_rows(self) -> bool:
        """Whether no row is left out because of its batch, so that the batch column need not be read."""
        return not self.ids and not self.of_ids


def all_of(files: Sequence[PlannedFile]) -> tuple[ReadPart, ...]:
    """Read all rows of the files, whatever their batches, as one part; no files: no part."""
    return (ReadPart(tuple(files)),) if files else ()


def filtered(files: Sequence[PlannedFile], plan: ReadPlan) -> tuple[ReadPart, ...]:
    """Read the files as the plan says."""
    by_path = {f.bounds.path: f for f in files}
    parts = (
        ReadPart(tuple(by_path[f.path] for f in plan.plain)),
        ReadPart(tuple(by_path[f.path] for f in plan.filtered), plan.ids),
    )
    return tuple(p for p in parts if p.files)


def of_batches(files: Sequence[PlannedFile], ids: Collection[str]) -> tuple[ReadPart, ...]:
    """Read only the rows of these batches, from the files that might hold some."""
    index = IdIndex(ids)
    whole = tuple(f for f in files if index.must_hold(f.bounds))
    mixed = tuple(f for f in files if index.might_hold(f.bounds) and not index.must_hold(f.bounds))
    parts = (ReadPart(whole), ReadPart(mixed, frozenset(ids), of_ids=True))
    return tuple(p for p in parts if p.files)


def without_batches(files: Sequence[PlannedFile], ids: Collection[str]) -> tuple[ReadPart, ...]:
    """Read all rows except those of these batches."""
    split = split_by_bounds([f.bounds for f in files], ids)
    return filtered(
        files, ReadPlan(split.cannot, split.may_contain_deleted_rows, split.all_rows_deleted, frozenset(ids))
    )


def read(
    view: SnapshotView, parts: Sequence[ReadPart], columns: Sequence[str], several: bool = True
) -> Iterator[pa.RecordBatch]:
    """Read these columns of the rows of all parts.

    Args:
        columns: May be none, to count the rows.
        several: Read several files at once; False: each record batch only when it is asked for.
    """
    batch_column = view.schema.find_column_name(view.field_id) if view.field_id is not None else None
    by_metadata = MetadataFilter(view)
    for part in parts:
        by_batch = (
            None if part.reads_all_rows or batch_column is None else BatchFilter(batch_column, part.ids, part.of_ids)
        )
        decided = [(f, by_metadata(f)) for f in part.files]
        for is_true, condition in ((True, RowCondition.of(view.schema, None)), (None, view.condition)):
            some = [f for f, all_rows in decided if all_rows is is_true]
            yield from _rows(view, some, columns, condition, by_batch, several)


class BatchFilter:
    """Selects rows by their batch."""

    def __init__(self, column: str, ids: Collection[str], of_ids: bool) -> None:
        self.column = column
        self._ids, self._of_ids = IdIndex(ids), of_ids

    def among(self, file: FileBounds, batches: RecordBatches) -> Iterator[pa.RecordBatch]:
        """The selected rows of the file. With a dictionary, each id is looked up once per record batch, not once per row."""
        ids = pa.array(self._ids.within(file), pa.string())
        for batch in batches:
            matches = _is_one_of(batch.column(self.column), ids)
            kept = batch.filter(matches if self._of_ids else pc.invert(matches))
            if kept.num_rows:
                yield kept


def _is_one_of(values: pa.Array, ids: pa.Array) -> pa.Array:
    """Whether each value is one of the ids. False for null: it is not the id of a batch."""
    if not pa.types.is_dictionary(values.type):
        return pc.is_in(values.cast(pa.string()), value_set=ids)
    is_match = pc.is_in(values.dictionary.cast(pa.string()), value_set=ids)
    return pc.fill_null(is_match.take(values.indices), False)


def _decoded(batch: pa.RecordBatch, column: str) -> pa.RecordBatch:
    """The rows, with text in place of a column that was read as a dictionary."""
    index = batch.schema.get_field_index(column)
    if index < 0 or not pa.types.is_dictionary(batch.schema.field(index).type):
        return batch
    return batch.set_column(index, column, batch.column(index).cast(pa.string()))


def count(view: SnapshotView, parts: Sequence[ReadPart]) -> int:
    """Count the rows. For files that are read completely, use their metadata and their deletes."""
    total = 0
    by_metadata = MetadataFilter(view)
    to_read: list[ReadPart] = []
    for part in parts:
        whole: list[PlannedFile] = []
        unknown: list[PlannedFile] = []
        for file in part.files:
            (whole if part.reads_all_rows and by_metadata(file) else unknown).append(file)
        for file, deleted in _with_deletes(view.io, whole):
            records = file.data_file.record_count
            total += records if deleted is None else records - len(np.unique(deleted[deleted < records]))
        to_read.append(ReadPart(tuple(unknown), part.ids, part.of_ids))
    return total + sum(b.num_rows for b in read(view, to_read, ()))


def _rows(
    view: SnapshotView,
    files: Sequence[PlannedFile],
    columns: Sequence[str],
    condition: RowCondition,
    by_batch: BatchFilter | None,
    several: bool,
) -> Iterator[pa.RecordBatch]:
    """These columns of the rows that are not deleted natively, that are selected, and for which the condition is true."""
    by_name = {f.name: f for f in view.schema.fields}
    dictionaries = () if by_batch is None else (by_batch.column,)
    needed = tuple(by_name[name] for name in dict.fromkeys((*columns, *dictionaries, *condition.columns)))
    metadata = view.metadata
    reading = Reading(needed, condition, metadata.name_mapping(), metadata.specs(), dictionaries)

    def rows_of(file: PlannedFile, deleted: PositionArray | None) -> RecordBatches:
        rows = reading.rows(view.io, file.data_file, deleted)
        if by_batch is None:
            return (batch.select(list(columns)) for batch in rows)
        return (_decoded(b.select(list(columns)), by_batch.column) for b in by_batch.among(file.bounds, rows))

    to_read = _with_deletes(view.io, files)
    if not several:
        for batches in starmap(rows_of, to_read):
            yield from batches
        return
    leaves = index_by_id(Schema(*needed))

    def bytes_of(read: tuple[PlannedFile, PositionArray | None]) -> int:
        file = read[0].data_file
        sizes = file.column_sizes
        return sum(sizes.get(leaf, 0) for leaf in leaves) if sizes else file.file_size_in_bytes

    threads = ExecutorFactory.get_or_create()
    for _, rows in ahead(
        lambda read: list(rows_of(*read)),
        to_read,
        FILES_AHEAD,
        bytes_of=bytes_of,
        bytes_at_most=BYTES_AHEAD,
        pool=threads,
    ):
        yield from rows


def _with_deletes(io: FileIO, files: Sequence[PlannedFile]) -> Iterator[tuple[PlannedFile, PositionArray | None]]:
    """The files, each with the positions of its deleted rows. Files of deletes are read for several data files at once."""
    for n in range(0, len(files), FILES_AHEAD):
        some = files[n : n + FILES_AHEAD]
        deleted = deleted_rows(io, some)
        yield from ((file, deleted.get(file.bounds.path)) for file in some)

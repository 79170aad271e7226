"""Decides by its footer whether a data file may be filtered, and how its rows are encoded again. I/O: reads footers."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from lethe.base.names import ROW_ID_COLUMNS
from lethe.ingest.exact_values import writable
from lethe.ingest.parquet_types import FIELD_ID, misfit
from lethe.ingest.registrable import RegisterTarget
from lethe.purge import footer
from lethe.purge.footer import FooterUnreadable, Struct, ThriftList, add_columns, footer_of, groups_of
from lethe.writing.data_files import Unsupported, parquet_options

ROW_ID: Final = NestedField(2147483540, ROW_ID_COLUMNS[0], LongType(), required=False)
LAST_UPDATED: Final = NestedField(2147483539, ROW_ID_COLUMNS[1], LongType(), required=False)
NAMES: Final = ROW_ID_COLUMNS
_FIELDS: Final = tuple(
    pa.field(f.name, pa.int64(), metadata={FIELD_ID: str(f.field_id).encode()}) for f in (ROW_ID, LAST_UPDATED)
)
# Iceberg's writer keeps the file's schema under this key, and Arrow under the other one.
_ICEBERG_SCHEMA: Final = b"iceberg.schema"
_ARROW_SCHEMA: Final = b"ARROW:schema"

# Numbers of parquet.thrift.
_DATA_PAGES: Final = (0, 3)
_DICTIONARY_ENCODINGS: Final = (2, 8)

_ROWS_AT_ONCE: Final = 131_072
_WHOLE_INTEGER: Final = re.compile(r"(?<=\S) \(Int\(bitWidth=(?:32|64), isSigned=true\)\)(?=;$)")


@dataclass(frozen=True)
class RowIds:
    """What the rows of a file inherit from its entry.

    A row keeps its id, and the sequence number of its last update, when it moves to another file. Files store both in two
    reserved columns, which may be missing, or null. Then a row inherits them from the file's entry: the id of the first row plus
    the row's position, and the data sequence number (https://iceberg.apache.org/spec/#row-lineage). So a file that loses rows
    must store both for the others.
    """

    first: int
    """The id of the first row. The row at position n has the id `first` + n."""
    sequence_number: int
    """The data sequence number of the file: that of the last update of its rows."""


def with_row_ids(target: RegisterTarget) -> RegisterTarget:
    """The target of files that may store row ids."""
    schema = target.schema
    extended = Schema(
        *schema.fields,
        ROW_ID,
        LAST_UPDATED,
        schema_id=schema.schema_id,
        identifier_field_ids=schema.identifier_field_ids,
    )
    return replace(target, schema_json=extended.model_dump_json())


def with_fields(schema: pa.Schema) -> pa.Schema:
    """A schema with both columns at its end."""
    return pa.schema([*schema, *_FIELDS])


def filled(rows: pa.RecordBatch, position: int, ids: RowIds) -> pa.RecordBatch:
    """The rows with both columns, at the end if they were not there, and without nulls: these mean that a row inherits.

    Args:
        position: Of the first row in its file.
    """
    for field, value in zip(_FIELDS, _inherited(position, rows.num_rows, ids), strict=True):
        index = rows.schema.get_field_index(field.name)
        if index < 0:
            rows = rows.append_column(field, value)
        else:
            rows = rows.set_column(index, rows.schema.field(index), pc.coalesce(rows.column(index), value))
    return rows


def inherited(position: int, count: int, ids: RowIds) -> pa.Table:
    """Both columns of so many rows that store nothing.

    Args:
        position: Of the first of these rows in their file.
    """
    return pa.table(list(_inherited(position, count, ids)), schema=pa.schema(_FIELDS))


def add_to(metadata: Struct) -> None:
    """Add both columns to the footer of a file. Its row groups do not get them.

    Raises:
        FooterUnreadable: The bytes are not what the format says.
        ValueError: The value is not valid.
    """
    empty = BytesIO()
    pq.write_table(inherited(0, 0, RowIds(0, 0)), empty, store_schema=False)
    add_columns(metadata, footer_of(empty, empty.tell()))
    if footer.PROPERTIES not in metadata.fields:
        return
    properties = metadata[footer.PROPERTIES]
    # Arrow's schema would have too few columns. It says no more than that of the file: `lethe.purge.source` compares them.
    properties.items = [p for p in properties.items if p[footer.KEY] != _ARROW_SCHEMA]
    for item in properties.items:
        if item[footer.KEY] == _ICEBERG_SCHEMA:
            item.change(footer.VALUE, _with_both(item[footer.VALUE]))


def options_for(with_dictionaries: Iterable[str]) -> dict[str, Any]:
    """More options of Arrow's writer.

    Args:
        with_dictionaries: The paths of columns that may have dictionaries.
    """
    # A dictionary of ids, which are all different, would only add to their size. Delta encoding would make them much smaller, but
    # not all readers of row ids know it.
    return {"use_dictionary": sorted({*with_dictionaries, LAST_UPDATED.name} - {ROW_ID.name})}


def _inherited(position: int, count: int, ids: RowIds) -> tuple[pa.Array, pa.Array]:
    first = ids.first + position
    return pa.array(np.arange(first, first + count)), pa.repeat(pa.scalar(ids.sequence_number, pa.int64()), count)


def _with_both(schema: bytes) -> bytes:
    """Iceberg's JSON of a schema with both columns."""
    document = json.loads(schema)
    document["fields"] += [f.model_dump(by_alias=True, mode="json", exclude_none=True) for f in (ROW_ID, LAST_UPDATED)]
    return json.dumps(document, separators=(",", ":")).encode()


@dataclass(frozen=True)
class DictionaryColumns:
    """The columns by their encoding, as paths."""

    whole: frozenset[str]
    """All pages of these refer to a dictionary."""
    some: frozenset[str]
    """At least one page of these may refer to one."""


def dictionary_columns(metadata: Struct) -> DictionaryColumns:
    """The columns of a footer that have dictionaries. Unless it counts the pages by encoding, they are unknown.

    Texts that a file has in a dictionary are read as numbers into it: filtering them and writing them again needs no text of a
    row.
    """
    whole: dict[str, bool] = {}
    some: dict[str, bool] = {}
    for group in groups_of(metadata):
        for chunk in group[footer.COLUMNS].items:
            data = chunk[footer.CHUNK_DATA]
            path = b".".join(data[footer.PATH].items).decode()
            encodings = set(_encodings(data))
            whole[path] = whole.get(path, True) and bool(encodings) and encodings <= set(_DICTIONARY_ENCODINGS)
            some[path] = some.get(path, False) or not encodings or not encodings.isdisjoint(_DICTIONARY_ENCODINGS)
    return DictionaryColumns(
        *(frozenset(p for p, has in has_dictionary.items() if has) for has_dictionary in (whole, some))
    )


def _encodings(data: Struct) -> Iterator[int]:
    """The encodings of the data pages of a column chunk."""
    counts = data.get(footer.ENCODING_STATS)
    for count in counts.items if counts is not None else ():
        if count[footer.PAGE_TYPE] in _DATA_PAGES and count[footer.PAGE_COUNT]:
            yield count[footer.PAGE_ENCODING]


class Unsuitable(Exception):
    """The file is not filtered. The text says why, and contains no values."""


@dataclass(frozen=True)
class GroupBounds:
    """What the statistics of a row group say of its batch column. None: unknown, or no row has a batch."""

    lower: str | None = None
    upper: str | None = None
    nulls: int | None = None
    """The number of rows without a batch. None: unknown."""


class PurgeSource:
    """An open data file that may be filtered.

    Args:
        size: Of the file, in bytes.
        ids: What its rows inherit. None: they have no ids.
        may_lack_batches: Whether the file may lack the batch column.

    Raises:
        Unsuitable: The file is not filtered.
        ValueError: The value is not valid.
    """

    def __init__(
        self,
        stream: Any,
        size: int,
        target: RegisterTarget,
        ids: RowIds | None = None,
        may_lack_batches: bool = False,
    ) -> None:
        self.stream = stream
        try:
            self.footer = footer_of(stream, size)
        except FooterUnreadable as e:
            raise Unsuitable(str(e)) from None
        self.parquet = pq.ParquetFile(stream, metadata=metadata_of(self.footer))
        self.batch_column = target.name(target.field_id)
        self.schema = suitable_schema(self.parquet, target)
        # Whether the file has the batch column.
        self.has_batches = self.batch_column in self.schema.names
        if not self.has_batches and not may_lack_batches:
            raise Unsuitable("it does not have the batch column")
        self.options = writer_options(target.properties, self.parquet)
        require_same_schema(self.parquet, self.schema, self.options)
        self.ids = ids
        # Whether the file has the columns of row ids. Then some rows, or all, may have none, and inherit them.
        self.stores_ids = ids is not None and stores_ids(self.schema)
        width = self.parquet.metadata.num_columns - (2 if self.stores_ids else 0)
        # The places of these columns in a new file.
        self.ids_at = (width, width + 1)
        if ids is not None and not self.stores_ids:
            self.schema = with_fields(self.schema)
            try:
                add_to(self.footer)
            except FooterUnreadable as e:
                raise Unsuitable(str(e)) from None
        dictionaries = dictionary_columns(self.footer)
        if ids is None:
            # What was not worth a dictionary before is not worth the attempt.
            self.options |= {"use_dictionary": sorted(dictionaries.some)}
        else:
            self.options |= options_for(dictionaries.some)
        texts = [f.name for f in self.schema if pa.types.is_string(f.type) and f.name in dictionaries.whole]
        # Reads these columns as dictionaries.
        self._reader = pq.ParquetFile(stream, metadata=self.parquet.metadata, read_dictionary=texts)

    @property
    def leaves(self) -> tuple[str, ...]:
        """The paths of the file's columns and of the innermost fields of nested ones, without its own row ids."""
        schema = self.parquet.metadata.schema
        paths = (schema.column(n).path for n in range(len(schema)))
        return tuple(path for path in paths if path not in NAMES)

    def rows_of(self, group: int, position: int, with_dictionaries: bool = True) -> Iterator[pa.RecordBatch]:
        """The rows of a row group with the schema of a new file, their row ids included.

        Args:
            position: Of its first row in the file.
            with_dictionaries: Columns that have dictionaries are read as such.
        """
        reader = self._reader if with_dictionaries else self.parquet
        for rows in reader.iter_batches(_ROWS_AT_ONCE, row_groups=[group], use_threads=False):
            if self.ids is not None:
                rows = filled(rows, position, self.ids)
                position += rows.num_rows
            yield self._with_schema(rows)

    def _with_schema(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            column if pa.types.is_dictionary(column.type) else writable(column, field.type)
            for field, column in zip(self.schema, rows.columns, strict=True)
        ]
        fields = [f.with_type(c.type) for f, c in zip(self.schema, columns, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def may_copy(self, group: int) -> bool:
        """Whether a row group can be copied: its row ids are complete, or in its last columns, which can be replaced."""
        names = self.schema.names
        return self.ids is None or set(names[-2:]) == set(NAMES) or self._has_all_ids(group)

    def ids_of(self, group: int, position: int) -> pa.Table | None:
        """The row ids of a row group that is copied, in the order of the new file's columns. None: the row group has them.

        Args:
            position: Of its first row in the file.
        """
        if self.ids is None or self._has_all_ids(group):
            return None
        if not self.stores_ids:
            return inherited(position, self.parquet.metadata.row_group(group).num_rows, self.ids)
        id_schema = pa.schema(list(self.schema)[-2:])
        ids = []
        for rows in self.parquet.iter_batches(row_groups=[group], columns=id_schema.names, use_threads=False):
            ids.append(filled(rows, position, self.ids).select(id_schema.names).cast(id_schema))
            position += rows.num_rows
        return pa.Table.from_batches(ids, id_schema)

    def _has_all_ids(self, group: int) -> bool:
        """Whether each row of a row group stores its id and the number of its last update."""
        if not self.stores_ids:
            return False
        statistics = [self._statistics(group, name) for name in NAMES]
        return all(s is not None and s.has_null_count and s.null_count == 0 for s in statistics)

    def batches_of(self, group: int) -> Iterator[pa.DictionaryArray]:
        """The batches of the rows of a row group, in their order."""
        columns = [self.batch_column]
        for rows in self._reader.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=columns, use_threads=False):
            (ids,) = rows.columns
            yield ids if pa.types.is_dictionary(ids.type) else ids.dictionary_encode()

    def bounds_of(self, group: int) -> GroupBounds:
        """What the statistics of a row group say of its batches."""
        statistics = self._statistics(group, self.batch_column)
        if statistics is None:
            return GroupBounds()
        nulls = statistics.null_count if statistics.has_null_count else None
        if not statistics.has_min_max:
            return GroupBounds(nulls=nulls)
        return GroupBounds(str(statistics.min), str(statistics.max), nulls)

    def _statistics(self, group: int, path: str) -> Any:
        """The statistics of a column; None: unknown."""
        of_group = self.parquet.metadata.row_group(group)
        columns = (of_group.column(n) for n in range(of_group.num_columns))
        return next(c.statistics for c in columns if c.path_in_schema == path)


def metadata_of(struct: Struct) -> pq.FileMetaData | None:
    """What Arrow makes of a footer without the schema that Arrow's writers store there.

    That names other types for the same columns, such as `large_string`, but a file is read and written by the types of Parquet.
    None: the footer has none.
    """
    properties = struct.get(footer.PROPERTIES, ThriftList(0, []))
    left = [p for p in properties.items if p[footer.KEY] != _ARROW_SCHEMA]
    if len(left) == len(properties.items):
        return None
    plain = Struct(dict(struct.fields))
    plain.change(footer.PROPERTIES, ThriftList(properties.type, left))
    content = footer.encode(plain)
    return pq.read_metadata(
        BytesIO(b"".join((footer.MAGIC, content, len(content).to_bytes(4, "little"), footer.MAGIC)))
    )


def suitable_schema(source: pq.ParquetFile, target: RegisterTarget) -> pa.Schema:
    """The columns to write: those of the file.

    Raises:
        Unsuitable: The file is not filtered.
    """
    metadata, schema = source.metadata, source.schema_arrow
    if problem := misfit(metadata.schema, target.schema, target.ids, may_lack=True):
        raise Unsuitable(problem)
    if any(FIELD_ID not in (f.metadata or {}) for f in schema):
        raise Unsuitable("it has no field ids")
    if schema.names.count(target.name(target.field_id)) > 1:
        raise Unsuitable("it has several columns with the name of the batch column")
    return schema.remove_metadata()


def stores_ids(schema: pa.Schema) -> bool:
    """Whether a file has both columns of row ids.

    Raises:
        Unsuitable: It has only one.
    """
    has = [name in schema.names for name in NAMES]
    if any(has) and not all(has):
        raise Unsuitable("it has only one of the two columns of row ids")
    return all(has)


def writer_options(properties: Any, source: pq.ParquetFile) -> dict[str, Any]:
    """Arrow's options for what the table's properties say, and for the decimals of the file.

    Raises:
        Unsuitable: The file is not filtered.
    """
    try:
        options = parquet_options(properties)
    except Unsupported as e:
        raise Unsuitable(f"Arrow does not write files of this table: {e}") from None
    leaves = source.metadata.schema
    decimals = [c for c in (leaves.column(n) for n in range(len(leaves))) if c.logical_type.type == "DECIMAL"]
    are_integers = any(c.physical_type in ("INT32", "INT64") for c in decimals)
    return options | {"store_decimal_as_integer": are_integers}


def require_same_schema(source: pq.ParquetFile, schema: pa.Schema, options: dict[str, Any]) -> None:
    """Require that a file written with these options has the schema of the source.

    Raises:
        Unsuitable: Arrow would write other types or field ids than those of the file.
    """
    sink = BytesIO()
    with pq.ParquetWriter(sink, schema, **options):
        pass
    written = pq.ParquetFile(sink)
    same_ids = written.schema_arrow.remove_metadata().equals(schema, check_metadata=True)
    if not same_ids or _types(written.schema) != _types(source.schema):
        raise Unsuitable("Arrow writes some of its columns with another type")


def _types(schema: pq.ParquetSchema) -> list[str]:
    """The columns with their types, one each line.

    The name of the root is left out, as writers choose it, and so is what DuckDB says of a signed integer: that it has all the
    bits of its type.
    """
    _, _, *columns = str(schema).splitlines()
    return [_WHOLE_INTEGER.sub("", line) for line in columns]

"""Reads the footers of Parquet files, decides whether each can be registered as a data file, and creates its manifest entry. I/O.

Only the last bytes of a file are read, of remote files many in parallel, in Spark's Python workers or in the driver, without
Spark. Invariant: the footer proves every statement of the entry. If it does not prove a required statement, the file is refused.
Optional statements are left out.
"""

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import to_json
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    StatisticsCollector,
    compute_statistics_plan,
    match_metrics_mode,
    parquet_path_to_id_mapping,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform, TruncateTransform, VoidTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from lethe.base.ahead import ahead
from lethe.decoder.child import ChildLink
from lethe.decoder.limits import TOO_COSTLY, Limits
from lethe.decoder.process import Unit, limits_here, supervise
from lethe.files.bounds import partition_text
from lethe.ingest import exact_values
from lethe.ingest.buffer_files import FileError, check_columns, error_of
from lethe.ingest.buffer_store import BadFile, BufferedFiles, Bytes, FileTask, Unread
from lethe.ingest.exact_values import calendar_of
from lethe.ingest.parquet_types import ColumnStatistics, FileSchema, SchemaKey, footer_columns, misfit, schema_key
from lethe.ingest.schema_fit import encoded_bytes, values_of
from lethe.ingest.schema_fit import problem as too_long_problem
from lethe.uri import NAME_BYTES, is_local

_METRICS_MODE: Final = "write.metadata.metrics.default"
_METRICS_OF: Final = "write.metadata.metrics.column."
_DEFAULT_METRICS_MODE: Final = "truncate(16)"
_CODECS: Final = ("UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD", "LZ4")
"""The codecs of Parquet's Java library, as pyarrow names them."""
_COMPACT: Final = (",", ":")
"""JSON without spaces, because thousands of these documents go to the JVM at once."""
_SCHEMAS_AT_MOST: Final = 1000
"""For how many schemas of files a worker remembers what follows from them."""

TAIL_BYTES: Final = 64 * 1024
"""Smaller files are fetched whole; of larger files only the end is fetched."""
REQUESTS_AT_ONCE: Final = 32
"""Requests for footers of remote files in flight, of one task."""
FORMAT: Final = "Parquet"
FOOTER_TOO_LARGE: Final = "FooterTooLarge"
"""The reason for a file whose footer is larger than the reader accepts. The file is not refused."""
MAGIC: Final = (b"PAR1", b"PARE")
"""The last bytes of a file: of Parquet, and of Parquet with an encrypted footer."""


@dataclass(frozen=True)
class RegisterTarget:
    """What a table requires of files. Contains JSON, because it is sent to Spark's workers."""

    schema_json: str
    spec_json: str
    """The partition spec."""
    properties: Mapping[str, str]
    """Of the table."""
    field_id: int
    """Of the batch column."""
    may_lack: bool
    """Optional columns may be missing."""

    @classmethod
    def of(cls, table: Table, field_id: int, may_lack: bool) -> "RegisterTarget":
        """What the current schema, spec and properties of a table require."""
        schema, spec = table.schema().model_dump_json(), table.spec().model_dump_json()
        return cls(schema, spec, dict(table.properties), field_id, may_lack)

    @cached_property
    def schema(self) -> Schema:
        """The table's current schema, parsed at the first use."""
        return Schema.model_validate_json(self.schema_json)

    @cached_property
    def spec(self) -> PartitionSpec:
        """The table's current partition spec, parsed at the first use: registered files get this one."""
        return PartitionSpec.model_validate_json(self.spec_json)

    @cached_property
    def collectors(self) -> dict[int, StatisticsCollector]:
        """By field id, which statistics of a column the table keeps."""
        plan = compute_statistics_plan(self.schema, dict(self.properties))
        return {i: replace(c, mode=self._mode(c)) for i, c in plan.items()}

    def _mode(self, column: StatisticsCollector) -> MetricsMode:
        """PyIceberg keeps no bounds of fields of structs, and Iceberg does."""
        if column.mode.type is not MetricModeTypes.COUNTS:
            return column.mode
        default = self.properties.get(_METRICS_MODE, _DEFAULT_METRICS_MODE)
        mode = match_metrics_mode(self.properties.get(f"{_METRICS_OF}{column.column_name}", default))
        is_cut = mode.type is MetricModeTypes.TRUNCATE and isinstance(column.iceberg_type, (StringType, BinaryType))
        return mode if is_cut or mode.type is not MetricModeTypes.TRUNCATE else MetricsMode(MetricModeTypes.FULL)

    @cached_property
    def ids(self) -> dict[str, int]:
        """The field id of each leaf column, by its path in a Parquet schema as Iceberg writes it."""
        return parquet_path_to_id_mapping(self.schema)

    def name(self, field_id: int) -> str:
        """The dotted name of a field in the table; "": the schema has no such field."""
        return self.schema.find_column_name(field_id) or ""

    def schema_of(self, metadata: Any) -> FileSchema:
        """What follows from the schema of a file. `metadata`: pyarrow's `FileMetaData`."""
        key = schema_key(metadata)
        schema = self._schemas.get(key)
        if schema is None:
            if len(self._schemas) >= _SCHEMAS_AT_MOST:
                self._schemas.clear()
            file = metadata.schema
            problem = _missing(file, self) or misfit(file, self.schema, self.ids, self.may_lack)
            schema = FileSchema(problem, footer_columns(file, self.schema, self.ids, self.collectors))
            self._schemas[key] = schema
        return schema

    def transform_of(self, field: PartitionField) -> Callable[[Any], Any]:
        """The function of a partition field, from a value of its source column."""
        if field.field_id not in self._transforms:
            kind = self.schema.find_type(field.source_id)
            transform = field.transform.transform(kind)
            if isinstance(field.transform, TruncateTransform) and isinstance(kind, (IntegerType, LongType)):
                transform = _wrapping(transform, 32 if isinstance(kind, IntegerType) else 64)
            self._transforms[field.field_id] = transform
        return self._transforms[field.field_id]

    @cached_property
    def _schemas(self) -> dict[SchemaKey, FileSchema]:
        return {}

    @cached_property
    def _transforms(self) -> dict[int, Callable[[Any], Any]]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Without what follows from the fields: other processes find it again."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def _wrapping(transform: Callable[[Any], Any], bits: int) -> Callable[[Any], Any]:
    """A transform whose results wrap around, as those of Iceberg's Java library.

    Truncated, the smallest numbers would be less than all numbers of their type. PyIceberg computes with numbers of any size.
    """
    half = 1 << (bits - 1)
    return lambda value: (transform(value) + half) % (2 * half) - half


def _missing(file: Any, target: RegisterTarget) -> str | None:
    """A column that a registered file must have, whatever else may be missing; None: it has all of them."""
    name, paths = target.name(target.field_id), {file.column(n).path for n in range(len(file))}
    if name not in paths:
        return f"column {name}, the batch column, is missing; a registered file holds the batch's id in every row"
    for field in target.schema.fields:
        if field.initial_default is not None and field.field_type.is_primitive and field.name not in paths:
            return (
                f"column {field.name} ({field.field_type}) is missing, and readers would find its initial default in every row "
                "instead of null; write the file with the column"
            )
    return None


@dataclass(frozen=True)
class RegistrableFile:
    """A file that can be registered."""

    records: int
    document: str = ""
    """Iceberg's JSON of a data file; empty: the file has no rows and is not registered."""
    partition: str | None = None
    """The text of the partition (`partition_text`); None: no rows, or a value that has no text."""


def describe(
    metadata: Any, uri: str, size: int, batch_id: str, target: RegisterTarget, folders: str = ""
) -> RegistrableFile:
    """Decide whether one file can be registered.

    Args:
        metadata: pyarrow's `FileMetaData`.
        uri: The path of the data file.
        size: Of the file, in bytes.
        folders: Those of the file that name values, see `lethe.ingest.schema_fit`.

    Raises:
        BadFile: SchemaMismatch, StatisticsMissing, BatchIdMismatch, SpansPartitions, CodecNotReadable.
    """
    schema = target.schema_of(metadata)
    if schema.problem is not None:
        raise BadFile("SchemaMismatch", schema.problem)
    if not metadata.num_rows:
        return RegistrableFile(0)
    _check_codecs(metadata)
    columns = _read(metadata, schema)
    _check_folders(columns, folders, batch_id, target)
    _check_calendar(metadata, columns, target)
    _check_batch_id(columns[target.field_id], batch_id, target)
    _check_values(columns, target)
    values = [_partition_value(field, columns.get(field.source_id), target) for field in target.spec.fields]
    # The source of a field that was dropped may be no column any more.
    types = (f.field_type for f in target.spec.partition_type(target.schema).fields)
    partition = [None if v is None else to_json(t, v) for t, v in zip(types, values, strict=True)]  # type: ignore[arg-type]
    document = data_file_document(metadata, uri, size, columns) | {
        "spec-id": target.spec.spec_id,
        "partition": partition,
    }
    return RegistrableFile(
        metadata.num_rows, json.dumps(document, separators=_COMPACT), partition_text(target.spec.spec_id, values)
    )


def columns_of(metadata: Any, target: RegisterTarget) -> dict[int, ColumnStatistics]:
    """The statistics of the file's columns, by field id."""
    return _read(metadata, target.schema_of(metadata))


def _read(metadata: Any, schema: FileSchema) -> dict[int, ColumnStatistics]:
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    return {c.field_id: c.read(groups) for c in schema.columns}


def _check_codecs(metadata: Any) -> None:
    """Refuse codecs that Iceberg's readers lack.

    Raises:
        BadFile: A column is compressed by a codec that Parquet's Java library lacks without further packages.
    """
    for n in range(metadata.num_row_groups):
        group = metadata.row_group(n)
        for column in range(group.num_columns):
            codec = group.column(column).compression
            if codec not in _CODECS:
                raise BadFile(
                    "CodecNotReadable",
                    f"it is compressed by {codec}, which not every engine reads; expected one of {', '.join(_CODECS)}",
                )


def _check_folders(
    columns: Mapping[int, ColumnStatistics], folders: str, batch_id: str, target: RegisterTarget
) -> None:
    """Check the folders of a file. Readers of a registered file do not read them.

    Raises:
        BadFile: A folder names a value that the file does not hold, or a column that the table does not have.
    """
    if not folders:
        return
    by_name = {f.name: f.field_id for f in target.schema.fields}
    table = target.schema.as_arrow()
    for name, value in values_of(folders, table, target.name(target.field_id), batch_id).items():
        column = columns.get(by_name[name])
        if column is None:
            raise BadFile(
                "SchemaMismatch",
                f"its folder names a value of column {name}, and the file lacks the column; a registered file must "
                "hold it in every row",
            )
        if not value.is_valid:
            differs = not column.all_null
        else:
            is_other = column.lower is not None and not column.lower == column.upper == _plain(value)
            differs = bool(column.nulls) or is_other
        if differs:
            raise BadFile("SchemaMismatch", f"column {name} holds another value than its folder names")


def _plain(value: pa.Scalar) -> Any:
    """A value as `ColumnStatistics` has it."""
    if pa.types.is_date32(value.type):
        return int(value.cast(pa.int32()).as_py())
    return int(value.cast(pa.int64()).as_py()) if pa.types.is_timestamp(value.type) else value.as_py()


def _check_calendar(metadata: Any, columns: Mapping[int, ColumnStatistics], target: RegisterTarget) -> None:
    """Refuse days that the file's metadata may mean in the hybrid calendar.

    Raises:
        BadFile: A column may hold days of the hybrid calendar, as readers of Iceberg tables do not convert them.
    """
    calendar = calendar_of(metadata.metadata)
    if calendar is None or not calendar.datetimes:
        return
    for field_id, statistics in columns.items():
        if statistics.all_null or not isinstance(statistics.column.kind, (DateType, TimestampType, TimestamptzType)):
            continue
        is_date = isinstance(statistics.column.kind, DateType)
        if statistics.lower is None:
            raise BadFile(
                "StatisticsMissing",
                f"its footer has no statistics of column {target.name(field_id)}, and the file is of "
                f"{calendar.writer}, which counts days "
                "before 1582-10-15 in the hybrid calendar, so it is unknown whether it has such days",
            )
        first = calendar.first_day if is_date else calendar.first_micros
        if statistics.lower < first:
            since = "1582-10-15" if is_date or calendar.utc else "1900"
            raise BadFile("SchemaMismatch", f"column {target.name(field_id)} {calendar.problem(since)}")


def _check_batch_id(column: ColumnStatistics, batch_id: str, target: RegisterTarget) -> None:
    name = target.name(target.field_id)
    if column.nulls is None or (column.lower is None and not column.all_null):
        raise BadFile(
            "StatisticsMissing",
            f"its footer has no statistics of column {name}, the batch column, so it is unknown whether every "
            "row holds the batch's id; write the file with statistics of that column",
        )
    if column.nulls or (column.lower, column.upper) != (batch_id, batch_id):
        raise BadFile(
            "BatchIdMismatch",
            f"column {name} does not hold the batch's id {batch_id!r} in every row, or its statistics are truncated",
        )


def _check_values(columns: Mapping[int, ColumnStatistics], target: RegisterTarget) -> None:
    for field in target.schema.fields:
        column = columns.get(field.field_id)
        if column is None:
            continue
        if field.required and column.nulls != 0:
            problem = "holds nulls" if column.nulls else "may hold nulls, because its footer does not count them"
            raise BadFile("SchemaMismatch", f"column {field.name} {problem}, but the table requires values")
        if isinstance(field.field_type, (DateType, TimestampType, TimestamptzType)) and not _in_calendar(column, field):
            raise BadFile(
                "SchemaMismatch", f"column {field.name} holds a {field.field_type} outside the years 1 to 9999"
            )


def _in_calendar(column: ColumnStatistics, field: NestedField) -> bool:
    within = exact_values.allow_days if isinstance(field.field_type, DateType) else exact_values.allow_microseconds
    return column.lower is None or within(column.lower, column.upper)


def _partition_value(field: PartitionField, column: ColumnStatistics | None, target: RegisterTarget) -> Any:
    """The partition value of all rows, in Iceberg's units.

    Raises:
        BadFile: SpansPartitions, if rows have different values. StatisticsMissing, if the footer does not show it.
    """
    if isinstance(field.transform, VoidTransform) or column is None or column.all_null:
        return None  # a column that is missing in the file is read as null
    source, kind = target.name(field.source_id), target.schema.find_type(field.source_id)
    by = f"{field.transform} of {source}" if str(field.transform) != "identity" else source
    if column.nulls is None or column.lower is None:
        raise BadFile(
            "StatisticsMissing",
            f"its footer has no complete statistics of column {source}, by which the table is partitioned; "
            "write the file with statistics of that column",
        )
    if isinstance(kind, (FloatType, DoubleType)):
        raise BadFile(
            "StatisticsMissing",
            f"the table is partitioned by {source}, a {kind}, and footers do not show whether its values "
            "include NaN; files cannot be registered in such a table",
        )
    if column.nulls:
        raise BadFile("SpansPartitions", f"the file spans partitions by {by}: some values are null, and others are not")
    transform = target.transform_of(field)
    lower, upper = transform(column.lower), transform(column.upper)
    is_name = isinstance(field.transform, IdentityTransform) and isinstance(lower, (str, bytes))
    if is_name and encoded_bytes(lower) > NAME_BYTES - len(field.name) - 1:
        raise BadFile("SchemaMismatch", f"column {source} {too_long_problem(lower)}")
    ordered = field.transform.preserves_order
    if lower != upper or (not ordered and column.lower != column.upper):
        raise BadFile(
            "SpansPartitions",
            f"the file spans partitions by {by}: its lowest and its highest value are in different partitions"
            + ("" if ordered else ", or may be, because only a single value for all rows proves one bucket")
            + "; write one file for each partition",
        )
    return lower


def data_file_document(metadata: Any, uri: str, size: int, columns: Mapping[int, ColumnStatistics]) -> dict[str, Any]:
    """Iceberg's JSON of a data file, without its partition and its spec.

    Args:
        metadata: pyarrow's `FileMetaData`.
        columns: As `columns_of` finds them.
    """
    sizes: dict[int, int] = {}
    values: dict[int, int] = {}
    nulls: dict[int, int] = {}
    lowers: dict[int, str] = {}
    uppers: dict[int, str] = {}
    for field_id, statistics in columns.items():
        sizes[field_id] = statistics.bytes
        if not statistics.column.keeps_counts:
            continue
        values[field_id] = statistics.values
        if statistics.nulls is not None:
            nulls[field_id] = statistics.nulls
        if statistics.column.keeps_bounds and (lower := statistics.column.lower_bound(statistics)) is not None:
            lowers[field_id] = lower.hex().upper()
        if statistics.column.keeps_bounds and (upper := statistics.column.upper_bound(statistics)) is not None:
            uppers[field_id] = upper.hex().upper()
    return {
        "content": "data",
        "file-path": uri,
        "file-format": "parquet",
        "file-size-in-bytes": size,
        "record-count": metadata.num_rows,
        "column-sizes": by_field_id(sizes),
        "value-counts": by_field_id(values),
        "null-value-counts": by_field_id(nulls),
        "lower-bounds": by_field_id(lowers),
        "upper-bounds": by_field_id(uppers),
        "split-offsets": _split_offsets(metadata),
    }


def _split_offsets(metadata: Any) -> list[int]:
    """Where the row groups begin, in bytes."""
    offsets = []
    for n in range(metadata.num_row_groups):
        first = metadata.row_group(n).column(0)
        dictionary = first.dictionary_page_offset if first.has_dictionary_page else None
        data = first.data_page_offset
        offsets.append(dictionary if dictionary is not None and dictionary < data else data)
    return sorted(offsets)


def by_field_id(values: Mapping[int, Any]) -> dict[str, list[Any]]:
    """A map of Iceberg's JSON."""
    return {"keys": list(values), "values": list(values.values())}


@dataclass(frozen=True)
class Footer:
    """The result for one file: either `described` or `error` is set."""

    batch_id: str
    uri: str
    size: int
    """In bytes."""
    described: RegistrableFile | None = None
    error: FileError | None = None
    """Why the file cannot be registered."""

    def encode(self) -> str:
        """One JSON text, as a worker sends it. `decode` reads it."""
        return json.dumps((self.batch_id, self.uri, self.size, *_plain_result(self.described, self.error)))

    @classmethod
    def decode(cls, text: str) -> "Footer":
        """Read the text that `encode` makes."""
        batch_id, uri, size, *result = json.loads(text)
        return cls(batch_id, uri, size, *_result(*result))


def _plain_result(described: RegistrableFile | None, error: FileError | None) -> tuple[Any, Any]:
    """A result as values of JSON. `_result` reads it."""
    return (
        None if described is None else (described.records, described.document, described.partition),
        None if error is None else (error.uri, error.reason, error.message, error.unread),
    )


def _result(described: Any, error: Any) -> tuple[RegistrableFile | None, FileError | None]:
    return described and RegistrableFile(*described), error and FileError(*error)


class _OtherFile(Exception):
    """The file may not be as it was listed."""


@dataclass(frozen=True)
class FooterReader:
    """Reads the footers of a task. It is pickled and sent to the workers."""

    target: RegisterTarget
    io_properties: dict[str, str]
    footer_bytes_at_most: int | None = None
    """A file with a larger footer is unread, with the reason FOOTER_TOO_LARGE. None: no limit."""

    def read(self, payload: str) -> Iterator[str]:
        """Read the footers of files.

        Args:
            payload: The files, encoded by `FileTask.encode`.

        Returns:
            Each footer, encoded by `Footer.encode`.
        """
        for footer in self.footers(FileTask.decode(payload)):
            yield footer.encode()

    def footers(self, tasks: Sequence[FileTask]) -> Generator[Footer]:
        """Read the footers of files, in their order. A decoder decodes them (`lethe.decoder`).

        Raises:
            BufferAway: The store failed.
            NoDecoder: No decoder can be started, or decoders end before they decode anything.
        """
        yield from _FooterReading(self, tasks).footers()

    def tails(self, tasks: Sequence[FileTask]) -> Generator[tuple[FileTask, "bytes | FileError"]]:
        """The ends of files, with the whole footers, in the order of the files; or why a file cannot be used."""
        store = BufferedFiles(self.io_properties, TAIL_BYTES)
        if all(is_local(t.uri) for t in tasks):  # local files have no latency, so threads cost more than they save
            yield from ((task, self._tail(store, task)) for task in tasks)
            return
        yield from ahead(lambda task: self._tail(store, task), tasks, REQUESTS_AT_ONCE)

    def _tail(self, store: BufferedFiles, task: FileTask) -> "bytes | FileError":
        try:
            return self._fetched(store, task)
        except BadFile as e:
            return error_of(task, e)

    def _fetched(self, store: BufferedFiles, task: FileTask) -> bytes:
        if problem := name_problem(task.uri):
            raise BadFile("NameNotReadable", problem)
        if task.size == 0:
            raise BadFile("UnreadableFile", f"the file is empty (0 bytes), expected {FORMAT}")
        try:
            return tail_of(lambda count: _part(store, task, count), task.size, self.footer_bytes_at_most)
        except _OtherFile:
            source = store.open(task)
            if isinstance(source, Unread):
                raise source from None
            return tail_of(lambda count: _last(source, task, count), task.size, self.footer_bytes_at_most)


class _FooterReading:
    """Decodes the footers of files with decoders, and returns them in the order of the files."""

    def __init__(self, reader: FooterReader, tasks: Sequence[FileTask]) -> None:
        self._reader, self._tasks = reader, tasks
        self._work = FooterWork(reader.target, limits_here())
        self._found: dict[int, Footer] = {}  # those that were not returned yet, by the place of their file
        self._returned = 0

    def footers(self) -> Iterator[Footer]:
        yield from supervise(self._work, self._units(), self._used, self._refused)
        yield from self._in_order()

    def _units(self) -> Iterator[Unit]:
        for place, (task, tail) in enumerate(self._reader.tails(self._tasks)):
            if isinstance(tail, FileError):
                self._add(place, error=tail)
            else:
                entry = {"batch": task.batch_id, "uri": task.uri, "size": task.size, "folders": task.folders}
                yield Unit(entry, tail, len(tail), task.uri, of=place)

    def _add(self, place: int, described: RegistrableFile | None = None, error: FileError | None = None) -> None:
        task = self._tasks[place]
        self._found[place] = Footer(task.batch_id, task.uri, task.size, described, error)

    def _in_order(self) -> Iterator[Footer]:
        while (footer := self._found.pop(self._returned, None)) is not None:
            self._returned += 1
            yield footer

    def _used(self, document: dict[str, Any], _: list[memoryview], units: dict[int, Unit]) -> Iterator[Footer]:
        for number, result in zip(document["settled"], document["footers"], strict=True):
            self._add(units[number].of, *_result(*result))
        yield from self._in_order()

    def _refused(self, unit: Unit, why: str) -> None:
        self._add(unit.of, error=FileError(unit.name, TOO_COSTLY, f"its footer: {why}"))


def _part(store: BufferedFiles, task: FileTask, count: int) -> bytes:
    """The last bytes of the file, if it is as it was listed.

    Raises:
        _OtherFile: The file has changed.
        Unread: A file could not be fetched.
        BufferAway: The buffer does not respond.
    """
    content = store.part(task, task.size - count, count)
    if isinstance(content, Unread):
        raise content
    if content is None:
        raise _OtherFile
    return content


def _last(source: Bytes, task: FileTask, count: int) -> bytes:
    """The last bytes of an open file.

    Raises:
        BufferAway: The store failed.
    """
    if source.content is not None:
        return bytes(source.content[task.size - count :])
    return source.range(task.uri, task.size - count, count)


@dataclass(frozen=True)
class FooterWork:
    """What a decoder does with footers."""

    target: RegisterTarget
    limits: Limits

    def run(self, link: ChildLink) -> None:
        """Describe the footers of each message and send them back, until the parent closes the link.

        Raises:
            Closed: The parent has closed the link, or has ended.
        """
        while True:
            document, tails = link.receive()
            footers = []
            for (number, size, _, entry), tail in zip(document["units"], tails, strict=True):
                link.begin(number, size)
                task = FileTask(entry["batch"], entry["uri"], entry["size"], folders=entry["folders"])
                footers.append(_plain_result(*self._described(task, tail)))
            link.rest()
            link.send({"kind": "result", "settled": [u[0] for u in document["units"]], "footers": footers})
            link.send({"kind": "ready"})

    def _described(self, task: FileTask, tail: memoryview) -> tuple[RegistrableFile | None, FileError | None]:
        try:
            with Bytes(tail).faults(FORMAT):
                metadata = metadata_of(tail)
                check_columns(metadata.num_columns, self.limits)
                return describe(metadata, task.uri, task.size, task.batch_id, self.target, task.folders), None
        except BadFile as e:
            return None, error_of(task, e)


def name_problem(uri: str) -> str | None:
    """Why readers of Iceberg tables could not open a data file of this name; None: they can."""
    if "?" in uri or "#" in uri:
        return "its name contains ? or #, and readers of Iceberg tables cut a path there; rename the file"
    if not uri.isprintable():
        return (
            "its name contains a line break or another character that is not printable, and Spark cannot open such a path; "
            "rename the file"
        )
    steps = uri.partition("://")[2].split("/")[1:]
    if "" in steps or "." in steps or ".." in steps:
        return "its path contains //, /./ or /../, which readers of Iceberg tables shorten; rename the file"
    return None


def tail_of(last: Callable[[int], bytes], size: int, footer_bytes_at_most: int | None = None) -> bytes:
    """The end of a file, with the whole footer if it is Parquet. Reads once, or twice if the footer is large.

    Args:
        last: Reads that many bytes from the end of the file.
        size: Of the file, in bytes.
        footer_bytes_at_most: Of a footer that is read with a second request. None: no limit.

    Raises:
        Unread: FOOTER_TOO_LARGE.
        Exception: As `last`.
    """
    tail = last(min(size, TAIL_BYTES))
    length = int.from_bytes(tail[-8:-4], "little")
    if length + 8 <= len(tail) or not tail.endswith(MAGIC):
        return tail
    if footer_bytes_at_most is not None and min(size, length) > footer_bytes_at_most:
        raise Unread(
            FOOTER_TOO_LARGE, f"its footer has {length} bytes, and at most {footer_bytes_at_most} are read here"
        )
    return last(min(size, length + 8))


def metadata_of(tail: "bytes | memoryview") -> pq.FileMetaData:
    """The footer in the end of a file.

    Raises:
        BadFile: Errors of pyarrow.
    """
    # pyarrow reads the footer from the end of a file, so the footer alone can be read like a file.
    metadata = pq.read_metadata(pa.BufferReader(pa.py_buffer(tail)))
    if metadata.serialized_size != int.from_bytes(tail[-8:-4], "little"):
        # A file with encrypted columns and a plain footer has a signature after the footer. Reading its column metadata would
        # abort the process, because pyarrow does not catch the exception of the Parquet library.
        raise BadFile("UnreadableFile", f"it is encrypted, expected plain {FORMAT}")
    return metadata

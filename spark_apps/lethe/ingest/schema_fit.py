"""Decides whether the columns of a file fit a table, and converts its rows to rows of the table. Pure: Arrow in, Arrow out.

Invariant: a value is never changed or dropped. If a value cannot be converted exactly, the file is not used. Messages do not
contain names of columns that only the file has: these may be confidential, like its values.
"""

import base64
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from math import isinf
from typing import Any, Final
from urllib.parse import quote_plus, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import MappedField, create_mapping_from_schema, parse_mapping_from_json
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    FixedType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    StringType,
    StructType,
    UUIDType,
)

from lethe.base.errors import InputError
from lethe.iceberg.column_path import ColumnName, path_of, paths_of, values_at
from lethe.ingest.buffer_store import BadFile, FileTask
from lethe.ingest.exact_values import (
    Flaw,
    as_column,
    exact,
    first_flaw,
    fits,
    is_too_fine,
    kind_of,
    mismatch,
    nested,
    promotes,
    shown,
)
from lethe.ingest.text_blocks import OpenedFile
from lethe.uri import NAME_BYTES

PROPERTY: Final = "schema.name-mapping.default"

_ENCODED: Final = 3
"""A byte becomes at most this many bytes."""

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"

OPTION = "spec.schemaEvolution: AddColumns"
UNKNOWN_TYPE = b"lethe.type"
"""The metadata key of a column whose value is the column's type in the table, which Lethe does not know."""
_STORED_TYPE: Final = b"lethe.stored-type"
"""The metadata key of a column whose value is the column in the table (`with_stored_type`)."""
_UUID: Final = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
RESERVED = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number", "_lethe_error"}
)
"""Metadata columns of Iceberg and Lethe. A table with a column of such a name could not be read."""

BATCH_IDS: Final = pa.dictionary(pa.int32(), pa.string())
"""The type of the batch column in converted rows. A text for each row would take more space and time."""


def mapping_to_set(schema: Schema, properties: Mapping[str, str], table_name: str) -> dict[str, str]:
    """The table property to set before files without field ids are registered; empty: it is set already.

    Iceberg updates the mapping when columns are added or renamed later.

    Raises:
        InputError: `NameMappingIncomplete`, if the existing mapping does not map every column to its field id.
    """
    if PROPERTY not in properties:
        return {PROPERTY: create_mapping_from_schema(schema).model_dump_json()}
    mapped = dict(_mapped(parse_mapping_from_json(properties[PROPERTY]).root))
    for column in paths_of(schema):
        if mapped.get(column.parts) != column.field_id:
            raise InputError(
                "NameMappingIncomplete",
                f"{table_name}: the table property {PROPERTY} does not map the column {column.name} to its field id, "
                "so readers would not find the column in a producer's files. Add it to the property. If no "
                "file of the table needs the property, unset it; then the next run sets it.",
            )
    return {}


def field_ids(properties: Mapping[str, str]) -> dict[ColumnName, int] | None:
    """The field ids of columns and fields, by every name that they may have in a file; None: the table has no mapping."""
    if PROPERTY not in properties:
        return None
    mapped = _mapped(parse_mapping_from_json(properties[PROPERTY]).root)
    return {name: field_id for name, field_id in mapped if field_id is not None}


def _mapped(fields: Iterable[MappedField], outer: ColumnName = ()) -> Iterator[tuple[ColumnName, int | None]]:
    """Every name that a column or a field may have in a file, and its field id."""
    for mapped in fields:
        for name in mapped.names:
            yield (*outer, name), mapped.field_id
            yield from _mapped(mapped.fields, (*outer, name))


def path_columns(schema: Schema, spec: PartitionSpec) -> tuple[tuple[ColumnName, int], ...]:
    """The columns whose texts become names of folders, each with the maximum length of its part of the name, in bytes."""
    return tuple(
        (path_of(schema, f.source_id).parts, NAME_BYTES - len(quote_plus(f.name)) - 1)
        for f in spec.fields
        if isinstance(f.transform, IdentityTransform)
        and isinstance(schema.find_type(f.source_id), (StringType, BinaryType))
    )


def encoded_bytes(value: str | bytes) -> int:
    """The length of a value in the name of a folder, in bytes."""
    return len(quote_plus(base64.b64encode(value) if isinstance(value, bytes) else value))


def problem(value: str | bytes) -> str:
    """The end of a sentence that refuses a column, for a value too long for a folder name. It hides the value."""
    return (
        f"holds a value of {len(value)} {'bytes' if isinstance(value, bytes) else 'characters'}; the table is "
        "partitioned by it, and the "
        f"name of a partition's folder has at most {NAME_BYTES} bytes"
    )


def too_long(rows: pa.Table, column: ColumnName, limit: int) -> Flaw | None:
    """The first value of a column that is too long for the name of a folder; None: there is none.

    A partition by a column itself gets a folder `column=value`, the value percent-encoded. File systems accept at most 255 bytes
    in a name.

    Args:
        column: Its name.
        limit: In bytes.
    """
    if column[0] not in rows.column_names:
        return None
    values: Any = values_at(rows.column(column[0]), column[1:])
    if pa.types.is_dictionary(values.type):  # the ids of batches
        values = values.cast(values.type.value_type)
    longest = pc.max(pc.binary_length(values)).as_py()
    if longest is None or longest * _ENCODED <= limit:
        return None
    for value in pc.unique(values).to_pylist():
        if value is not None and encoded_bytes(value) > limit:
            return Flaw(pc.index(values, pa.scalar(value, values.type)).as_py(), ".".join(column), problem(value))
    return None


def named_folders(uri: str, folder: str) -> str:
    """The folders of a file that name values, such as `dt=2024-02-03/country=DE`; "": there are none.

    Args:
        folder: The URI of the batch's folder. "": unknown.
    """
    prefix = folder.rstrip("/") + "/"
    if not folder or not uri.startswith(prefix):
        return ""
    return "/".join(step for step in uri.removeprefix(prefix).split("/")[:-1] if "=" in step)


def values_of(folders: str, table: pa.Schema, batch_column: str, batch_id: str) -> dict[str, pa.Scalar]:
    """The values that folders name, by column, in the types of the table.

    Args:
        folders: See `named_folders`.

    Raises:
        BadFile: For a column that the table does not have, and for a value that is not of its type.
    """
    values: dict[str, pa.Scalar] = {}
    for step in folders.split("/"):
        name, _, text = step.partition("=")
        try:
            name = unquote(name, errors="strict")
            value = None if text == _NULL else unquote(text, errors="strict")
        except UnicodeDecodeError:
            raise BadFile(
                "SchemaMismatch", f"its folder {shown(name)}=… is not percent-encoded UTF-8, so its value is unknown"
            ) from None
        if name == batch_column:
            if value != batch_id:
                raise BadFile(
                    "BatchIdMismatch", f"its folder names another {batch_column} than the batch's id {batch_id!r}"
                )
            continue
        if name not in table.names:
            raise BadFile(
                "SchemaMismatch",
                f"its folder names the column {shown(name)}, which the table does not have; add it to the table, or name the "
                "folder without =",
            )
        column_type = table.field(name).type
        scalar = pa.scalar(None, column_type) if value is None else _parsed(value, column_type)
        if scalar is None or not values.get(name, scalar).equals(scalar):
            raise BadFile(
                "SchemaMismatch",
                f"its folder names a value of column {name} that is not of type {kind_of(column_type)}",
            )
        values[name] = scalar
    return values


def _parsed(text: str, column_type: pa.DataType) -> pa.Scalar | None:
    """The value of a text; None: the text is not a value of this type."""
    if pa.types.is_nested(column_type) or pa.types.is_binary(column_type):
        return None
    if pa.types.is_integer(column_type) and not re.fullmatch(r"[+-]?\d+", text):
        return None
    if pa.types.is_decimal(column_type) and is_too_fine(text):
        return None
    try:
        value = pa.scalar(text).cast(column_type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeEncodeError):
        return None
    # Arrow reads a number that is too large as infinite.
    is_too_large = pa.types.is_floating(column_type) and isinf(value.as_py()) and "inf" not in text.lower()
    return None if is_too_large else value


def with_values(
    file: OpenedFile, values: Mapping[str, pa.Scalar], table: pa.Schema, null_is_absent: bool
) -> OpenedFile:
    """The file with the values of its folders.

    Producers that partition by a column leave it out of the files and name it in the folder, such as `dt=2024-02-03/`. If the
    file has the column, too, all its rows must agree.

    Args:
        null_is_absent: A null in the file is accepted, as if the column were missing.
    """
    missing = [n for n in values if n not in file.schema.names]
    schema = file.schema
    for name in missing:
        schema = schema.append(table.field(name))
    for name in values.keys() - set(missing):
        if schema.names.count(name) == 1:  # otherwise the file is refused for it
            schema = schema.set(schema.get_field_index(name), table.field(name))
    return OpenedFile(schema, _filled(file, values, table, null_is_absent))


def _filled(
    file: OpenedFile, values: Mapping[str, pa.Scalar], table: pa.Schema, null_is_absent: bool
) -> Iterator[pa.Table]:
    first_row = 0
    for rows in file.tables:
        filled: Any = rows
        for name, value in values.items():
            field = table.field(name)
            column = pa.chunked_array([pa.repeat(value, rows.num_rows)])
            index = rows.schema.get_field_index(name)
            if index < 0:
                filled = filled.append_column(field, column)
                continue
            _check(rows.column(index), value, field, null_is_absent, first_row)
            filled = filled.set_column(index, field, column)
        yield filled
        first_row += rows.num_rows


def _check(values: pa.ChunkedArray, value: pa.Scalar, field: pa.Field, null_is_absent: bool, first_row: int) -> None:
    """Refuse a value that a column cannot hold.

    Raises:
        BadFile: A row has another value than the folder.
    """
    problem = exact(values, field)
    if isinstance(problem, Flaw):
        raise BadFile("SchemaMismatch", str(Flaw(problem.row + first_row, problem.path, problem.problem)))
    same = pc.is_null(problem) if not value.is_valid else pc.fill_null(pc.equal(problem, value), null_is_absent)
    if (row := pc.index(same, False).as_py()) >= 0:
        raise BadFile(
            "SchemaMismatch", str(Flaw(row + first_row, field.name, "holds another value than its folder names"))
        )


@dataclass(frozen=True)
class Rules:
    """How columns are compared."""

    batch_column: str
    required: frozenset[str] = frozenset()
    """Required columns of the table, without the batch column, which files may lack."""
    add_columns: bool = False
    """Columns may be added or widened, and optional columns may be missing in a file."""
    typed: bool = True
    """Files declare the types of their columns."""


@dataclass(frozen=True)
class Fits:
    """All columns fit."""


@dataclass(frozen=True)
class Lacks:
    """The file would fit after these columns are added or widened."""

    columns: pa.Schema


@dataclass(frozen=True)
class Misfit:
    """The file cannot be used."""

    message: str


def compare(file: pa.Schema, table: pa.Schema, rules: Rules) -> Fits | Lacks | Misfit:
    """Compare a file's columns with the table's, by name."""
    needed: list[pa.Field] = []
    # pyarrow makes a new list of names at each call, and a table may have thousands.
    counts, names = Counter(file.names), frozenset(table.names)
    for column in table:
        count = counts[column.name]
        if (unknown := unknown_type(column)) is not None:
            if count or column.name in rules.required:
                where = "in the file" if count else "missing; the table requires it"
                return Misfit(f"column {column.name} ({unknown}) is {where}, and Lethe does not write this type")
            continue
        if count > 1:
            return Misfit(f"column {column.name} is in the file {count} times")
        if not count:
            if missing := _missing(column, file, rules):
                return Misfit(missing)
            continue
        actual = file.field(column.name).type
        odd = mismatch(actual, column.type)
        if odd is None:
            continue
        wider = as_column(actual)
        text = f"column {column.name}{odd.path} {odd.text}"
        if wider is None or not promotes(column.type, wider) or column.name == rules.batch_column:
            return Misfit(f"{text}; {OPTION} cannot change this")
        if not rules.add_columns:
            return Misfit(f"{text}; with {OPTION}, Lethe would widen the table's column")
        needed.append(pa.field(column.name, wider))
    for name in (n for n in counts if n not in names):
        taken = _taken_over(name, file, table, rules)
        if isinstance(taken, str):
            return Misfit(taken)
        needed += taken
    return Lacks(pa.schema(needed)) if needed else Fits()


def _missing(column: pa.Field, file: pa.Schema, rules: Rules) -> str:
    """Why a column must not be missing; empty: it may be missing."""
    required = column.name in rules.required
    if column.name == rules.batch_column or (rules.add_columns and not required):
        return ""
    why = "the table requires it" if required else f"with {OPTION}, Lethe would read it as null"
    return f"column {column.name} ({column.type}) is missing; the file has {len(file.names)} columns; {why}"


def _taken_over(name: str, file: pa.Schema, table: pa.Schema, rules: Rules) -> list[pa.Field] | str:
    """The column to add for a column of the file that the table does not have; or why it cannot be added.

    Empty if its type is null.
    """
    position = f"number {file.names.index(name) + 1} of {len(file.names)}"
    if (count := file.names.count(name)) > 1:
        return f"a column that the table does not have ({position}) is in the file {count} times"
    actual = file.field(name).type
    text = f"the file has a column that the table does not have ({position}); the table has {_listed(table.names)}"
    if not rules.typed:
        return f"{text}; add it to the table first, because files of this format do not declare types"
    if not rules.add_columns:
        return f"{text}; with {OPTION}, Lethe would add it ({kind_of(actual)})"
    if pa.types.is_null(actual):
        return []
    if clash := _clash(name, table.names):
        return f"{text}; it cannot be added, because its name differs from {clash} only in case"
    if not name or "." in name or name.lower() in RESERVED:
        return f"{text}; it cannot be added, because its name is empty, contains a dot or is reserved"
    column = as_column(actual)
    if column is None:
        return f"{text}; {OPTION} cannot add a column of type {kind_of(actual)}"
    return [pa.field(name, column)]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:30]) + (", …" if len(names) > 30 else "")


def of_unknown_type(name: str, kind: str, required: bool) -> pa.Field:
    """A column of a table with a type that Lethe does not know. Files must not have it, and its values are null."""
    return pa.field(name, pa.binary(), not required, {UNKNOWN_TYPE: kind.encode()})


def unknown_type(column: pa.Field) -> str | None:
    """The type of a column that `of_unknown_type` made. None: another column."""
    kind = (column.metadata or {}).get(UNKNOWN_TYPE)
    return None if kind is None else bytes(kind).decode()


def with_stored_type(column: pa.Field, field: NestedField) -> pa.Field:
    """A column of a table that remembers its type there, if it holds fewer values than the one in Arrow.

    These are bytes of a fixed length and UUIDs, which are any bytes and any texts for Spark.
    """
    parts = paths_of(Schema(field))
    if not any(isinstance(part.type, (FixedType, UUIDType)) for part in parts):
        return column
    return column.with_metadata({_STORED_TYPE: field.model_dump_json()})


@lru_cache(1000)
def _stored_type(text: bytes) -> IcebergType:
    return NestedField.model_validate_json(text).field_type


def _stored_problem(values: pa.Array, kind: IcebergType, path: str) -> tuple[str, str] | None:
    """The path of a value that a column of this type cannot hold, and why; None: it holds all."""
    inner: tuple[NestedField, ...] = ()
    match kind:
        case StructType(fields=inner):
            pass
        case ListType():
            inner = (kind.element_field,)
        case MapType():
            inner = (kind.key_field, kind.value_field)
        case FixedType() if pc.any(pc.not_equal(pc.binary_length(values), len(kind))).as_py():
            return path, f"holds bytes of another length than {len(kind)}"
        case UUIDType() if not pc.all(pc.match_substring_regex(values, _UUID), min_count=0).as_py():
            return path, "holds a text that is not a UUID"
    parts = nested(values, values.type) if inner else ()
    found = (
        _stored_problem(part, f.field_type, f"{path}.{name}")
        for f, (name, _, part, _) in zip(inner, parts, strict=True)
    )
    return next((problem for problem in found if problem is not None), None)


def known_columns(columns: pa.Schema) -> pa.Schema:
    """The columns of a table whose types are known: those of which rows are written."""
    return pa.schema([f for f in columns if unknown_type(f) is None])


def _clash(name: str, names: Sequence[str]) -> str | None:
    """A known name that differs only in case, which Spark does not distinguish; None: there is none."""
    return next((k for k in names if k != name and k.lower() == name.lower()), None)


@dataclass(frozen=True)
class Evolution:
    """The schema change of a run."""

    columns: pa.Schema
    """Columns to add, and columns to widen with their new type."""
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Batches that contradict the table or another batch, by id: the URI of a file, and why."""


def plan_evolution(table: pa.Schema, needed: Mapping[str, Sequence[tuple[str, pa.Schema]]]) -> Evolution:
    """Combine the columns that the batches of a run need.

    Batches are considered in the order of their ids, so the same batches always give the same table. A batch that contradicts
    the table or an earlier batch is refused, and none of its columns are added.

    Args:
        table: The current columns.
        needed: By batch id: each file's URI, and the columns to add or widen for it.
    """
    types = {f.name: f.type for f in table}
    taken: dict[str, pa.DataType] = {}
    refused: dict[str, tuple[str, str]] = {}
    for batch_id in sorted(needed):
        here = dict(taken)
        for uri, columns in sorted(needed[batch_id], key=lambda f: f[0]):
            for column in columns:
                if problem := _unite({**types, **here}, here, column, types.keys()):
                    refused.setdefault(batch_id, (uri, problem))
        if batch_id not in refused:
            taken = here
    return Evolution(pa.schema(list(taken.items())), refused)


def _unite(
    types_by_name: Mapping[str, pa.DataType], taken: dict[str, pa.DataType], column: pa.Field, table: Collection[str]
) -> str | None:
    """Put a column into `taken` if it is new or wider.

    Args:
        types_by_name: The types of the table's columns and of those added so far.
        table: The names of the table's columns, which messages may contain.

    Returns:
        Why that is impossible; None: done.
    """
    current = types_by_name.get(column.name)
    if current is None:
        if clash := _clash(column.name, list(types_by_name)):
            beside = f"that of column {clash}" if clash in table else "that of a column of another batch of this run"
            return f"a column that the table does not have cannot be added: its name differs from {beside} only in case"
    elif fits(column.type, current):
        return None
    elif not promotes(current, column.type):
        which = f"column {column.name}" if column.name in table else "a column that the table does not have"
        return (
            f"{which} is {kind_of(column.type)}, but {kind_of(current)} in another batch of this run; "
            f"{OPTION} adds one column, and Iceberg cannot promote one type to the other"
        )
    taken[column.name] = column.type
    return None


@dataclass(frozen=True)
class Piece:
    """Some or all rows of one file."""

    task: FileTask
    rows: pa.Table
    first_row: int | None = 0
    """The number of the first row in the file, from 0, for messages. None: the rows do not follow one another in the file."""


class BadValue(BadFile):
    """A value that cannot be stored exactly."""

    def __init__(self, flaw: Flaw) -> None:
        super().__init__("SchemaMismatch", str(flaw))
        self.flaw = flaw


@dataclass(frozen=True)
class Fitting:
    """How rows of files are converted."""

    batch_column: str
    required: frozenset[str]
    """Columns that must not contain nulls."""
    null_is_absent: bool
    """True: a null in the batch column of a file is accepted, as if the column were missing."""
    target: pa.Schema
    """The columns of the table."""
    finite: bool = (
        False  # True: the format has no NaN and no infinite numbers, so that one shows a number that is too large
    )

    path_columns: tuple[tuple[ColumnName, int], ...] = ()
    """Columns whose values become names of folders, each with the maximum length of its part of the name, in bytes."""

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of converted rows: those of the table, with the batch column of type `BATCH_IDS`."""
        index = self.target.get_field_index(self.batch_column)
        return self.target.set(index, self.target.field(index).with_type(BATCH_IDS)) if index >= 0 else self.target

    def fitted(self, pieces: Sequence[Piece]) -> pa.Table:
        """Convert the rows of all pieces, which must have the same columns.

        To find the piece, call this with one piece at a time.

        Raises:
            BadFile: A value in any piece cannot be converted.
        """
        first = pieces[0]
        try:
            # In one chunk, because each check of a chunk takes as long as one of many rows.
            rows = pa.concat_tables(p.rows for p in pieces).combine_chunks()
            return self._fitted(rows, _ids(pieces), first.task.batch_id)
        except BadValue as e:
            if first.first_row is None:
                raise BadFile("SchemaMismatch", f"column {e.flaw.path} {e.flaw.problem}") from e
            raise BadFile("SchemaMismatch", str(replace(e.flaw, row=e.flaw.row + first.first_row))) from e
        except pa.ArrowInvalid as e:
            raise BadFile("UnreadableFile", f"its values cannot be read ({type(e).__name__})") from e

    def _fitted(self, rows: pa.Table, ids: pa.DictionaryArray, first_id: str) -> pa.Table:
        index_by_name = {name: n for n, name in enumerate(rows.column_names)}
        if self.batch_column in index_by_name:
            self._check_batch_id(rows.column(self.batch_column), ids, first_id)
        columns: list[Any] = []
        for column in self.target:
            if column.name == self.batch_column:
                columns.append(ids)
            elif column.name not in index_by_name:
                columns.append(pa.nulls(rows.num_rows, column.type))
            else:
                columns.append(self.column(rows.column(index_by_name[column.name]), column))
        fitted = pa.Table.from_arrays(columns, schema=self.schema)
        for name, limit in self.path_columns:
            if flaw := too_long(fitted, name, limit):
                raise BadValue(flaw)
        return fitted

    def column(self, values: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
        """Convert one column to the table's type.

        Raises:
            BadValue: A value that cannot be stored exactly.
        """
        converted = exact(values, field.with_nullable(field.name not in self.required), self.finite)
        stored = (field.metadata or {}).get(_STORED_TYPE)
        if stored is not None and not isinstance(converted, Flaw):
            problem = partial(_stored_problem, kind=_stored_type(stored), path=field.name)
            if any(problem(chunk) for chunk in converted.chunks):
                converted = first_flaw(converted, problem)
        if isinstance(converted, Flaw):
            raise BadValue(converted)
        return converted

    def _check_batch_id(self, values: pa.ChunkedArray, ids: pa.DictionaryArray, first_id: str) -> None:
        same = pc.equal(values.cast(pa.string()), ids.cast(pa.string()))
        if self.null_is_absent:
            same = same.drop_null()
        if same.null_count or not pc.all(same, min_count=0).as_py():
            raise BadFile(
                "BatchIdMismatch", f"column {self.batch_column} holds values other than the batch's id {first_id!r}"
            )


def _ids(pieces: Sequence[Piece]) -> pa.DictionaryArray:
    """The batch id of every row."""
    codes: dict[str, int] = {}
    of_pieces = [codes.setdefault(p.task.batch_id, len(codes)) for p in pieces]
    of_rows = np.repeat(np.array(of_pieces, np.int32), [p.rows.num_rows for p in pieces])
    return pa.DictionaryArray.from_arrays(of_rows, pa.array(list(codes), pa.string()))

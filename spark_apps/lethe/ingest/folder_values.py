"""Reads the values of columns in the names of a batch's folders, such as `dt=2024-02-03/`, which producers that partition by a
column leave out of the files. Pure.

Invariant: such a value is never dropped. It fills the column; if the file has the column, all its rows must agree.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from lethe.ingest.arrow_types import kind_of, shown
from lethe.ingest.buffer_store import BadFile
from lethe.ingest.exact_values import Flaw, exact
from lethe.ingest.opened_file import OpenedFile

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"


def named_folders(uri: str, folder: str) -> str:
    """The folders of a file that name values, such as `dt=2024-02-03/country=DE`; "": there are none.

    Args:
        folder: The URI of the batch's folder. "": unknown.
    """
    prefix = folder.rstrip("/") + "/"
    if not folder or not uri.startswith(prefix):
        return ""
    return "/".join(step for step in uri.removeprefix(prefix).split("/")[:-1] if "=" in step)


def values_of(
    folders: str, table: pa.Schema, batch_column: str, batch_id: str, only_known: bool = False
) -> dict[str, pa.Scalar]:
    """The values that folders name, by column, in the types of the table.

    Args:
        folders: See `named_folders`.
        only_known: Leave out columns that the table does not have.
    Raises: BadFile, for a column that the table does not have, and for a value that is not of its type.
    """
    found: dict[str, pa.Scalar] = {}
    for step in folders.split("/"):
        name, _, text = step.partition("=")
        name, value = unquote(name), None if text == _NULL else unquote(text)
        if name == batch_column:
            if value != batch_id:
                raise BadFile(
                    "BatchIdMismatch", f"its folder names another {batch_column} than the batch's id {batch_id!r}"
                )
            continue
        if name not in table.names:
            if only_known:
                continue
            raise BadFile(
                "SchemaMismatch",
                f"its folder names the column {shown(name)}, which the table does not have; add it to the table, or name the "
                "folder without =",
            )
        wanted = table.field(name).type
        scalar = pa.scalar(None, wanted) if value is None else _parsed(value, wanted)
        if scalar is None or not found.get(name, scalar).equals(scalar):
            raise BadFile(
                "SchemaMismatch", f"its folder names a value of column {name} that is not of type {kind_of(wanted)}"
            )
        found[name] = scalar
    return found


def _parsed(text: str, wanted: pa.DataType) -> pa.Scalar | None:
    """None: the text is not a value of this type."""
    if pa.types.is_nested(wanted) or pa.types.is_binary(wanted):
        return None
    if pa.types.is_integer(wanted) and not re.fullmatch(r"[+-]?\d+", text):
        return None
    try:
        return pa.scalar(text).cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeEncodeError):
        return None


def with_values(
    file: OpenedFile, values: Mapping[str, pa.Scalar], table: pa.Schema, null_is_absent: bool
) -> OpenedFile:
    """The file with the values of its folders.

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
            at = rows.schema.get_field_index(name)
            if at < 0:
                filled = filled.append_column(field, column)
                continue
            _check(rows.column(at), value, field, null_is_absent, first_row)
            filled = filled.set_column(at, field, column)
        yield filled
        first_row += rows.num_rows


def _check(values: pa.ChunkedArray, value: pa.Scalar, field: pa.Field, null_is_absent: bool, first_row: int) -> None:
    """Raises: BadFile, if a row has another value than the folder."""
    found = exact(values, field)
    if isinstance(found, Flaw):
        raise BadFile("SchemaMismatch", str(Flaw(found.row + first_row, found.path, found.problem)))
    same = pc.is_null(found) if not value.is_valid else pc.fill_null(pc.equal(found, value), null_is_absent)
    if (row := pc.index(same, False).as_py()) >= 0:
        raise BadFile(
            "SchemaMismatch", str(Flaw(row + first_row, field.name, "holds another value than its folder names"))
        )

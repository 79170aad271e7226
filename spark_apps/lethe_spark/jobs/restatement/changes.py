"""Finds the key columns of replacements that are record-level change data, and the rows with their keys. Pure."""

from collections.abc import Iterable

import pyarrow as pa
from lethe.base.errors import InputError
from lethe.contract.result import RequestResult
from lethe.contract.run import RestatementRequest
from lethe.files.values import ValueKind
from lethe.ingest.change_rows import Keyed
from lethe.restatement.group import set_aside
from lethe.search.keys import WantedKeys
from pyiceberg.schema import Schema

from lethe_spark.commit.table_state import Base
from lethe_spark.jobs.restatement.searchable import ColumnUse, searchable_column


def keyed_of(requests: Iterable[RestatementRequest]) -> dict[str, Keyed]:
    """How to read the replacements that are change data, by batch id."""
    found = (r.replacement for r in requests if r.by_keys)
    return {r.batch_id: Keyed(r.key_columns, r.op_column) for r in found if r is not None}


def unusable_keys(requests: Iterable[RestatementRequest], base: Base) -> dict[str, RequestResult]:
    """Results of the requests whose key or operation columns cannot be used, by key."""
    aside: dict[str, RequestResult] = {}
    for request in requests:
        try:
            key_columns(request, base.iceberg.schema(), base.field_id, base.facts.name)
        except InputError as e:
            aside[request.key] = set_aside(request, e)
    return aside


def wanted_keys(request: RestatementRequest, base: Base, keys: pa.Table | None) -> WantedKeys:
    """The rows with the keys of a replacement.

    Args:
        keys: None: the replacement has no keys, so no rows are wanted.
    Raises: InputError, as `key_columns`.
    """
    columns = key_columns(request, base.iceberg.schema(), base.field_id, base.facts.name)
    return WantedKeys.of(columns, keys) if keys is not None else WantedKeys.none(columns)


def key_columns(
    request: RestatementRequest, schema: Schema, batch_field_id: int, table: str
) -> list[tuple[int, ValueKind]]:
    """Iceberg field id and kind of each key column, by its current name; empty for a request without keys.

    Raises: InputError: ColumnNotFound, ColumnNotSearchable, InvalidSpec.
    """
    replacement = request.replacement
    if replacement is None or not request.by_keys:
        return []
    where = f"Restatement {request.name}: spec.replacement"
    if any(f.name == replacement.op_column for f in schema.fields):
        raise InputError(
            "InvalidSpec",
            f"{where}.opColumn names {replacement.op_column}, which is a column of {table}. The column of "
            "operations must not be in the table. Use another name in the replacement. Nothing was changed.",
        )
    use = ColumnUse(f"{where}.keyColumns", "changed")
    return [searchable_column(schema, batch_field_id, table, use, name) for name in replacement.key_columns]

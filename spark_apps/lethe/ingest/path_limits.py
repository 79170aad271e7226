"""Checks that values which become names of folders are not too long for a file store. Pure.

A partition by a column itself gets a folder `column=value`, the value percent-encoded. File systems accept at most 255 bytes
in a name.
"""

import base64
from typing import Any, Final
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BinaryType, StringType

from lethe.ingest.exact_values import Flaw
from lethe.uri import NAME_BYTES

_ENCODED: Final = 3  # a byte becomes at most so many


def path_columns(schema: Schema, spec: PartitionSpec) -> tuple[tuple[str, int], ...]:
    """The columns whose texts become names of folders, each with the maximum length of its part of the name, in bytes."""
    return tuple(
        (schema.find_column_name(f.source_id) or "", NAME_BYTES - len(quote_plus(f.name)) - 1)
        for f in spec.fields
        if isinstance(f.transform, IdentityTransform)
        and isinstance(schema.find_type(f.source_id), (StringType, BinaryType))
    )


def encoded_bytes(value: str | bytes) -> int:
    """The length of a value in the name of a folder, in bytes."""
    return len(quote_plus(base64.b64encode(value) if isinstance(value, bytes) else value))


def problem(value: str | bytes) -> str:
    return (
        f"holds a value of {len(value)} {'bytes' if isinstance(value, bytes) else 'characters'}; the table is "
        "partitioned by it, and the "
        f"name of a partition's folder has at most {NAME_BYTES} bytes"
    )


def too_long(rows: pa.Table, column: str, limit: int) -> Flaw | None:
    """The first value of a column that is too long for the name of a folder; None: there is none.

    Args:
        column: Its name; of a nested field, its path.
        limit: In bytes.
    """
    name, *nested = column.split(".")
    if name not in rows.column_names:
        return None
    values: Any = rows.column(name)
    for part in nested:
        values = pc.struct_field(values, part)
    if pa.types.is_dictionary(values.type):  # the ids of batches
        values = values.cast(values.type.value_type)
    longest = pc.max(pc.binary_length(values)).as_py()
    if longest is None or longest * _ENCODED <= limit:
        return None
    for value in pc.unique(values).to_pylist():
        if value is not None and encoded_bytes(value) > limit:
            return Flaw(pc.index(values, pa.scalar(value, values.type)).as_py(), column, problem(value))
    return None

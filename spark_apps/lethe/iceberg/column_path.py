"""Finds the column that a user names, such as `day` or `customer.email`, and the batch column of a data file. Pure.

A name is the full name of a field in Iceberg: the names on the way to it, joined by dots, where the elements of a list are
named `element`. So `a.b` is the field `b` of the struct `a`, or a column that is itself named `a.b`. Iceberg allows only one of
both in a table; if a schema has both, the name is refused. What takes the name of a column from a user resolves it here.

The batch column of a data file is a column in the file, or the value of its partition. If the table is partitioned by the
column itself (transform `identity`), rows of a file without the column have the value of the file's partition, by Iceberg's
rules. Such files exist where another engine added files of a Hive table unchanged.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any, Final, TypeAlias
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType, UUIDType

from lethe.base.names import similar


@dataclass(frozen=True)
class BatchColumn:
    """The batch column of a table."""

    field_id: int | None
    """The field id of the batch column; None: the table has no batch column."""
    positions: Mapping[int, int] = dataclass_field(default_factory=dict)
    """By partition spec id, the position of the column's value in the partition tuple (`identity_positions`)."""

    @classmethod
    def of(cls, specs: Mapping[int, PartitionSpec], field_id: int | None) -> "BatchColumn":
        """The batch column with its position in the partitions of each spec.

        Args:
            specs: All partition specs of the table, by id: old data files keep theirs.
            field_id: None: the table has no batch column.
        """
        return cls(field_id, identity_positions(specs, field_id))

    def partition_value(self, file: DataFile) -> str | None:
        """The batch id in a file's partition; None: the partition has none, or it is null."""
        position = self.positions.get(file.spec_id)
        value = None if position is None else file.partition[position]
        return value if isinstance(value, str) else None


def identity_positions(specs: Mapping[int, PartitionSpec], field_id: int | None) -> dict[int, int]:
    """By partition spec id, the position of the column's value in the partition tuple. Leaves out specs without the column."""
    return {
        spec_id: position
        for spec_id, spec in specs.items()
        for position, f in enumerate(spec.fields)
        if f.source_id == field_id and isinstance(f.transform, IdentityTransform)
    }


ELEMENT: Final = "element"
"""Iceberg's name of the elements of a list."""
ColumnName: TypeAlias = tuple[str, ...]
"""The names on the way to a column or a field. The elements of a list are named `element`."""
Step: TypeAlias = int | str | None
"""From values to parts of them: the index or the name of a field of a struct; None: the elements of a list."""
_NEAREST_AT_MOST: Final = 3


class NoColumn(Exception):
    """A name is not that of one column. The text ends a sentence that says where the name is."""


@dataclass(frozen=True)
class ColumnPath:
    """A column of a table, or a field of it: of structs, also of structs in lists."""

    fields: tuple[NestedField, ...]
    """From the column of the table to the field itself. The elements of a list are a field too."""
    prefix: str = ""
    """The name of what the first field is in, with a dot at its end; "": the table."""

    @property
    def parts(self) -> ColumnName:
        """The names of `fields`."""
        return tuple(f.name for f in self.fields)

    @property
    def name(self) -> str:
        """The full name, by which PyIceberg and Iceberg's Java library find the field."""
        return self.prefix + ".".join(self.parts)

    @property
    def field_id(self) -> int:
        """The Iceberg field id of the field itself."""
        return self.fields[-1].field_id

    @property
    def type(self) -> IcebergType:
        """The type of the field itself."""
        return self.fields[-1].field_type

    @property
    def top(self) -> NestedField:
        """The column of the table that must be read."""
        return self.fields[0]

    @property
    def is_nested(self) -> bool:
        """Whether it is a part of a column."""
        return len(self.fields) > 1

    @property
    def in_list(self) -> bool:
        """Whether a row may have several values of it."""
        return any(isinstance(f.field_type, ListType) for f in self.fields[:-1])

    @property
    def in_map(self) -> bool:
        """Whether it is a part of the keys or the values of a map."""
        return any(isinstance(f.field_type, MapType) for f in self.fields[:-1])

    @property
    def value(self) -> "ColumnPath":
        """The field itself, as a column of the values of all elements."""
        return ColumnPath(self.fields[-1:], f"{self.prefix}{'.'.join(self.parts[:-1])}.")

    def of(self, rows: pa.RecordBatch) -> pa.Array:
        """Its values in rows with the columns of the table, as `values_at` returns them. UUIDs are bytes, also of texts."""
        values = rows.column(rows.schema.names.index(self.top.name))
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        values = values_at(values, self._steps())
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        if isinstance(self.type, UUIDType) and pa.types.is_string(values.type):
            return pa.array([_uuid_bytes(text) for text in values.to_pylist()], pa.binary(16))
        return values

    def _steps(self) -> list[Step]:
        steps: list[Step] = []
        for parent, field in zip(self.fields, self.fields[1:], strict=False):
            kind = parent.field_type
            steps.append(kind.fields.index(field) if isinstance(kind, StructType) else None)
        return steps


def _uuid_bytes(text: str | None) -> bytes | None:
    """The bytes of a UUID; None: it is null, or a text that is none, with which no row is written."""
    try:
        return None if text is None else UUID(text).bytes
    except ValueError:
        return None


def resolve_column(schema: Schema, name: str, table: str = "the table", case_sensitive: bool = True) -> ColumnPath:
    """Find the column or the field with this full name.

    Args:
        table: The name of the table, for messages.

    Raises:
        NoColumn: There is none, it is within a map, or there are several.
    """
    fold: Callable[[str], str] = str if case_sensitive else str.casefold
    paths = list(paths_of(schema))
    found = [path for path in paths if fold(path.name) == fold(name)]
    if len(found) > 1:
        texts = ", ".join("`" + "`.`".join(path.parts) + "`" for path in found)
        raise NoColumn(f"but {table} has {len(found)} columns of this name: {texts}. Rename one of them")
    if found:
        if found[0].in_map:
            raise NoColumn(
                "which is within a map; expected a column, a field of structs, or a field of structs in lists. Use another "
                "column"
            )
        return found[0]
    known = [path for path in paths if not path.in_map]
    # People leave out the name of elements.
    short = [path.name for path in known if ".".join(p for p in path.parts if p != ELEMENT) == name]
    if nearest := short or similar(name, [path.name for path in known], _NEAREST_AT_MOST):
        raise NoColumn(f"but {table} has no such column; the nearest names are {', '.join(nearest)}")
    raise NoColumn(f"but {table} has no such column; its columns are {', '.join(f.name for f in schema.fields)}")


def path_of(schema: Schema, field_id: int) -> ColumnPath:
    """The path to the field with this id, which the schema must have."""
    return next(path for path in paths_of(schema) if path.field_id == field_id)


def paths_of(schema: Schema) -> Iterator[ColumnPath]:
    """All columns and their parts, also the elements of lists, and the keys and values of maps."""
    return _paths(schema.fields)


def _paths(fields: Iterable[NestedField], outer: tuple[NestedField, ...] = ()) -> Iterator[ColumnPath]:
    for field in fields:
        path = (*outer, field)
        yield ColumnPath(path)
        match field.field_type:
            case StructType(fields=inner):
                yield from _paths(inner, path)
            case ListType(element_field=element):
                yield from _paths((element,), path)
            case MapType(key_field=key, value_field=value):
                yield from _paths((key, value), path)


def values_at(values: Any, steps: Sequence[Step]) -> Any:
    """The values of a part of each row's value. A part of a null is null.

    Args:
        values: An Arrow array; without a step to the elements of a list, it may be chunked.

    Returns:
        A value for each row; behind a step to the elements of a list, a large list of values for each row.

    Raises:
        pa.ArrowException: There is no such part.
    """
    for n, step in enumerate(steps):
        if step is None:
            elements = values_at(pc.list_flatten(values), steps[n + 1 :])
            return lists_of(elements, pc.fill_null(pc.list_value_length(values), 0))
        index = values.type.get_field_index(step) if isinstance(step, str) else step
        values = pc.struct_field(values, [index])
    return values


def lists_of(elements: pa.Array, lengths: Any) -> pa.LargeListArray:
    """Lists of these lengths, of consecutive elements."""
    offsets = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))])
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), elements)


def any_value(values: pa.Array, test: Callable[[pa.Array], pa.BooleanArray]) -> pa.BooleanArray:
    """Whether the value of each row, or one of its values if it has a list of them, passes a test. Null: no.

    Args:
        values: As `values_at` returns them.
    """
    if not pa.types.is_large_list(values.type):
        return pc.fill_null(test(values), False)
    passed = any_value(values.flatten(), test)
    mask = np.zeros(len(values), np.bool_)
    mask[np.asarray(pc.list_parent_indices(values).filter(passed))] = True
    return pa.array(mask)

"""The definition of a table that a Dataset asks for, read into values: no text of it ever becomes part of a statement."""

from typing import Final

from lethe.base.errors import InputError
from lethe.contract.run import CreateTable
from pyspark.sql.types import StringType, StructField, StructType

# What a column can have besides name, type and whether it may be null.
_KNOWN: Final = frozenset({"comment", "__CHAR_VARCHAR_TYPE_STRING"})


def columns_of(create: CreateTable, batch_column: str = "") -> StructType:
    """The columns, and the batch column, which need not be among them since data files need not hold it.

    Raises: InputError (`InvalidTableDefinition`).
    """
    try:
        columns = StructType.fromDDL(create.table_schema)
    except Exception as e:
        first = str(e).strip().splitlines()[0][:300] if str(e).strip() else type(e).__name__
        raise InputError(
            "InvalidTableDefinition", f"spec.table.create.schema is not a Spark SQL column list: {first}"
        ) from e
    for column in columns.fields:
        other = sorted(set(column.metadata) - _KNOWN)
        if other:
            raise InputError(
                "InvalidTableDefinition",
                f"spec.table.create.schema: column {column.name} has {', '.join(other)}; a column can have a name, a type, "
                "NOT NULL and a COMMENT. Leave the rest out.",
            )
    if not batch_column or batch_column.lower() in {f.name.lower() for f in columns.fields}:
        return columns
    return StructType([*columns.fields, StructField(batch_column, StringType())])

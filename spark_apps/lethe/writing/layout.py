"""How a table wants its data files: columns, partitions, order and Parquet options. Pure.

Arrow writes only what it certainly writes as Iceberg does. For other tables `Unsupported` says why, and Spark writes them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from pyiceberg.partitioning import PartitionField
from pyiceberg.table.sorting import NullOrder, SortDirection, SortOrder
from pyiceberg.transforms import IdentityTransform, UnknownTransform, VoidTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from lethe.ingest.parquet_types import FIELD_ID
from lethe.ingest.registrable import RegisterTarget
from lethe.ingest.schema_fit import BATCH_IDS
from lethe.vacuum.plan import has_bloom_filters

# The rows of a row group have at most so many bytes in memory before they are encoded.
GROUP_BYTES: Final = 128 * 1024**2
_FORMAT: Final = "write.format.default"
_ENCRYPTED: Final = "encryption.key-id"
_PARQUET: Final = "write.parquet."
_CODECS: Final = {
    "zstd": "zstd",
    "gzip": "gzip",
    "snappy": "snappy",
    "brotli": "brotli",
    "lz4": "lz4",
    "uncompressed": "none",
}
_PLAIN: Final = (
    BooleanType,
    IntegerType,
    LongType,
    FloatType,
    DoubleType,
    DateType,
    TimestampType,
    TimestamptzType,
    StringType,
    BinaryType,
    DecimalType,
)


class Unsupported(Exception):
    """Arrow does not write this table. The text says why, and contains no values."""


@dataclass(frozen=True)
class SortKey:
    """A column of the sort order."""

    name: str
    is_descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class TableLayout:
    """A table to write. It is pickled and sent to the workers, so it contains JSON."""

    target: RegisterTarget
    # The columns of the rows, as Spark reads the table.
    columns: pa.Schema
    sort_order_json: str
    # URI of the table, and of the folder that all new files are in.
    location: str
    folder: str
    target_file_size: int
    """Bytes."""
    io_properties: Mapping[str, str] = field(repr=False)
    """PyIceberg's FileIO properties of the table."""

    def check(self) -> None:
        """Refuse a layout that cannot be written without Spark.

        Raises:
            Unsupported: Arrow does not write this table.
        """
        properties = self.target.properties
        if properties.get(_FORMAT, "parquet").lower() != "parquet":
            raise Unsupported(f"its files are {properties[_FORMAT]}")
        if _ENCRYPTED in properties:
            raise Unsupported(f"it has the property {_ENCRYPTED}")
        parquet_options(properties)
        _ = self.file_schema, self.sort_keys
        for one in self.target.spec.fields:
            self._check_partition(one)

    @property
    def batch_column(self) -> str:
        return self.target.name(self.target.field_id)

    @cached_property
    def file_schema(self) -> pa.Schema:
        """The columns of a data file: those of the rows, with Iceberg's field ids. The ids of batches are a dictionary.

        Raises:
            Unsupported: Arrow does not write this table.
        """
        fields = []
        for one in self.target.schema.fields:
            kind = self.columns.field(one.name).type
            kind = BATCH_IDS if one.name == self.batch_column else _type_with_ids(kind, one.field_type)
            fields.append(_field(one.name, kind, one))
        return pa.schema(fields)

    @cached_property
    def partition_types(self) -> tuple[IcebergType, ...]:
        """Of the values of a partition, in the order of the spec's fields."""
        schema = self.target.schema
        return tuple(f.transform.result_type(schema.find_type(f.source_id)) for f in self.target.spec.fields)

    @cached_property
    def sort_order(self) -> SortOrder:
        return SortOrder.model_validate_json(self.sort_order_json)

    @cached_property
    def sort_keys(self) -> tuple[SortKey, ...]:
        """The keys of the table's sort order.

        Raises:
            Unsupported: Arrow does not write this table.
        """
        return sort_keys_of(self.target, self.sort_order)

    @property
    def batches_in_order(self) -> bool:
        """Whether rows are in order if their batches are: the table is sorted by nothing else."""
        return self.batches_first and len(self.sort_keys) <= 1

    @property
    def batches_first(self) -> bool:
        """Whether rows of one batch are before those of the next."""
        first = self.sort_keys[:1]
        return not first or (first[0].name == self.batch_column and not first[0].is_descending)

    def _check_partition(self, one: PartitionField) -> None:
        name, kind = self.target.name(one.source_id), self.target.schema.find_type(one.source_id)
        if isinstance(one.transform, VoidTransform):
            return
        if isinstance(one.transform, UnknownTransform) or name not in self.columns.names:
            raise Unsupported("it has a partition that is not one of a plain column")
        if isinstance(kind, (FloatType, DoubleType)) or not isinstance(kind, _PLAIN):
            raise Unsupported(f"it is partitioned by a {kind}")


def sort_keys_of(target: RegisterTarget, order: SortOrder) -> tuple[SortKey, ...]:
    """The columns of a sort order.

    Raises:
        Unsupported: Arrow does not write this table.
    """
    keys = []
    for one in order.fields:
        name, kind = target.name(one.source_id), target.schema.find_type(one.source_id)
        if not isinstance(one.transform, IdentityTransform) or "." in name:
            raise Unsupported("its sort order is not one of plain columns")
        if isinstance(kind, (FloatType, DoubleType)) or not isinstance(kind, _PLAIN):
            raise Unsupported(f"it is sorted by a {kind}")
        keys.append(SortKey(name, one.direction is SortDirection.DESC, one.null_order is NullOrder.NULLS_FIRST))
    return tuple(keys)


def parquet_options(properties: Mapping[str, str]) -> dict[str, Any]:
    """Arrow's options for what the table's properties say.

    Raises:
        Unsupported: Arrow does not write this table.
    """
    if has_bloom_filters(properties):
        raise Unsupported("it has Bloom filters")
    codec = _CODECS.get(properties.get(f"{_PARQUET}compression-codec", "zstd").lower())
    if codec is None:
        raise Unsupported("Arrow does not have its compression codec")
    level = properties.get(f"{_PARQUET}compression-level")
    return {
        "compression": codec,
        "compression_level": int(level) if level is not None and codec in ("zstd", "gzip", "brotli") else None,
        "data_page_size": int(properties.get(f"{_PARQUET}page-size-bytes", 1 << 20)),
        "dictionary_pagesize_limit": int(properties.get(f"{_PARQUET}dict-size-bytes", 2 << 20)),
        "store_decimal_as_integer": True,
        "store_schema": False,
        "write_page_index": True,
    }


def row_group_bytes(properties: Mapping[str, str]) -> int:
    """The size of a row group in a file, in bytes."""
    return int(properties.get(f"{_PARQUET}row-group-size-bytes", 128 << 20))


def _field(name: str, kind: pa.DataType, of: NestedField) -> pa.Field:
    return pa.field(name, kind, nullable=not of.required, metadata={FIELD_ID: str(of.field_id).encode()})


def _type_with_ids(kind: pa.DataType, of: IcebergType) -> pa.DataType:
    match of:
        case StructType(fields=fields):
            return pa.struct([_field(f.name, _type_with_ids(kind.field(f.name).type, f.field_type), f) for f in fields])
        case ListType(element_field=element):
            return pa.list_(_field("element", _type_with_ids(kind.value_type, element.field_type), element))
        case MapType(key_field=key, value_field=value):
            return pa.map_(
                _field("key", _type_with_ids(kind.key_type, key.field_type), key),
                _field("value", _type_with_ids(kind.item_type, value.field_type), value),
            )
        case FixedType():
            return pa.binary(len(of))
        case _ if isinstance(of, _PLAIN):
            return kind
    raise Unsupported(f"it has a column of type {of}")


def float_columns(fields: pa.Schema | pa.StructType, at: tuple[str, ...] = ()) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The columns, and fields of structs, whose NaNs Iceberg counts: their ids, and the names on the way to them."""
    for one in fields:
        path = (*at, one.name)
        if pa.types.is_floating(one.type):
            yield int(one.metadata[FIELD_ID]), path
        elif pa.types.is_struct(one.type):
            yield from float_columns(one.type, path)

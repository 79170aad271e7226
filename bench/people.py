"""Tables with rows of persons, sorted by person, and their row groups. I/O.

The files of a table are made once. Another table gets hard links to them: to delete a file of one leaves those of the others.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, NestedField, StringType, TimestampType

from bench.timing import say

ROWS_OF_PERSON: Final = 20
ROWS_OF_FILE: Final = 5_000_000
"""More than an eighth of the target size: a vacuum leaves smaller files to Spark."""
ROWS_OF_GROUP: Final = 270_000
"""12 MiB before compression, as in tables that Lethe creates."""
SCHEMA: Final = Schema(
    NestedField(1, "customer", StringType()),
    NestedField(2, "booked", TimestampType()),
    NestedField(3, "amount", DoubleType()),
    NestedField(4, "note", StringType()),
    NestedField(5, "batch_id", StringType()),
)


def person(number: int) -> str:
    return f"person-{number:08d}@example.org"


def rows(first: int, number: int, booked: date | None = None, batches: int = 0) -> pa.Table:
    """Rows of a table sorted by person.

    Args:
        booked: The day of all rows. None: each is a minute after the row before.
        batches: How many batches they came in, one row after the other. 0: they have no batch ids.
    """
    numbers = np.arange(first, first + number, dtype=np.uint64)
    start = np.datetime64(booked or "2026-01-01", "us")
    minutes = (numbers * (booked is None)).astype("timedelta64[m]")
    padded = pc.utf8_lpad(pa.array(numbers // ROWS_OF_PERSON).cast("string"), 8, "0")
    return pa.table(
        {
            "customer": pc.binary_join_element_wise("person-", padded, "@example.org", ""),
            "booked": start + minutes,
            "amount": (numbers * 7919 % 1_000_003) / 100,
            "note": pa.array(numbers * 11_400_714_819_323_198_485).cast("string"),  # of no order; it wraps around
            "batch_id": pa.array(numbers % batches).cast("string") if batches else pa.nulls(number, pa.string()),
        }
    )


def original(catalog: Catalog, number: int, batches: int = 0) -> Table:
    """The table of so many rows whose files the others share; it is made at the first call.

    Args:
        batches: As `rows`.
    """
    name = f"shop.original_{number}_{batches}"
    if catalog.table_exists(name):
        return catalog.load_table(name)
    table = created(catalog, name, properties={"write.parquet.row-group-limit": str(ROWS_OF_GROUP)})
    say(f"{name}: writing {number:,} rows")
    for first in range(0, number, ROWS_OF_FILE):
        table.append(rows(first, min(ROWS_OF_FILE, number - first), batches=batches))
    return table


def linked(catalog: Catalog, name: str, source: Table, version: int) -> None:
    """A table with hard links to all files of another.

    Args:
        version: Iceberg's format version.
    """
    table = created(catalog, f"shop.{name}", properties={"write.parquet.row-group-size-bytes": str(12 * 2**20)})
    with table.transaction() as change, change.update_snapshot().fast_append() as append:
        for file in files_of(source):
            there = _path(table.location()) / "data" / _path(file.file_path).name
            there.parent.mkdir(parents=True, exist_ok=True)
            os.link(_path(file.file_path), there)
            append.append_data_file(_moved(file, f"file://{there}"))
    if version > 2:
        _upgrade(catalog, f"shop.{name}", version)


def _upgrade(catalog: Catalog, name: str, version: int) -> None:
    """Register the table again with a format version that PyIceberg cannot write. Its rows get ids at the next commit."""
    old = _path(catalog.load_table(name).metadata_location)
    new = old.with_name(f"v{version}-{old.name}")
    new.write_text(json.dumps({**json.loads(old.read_text()), "format-version": version, "next-row-id": 0}))
    catalog.drop_table(name)
    catalog.register_table(name, f"file://{new}")


def files_of(table: Table) -> list[DataFile]:
    return [task.file for task in table.scan().plan_files()]


def _moved(file: DataFile, path: str) -> DataFile:
    names = (
        "content",
        "file_format",
        "partition",
        "record_count",
        "file_size_in_bytes",
        "column_sizes",
        "split_offsets",
    )
    metrics = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
    made = DataFile.from_args(file_path=path, **{n: getattr(file, n) for n in (*names, *metrics)})
    made.spec_id = file.spec_id
    return made


def created(
    catalog: Catalog,
    name: str,
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
    properties: Mapping[str, str] = MappingProxyType({}),
) -> Table:
    """An empty table for rows of persons."""
    catalog.create_namespace_if_not_exists("shop")
    return catalog.create_table(name, SCHEMA, partition_spec=spec, properties=dict(properties))


def _path(uri: str) -> Path:
    return Path("/" + uri.removeprefix("file:").lstrip("/"))


def middle(size: int) -> int:
    """A person whose rows are in the middle of a row group."""
    return (size // 2 + min(ROWS_OF_GROUP, size) // 4) // ROWS_OF_PERSON


@dataclass(frozen=True)
class Group:
    """A row group, as far as it differs from others, without columns of row ids. Equal ones were copied."""

    rows: int
    bytes: int
    bounds: tuple[Any, ...]


def groups_of(file: DataFile, value: str = "") -> Iterator[Group]:
    """The row groups of a file. `value`: only those that have it in the first column."""
    with pq.ParquetFile(_path(file.file_path)) as opened:
        for n in range(opened.num_row_groups):
            group = opened.metadata.row_group(n)
            chunks = [group.column(c) for c in range(len(SCHEMA.fields))]
            low, high = chunks[0].statistics.min, chunks[0].statistics.max
            if not value or (
                low <= value <= high and value in set(opened.read_row_group(n, ["customer"])[0].to_pylist())
            ):
                size = sum(c.total_compressed_size for c in chunks)
                yield Group(group.num_rows, size, (low, high, *(c.total_compressed_size for c in chunks)))


def summaries(table: Table) -> list[Mapping[str, str]]:
    return [dict(s.summary.additional_properties) if s.summary else {} for s in table.snapshots()]

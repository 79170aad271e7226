"""Finds the partitions of rows. Pure: Arrow in, Arrow out.

The transforms are those of `pyiceberg-core`, which computes whole columns.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.conversions import to_json
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record

from lethe.writing.layout import TableLayout


@dataclass(frozen=True)
class Partition:
    """A partition of a table."""

    # Iceberg's physical values, in the order of the spec's fields: a day is the number of days since 1970.
    values: tuple[Any, ...]

    @property
    def hash(self) -> int:
        """A number that is the same in each process."""
        return zlib.crc32(repr(self.values).encode())

    def path(self, layout: TableLayout) -> str:
        """The folder of its files, relative to the table's data."""
        return layout.target.spec.partition_to_path(Record(*self.values), layout.target.schema)

    def json(self, layout: TableLayout) -> list[Any]:
        """Iceberg's JSON of the values."""
        schema = layout.target.schema
        results = [f.transform.result_type(schema.find_type(f.source_id)) for f in layout.target.spec.fields]
        return [None if v is None else to_json(t, v) for t, v in zip(results, self.values, strict=True)]  # type: ignore[arg-type]


@dataclass(frozen=True)
class PartitionedRows:
    """Which partition each row is in."""

    partitions: Sequence[Partition]
    # Indices of `partitions`, one per row. None: all rows are in the first one.
    index: "np.ndarray[Any, np.dtype[np.int64]] | None"


def partitions_of(rows: pa.Table, layout: TableLayout) -> PartitionedRows:
    """Find the partition of each row. There must be rows."""
    index: np.ndarray[Any, np.dtype[np.int64]] | None = None
    values: list[tuple[Any, ...]] = [()]
    for one in layout.target.spec.fields:
        if isinstance(one.transform, VoidTransform):
            values = [(*v, None) for v in values]
            continue
        name, kind = layout.target.name(one.source_id), layout.target.schema.find_type(one.source_id)
        column = rows.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        of_rows = _physical(one.transform.pyarrow_transform(kind)(column.combine_chunks()))
        encoded = of_rows.dictionary_encode(null_encoding="encode")
        texts = encoded.dictionary.to_pylist()
        if len(texts) == 1:
            values = [(*v, texts[0]) for v in values]
            continue
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        if index is None:
            index, values = codes, [(*values[0], t) for t in texts]
            continue
        pairs, index = np.unique(index * len(texts) + codes, return_inverse=True)
        values = [(*values[pair // len(texts)], texts[pair % len(texts)]) for pair in pairs]
    return PartitionedRows([Partition(v) for v in values], index)


def _physical(values: pa.Array) -> pa.Array:
    """Values as integers where Iceberg's are."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_date32(values.type):
        return values.cast(pa.int32())
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.int64())
    return values


def split(rows: pa.Table, index: "np.ndarray[Any, np.dtype[np.int64]]", count: int) -> list[pa.Table]:
    """The rows of each index from 0 to `count` - 1, in their order."""
    order = np.argsort(index.astype(np.uint16) if count <= 1 << 16 else index, kind="stable")
    ends = np.cumsum(np.bincount(index, minlength=count))
    moved = rows if bool(np.all(order[:-1] < order[1:])) else rows.take(pa.array(order))
    return [moved.slice(end - size, size) for end, size in zip(ends, np.diff(ends, prepend=0), strict=True)]

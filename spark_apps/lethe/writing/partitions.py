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

from lethe.files.partitions import partition_text_of_json
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
        values = zip(layout.partition_types, self.values, strict=True)
        return [None if v is None else to_json(t, v) for t, v in values]  # type: ignore[arg-type]

    def text(self, layout: TableLayout) -> str | None:
        """The text by which the ledger knows it (`lethe.files.partitions`); None: it has none."""
        types = [str(t) for t in layout.partition_types]
        return partition_text_of_json(layout.target.spec.spec_id, types, self.json(layout))


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


def batches_of(ids: pa.ChunkedArray, rows: PartitionedRows) -> dict[str, set[int]]:
    """Which partitions the rows of each batch are in.

    Args:
        ids: The batch of each row, as a dictionary (`lethe.ingest.fitting.BATCH_IDS`).
    Returns: indices of `rows.partitions`, by batch id.
    """
    encoded = ids.unify_dictionaries().combine_chunks()
    names, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    count = len(rows.partitions)
    found: dict[str, set[int]] = {}
    for pair in np.unique(codes if rows.index is None else codes * count + rows.index).tolist():
        code, partition = (pair, 0) if rows.index is None else divmod(pair, count)
        found.setdefault(names[code], set()).add(partition)
    return found


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

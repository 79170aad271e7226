"""Reads and writes the data files of a table of batches: Arrow rows in Parquet, through PyIceberg's FileIO. I/O.

Each file contains rows of one state, sorted by batch id, so that its bounds exclude other batches.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, In
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

from lethe.buffer.batch_rows import BatchRow, Total, Totals
from lethe.iceberg.batch_column import BatchColumn
from lethe.iceberg.facts import bounds_of

BATCH_ID: Final = 1
STATE: Final = 2
PARALLEL: Final = 4
# In the order of BatchRow's fields.
SCHEMA: Final = Schema(
    NestedField(BATCH_ID, "batch_id", StringType(), required=True),
    NestedField(STATE, "state", StringType(), required=True),
    NestedField(3, "state_time", TimestamptzType(), required=True),
    NestedField(4, "rows", LongType()),
    NestedField(5, "bytes", LongType()),
    NestedField(6, "objects", IntegerType()),
    NestedField(7, "snapshot_id", LongType()),
    NestedField(8, "run_id", StringType()),
    NestedField(9, "restatement", StringType()),
    NestedField(10, "replaced_by", StringType()),
    NestedField(11, "refusal_reason", StringType()),
    NestedField(12, "refusal_message", StringType()),
    NestedField(13, "evict_by", TimestamptzType()),
    identifier_field_ids=[BATCH_ID],
)
ARROW: Final = SCHEMA.as_arrow()
_VALUES: Final = attrgetter(*ARROW.names)
SPEC: Final = PartitionSpec(PartitionField(STATE, 1000, IdentityTransform(), "state"))
ORDER: Final = SortOrder(SortField(BATCH_ID, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST))


@dataclass(frozen=True)
class TrackingFile:
    """A live data file."""

    file: DataFile
    state: str  # of all its rows
    records: int
    lower: str | None  # bound of the batch ids; None: unknown
    upper: str | None  # bound of the batch ids; None: unknown


def files_of(table: Table) -> list[TrackingFile]:
    """The live data files of the loaded table. Reads manifests."""
    head = table.current_snapshot()
    found: list[TrackingFile] = []
    for manifest in head.manifests(table.io) if head is not None else ():
        if manifest.content != ManifestContent.DATA:
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            bounds = bounds_of(entry.data_file, BatchColumn(BATCH_ID))
            found.append(
                TrackingFile(
                    entry.data_file, str(entry.data_file.partition[0]), bounds.records, bounds.lower, bounds.upper
                )
            )
    return found


def as_arrow(rows: Iterable[BatchRow]) -> pa.Table:
    columns = list(zip(*map(_VALUES, rows), strict=True)) or [()] * len(ARROW)
    return pa.Table.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, ARROW, strict=True)], schema=ARROW
    )


def ids_in(io: FileIO, file: TrackingFile) -> pa.ChunkedArray:
    """The batch ids of a file, in its order. Reads no other column."""
    with io.new_input(file.file.file_path).open(seekable=True) as stream:
        return pq.read_table(stream, columns=["batch_id"])["batch_id"]


def rows_in(io: FileIO, files: Sequence[TrackingFile]) -> list[pa.Table]:
    """The rows of each file."""

    def read(file: TrackingFile) -> pa.Table:
        with io.new_input(file.file.file_path).open(seekable=True) as stream:
            return pq.read_table(stream).select(ARROW.names).cast(ARROW)

    with ThreadPoolExecutor(max_workers=PARALLEL) as pool:
        return list(pool.map(read, files))


def among(rows: pa.Table, ids: pa.Array) -> pa.ChunkedArray:
    """For each row, whether its batch is one of these."""
    return pc.is_in(rows["batch_id"], value_set=ids.cast(ARROW.field("batch_id").type))


def totals_of(rows: pa.Table) -> Totals:
    grouped = rows.group_by("state").aggregate([("batch_id", "count"), ("rows", "sum"), ("bytes", "sum")]).to_pylist()
    return Totals({g["state"]: Total(g["batch_id_count"], g["rows_sum"] or 0, g["bytes_sum"] or 0) for g in grouped})


def by_state(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    for state in pc.unique(rows["state"]).to_pylist():
        yield state, rows.filter(pc.equal(rows["state"], state))


def pieces(rows: pa.Table, cap: int) -> Iterator[pa.Table]:
    """Divide rows of one state into the contents of files: sorted, at most `cap` rows each."""
    in_order = rows.sort_by("batch_id")
    for start in range(0, in_order.num_rows, cap):
        yield in_order.slice(start, cap)


def write(table: Table, contents: Sequence[pa.Table]) -> list[DataFile]:
    """Write a data file for each. A commit must add them to the table."""
    with ThreadPoolExecutor(max_workers=PARALLEL) as pool:
        written = pool.map(lambda rows: list(_dataframe_to_data_files(table.metadata, rows, table.io)), contents)
        return [file for files in written for file in files]


def read_rows(table: Table, states: Collection[str] = (), ids: Collection[str] = ()) -> Iterator[BatchRow]:
    """The rows with these batch ids and states; empty means all. Opens no file of another state."""
    chosen: BooleanExpression = AlwaysTrue()
    if states:
        chosen = And(chosen, _one_of("state", states))
    if ids:
        chosen = And(chosen, _one_of("batch_id", ids))
    found = table.scan(row_filter=chosen, selected_fields=tuple(ARROW.names)).to_arrow()
    for row in found.to_pylist():
        yield BatchRow(**row)


def _one_of(column: str, values: Collection[str]) -> BooleanExpression:
    return In(column, frozenset(values))  # type: ignore[call-arg]  # mypy's plugin sees only pydantic's fields

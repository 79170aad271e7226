"""Files that Arrow writes for a table."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from lethe.ingest.registrable import RegisterTarget
from lethe.writing.data_files import DataFileWriter, TableLayout
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField, StringType


def test_a_row_group_has_a_row_even_if_its_size_is_less(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "x", LongType()), NestedField(2, "batch_id", StringType()))
    properties = {"write.parquet.row-group-size-bytes": "1"}
    target = RegisterTarget(
        schema.model_dump_json(), UNPARTITIONED_PARTITION_SPEC.model_dump_json(), properties, 2, True
    )
    rows = pa.table({"x": [1, 2, 3], "batch_id": ["a", "a", "b"]})
    place, order = f"file://{tmp_path}", UNSORTED_SORT_ORDER.model_dump_json()
    layout = TableLayout(target, rows.schema, order, place, f"{place}/run", 1 << 20, {})

    (document,) = DataFileWriter(layout).write([rows])

    found = pq.ParquetFile(json.loads(document)["file-path"].removeprefix("file://"))
    assert (found.metadata.num_row_groups, found.read(["x"])["x"].to_pylist()) == (3, [1, 2, 3])

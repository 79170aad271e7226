"""Positions that Lethe finds are those that Iceberg deletes by."""

from collections.abc import Callable

import pyarrow.parquet as pq
import pytest
from lethe.files.values import ValueKind, Values, ValueType
from lethe.search.candidates import candidates
from lethe.search.positions import SearchedFile, Wanted, find

from tests.spark.parameters import some
from tests.spark.support.flights import Flights
from tests.spark.support.story import local
from tests.support.lake import CATALOG

SMALL = {
    "write.parquet.row-group-size-bytes": "4096",
    "write.parquet.row-group-check-min-record-count": "50",
    "write.parquet.row-group-check-max-record-count": "50",
    "write.orc.stripe-size-bytes": "4096",
}


@pytest.mark.parametrize("format_name", some(["parquet", "orc", "avro"], "parquet", "orc"))
def test_positions_are_those_of_spark_through_all_parts_of_a_file(
    make_flights: Callable[..., Flights], format_name: str
) -> None:
    """In files of many row groups, which the search may pass over."""
    flights = make_flights(partition_by=())
    properties = ", ".join(f"'{k}' = '{v}'" for k, v in {**SMALL, "write.format.default": format_name}.items())
    flights.spark.sql(f"ALTER TABLE {flights.full_name} SET TBLPROPERTIES ({properties})")
    rows = flights.spark.range(20_000).selectExpr("id % 977 AS v", "1 AS day", "uuid() AS batch_id").coalesce(1)
    rows.writeTo(flights.full_name).append()
    table = flights.lake.catalog.load_table(flights.name)
    values = Values(ValueKind(ValueType.LONG), tuple(range(5, 977, 100)))
    wanted = {"it": Wanted.of(table.schema().find_field("v").field_id, values)}
    head = table.current_snapshot()
    assert head is not None

    found = {
        (c.path, position)
        for c in candidates(table, head.snapshot_id, wanted)
        for position in find(SearchedFile(table.io, c.path, c.format_name), wanted).get("it", ())
    }

    frame = flights.spark.table(f"{CATALOG}.{flights.name}").where(f"v IN {values.items}").select("_file", "_pos")
    assert found == {(r["_file"], r["_pos"]) for r in frame.collect()}
    assert len(found) > 200
    if format_name == "parquet":
        paths = {path for path, _ in found}
        assert max(pq.ParquetFile(local(path)).metadata.num_row_groups for path in paths) > 3

"""The metadata file of a table is read once per version, and never taken for that of another version."""

from pathlib import Path
from typing import Any

import lethe_spark
import pytest
from lethe_spark.commit.parsed_metadata import facts_of, static_table
from lethe_spark.jvm.table import IcebergTable
from pyiceberg.table import StaticTable

from tests.spark.support.flights import Flights


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The metadata files that PyIceberg reads, in order."""
    found: list[str] = []
    original = StaticTable.from_metadata

    def noted(location: str, properties: Any = None) -> StaticTable:
        found.append(location)
        return original(location, properties or {})

    monkeypatch.setattr(StaticTable, "from_metadata", noted)
    return found


def test_a_revert_reads_the_metadata_once(flights: Flights, read: list[str]) -> None:
    lethe_spark.revert(flights.table.spark, flights.table.full_name, ["A"])  # prepares the table
    read.clear()

    lethe_spark.revert(flights.table.spark, flights.table.full_name, ["B"])

    assert len(read) == 1


def test_a_commit_of_another_writer_is_read(flights: Flights, read: list[str]) -> None:
    handle = flights.handle()
    before = facts_of(handle, {}, "batch_id", flights.name)
    assert facts_of(handle, {}, "batch_id", flights.name) is before
    flights.append_as_foreign_writer("A")

    handle.refresh()

    assert facts_of(handle, {}, "batch_id", flights.name).head_id == handle.head_id != before.head_id
    assert len(read) == 2


def test_a_table_that_was_dropped_and_created_again_in_the_same_folder_is_read(
    flights: Flights, tmp_path: Path
) -> None:
    """The files of a table in a folder have numbers for names, so both tables have a v1.metadata.json."""
    iceberg = flights.table.jvm.org.apache.iceberg
    tables = iceberg.hadoop.HadoopTables(flights.table.spark._jsparkSession.sessionState().newHadoopConf())
    folder, schema = str(tmp_path / "table"), flights.table.java.schema()
    handle = IcebergTable(flights.table.gateway, "folder", "table", tables.create(schema, folder))
    first = static_table(handle, {})
    tables.dropTable(folder)

    handle.java = tables.create(schema, folder)

    second = static_table(handle, {})
    assert first.metadata_location == second.metadata_location
    assert str(second.metadata.table_uuid) == handle.uuid != str(first.metadata.table_uuid)

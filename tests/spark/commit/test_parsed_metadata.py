"""The metadata file of a table is read once per version, and never taken for that of another version."""

from pathlib import Path
from typing import Any

import lethe_spark
import pytest
from lethe.iceberg import metadata_file
from lethe_spark.commit.table_state import facts_of, static_table
from lethe_spark.jvm.table import IcebergTable
from pyiceberg.table import StaticTable

from tests.spark.support.flights import Flights


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The metadata files that are read, in order."""
    found: list[str] = []
    original = metadata_file.read

    def noted(location: str, properties: Any) -> tuple[StaticTable, metadata_file.CachedMetadata]:
        found.append(location)
        return original(location, properties)

    monkeypatch.setattr(metadata_file, "read", noted)
    return found


@pytest.fixture
def parsed_whole(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The metadata of which all snapshots were parsed, in order."""
    found: list[str] = []
    original = metadata_file.CachedMetadata.of

    def noted(text: str) -> metadata_file.CachedMetadata:
        found.append(text)
        return original(text)

    monkeypatch.setattr(metadata_file.CachedMetadata, "of", noted)
    return found


def test_each_revert_parses_only_the_snapshots_since_the_last_one(flights: Flights, parsed_whole: list[str]) -> None:
    spark, name = flights.table.spark, flights.table.full_name
    lethe_spark.revert(spark, name, ["A"], unknown_batches="Allow")
    static_table(flights.handle(), {})  # the first version with a snapshot
    parsed_whole.clear()

    for number in range(3):
        flights.handle().java.newFastAppend().commit()
        lethe_spark.revert(spark, name, [f"B-{number}"], unknown_batches="Allow")

    assert parsed_whole == []
    handle = flights.handle()
    kept = static_table(handle, {})
    assert kept.metadata == StaticTable.from_metadata(kept.metadata_location).metadata
    assert len(kept.metadata.snapshots) == handle.snapshot_count


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

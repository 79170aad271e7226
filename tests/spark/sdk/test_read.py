"""Reading: at the head, at a snapshot, at a time, each with the ledger of its own snapshot."""

from datetime import UTC, datetime, timedelta

import lethe
import lethe_spark
import pytest
from lethe.base.errors import InputError, LedgerError
from pyspark.sql import DataFrame

from tests.spark.support.flights import Flights


def per_batch(frame: DataFrame) -> dict[str | None, int]:
    return {r["batch_id"]: r["count"] for r in frame.groupBy("batch_id").count().collect()}


def test_the_head_is_read_without_the_rows_of_tombstoned_batches(flights: Flights) -> None:
    flights.commit(files=flights.written("A", "B", "C"))
    flights.commit("A", "C", run_id="run-2")

    assert per_batch(lethe_spark.read(flights.spark, flights.full_name)) == {"B": 10}
    assert flights.rows_per_batch() == {"A": 10, "B": 10, "C": 10}
    assert lethe.scan(flights.full_name).count() == 10


def test_an_older_snapshot_is_read_with_the_ledger_it_had(flights: Flights) -> None:
    promoted = flights.commit(files=flights.written("A", "B"))
    reverted = flights.commit("A", run_id="run-2")
    flights.commit("B", run_id="run-3")

    def read(snapshot_id: int) -> dict[str | None, int]:
        return per_batch(lethe_spark.read(flights.spark, flights.full_name, snapshot_id=snapshot_id))

    assert (read(promoted), read(reverted)) == ({"A": 10, "B": 10}, {"B": 10})
    assert per_batch(lethe_spark.read(flights.spark, flights.full_name)) == {}


def test_a_time_means_the_head_of_that_moment(flights: Flights) -> None:
    flights.commit(files=flights.written("A", "B"))
    reverted = flights.commit("A", run_id="run-2")
    flights.commit("B", run_id="run-3")
    snapshot = flights.lake.catalog.load_table(flights.name).snapshot_by_id(reverted)
    assert snapshot is not None
    then = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)

    assert per_batch(lethe_spark.read(flights.spark, flights.full_name, as_of=then)) == {"B": 10}
    with pytest.raises(InputError, match="SnapshotNotFound"):
        lethe_spark.read(flights.spark, flights.full_name, as_of=then - timedelta(days=1))


def test_an_empty_table_is_read_as_empty(flights: Flights) -> None:
    assert lethe_spark.read(flights.spark, flights.full_name).count() == 0


def test_a_missing_ledger_file_stops_the_reading(flights: Flights) -> None:
    """Going on would show the rows that were taken back."""
    flights.commit("A", files=flights.written("A"))
    for file in flights.ledger_files():
        file.unlink()

    with pytest.raises(LedgerError, match="LedgerMissing"):
        lethe_spark.read(flights.spark, flights.full_name)


def test_a_name_without_a_catalog_or_with_an_unknown_one_is_refused(flights: Flights) -> None:
    with pytest.raises(InputError, match=r"InvalidRead: 'air\.flights': expected catalog\.namespace\.table"):
        lethe_spark.read(flights.spark, "air.flights")
    with pytest.raises(InputError, match="UnknownCatalog: there is no catalog 'elsewhere'"):
        lethe_spark.read(flights.spark, "elsewhere.air.flights")

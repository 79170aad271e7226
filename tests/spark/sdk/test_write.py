"""Writing, reverting and undoing from a Spark job of one's own: one commit each, once, without an operator."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lethe
import lethe_spark
import pytest
from lethe import ledger_store
from lethe.base.errors import InputError
from lethe.contract.run import CreateTable
from lethe.iceberg.facts import observe
from lethe.ledger.ledger import BatchState, Ledger
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.sdk import batch_writer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tests.spark.parameters import some
from tests.spark.support.flights import Flights
from tests.support.lake import CATALOG
from tests.support.steps import Killed, die


def frame(flights: Flights, *values: int) -> DataFrame:
    return flights.spark.createDataFrame([(v, 1 + v % 2) for v in values], "v bigint, day int")


def seen(flights: Flights) -> dict[str, int]:
    """Rows by batch as Lethe reads them, both ways, and as PyIceberg does, which knows nothing of ledgers."""
    by_arrow = Counter(lethe.scan(flights.full_name).to_arrow()["batch_id"].to_pylist())
    plain = flights.lake.catalog.load_table(flights.name).scan().to_arrow()
    assert Counter(plain["batch_id"].to_pylist()) == by_arrow
    read = lethe_spark.read(flights.spark, flights.full_name).groupBy("batch_id").count().collect()
    assert {r[0]: r[1] for r in read} == by_arrow
    return by_arrow


def ledger(flights: Flights) -> Ledger:
    table = flights.lake.catalog.load_table(flights.name)
    return ledger_store.load(table.io, observe(table, "batch_id")).ledger


def snapshots(flights: Flights) -> int:
    return len(flights.lake.catalog.load_table(flights.name).metadata.snapshots)


def data_files(flights: Flights) -> int:
    """Parquet files in the storage, whether a snapshot names them or not."""
    return len(list(Path("/" + flights.table.location.removeprefix("file:").lstrip("/")).glob("data/**/*.parquet")))


@contextmanager
def happening(monkeypatch: pytest.MonkeyPatch, at: str, what: Callable[[], object]) -> Iterator[None]:
    """Let something happen the first time that a write reaches a step."""
    left = [what]

    def step(name: str) -> None:
        if name == at and left:
            left.pop()()

    monkeypatch.setattr(batch_writer, "crash_point", step)
    yield
    assert not left, f"no write has reached {at}"
    monkeypatch.undo()


def refused(reason: str) -> Any:
    return pytest.raises(InputError, match=rf"^{reason}: ")


def test_a_batch_is_written_and_remembered_and_the_same_one_again_computes_nothing(flights: Flights) -> None:
    """A job that is repeated after a crash loads its rows once."""
    first = lethe_spark.write(frame(flights, 1, 2), flights.full_name, batch_id="A")

    assert seen(flights) == {"A": 2}
    entry = ledger(flights).batches["A"]
    assert (entry.state, entry.rows, entry.snapshot_id) == (BatchState.PROMOTED, 2, first.snapshot_id)
    assert (first.rows, first.already, first.snapshot_id) == (2, False, flights.handle().head_id)

    poisoned = frame(flights, 1).withColumn("v", F.raise_error("computed").cast("bigint"))

    again = lethe_spark.write(poisoned, flights.full_name, batch_id="A")

    assert (again.already, again.rows, again.snapshot_id) == (True, 2, first.snapshot_id)
    assert flights.handle().head_id == first.snapshot_id
    assert data_files(flights) == 2  # one a day


def test_what_is_replaced_goes_in_the_snapshot_that_brings_the_new_rows(flights: Flights) -> None:
    lethe_spark.write(frame(flights, 1, 2, 3), flights.full_name, batch_id="A")
    lethe_spark.write(frame(flights, 4), flights.full_name, batch_id="B")
    before = snapshots(flights)

    done = lethe_spark.write(
        frame(flights, 7, 8),
        flights.full_name,
        batch_id="AB",
        batch_ids_to_replace=["A", "B", "A"],
        batch_replacing_reason="corrected",
    )

    assert (seen(flights), snapshots(flights)) == ({"AB": 2}, before + 1)
    assert (done.rows, done.rows_deleted, done.already) == (2, 4, False)
    now = ledger(flights)
    assert {i: (b.state, b.replaced_by) for i, b in now.batches.items()} == {
        "A": (BatchState.REPLACED, "AB"),
        "B": (BatchState.REPLACED, "AB"),
        "AB": (BatchState.PROMOTED, None),
    }
    assert {t.meta["reason"] for t in now.tombstones.values()} == {"corrected"}

    again = lethe_spark.write(frame(flights, 7, 8), flights.full_name, batch_id="AB", batch_ids_to_replace=["B", "A"])
    assert (again.already, again.snapshot_id, again.rows_deleted) == (True, done.snapshot_id, 4)
    with refused("BatchAlreadyWritten"):
        lethe_spark.write(frame(flights, 7), flights.full_name, batch_id="AB", batch_ids_to_replace=["C"])
    with refused("AlreadyReplaced"):
        lethe_spark.write(frame(flights, 7), flights.full_name, batch_id="A3", batch_ids_to_replace=["A"])
    assert (seen(flights), snapshots(flights)) == ({"AB": 2}, before + 1)


def test_a_twin_that_was_faster_leaves_the_rows_once_and_no_files_behind(
    flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twin() -> None:
        lethe_spark.write(frame(flights, 1, 2), flights.full_name, batch_id="A")

    with happening(monkeypatch, "after-write", twin):
        done = lethe_spark.write(frame(flights, 1, 2), flights.full_name, batch_id="A")

    assert (done.already, done.rows) == (True, 2)
    assert seen(flights) == {"A": 2}
    assert data_files(flights) == 2


@pytest.mark.parametrize(
    "step", some(["after-write", "before-commit", "after-commit"], "before-commit", "after-commit")
)
def test_a_job_that_dies_at_any_step_and_is_repeated_loads_its_rows_once(
    flights: Flights, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    lethe_spark.write(frame(flights, 1), flights.full_name, batch_id="A")

    def job() -> lethe_spark.WriteResult:
        return lethe_spark.write(frame(flights, 2, 3), flights.full_name, batch_id="B", batch_ids_to_replace=["A"])

    with happening(monkeypatch, step, die), pytest.raises(Killed):
        job()
    done = job()

    assert (done.already, done.rows) == (step == "after-commit", 2)
    assert seen(flights) == {"B": 2}
    assert ledger(flights).version == 2


def test_a_batch_column_in_the_frame_must_hold_the_batch_id_in_every_row(flights: Flights) -> None:
    rows = frame(flights, 1, 2)
    lethe_spark.write(rows.withColumn("batch_id", F.lit("A")), flights.full_name, batch_id="A")
    head = flights.handle().head_id

    for wrong in (F.lit("A"), F.lit(None).cast("string"), F.when(F.col("v") == 1, "B").otherwise("secret")):
        with refused("BatchIdMismatch") as lethe_cli:
            lethe_spark.write(rows.withColumn("batch_id", wrong), flights.full_name, batch_id="B")
        assert "secret" not in str(lethe_cli.value)

    assert (seen(flights), flights.handle().head_id) == ({"A": 2}, head)


def test_columns_are_matched_by_name_and_what_does_not_fit_is_named(make_flights: Callable[..., Flights]) -> None:
    flights = make_flights(schema="v bigint not null, day int, note string, batch_id string")
    spark = flights.spark
    lethe_spark.write(spark.createDataFrame([(1, 7)], "DAY int, v bigint"), flights.full_name, batch_id="A")

    assert lethe.scan(flights.full_name).to_arrow().to_pylist() == [{"v": 7, "day": 1, "note": None, "batch_id": "A"}]
    wrong = {
        "columns that the table does not have: w": spark.createDataFrame([(1, 1)], "v bigint, w int"),
        "no column v": spark.createDataFrame([(1,)], "day int"),
        "NullInColumn: .* a null in v": spark.createDataFrame([(None,)], "v bigint"),
        "does not fit": spark.createDataFrame([("x",)], "v string"),
        "two columns with the same name": spark.createDataFrame([(1, 2)], "v bigint, V bigint"),
    }
    for says, rows in wrong.items():
        with pytest.raises(InputError, match=says):
            lethe_spark.write(rows, flights.full_name, batch_id="B")
    assert seen(flights) == {"A": 1}


def test_a_revert_hides_and_an_undo_shows_again(flights: Flights) -> None:
    lethe_spark.write(frame(flights, 1, 2), flights.full_name, batch_id="A")
    lethe_spark.write(frame(flights, 3), flights.full_name, batch_id="B")

    with refused("UnknownBatches"):
        lethe_spark.revert(flights.spark, flights.full_name, ["A", "never"])
    reverted = lethe_spark.revert(
        flights.spark, flights.full_name, ["A", "never"], reason="wrong day", unknown_batches="Allow"
    )
    assert (reverted.rows_deleted, reverted.unknown_batch_ids, seen(flights)) == (2, ("never",), {"B": 1})

    undone = lethe_spark.undo(flights.spark, flights.full_name, reverted.restatement)
    assert (undone.rows_restored, undone.already, seen(flights)) == (2, False, {"A": 2, "B": 1})
    again = lethe_spark.undo(flights.spark, flights.full_name, reverted.restatement)
    assert (again.already, again.snapshot_id) == (True, undone.snapshot_id)
    with refused("UnknownRestatement"):
        lethe_spark.undo(flights.spark, flights.full_name, "sdk/nothing/0")


def test_all_that_a_run_wrote_is_taken_back_by_its_id_once(flights: Flights) -> None:
    spark, table = flights.spark, flights.full_name
    lethe_spark.write(frame(flights, 1, 2), table, batch_id="A", reference="run 1")
    lethe_spark.write(frame(flights, 3), table, batch_id="B", reference="run 2")
    lethe_spark.write(frame(flights, 4), table, batch_id="C", batch_ids_to_replace=["B"], reference="run 1")
    lethe_spark.writer(frame(flights, 5)).options(batchId="D", reference="run 3").save(table)

    reverted = lethe_spark.revert(spark, table, reference="run 1", name="run-1")

    assert (reverted.rows_deleted, seen(flights)) == (3, {"D": 1})
    lethe_spark.write(frame(flights, 6), table, batch_id="E", reference="run 1")
    assert lethe_spark.revert(spark, table, reference="run 1", name="run-1").already
    assert seen(flights) == {"D": 1, "E": 1}
    with refused("UnknownBatches"):
        lethe_spark.revert(spark, table, reference="run 2")  # its batch was replaced
    with refused("NoBatchIds"):
        lethe_spark.revert(spark, table, ["E"], reference="run 1")
    with refused("InvalidReference"):
        lethe_spark.write(frame(flights, 7), table, batch_id="F", reference=" run")


def test_a_batch_that_was_taken_back_before_or_after_it_came_stays_out(flights: Flights) -> None:
    reverted = lethe_spark.revert(flights.spark, flights.full_name, "A", unknown_batches="Allow")
    with refused("BatchTakenBack"):
        lethe_spark.write(frame(flights, 1), flights.full_name, batch_id="A")

    lethe_spark.undo(flights.spark, flights.full_name, reverted.restatement)
    lethe_spark.write(frame(flights, 1), flights.full_name, batch_id="A")

    assert seen(flights) == {"A": 1}
    lethe_spark.revert(flights.spark, flights.full_name, ["A"])
    assert lethe_spark.write(frame(flights, 1), flights.full_name, batch_id="A").already
    assert seen(flights) == {}


def test_a_write_that_replaces_an_unknown_batch_is_refused_before_it_writes_unless_it_may(flights: Flights) -> None:
    lethe_spark.write(frame(flights, 1), flights.full_name, batch_id="A")
    flights.append_as_foreign_writer("foreign")
    before = flights.handle().head_id

    with refused("UnknownBatches"):
        lethe_spark.write(frame(flights, 2), flights.full_name, batch_id="B", batch_ids_to_replace=["A", "never"])
    assert flights.handle().head_id == before
    lethe_spark.write(frame(flights, 3), flights.full_name, batch_id="C", batch_ids_to_replace=["foreign"])
    allowed = lethe_spark.writer(frame(flights, 2)).option("batchId", "B").option("unknownBatches", "Allow")
    done = allowed.option("batchIdsToReplace", ["A", "never"]).save(flights.full_name)

    assert (done.rows_deleted, seen(flights)) == (1, {"B": 1, "C": 1})
    assert ledger(flights).batches["never"].state is BatchState.REPLACED


def a_plain_table(flights: Flights, name: str) -> Flights:
    """As a user makes it, of no Dataset, not prepared."""
    create = CreateTable(schema="v bigint, day int, batch_id string")
    table = SparkTable.create(flights.spark, CATALOG, name, create, {})
    return Flights(flights.spark, flights.lake, name, table)


def test_an_empty_table_is_prepared_by_its_first_write(flights: Flights) -> None:
    plain = a_plain_table(flights, f"{flights.name}_plain")

    lethe_spark.write(frame(plain, 1), plain.full_name, batch_id="A")

    facts = observe(plain.lake.catalog.load_table(plain.name), "batch_id")
    assert (facts.prepared, facts.ledger_since, facts.claim) == (True, 0, None)
    assert seen(plain) == {"A": 1}


def test_wrong_names_and_ids_are_refused_before_anything_is_read(flights: Flights) -> None:
    rows = frame(flights, 1)

    for wanted, reason in {
        ("air.flights", "A", ()): "InvalidName",
        ("nope.air.flights", "A", ()): "UnknownCatalog",
        (f"{CATALOG}.air.nowhere", "A", ()): "TableNotFound",
        (flights.full_name, "", ()): "InvalidBatchId",
        (flights.full_name, "A" * 257, ()): "InvalidBatchId",
        (flights.full_name, "A", ("B", "A")): "ReplacementIsReplaced",
    }.items():
        table, batch_id, replaces = wanted
        with refused(reason):
            lethe_spark.write(rows, table, batch_id=batch_id, batch_ids_to_replace=replaces)
    with refused("NoBatchIds"):
        lethe_spark.revert(flights.spark, flights.full_name, [])
    with refused("UnknownOption"):
        lethe_spark.revert(flights.spark, flights.full_name, ["A"], deletes="Vectors")
    with refused("UnknownOption"):
        lethe_spark.write(rows, flights.full_name, batch_id="A", deletes="Vectors")
    with refused("FormatVersionMismatch"):
        lethe_spark.revert(flights.spark, flights.full_name, ["A"], deletes="DeletionVectors")
    assert flights.handle().head_id is None

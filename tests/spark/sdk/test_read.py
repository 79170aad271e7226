"""Reading: at the head, at a snapshot, at a time, each with the ledger of its own snapshot."""

import gc
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import lethe
import lethe_spark
import pytest
from lethe.base.errors import InputError
from lethe.read.data_file import Reading
from lethe_spark.jvm import scan_tasks
from lethe_spark.jvm.scan_tasks import plan_tasks, stage
from lethe_spark.jvm.spark_table import in_set
from lethe_spark.sdk import reader
from lethe_spark.sql import searching
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.spark.parameters import some, tuples
from tests.spark.support.flights import Flights
from tests.support.lake import CATALOG, Lake


def held_sets() -> int:
    """The registered sets of files that the JVM can still reach.

    A frame that Python has dropped counts until py4j has reported it, which can take a second, and the JVM has collected its
    garbage.
    """
    return sum(registration.is_held for registration in scan_tasks._STAGED._staged)


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


def test_a_name_without_a_catalog_or_with_an_unknown_one_is_refused(flights: Flights) -> None:
    with pytest.raises(InputError, match=r"InvalidRead: 'air\.flights': expected catalog\.namespace\.table"):
        lethe_spark.read(flights.spark, "air.flights")
    with pytest.raises(InputError, match="UnknownCatalog: there is no catalog 'elsewhere'"):
        lethe_spark.read(flights.spark, "elsewhere.air.flights")


# --- filters on numbers ----------------------------------------------------------------------------------------------


NUMBERS = ("'NaN'", "'0.0'", "'-0.0'", "'1.0'", "'Infinity'", "NULL")
WANTED = {
    "x > 0.5": [0, 3, 4],
    "NOT (x <= 0.5)": [0, 3, 4],
    "x = 0": [1, 2],
    "x IN (0.0, 2.0)": [1, 2],
    "x >= 0.0D": [0, 1, 2, 3, 4],
    "s.x <= -0.0D -- both zeros": [1, 2],
    "s.x > FLOAT('0.5')": [0, 3, 4],
    "x NOT IN (1.0)": [0, 1, 2, 4],
}


@pytest.fixture(scope="module")
def table(spark: SparkSession, lake: Lake) -> str:
    """Each number in a file of its own."""
    _ = lake.catalog
    name = f"{CATALOG}.air.read_numbers"
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.air")
    spark.sql(
        f"CREATE TABLE {name} (n INT, x DOUBLE, s STRUCT<x: FLOAT>, batch_id STRING) USING iceberg PARTITIONED BY (n)"
    )
    rows = ", ".join(f"({n}, DOUBLE({x}), named_struct('x', FLOAT({x})), 'A')" for n, x in enumerate(NUMBERS))
    spark.sql(f"SELECT * FROM VALUES {rows} AS t(n, x, s, batch_id)").writeTo(name).append()
    return name


@pytest.mark.parametrize("condition", some(WANTED, "x > 0.5", "x IN (0.0, 2.0)", "s.x <= -0.0D -- both zeros"))
def test_a_filter_finds_nan_and_both_zeros_whatever_their_files(
    spark: SparkSession, table: str, condition: str
) -> None:
    found = lethe_spark.read(spark, table, filter=condition).select("n").collect()

    assert sorted(r["n"] for r in found) == WANTED[condition]


# --- files -----------------------------------------------------------------------------------------------------------
# Which files a read opens, and that the rows are the same whichever way it takes.


def rows_of(frame: DataFrame) -> Counter[tuple[str | None, int]]:
    return Counter((r["batch_id"], r["v"]) for r in frame.select("batch_id", "v").collect())


def expected(flights: Flights, *gone: str) -> Counter[tuple[str | None, int]]:
    """As the test itself reads: everything, without the batches that it knows to be deleted."""
    everything = flights.lake.catalog.load_table(flights.name).scan().to_arrow().to_pylist()
    return Counter((r["batch_id"], r["v"]) for r in everything if r["batch_id"] not in gone)


@pytest.fixture
def many(flights: Flights) -> Flights:
    return filled(flights)


@pytest.fixture(scope="module")
def mixed(spark: SparkSession, lake: Lake) -> Flights:
    """For tests that only read: as `many`, without A and K. Rows without a batch are in files with tombstoned ones and in
    others, and K has a late row."""
    many = filled(Flights.make(spark, lake))
    spark.sql(f"INSERT INTO {many.full_name} VALUES (100, 1, NULL), (101, 1, 'K')")
    many.commit("A", "K", run_id="run-10")
    return many


def filled(flights: Flights) -> Flights:
    """Files of their own for most batches, and one with several."""
    for n, batch in enumerate("ABCDE"):
        flights.commit(files=flights.written(batch, run_id=f"run-{n}"), run_id=f"run-{n}")
    flights.commit(files=flights.written("K", "L", "M", run_id="run-9"), run_id="run-9")
    return flights


@pytest.mark.parametrize(
    ("in_set_at_most", "split_from"),
    tuples([(100, -1.0), (100, 2.0), (0, -1.0), (0, 2.0)], (100, 2.0), (0, -1.0)),
    ids=["looked up-file by file", "looked up-all alike", "joined-file by file", "joined-all alike"],
)
def test_the_rows_are_the_same_whichever_way_a_read_takes(
    mixed: Flights, monkeypatch: pytest.MonkeyPatch, split_from: float, in_set_at_most: int
) -> None:
    """Rows without a batch stay, in files with tombstoned ones and in others."""
    monkeypatch.setattr(reader, "SPLIT_FROM", split_from)
    monkeypatch.setattr(searching, "IN_SET_AT_MOST", in_set_at_most)

    assert rows_of(lethe_spark.read(mixed.spark, mixed.full_name)) == expected(mixed, "A", "K")
    assert rows_of(lethe_spark.read(mixed.spark, mixed.full_name, filter="v > 4 AND day = 1")) == Counter(
        {k: n for k, n in expected(mixed, "A", "K").items() if k[1] > 4 and (k[1] >= 100 or k[1] % 2 == 0)}
    )


@pytest.mark.parametrize("split_from", some([-1.0, 2.0], -1.0), ids=["file by file", "all alike"])
def test_deletes_of_other_engines_apply_as_well(
    many: Flights, monkeypatch: pytest.MonkeyPatch, split_from: float
) -> None:
    many.commit("A", "K", run_id="run-10")
    many.spark.sql(f"ALTER TABLE {many.full_name} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    many.spark.sql(f"DELETE FROM {many.full_name} WHERE v = 3")
    head = many.lake.catalog.load_table(many.name).current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert int(head.summary.additional_properties["added-delete-files"]) > 0
    monkeypatch.setattr(reader, "SPLIT_FROM", split_from)

    assert rows_of(lethe_spark.read(many.spark, many.full_name)) == expected(many, "A", "K")
    assert {v for _, v in expected(many)} == {0, 1, 2, 4, 5, 6, 7, 8, 9}
    assert lethe.scan(many.full_name).count() == expected(many, "A", "K").total()


def test_native_deletes_are_counted_without_data(many: Flights, monkeypatch: pytest.MonkeyPatch) -> None:
    before = lethe.scan(many.full_name).count()
    many.spark.sql(f"ALTER TABLE {many.full_name} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    for v in (3, 4):
        many.spark.sql(f"DELETE FROM {many.full_name} WHERE v = {v}")
    left = rows_of(many.spark.table(many.full_name)).total()
    opened: list[str] = []
    monkeypatch.setattr(Reading, "rows", lambda *_: opened.append("a data file") or iter(()))

    assert (lethe.scan(many.full_name).count(), opened) == (left, [])
    assert left < before


FILTERS = ["v + 1 = 3", "abs(v) = 2", "true", "v = 2 AND length(batch_id) = 1"]


@pytest.mark.parametrize("filter", some(FILTERS, FILTERS[-1]))
def test_a_filter_that_iceberg_cannot_evaluate_still_selects_rows(mixed: Flights, filter: str) -> None:
    wanted = expected(mixed, "A", "K")

    found = rows_of(lethe_spark.read(mixed.spark, mixed.full_name, filter=filter))

    assert found == (wanted if filter == "true" else Counter({k: n for k, n in wanted.items() if k[1] == 2}))


def test_a_view_is_read_by_sql(mixed: Flights) -> None:
    lethe_spark.create_view(mixed.spark, "live", mixed.full_name, filter="v < 5")

    found = mixed.spark.sql("SELECT batch_id, count(*) AS n FROM live GROUP BY batch_id").collect()
    assert {r["batch_id"]: r["n"] for r in found} == dict.fromkeys("BCDELM", 5)


@pytest.mark.long
def test_files_that_were_named_are_kept_as_long_as_somebody_reads_them(
    many: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame made of the one that `read` returned, and a view, which Spark holds by name only."""
    monkeypatch.setattr(reader, "SPLIT_FROM", -1.0)
    monkeypatch.setattr(scan_tasks, "TASKS_AT_MOST", 0)
    many.commit("B", "L", run_id="run-10")
    wanted = expected(many, "B", "L")
    lethe_spark.create_view(many.spark, "kept", many.full_name)
    derived = lethe_spark.read(many.spark, many.full_name).filter("v < 5").select("batch_id", "v")

    handle = many.handle()
    head = handle.head_id
    assert head is not None
    tasks = plan_tasks(handle, head)
    deadline = time.monotonic() + 300

    def only_these_are_left(sets: int) -> None:
        while held_sets() > sets:
            assert time.monotonic() < deadline, f"{held_sets()} sets of files are held, expected {sets}"
            gc.collect()
            many.spark.sparkContext._jvm.System.gc()
        stage(handle, [(tasks, tasks.paths[:1])])  # each new set drops those that nobody holds
        assert len(scan_tasks._STAGED._staged) == sets + 1

    only_these_are_left(4)  # two for the view, two for the frame
    assert rows_of(many.spark.table("kept")) == wanted
    assert rows_of(derived) == Counter({k: n for k, n in wanted.items() if k[1] < 5})

    lethe_spark.create_view(many.spark, "kept", many.full_name, filter="v < 5")
    assert rows_of(many.spark.table("kept")) == rows_of(derived)
    del derived
    only_these_are_left(2)


def test_any_string_can_be_searched(spark: SparkSession) -> None:
    ids = ["a", "", "it's", 'quo"te', "back\\slash", "line\nend", "\x01", "\x02", "é\U0001f600", "a.b", "%"]
    frame = spark.createDataFrame([(i,) for i in [*ids, "b", "A", None]], "id string")

    found = frame.select("id", in_set(spark, F.col("id"), ids).alias("there")).collect()

    assert {r["id"]: r["there"] for r in found} == {**dict.fromkeys(ids, True), "b": False, "A": False, None: None}


def test_options_that_contradict_each_other_are_refused(mixed: Flights) -> None:
    with pytest.raises(InputError, match="InvalidRead"):
        lethe_spark.read(mixed.spark, mixed.full_name, until=1)
    with pytest.raises(InputError, match="InvalidRead"):
        lethe_spark.read(mixed.spark, mixed.full_name, since=1, snapshot_id=1)

"""Which files a read opens, and that the rows are the same whichever way it takes."""

import gc
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import lethe
import lethe_spark
import pytest
from lethe.base.errors import InputError
from lethe_spark.jvm import scan_tasks as staged
from lethe_spark.jvm.gateway import gateway, jvm
from lethe_spark.jvm.scan_tasks import held_now, plan_tasks, stage, staged_now
from lethe_spark.jvm.spark_table import in_set
from lethe_spark.sdk import reader
from lethe_spark.sql import searching
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.spark.parameters import some, tuples
from tests.spark.support.flights import Flights
from tests.spark.support.story import local
from tests.support.lake import Lake


def rows_of(frame: DataFrame) -> Counter[tuple[str | None, int]]:
    return Counter((r["batch_id"], r["v"]) for r in frame.select("batch_id", "v").collect())


def expected(flights: Flights, *gone: str) -> Counter[tuple[str | None, int]]:
    """As the test itself reads: everything, without the batches that it knows to be deleted."""
    everything = flights.lake.catalog.load_table(flights.name).scan().to_arrow().to_pylist()
    return Counter((r["batch_id"], r["v"]) for r in everything if r["batch_id"] not in gone)


def forget(flights: Flights, batch_id: str) -> None:
    """Remove the files that hold only this batch from the disk: whoever opens one fails."""
    head = flights.handle().head_id
    assert head is not None
    files = [f for f in flights.written_files(head) if f.lower == f.upper == batch_id]
    assert files
    for f in files:
        Path(local(f.path)).unlink()


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
    ("runs", "split_from"), tuples([(8, 2.0), (0, -1.0)], (0, -1.0)), ids=["by condition", "by name"]
)
def test_files_of_only_tombstoned_rows_are_not_opened(
    many: Flights, monkeypatch: pytest.MonkeyPatch, runs: int, split_from: float
) -> None:
    monkeypatch.setattr(reader, "RUNS_AT_MOST", runs)
    monkeypatch.setattr(reader, "SPLIT_FROM", split_from)
    many.commit("B", "L", run_id="run-10")
    wanted = expected(many, "B", "L")
    forget(many, "B")

    frame = lethe_spark.read(many.spark, many.full_name)

    assert rows_of(frame) == wanted
    assert rows_of(frame.filter("v < 3")) == Counter({k: n for k, n in wanted.items() if k[1] < 3})
    assert lethe.scan(many.full_name).count() == wanted.total()


@pytest.mark.long
def test_a_table_whose_rows_are_all_tombstoned_is_read_without_opening_a_file(flights: Flights) -> None:
    flights.commit(files=flights.written("A"))
    flights.commit("A", run_id="run-2")
    forget(flights, "A")

    assert lethe_spark.read(flights.spark, flights.full_name).count() == 0


@pytest.mark.long
def test_a_filter_added_to_the_frame_chooses_files_as_on_any_table(many: Flights) -> None:
    many.commit("B", "L", run_id="run-10")
    forget(many, "E")

    frame = lethe_spark.read(many.spark, many.full_name).filter("batch_id < 'E'")

    assert {b for b, _ in rows_of(frame)} == {"A", "C", "D"}


@pytest.mark.long
def test_tombstones_that_hit_no_file_cost_nothing(many: Flights) -> None:
    many.commit("AB", "Z", run_id="run-10")

    plan = lethe_spark.read(many.spark, many.full_name)._jdf.queryExecution().optimizedPlan().toString()

    assert "Filter" not in plan
    assert "Join" not in plan
    assert "Union" not in plan


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


@pytest.mark.long
def test_a_filter_chooses_the_files(many: Flights) -> None:
    many.commit("A", run_id="run-10")
    forget(many, "E")  # never opened by a read of other batches

    frame = lethe_spark.read(many.spark, many.full_name, filter="batch_id IN ('A', 'B', 'L')")
    assert {b for b, _ in rows_of(frame)} == {"B", "L"}


FILTERS = ["v + 1 = 3", "abs(v) = 2", "true", "v = 2 AND length(batch_id) = 1"]


@pytest.mark.parametrize("filter", some(FILTERS, FILTERS[-1]))
def test_a_filter_that_iceberg_cannot_evaluate_still_selects_rows(mixed: Flights, filter: str) -> None:
    wanted = expected(mixed, "A", "K")

    found = rows_of(lethe_spark.read(mixed.spark, mixed.full_name, filter=filter))

    assert found == (wanted if filter == "true" else Counter({k: n for k, n in wanted.items() if k[1] == 2}))


def test_a_filter_that_is_none_is_refused(mixed: Flights) -> None:
    for wrong in ("nope = 1", "v ="):
        with pytest.raises(InputError, match="InvalidRead: filter="):
            lethe_spark.read(mixed.spark, mixed.full_name, filter=wrong)


@pytest.mark.long
def test_the_head_has_the_columns_of_now_even_if_nothing_was_written_since_they_changed(many: Flights) -> None:
    before = many.commit("A", "K", run_id="run-10")
    many.spark.sql(f"ALTER TABLE {many.full_name} ADD COLUMN note string")
    many.spark.sql(f"ALTER TABLE {many.full_name} RENAME COLUMN v TO w")

    now = lethe_spark.read(many.spark, many.full_name)
    then = lethe_spark.read(many.spark, many.full_name, snapshot_id=before)

    assert now.columns == ["w", "day", "batch_id", "note"]
    assert then.columns == ["v", "day", "batch_id"]
    assert Counter((r["batch_id"], r["w"]) for r in now.collect()) == rows_of(then)
    assert lethe_spark.read(many.spark, many.full_name, filter="w = 1").count() == 6
    assert lethe_spark.read(many.spark, many.full_name, snapshot_id=before, filter="v = 1").count() == 6


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
    monkeypatch.setattr(staged, "TASKS_AT_MOST", 0)
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
        while held_now() > sets:
            assert time.monotonic() < deadline, f"{held_now()} sets of files are held, expected {sets}"
            gc.collect()
            many.spark.sparkContext._jvm.System.gc()
        stage(handle, [(tasks, tasks.paths[:1])])  # each new set drops those that nobody holds
        assert staged_now() == sets + 1

    only_these_are_left(4)  # two for the view, two for the frame
    assert rows_of(many.spark.table("kept")) == wanted
    assert rows_of(derived) == Counter({k: n for k, n in wanted.items() if k[1] < 5})

    lethe_spark.create_view(many.spark, "kept", many.full_name, filter="v < 5")
    assert rows_of(many.spark.table("kept")) == rows_of(derived)
    del derived
    only_these_are_left(2)


@pytest.mark.long
def test_a_view_stays_what_it_was_when_the_table_goes_on(many: Flights) -> None:
    lethe_spark.create_view(many.spark, "before", many.full_name)
    many.commit("B", "L", run_id="run-10")
    lethe_spark.create_view(many.spark, "between", many.full_name)
    many.commit("A", files=many.written("X", run_id="run-11"), run_id="run-11")

    assert {b for b, _ in rows_of(many.spark.table("before"))} == set("ABCDEKLM")
    assert {b for b, _ in rows_of(many.spark.table("between"))} == set("ACDEKM")


def test_any_string_can_be_searched(spark: SparkSession) -> None:
    ids = ["a", "", "it's", 'quo"te', "back\\slash", "line\nend", "\x01", "\x02", "é\U0001f600", "a.b", "%"]
    frame = spark.createDataFrame([(i,) for i in [*ids, "b", "A", None]], "id string")

    found = frame.select("id", in_set(spark, F.col("id"), ids).alias("there")).collect()

    assert {r["id"]: r["there"] for r in found} == {**dict.fromkeys(ids, True), "b": False, "A": False, None: None}


@pytest.mark.long
def test_paths_of_tasks_are_those_of_the_manifests(many: Flights) -> None:
    head = many.handle().head_id
    assert head is not None
    tasks = plan_tasks(many.handle(), head)

    assert sorted(tasks.paths) == sorted(f.path for f in many.written_files(head))
    some = frozenset(tasks.paths[1:3]) | {tasks.paths[5]}
    found = {r[0] for r in stage(many.handle(), [(tasks, some)]).select(F.input_file_name()).distinct().collect()}
    assert {local(p) for p in found} == {local(p) for p in some}


def test_options_that_contradict_each_other_are_refused(mixed: Flights) -> None:
    with pytest.raises(InputError, match="InvalidRead"):
        lethe_spark.read(mixed.spark, mixed.full_name, until=1)
    with pytest.raises(InputError, match="InvalidRead"):
        lethe_spark.read(mixed.spark, mixed.full_name, since=1, snapshot_id=1)


def test_equality_deletes_are_applied_by_spark_and_refused_by_name_without_it(
    make_flights: Callable[..., Flights],
) -> None:
    """PyIceberg cannot read them; going on without them would show deleted rows."""
    flights = make_flights(partition_by=())
    flights.commit(files=flights.written("A", "B"))
    flights.commit("A", run_id="run-2")
    first = flights.handle().head_id
    delete_by_value(flights, "day", 2)

    frame = lethe_spark.read(flights.spark, flights.full_name)
    assert rows_of(frame) == Counter({("B", v): 1 for v in range(0, 10, 2)})
    with pytest.raises(InputError, match=r"EqualityDeletes.*lethe_spark\.read"):
        lethe.scan(flights.full_name).to_arrow()
    with pytest.raises(InputError, match="ForeignChange"):
        lethe_spark.read(flights.spark, flights.full_name, since=first)


def delete_by_value(flights: Flights, column: str, value: int) -> None:
    """As a streaming engine deletes: a file that names values, without a look at the data."""
    table = flights.handle().java
    api = jvm(flights.spark).org.apache.iceberg
    schema = table.schema().select([column])
    fields = gateway(flights.spark).new_array(jvm(flights.spark).int, 1)
    fields[0] = table.schema().findField(column).fieldId()
    parquet = api.FileFormat.PARQUET
    factory = api.data.GenericFileWriterFactory.Builder(table).deleteFileFormat(parquet)
    factory = factory.equalityFieldIds(fields).equalityDeleteRowSchema(schema).build()
    file = api.io.OutputFileFactory.builderFor(table, 1, 1).format(parquet).build().newOutputFile()
    writer = factory.newEqualityDeleteWriter(file, table.spec(), None)
    record = api.data.GenericRecord.create(schema)
    record.setField(column, value)
    writer.write(record)
    writer.close()
    table.newRowDelta().addDeletes(writer.toDeleteFile()).commit()

"""Erase: the rows that were named are gone for every reader, and for good."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import lethe
import lethe_spark
import pyarrow.parquet as pq
import pytest
from lethe.base.errors import InputError, TransientError
from lethe.contract.result import RunResult
from lethe.contract.run import RestatementRequest
from pyspark.sql import SparkSession

from tests.spark.parameters import VERSION_2, VERSION_3
from tests.spark.support.built_once import built_once
from tests.spark.support.erases import Names, but, files_with, name_of, row, table_folder
from tests.spark.support.story import ALL_GONE, Story, avro, local, of_batches, results_by_name, some_rows
from tests.support.builders import a_request, ago
from tests.support.lake import Lake

Make = Callable[..., Names]


@pytest.fixture
def make(spark: SparkSession, lake: Lake) -> Make:
    """Batches A, B and D are in a table of this format version."""

    @built_once
    def begin(format_version: int, partition_by: tuple[str, ...] = ("day",), **properties: str) -> Names:
        return Names.of(Story.begin(spark, lake, partition_by), format_version, **properties).filled()

    return begin


@pytest.fixture(params=[2, 3], ids=["v2", "v3"])
def story(request: pytest.FixtureRequest, make: Make) -> Names:
    return make(request.param)


def group(story: Story, *requests: RestatementRequest) -> RunResult:
    return story.run(story.restatement(*requests))


# --- by batch ids ---------------------------------------------------------------------------------------------------


@VERSION_3
def test_an_erase_of_batches_hides_them_writes_no_data_and_is_not_undone(story: Names) -> None:
    files = story.files()

    result = story.restate(a_request("erase", "Erase", batch_ids=("A", "late"), evict_by_seconds=60))

    assert (result.succeeded, result.rows_deleted, result.tombstones_added) == (True, 4, 2)
    assert (story.files(), story.states()["A"], story.states()["late"]) == (files, "erased", "erased")
    assert story.obligations() == [("ns/erase/0", story.field_id("batch_id"))]
    story.put("late")
    assert story.consolidate("late").batches_withheld == 1
    undone = story.undo("erase")
    assert (undone.succeeded, undone.reason) == (False, "NotUndoable")
    assert "An Erase cannot be undone" in undone.message
    story.vacuum()
    assert avro(story.keys()["tombstone.file"]) == []
    story.check_reads(of_batches("B", "D"))


# --- by records -----------------------------------------------------------------------------------------------------


@VERSION_2
def test_the_rows_that_hold_a_value_go_in_one_snapshot_and_no_other_row(story: Names) -> None:
    """One of a batch of each partition, one of a batch taken back, and two values that nobody has."""
    story.revert("A", name="before")
    gone = row("B", 1), row("D", 2), row("A", 0)
    snapshots, before = len(story.snapshots()), story.physical()

    result = story.restate(story.an_erase(*(name_of(v) for _, v, _ in gone), "nobody", name_of(0), evict_by_seconds=60))

    assert (result.succeeded, result.rows_erased, result.group_size) == (True, 3, 1)
    assert result.snapshot_id == story.head().snapshot_id
    assert len(story.snapshots()) == snapshots + 1
    assert story.physical() == before - Counter(gone)
    assert story.obligations() == [("ns/erase/0", story.field_id("name"))]
    assert story.ledger().requests["ns/erase/0"].result["rowsErased"] == 3
    assert story.states() == {"A": "reverted", "B": "promoted", "D": "promoted"}
    story.check_reads(but(*gone, batches=("B", "D")))


def test_version_3_gets_deletion_vectors_and_version_2_files_without_the_rows(make: Make) -> None:
    """Whatever else lies in a file, a file that holds none of the rows stays as it is."""
    second, third = make(2), make(3)
    files = set(second.files()), set(third.files())

    for story in (second, third):
        story.erase(row("B", 1))

    assert (second.operation(), third.operation()) == ("overwrite", "delete")
    assert set(third.files()) == files[1]
    assert len(set(second.files()) & files[0]) == len(files[0]) - 1
    (vectors,) = table_folder(third).rglob("*.puffin")
    runs = [story.restatement(story.an_erase("x")).run_id for story in (second, third)]
    assert vectors.parent.name == runs[1]  # so that verification can list what a run wrote
    assert list(table_folder(second).rglob("*.puffin")) == []
    assert {Path(p).parent.parent.name for p in set(second.files()) - files[0]} == {runs[0]}


SPECS: dict[str, tuple[str, ...]] = {"by day": ("day",), "whole": (), "by bucket": ("bucket(4, name)",)}


@pytest.mark.long
@pytest.mark.parametrize(
    ("partition_by", "format_version"),
    [pytest.param(by, version, id=f"{version}-{name}") for name, by in SPECS.items() for version in (2, 3)],
)
def test_partitioned_or_not_several_erases_leave_every_other_row(
    make: Make, partition_by: tuple[str, ...], format_version: int
) -> None:
    """On version 3 the second adds to the vectors of the first."""
    story = make(format_version, partition_by)

    first, second = story.erase(row("A", 0), row("B", 3), name="one"), story.erase(row("A", 2), row("B", 3), name="two")

    assert (first.rows_erased, second.rows_erased) == (2, 1)
    assert story.physical() == but(row("A", 0), row("B", 3), row("A", 2))
    story.check_reads(but(row("A", 0), row("B", 3), row("A", 2)))


@VERSION_2
def test_all_rows_of_a_file_may_go(story: Names) -> None:
    everybody = [r for b in "ABD" for r in (row(b, 0), row(b, 2))]  # all of day 1

    assert story.erase(*everybody).rows_erased == 6

    story.check_reads(but(*everybody))


@pytest.mark.long
def test_the_same_erase_again_finds_nothing_and_succeeds(story: Names) -> None:
    """Under another name; under the same it tells its first result."""
    first = story.erase(row("B", 1))

    again = story.erase(row("B", 1), name="again")

    assert (again.succeeded, again.rows_erased) == (True, 0)
    assert story.erase(row("B", 1)) == first
    assert {key for key, _ in story.obligations()} == {"ns/erase/0", "ns/again/0"}
    story.check_reads(but(row("B", 1)))


@pytest.mark.long
def test_several_erases_and_others_are_one_group_and_one_snapshot(story: Names) -> None:
    """Rows that two ask for count for the older; what a younger Replay brings is none of their business."""
    at = [ago(hours=h) for h in (3, 2, 1)]
    v = some_rows("B", 4)
    requests = (
        story.an_erase(name_of(v[0]["v"]), name_of(v[1]["v"]), name="one", creation_time=at[0]),
        story.an_erase(str(v[1]["v"]), str(v[2]["v"]), name="two", column="v", creation_time=at[1]),
        a_request("revert", batch_ids=["A"]),
        story.a_replay("D", by="D2", creation_time=at[2]),
    )
    snapshots = len(story.snapshots())

    result = group(story, *requests)

    assert {n: (r.rows_erased, r.rows_added, r.group_size) for n, r in results_by_name(result).items()} == {
        "one": (2, 0, 4),
        "two": (1, 0, 4),
        "revert": (0, 0, 4),
        "replay": (0, 3, 4),
    }
    assert len(story.snapshots()) == snapshots + 1
    story.check_reads(Counter({row("B", 3): 1}) + of_batches("D2", rows=3))


@VERSION_2
def test_an_erase_after_a_replay_of_its_group_waits_for_the_rows_that_it_brings(story: Names) -> None:
    v = some_rows("A2", 1)[0]["v"]
    replay = story.a_replay("A", by="A2", creation_time=ago(hours=1))
    erase = story.an_erase(name_of(v))

    first, second = group(story, erase, replay), group(story, erase, replay)

    waiting = results_by_name(first)["erase"]
    assert (waiting.succeeded, waiting.again, waiting.reason) == (False, True, "WaitingForRestatement")
    assert results_by_name(second)["erase"].rows_erased == 1
    story.check_reads(of_batches("B", "D") + of_batches("A2", rows=3) - Counter({row("A2", 0): 1}))


@pytest.mark.long
def test_nulls_match_no_value(story: Names) -> None:
    story.append_by_spark(row("x", 0))
    story.sql("INSERT INTO {t} VALUES (1, 1, NULL, 'x'), (2, 1, '', 'x')")

    assert story.erase(row("x", 0)).rows_erased == 1

    story.check_reads(of_batches("A", "B", "D") + Counter({("x", 1, 1): 1, ("x", 2, 1): 1}))


@pytest.mark.long
def test_a_column_is_meant_by_its_name_of_today(story: Names) -> None:
    """Files of before the renaming have another name for it; and a column that came later is null in them."""
    story.sql("ALTER TABLE {t} RENAME COLUMN name TO passenger")
    story.sql("ALTER TABLE {t} ADD COLUMN name string")
    v = row("B", 1)

    gone = story.restate(story.an_erase(name_of(v[1]), name="old"))
    by_now = story.restate(story.an_erase(name_of(v[1]), name="new", column="passenger"))

    assert (gone.rows_erased, by_now.rows_erased) == (0, 1)
    story.check_reads(but(v))


@pytest.mark.long
def test_a_default_of_a_column_that_a_file_lacks_counts(make: Make) -> None:
    """Its rows hold it as much as any other."""
    story = make(3)
    story.append_by_spark(row("x", 0))
    table = story.spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(  # type: ignore[union-attr]
        story.spark._jsparkSession, story.full_name
    )
    api = story.spark._jvm.org.apache.iceberg  # type: ignore[union-attr]
    text = api.types.Types.StringType.get()
    table.updateSchema().addColumn("origin", text, api.expressions.Literal.of("EWR")).commit()
    story.sql("INSERT INTO {t} VALUES (5, 1, 'somebody', 'y', 'LGA')")

    assert story.restate(story.an_erase("EWR", column="origin")).rows_erased == 13

    assert story.physical() == Counter({("y", 5, 1): 1})


@pytest.mark.long
@pytest.mark.parametrize(("format_name", "format_version"), [("orc", 2), ("avro", 3), ("orc", 3), ("avro", 2)])
def test_data_files_of_other_formats_are_searched_too(make: Make, format_name: str, format_version: int) -> None:
    """Those that another engine wrote, beside Lethe's own."""
    story = make(format_version)
    story.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('write.format.default' = '{format_name}')")
    story.append_by_spark(*(row("x", n) for n in range(8)))
    gone = row("x", 3), row("B", 1)

    assert story.erase(*gone).rows_erased == 2

    found = Counter((r.batch_id, r.v, r.day) for r in story.spark.table(story.full_name).collect())
    assert found == but(*gone, batches=("A", "B", "D", "x")) + Counter(row("x", n) for n in range(4, 8))


@pytest.mark.long
def test_rows_under_the_deletes_of_another_engine_stay_deleted(story: Names) -> None:
    """Of a file there is one vector at the most: what is written holds what was deleted before."""
    story.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    story.sql(f"DELETE FROM {{t}} WHERE v = {row('A', 0)[1]}")
    story.sql(f"DELETE FROM {{t}} WHERE v = {row('B', 0)[1]}")

    assert story.erase(row("B", 0), row("B", 2), row("D", 1)).rows_erased == 2

    story.check_reads(but(row("A", 0), row("B", 0), row("B", 2), row("D", 1)))


def test_an_upgraded_table_keeps_the_deletes_that_it_had(make: Make) -> None:
    """In version 3 readers pass over position deletes of a file that has a vector."""
    story = make(2)
    story.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    story.sql(f"DELETE FROM {{t}} WHERE v = {row('A', 0)[1]}")
    story.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version' = '3')")

    assert story.erase(row("B", 2)).rows_erased == 1

    assert story.operation() == "delete"
    story.check_reads(but(row("A", 0), row("B", 2)))


# --- afterwards -----------------------------------------------------------------------------------------------------


def test_a_vacuum_rewrites_files_with_rows_that_a_deletion_vector_hides(make: Make) -> None:
    """And nothing of them is left in the storage when their snapshots are gone."""
    story = make(3)
    v = row("B", 1)
    story.erase(v)
    assert any(v[1] in values_in(p) for p in story.data_folder())

    result = story.vacuum(ALL_GONE)

    assert (result.files_rewritten, result.rows_purged) == (1, 1)
    assert not any(v[1] in values_in(p) for p in story.data_folder())
    assert story.vacuum(key="2").outcome == "NothingToDo"
    story.check_reads(but(v))


def values_in(path: str) -> list[int]:
    found: list[int] = pq.read_table(local(path), columns=["v"], partitioning=None)["v"].to_pylist()
    return found


@pytest.mark.long
def test_increments_can_be_read_before_and_after_an_erase_but_not_across_it(story: Names) -> None:
    first = story.head().snapshot_id
    story.erase(row("B", 1))
    erased = story.head().snapshot_id
    story.put("E")
    story.consolidate("E")

    for read in (lethe.scan, lambda t, **how: lethe_spark.read(story.spark, t, **how)):
        with pytest.raises(InputError, match=f"ErasedBetween: .*snapshot {erased} erased records") as refused:
            read(story.full_name, since=first)
        assert refused.value.reason == "ErasedBetween"
    assert lethe.scan(story.full_name, since=erased).count() == 4
    assert lethe_spark.read(story.spark, story.full_name, since=erased).count() == 4


# --- what is wrong with it ------------------------------------------------------------------------------------------


@VERSION_2
def test_a_repeated_request_with_other_values_is_refused_and_with_the_same_values_gets_its_result(
    story: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Restatement was deleted and created again, with or without a change of its Secret in between."""
    key = tmp_path / "key"
    key.write_bytes(b"0123456789abcdef")
    monkeypatch.setenv("LETHE_VALUES_DIGEST_KEY_FILE", str(key))
    erase = story.an_erase(name_of(row("B", 1)[1]))
    assert erase.rows is not None
    assert group(story, erase).requests[0].rows_erased == 1
    head, recreated = story.head().snapshot_id, erase.model_copy(update={"creation_time": ago(days=1)})

    same = story.restate(recreated)
    Path(erase.rows.values_file).write_text(f"{name_of(row('B', 2)[1])}\n")
    other = story.restate(recreated)
    key.write_bytes(b"another key, which nobody had before")
    unknown = story.restate(recreated)

    assert (same.succeeded, same.rows_erased, other.reason, unknown.reason) == (
        True,
        1,
        "ValuesChanged",
        "ValuesNotComparable",
    )
    assert story.head().snapshot_id == head
    story.check_reads(but(row("B", 1)))
    assert files_with(table_folder(story) / "_tombstones", name_of(row("B", 1)[1])) == []


@VERSION_3
def test_values_that_are_not_there_are_waited_for_and_the_others_go_on(story: Names) -> None:
    erase, other = (
        story.an_erase(name_of(row("B", 1)[1]), name="waits"),
        story.an_erase(name_of(row("B", 2)[1]), name="goes"),
    )
    assert erase.rows is not None
    file = Path(erase.rows.values_file)
    content = file.read_text()
    file.unlink()

    result = group(story, erase, other, a_request("revert", batch_ids=["A"]))

    assert {n: (r.succeeded, r.again, r.reason) for n, r in results_by_name(result).items()} == {
        "waits": (False, True, "SecretNotFound"),
        "goes": (True, False, ""),
        "revert": (True, False, ""),
    }
    expected_text = (
        r"SecretNotFound: Restatement ns/waits: spec\.rows\.valuesFrom: found no Secret erase-people with the key "
    )
    with pytest.raises(TransientError, match=expected_text):
        group(story, erase)
    file.write_text(content)
    assert group(story, erase).requests[0].rows_erased == 1
    story.check_reads(but(row("B", 1), row("B", 2), batches=("B", "D")))


BAD = {
    "ColumnNotFound": ("nobody", "x", "its columns are v, day, name, batch_id"),
    "InvalidSpec": ("batch_id", "A", "To name whole batches, use spec.batchIds"),
    "InvalidValues": ("day", "a secret", "line 1 is not a value of column day: expected int"),
}


@pytest.mark.parametrize(("reason", "bad"), BAD.items(), ids=BAD)
def test_an_erase_that_cannot_be_understood_is_refused_and_the_others_go_on(
    make: Make, reason: str, bad: tuple[str, str, str]
) -> None:
    story = make(2)
    column, value, message = bad

    result = group(story, story.an_erase(value, column=column), a_request("revert", batch_ids=["A"]))

    refused = results_by_name(result)["erase"]
    assert (refused.succeeded, refused.again, refused.reason) == (False, False, reason)
    assert message in refused.message
    assert "a secret" not in result.to_json()
    assert story.obligations() == []
    story.check_reads(of_batches("B", "D"))


@pytest.mark.long
def test_an_erase_in_a_table_without_rows_succeeds(spark: SparkSession, lake: Lake) -> None:
    story = Names.of(Story.begin(spark, lake), 3)

    assert (story.erase(row("A", 0)).succeeded, story.rows_at()) == (True, Counter())

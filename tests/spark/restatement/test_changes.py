"""Change data: the rows of a replacement stand for all rows with their keys that were committed before, in one snapshot."""

from collections import Counter
from collections.abc import Callable

import lethe
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.base.errors import InputError
from lethe.contract.result import RequestResult, RunResult
from lethe.contract.run import RestatementRequest
from lethe.ingest import change_rows
from pyspark.sql import SparkSession

from tests.spark.parameters import VERSION_2, VERSION_3, some
from tests.spark.support.built_once import built_once
from tests.spark.support.changes import CHANGES, SOME, Change, Changing, changed, delete, upsert
from tests.spark.support.erases import name_of, row, table_folder
from tests.spark.support.story import Story, of_arrow, of_batches
from tests.support.builders import a_request, ago
from tests.support.lake import Lake

Make = Callable[..., Changing]


@pytest.fixture
def make(spark: SparkSession, lake: Lake) -> Make:
    """Batches A, B and D are in a table of this format version."""

    @built_once
    def begin(format_version: int, partition_by: tuple[str, ...] = ("day",)) -> Changing:
        story = Story.begin(spark, lake, partition_by)
        return Changing(story.spark, story.lake, story.name, partition_by, story.catalog, format_version).filled()

    return begin


@pytest.fixture(params=[2, 3], ids=["v2", "v3"])
def story(request: pytest.FixtureRequest, make: Make) -> Changing:
    return make(request.param)


def group(story: Story, *requests: RestatementRequest) -> dict[str, RequestResult]:
    result: RunResult = story.run(story.restatement(*requests))
    return {r.name.removeprefix("ns/"): r for r in result.requests}


# --- what becomes of rows -------------------------------------------------------------------------------------------


@VERSION_3
def test_changes_are_one_snapshot_that_every_engine_reads_right(story: Changing) -> None:
    """An upsert of a row that is there, in another partition; of one that is not; a delete of one that is, and of one that is
    not. Who knows nothing of ledgers sees the same."""
    snapshots, wanted = len(story.snapshots()), changed(SOME, "C1")

    result = story.change(*SOME)

    assert (result.succeeded, result.rows_added, result.rows_erased, result.rows_deleted) == (True, 3, 3, 0)
    assert (result.group_size, result.snapshot_id) == (1, story.head().snapshot_id)
    assert len(story.snapshots()) == snapshots + 1
    assert story.states() == {"A": "promoted", "B": "promoted", "C1": "promoted", "D": "promoted"}
    assert story.operation() == "overwrite"
    assert story.physical() == wanted
    story.check_reads(wanted)


@pytest.mark.long
def test_version_3_gets_deletion_vectors_and_version_2_files_without_the_rows(make: Make) -> None:
    second, third = make(2), make(3)
    files = set(second.files()), set(third.files())

    for story in (second, third):
        story.change(upsert(row("B", 1)))

    assert set(third.files()) > files[1]
    assert len(list(table_folder(third).rglob("*.puffin"))) == 1
    assert len(set(second.files()) & files[0]) == len(files[0]) - 1
    assert list(table_folder(second).rglob("*.puffin")) == []


@pytest.mark.parametrize("partition_by", some([(), ("bucket(4, v)",)], ("bucket(4, v)",)), ids=["whole", "by bucket"])
def test_a_key_in_several_older_batches_goes_from_all_of_them(make: Make, partition_by: tuple[str, ...]) -> None:
    """And what changes bring is older to the changes after them."""
    story = make(3, partition_by)
    story.append_by_spark(("x", row("A", 0)[1], 2))

    first = story.change(upsert(row("A", 0)), by="C1")
    second = story.change(upsert(row("A", 0), day=2), upsert(row("B", 0)), by="C2")
    third = story.change(delete(row("A", 0)), by="C3")

    assert [r.rows_erased for r in (first, second, third)] == [2, 2, 1]
    wanted = of_batches("A", "B", "D") - Counter([row("A", 0), row("B", 0)]) + Counter([("C2", *row("B", 0)[1:])])
    assert story.physical() == wanted
    story.check_reads(wanted)


@pytest.mark.long
def test_what_comes_later_is_newer_whatever_its_keys(story: Changing) -> None:
    story.change(delete(row("E", 0)), upsert(row("E", 1)))
    story.put("E")

    story.consolidate("E")

    story.check_reads(of_batches("A", "B", "D", "E") + Counter([("C1", *row("E", 1)[1:])]))


@VERSION_2
def test_batches_are_replaced_as_a_whole_by_the_same_commit(story: Changing) -> None:
    """Those in batchIds, whatever keys they have."""
    changes = (upsert(row("A", 0)), delete(row("B", 1)))

    result = story.restate(story.a_change(*changes, batch_ids=("A", "late")))

    assert (result.tombstones_added, result.rows_deleted, result.rows_added) == (2, 4, 1)
    assert story.states() == {"A": "replaced", "B": "promoted", "C1": "promoted", "D": "promoted", "late": "replaced"}
    story.check_reads(changed(changes, "C1", ("B", "D")))


@pytest.mark.long
def test_a_key_in_a_batch_taken_back_is_not_seen_again_when_that_is_undone(story: Changing) -> None:
    story.revert("A")
    changes = (upsert(row("A", 0)), delete(row("A", 1)))

    assert story.change(*changes).rows_erased == 2

    story.check_reads(changed(changes, "C1", ("B", "D")))
    story.undo()
    story.check_reads(changed(changes, "C1"))


@VERSION_2
def test_keys_of_several_columns_are_meant_together(story: Changing) -> None:
    """A row that shares only one of them stays."""
    v, day = row("A", 0)[1:]
    story.append_by_spark(("x", v, day + 1), ("x", v + 1, day))
    rows = pa.Table.from_pylist([{"v": v, "day": day, "name": "anew", "op": "U"}], CHANGES)

    result = story.restate(
        a_request("both", "Replay", batch_ids=(), replacement=story.put_changes("C1", rows, keys=("day", "v")))
    )

    assert (result.rows_erased, result.rows_added) == (1, 1)
    wanted = of_batches("A", "B", "D") + Counter([("x", v, day + 1), ("x", v + 1, day), ("C1", v, day)])
    story.check_reads(wanted - Counter([row("A", 0)]))


@pytest.mark.long
def test_without_an_op_column_every_row_is_an_upsert(story: Changing) -> None:
    changes: tuple[Change, ...] = (upsert(row("A", 0)), ("U", ("new", 7, 1)))
    rows = pa.Table.from_pylist([{"v": r[1], "day": r[2], "name": name_of(r[1])} for _, r in changes], CHANGES)

    replacement = story.put_changes("C1", rows.drop_columns(["op"]), op="")

    assert story.put_in(replacement).rows_added == 2
    story.check_reads(changed(changes, "C1"))


@pytest.mark.long
def test_changes_with_unknown_keys_only_add_rows_and_increments_can_be_read_across_them(story: Changing) -> None:
    before = story.head().snapshot_id
    changes = (upsert(("new", 7, 1)), delete(("nobody", 8, 1)))

    result = story.change(*changes)

    assert (result.rows_added, result.rows_erased, story.operation()) == (1, 0, "append")
    added = lethe.scan(story.full_name, since=before).to_arrow()
    assert of_arrow(added) == Counter([("C1", 7, 1)])
    story.check_reads(changed(changes, "C1"))


@pytest.mark.long
def test_deletes_alone_are_changes_too(story: Changing) -> None:
    """The replacement is then a batch without rows."""
    changes = (delete(row("A", 0)), delete(row("B", 1)))

    result = story.change(*changes)

    assert (result.rows_added, result.rows_erased, story.states()["C1"]) == (0, 2, "promoted")
    story.check_reads(changed(changes, "C1"))


@pytest.mark.long
def test_an_increment_across_changes_is_refused(story: Changing) -> None:
    before = story.head().snapshot_id

    story.change(*SOME)

    with pytest.raises(InputError, match=r"ErasedBetween: .* or replaced them by their keys"):
        lethe.scan(story.full_name, since=before).to_arrow()


@pytest.mark.long
def test_the_bytes_of_what_went_are_owed_if_that_is_asked_for(story: Changing) -> None:
    story.restate(story.a_change(*SOME, evict_by_seconds=60))

    assert story.obligations() == [("ns/change-C1/0", story.field_id("v"))]


@pytest.mark.long
def test_changes_are_not_undone(story: Changing) -> None:
    story.change(*SOME)

    undone = story.undo("change-C1")

    assert (undone.succeeded, undone.reason) == (False, "NotUndoable")
    story.check_reads(changed(SOME, "C1"))


@pytest.mark.long
def test_changes_are_replayed_after_a_vacuum_and_the_batch_they_made_may_be_reverted(story: Changing) -> None:
    """A new replacement of the changes brings their rows again; the old rows do not come back."""
    story.change(*SOME)
    story.revert("D")
    story.vacuum()

    again = story.restate(story.a_change(*SOME, by="C2", batch_ids=("C1",)))

    assert (again.rows_deleted, again.rows_added, again.rows_erased) == (3, 3, 3)
    story.check_reads(changed(SOME, "C2", ("A", "B")))
    story.vacuum(key="2")
    story.revert("C2", name="second")
    story.check_reads(changed(SOME, "C2", ("A", "B")) - Counter({("C2", v, d): 1 for _, (_, v, d) in SOME}))


@pytest.mark.long
def test_a_repeated_change_request_gets_its_result_and_is_not_carried_out_again(story: Changing) -> None:
    """Between the two somebody brought such a key back."""
    request = story.a_change(*SOME)
    first = story.restate(request)
    story.append_by_spark(row("B", 1))

    assert story.restate(request) == first

    story.check_reads(changed(SOME, "C1") + Counter([row("B", 1)]))


@pytest.mark.long
def test_columns_that_a_replacement_brings_are_added_but_for_what_becomes_of_rows(story: Changing) -> None:
    rows = pa.Table.from_pylist(
        [{"v": row("A", 0)[1], "day": 1, "name": "x", "op": "U", "gate": "B2"}],
        CHANGES.append(pa.field("gate", pa.string())),
    )
    request = a_request("wider", "Replay", batch_ids=(), replacement=story.put_changes("C1", rows))

    (result,) = story.run(story.restatement(request, schema_evolution="AddColumns")).requests

    assert (result.rows_added, result.rows_erased) == (1, 1)
    assert [f.name for f in story.table().schema().fields] == ["v", "day", "name", "batch_id", "gate"]


# --- groups ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_changes_go_after_the_replays_before_them_in_a_commit_of_their_own(story: Changing) -> None:
    """Their rows have to be there to be searched. Of two changes of one key the younger wins."""
    replay = story.a_replay("A", by="A2", creation_time=ago(hours=3))
    first = story.a_change(upsert(row("A2", 0)), upsert(row("B", 0), day=1), by="C1", creation_time=ago(hours=2))
    second = story.a_change(upsert(row("B", 0), day=2), by="C2", creation_time=ago(hours=1))

    runs = [group(story, second, replay, first) for _ in range(3)]

    waiting = [[n for n, r in reported.items() if r.reason == "WaitingForRestatement" and r.again] for reported in runs]
    assert waiting == [["change-C2", "change-C1"], ["change-C2"], []]
    assert [reported["change-C1"].rows_erased for reported in runs[1:]] == [2, 2]
    wanted = of_batches("B", "D") + of_batches("A2", rows=3) - Counter([row("B", 0), row("A2", 0)])
    story.check_reads(wanted + Counter([("C1", *row("A2", 0)[1:]), ("C2", row("B", 0)[1], 2)]))


@VERSION_3
def test_changes_share_a_commit_with_reverts_erases_and_the_replays_after_them(story: Changing) -> None:
    """A row that an older Erase takes is not counted again; what a younger Replay brings is newer than the changes."""
    erase = story.an_erase(name_of(row("B", 0)[1]), creation_time=ago(hours=3))
    change = story.a_change(upsert(row("B", 0)), delete(row("D2", 0)), upsert(row("B", 1)), creation_time=ago(hours=2))
    replay = story.a_replay("D", by="D2", creation_time=ago(hours=1))
    snapshots = len(story.snapshots())

    reported = group(story, replay, change, erase, a_request("revert", batch_ids=["A"]))

    assert {n: (r.rows_erased, r.rows_added, r.group_size) for n, r in reported.items()} == {
        "erase": (1, 0, 4),
        "change-C1": (1, 2, 4),
        "replay": (0, 3, 4),
        "revert": (0, 0, 4),
    }
    assert len(story.snapshots()) == snapshots + 1
    story.check_reads(
        of_batches("B")
        - Counter([row("B", 0), row("B", 1)])
        + Counter([("C1", *row("B", n)[1:]) for n in (0, 1)])
        + of_batches("D2", rows=3)
    )


@VERSION_2
def test_bad_changes_never_fail_their_group(story: Changing) -> None:
    """Nor leave a trace: the same key twice is found only after the rows were written."""
    bad = story.a_change(upsert(row("A", 0)), upsert(row("A", 0)), by="C1", name="bad", batch_ids=("B",))
    replay = story.a_replay("A", by="A2")

    reported = group(story, bad, replay)

    assert (reported["bad"].succeeded, reported["bad"].again, reported["bad"].reason) == (False, False, "DuplicateKey")
    assert (reported["replay"].succeeded, reported["replay"].group_size) == (True, 1)
    story.check_reads(of_batches("B", "D") + of_batches("A2", rows=3))


@pytest.mark.long
def test_changes_of_a_replacement_that_was_taken_back_before_it_came_change_nothing(story: Changing) -> None:
    story.revert("C1")

    result = story.change(*SOME)

    assert (result.succeeded, result.rows_added, result.rows_erased) == (True, 0, 0)
    story.check_reads(of_batches("A", "B", "D"))


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason", "text"),
    [
        ([upsert(row("A", 0)), delete(row("A", 0))], "DuplicateKey", "1 keys (v) are in several rows"),
        pytest.param(
            [("X", row("A", 0))],
            "UnknownOperation",
            "column op holds values other than U, I, D and null",
            marks=pytest.mark.long,
        ),
    ],
)
def test_rows_that_cannot_be_placed_are_refused_and_named_by_file(
    make: Make, changes: list[Change], reason: str, text: str
) -> None:
    story = make(2)
    before = len(story.snapshots())
    replacement = story.changes("C1", changes, files=2)

    result = story.put_in(replacement)

    assert (result.succeeded, result.reason) == (False, reason)
    assert text in result.message
    assert f"{replacement.uri}/part-" in result.message
    assert str(row("A", 0)[1]) not in result.message
    assert len(story.snapshots()) == before
    story.check_reads(of_batches("A", "B", "D"))


@pytest.mark.long
def test_a_null_in_a_key_is_refused(make: Make) -> None:
    story = make(2)
    rows = pa.Table.from_pylist([{"v": None, "day": 1, "name": "x", "op": "D"}], CHANGES)

    result = story.put_in(story.put_changes("C1", rows))

    assert (result.succeeded, result.reason) == (False, "NullInKey")
    assert "part-0.parquet: column v, one of spec.replacement.keyColumns, holds nulls" in result.message


@pytest.mark.long
def test_more_rows_than_keys_can_be_held_are_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    story = make(2)
    monkeypatch.setattr(change_rows, "KEYS_AT_MOST", 1)

    result = story.put_in(story.changes("C1", SOME, files=5))

    assert (result.succeeded, result.reason) == (False, "TooManyKeys")


@pytest.mark.parametrize(
    ("keys", "op", "reason", "text"),
    [
        (["place"], "op", "ColumnNotSearchable", "keyColumns names place, which is struct"),
        pytest.param(
            [],
            "",
            "InvalidSpec",
            "requires spec.batchIds or spec.replacement.keyColumns",
            marks=pytest.mark.long,
        ),
        pytest.param(
            ["v"],
            "what",
            "SchemaMismatch",
            "column what, spec.replacement.opColumn, must be in the file exactly once",
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_cannot_be_keys_is_refused(make: Make, keys: list[str], op: str, reason: str, text: str) -> None:
    story = make(2)
    story.sql("ALTER TABLE {t} ADD COLUMNS (weight double, place struct<x: int>)")
    rows = pa.Table.from_pylist([{"v": 1, "day": 1, "name": "x", "op": "U", "weight": 1.0, "place": {"x": 1}}])

    result = story.put_in(story.put_changes("C1", rows, keys=keys, op=op))

    assert (result.succeeded, result.reason) == (False, reason)
    assert text in result.message


def test_a_file_of_the_table_that_cannot_be_searched_refuses_the_changes_and_the_others_go_on(make: Make) -> None:
    """Nor is any row of theirs written, though it shares files with those of the others."""
    story = make(2, ())
    add_without_ids(story)

    reported = group(story, story.a_change(*SOME, creation_time=ago(hours=1)), story.a_replay("D", by="D2"))

    assert (reported["change-C1"].succeeded, reported["change-C1"].reason) == (False, "FileNotSearchable")
    assert "rows with the keys of the replacement may be in" in reported["change-C1"].message
    assert reported["replay"].succeeded
    assert story.states() == {"A": "promoted", "B": "promoted", "D": "replaced", "D2": "promoted"}


def add_without_ids(story: Changing) -> None:
    """A file of somebody who knows no field ids, in a table that does not say which names are which."""
    folder = story.lake.home / "theirs"
    folder.mkdir()
    rows = pa.table({"v": pa.array([7]), "day": pa.array([1], pa.int32()), "name": ["x"], "batch_id": ["x"]})
    pq.write_table(rows, folder / "f.parquet")
    story.sql(f"CALL {{catalog}}.system.add_files(table => '{{name}}', source_table => '`parquet`.`{folder}`')")
    story.sql("ALTER TABLE {t} UNSET TBLPROPERTIES ('schema.name-mapping.default')")

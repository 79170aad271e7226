"""Change data: the rows of a replacement stand for all rows with their keys that were committed before, in one snapshot.

Changes meet others between their search and their commit: no older row with one of the keys is left, wherever it lies by then,
no newer one goes, and whoever reads sees all of the changes or none.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import lethe
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.base.errors import InputError
from lethe.contract.result import RunResult
from lethe.contract.settings import UnknownBatches
from pyspark.sql import SparkSession

from tests.spark.parameters import VERSION_2, VERSION_3, moments, races, some
from tests.spark.support.built_once import built_once
from tests.spark.support.changes import SOME, Change, Changing, changed, delete, upsert
from tests.spark.support.erases import name_of, row
from tests.spark.support.story import Row, of_arrow, of_batches, results_by_name
from tests.support.builders import a_request, ago
from tests.support.lake import Lake

Make = Callable[..., Changing]


@pytest.fixture
def make(spark: SparkSession, lake: Lake) -> Make:
    """Batches A, B and D are in a table of this format version."""

    @built_once
    def begin(format_version: int, partition_by: tuple[str, ...] = ("day",)) -> Changing:
        return Changing.begin(spark, lake, partition_by, format_version=format_version).filled()

    return begin


@pytest.fixture(params=[2, 3], ids=["v2", "v3"])
def story(request: pytest.FixtureRequest, make: Make) -> Changing:
    return make(request.param)


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


@VERSION_2
def test_batches_are_replaced_as_a_whole_by_the_same_commit(story: Changing) -> None:
    """Those in batchIds, whatever keys they have."""
    changes = (upsert(row("A", 0)), delete(row("B", 1)))

    result = story.restate(story.a_change(*changes, batch_ids=("A", "late"), unknown_batches=UnknownBatches.ALLOW))

    assert (result.tombstones_added, result.rows_deleted, result.rows_added) == (2, 4, 1)
    assert story.states() == {"A": "replaced", "B": "promoted", "C1": "promoted", "D": "promoted", "late": "replaced"}
    story.check_reads(changed(changes, "C1", ("B", "D")))


@pytest.mark.long
def test_changes_are_not_undone_owed_if_that_is_asked_for_and_end_what_increments_can_say(story: Changing) -> None:
    before = story.head().snapshot_id
    story.restate(story.a_change(*SOME, evict_by_seconds=60))

    undone = story.undo("change-C1")

    assert (undone.succeeded, undone.reason) == (False, "NotUndoable")
    assert story.obligations() == [("ns/change-C1/0", story.field_id("v"))]
    with pytest.raises(InputError) as refused:
        lethe.scan(story.full_name, since=before).to_arrow()
    assert refused.value.reason == "ErasedBetween"
    story.check_reads(changed(SOME, "C1"))


# --- groups ---------------------------------------------------------------------------------------------------------


@VERSION_3
def test_changes_share_a_commit_with_reverts_erases_and_the_replays_after_them(story: Changing) -> None:
    """A row that an older Erase takes is not counted again; what a younger Replay brings is newer than the changes."""
    erase = story.an_erase(name_of(row("B", 0)[1]), creation_time=ago(hours=3))
    change = story.a_change(upsert(row("B", 0)), delete(row("D2", 0)), upsert(row("B", 1)), creation_time=ago(hours=2))
    replay = story.a_replay("D", by="D2", creation_time=ago(hours=1))
    snapshots = len(story.snapshots())

    reported = results_by_name(story.restate_all(replay, change, erase, a_request("revert", batch_ids=["A"])))

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


# --- what is refused ------------------------------------------------------------------------------------------------


def test_a_file_of_the_table_that_cannot_be_searched_refuses_the_changes_and_the_others_go_on(make: Make) -> None:
    """Nor is any row of theirs written, though it shares files with those of the others."""
    story = make(2, ())
    add_without_ids(story)

    reported = results_by_name(
        story.restate_all(story.a_change(*SOME, creation_time=ago(hours=1)), story.a_replay("D", by="D2"))
    )

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


# --- races ----------------------------------------------------------------------------------------------------------

STEPS = ["after_write", "after_search", "after_erase", "before_commit"]
LATE = ["after_search", "before_commit"]
# Rows that batch E brings, too, and one that it does not.
OF_E = (upsert(row("E", 0)), delete(row("E", 1)), upsert(row("A", 0)))


class Race(NamedTuple):
    """What others do between the search and the commit, how many older rows the changes find, and what is seen then."""

    act: Callable[[Changing], object]
    erased: int
    rows: Counter[Row]
    changes: tuple[Change, ...] = SOME
    before: Callable[[Changing], object] = lambda _: None


FIRST = {
    "a consolidation": Race(
        lambda s: s.consolidate("E"), 3, changed(OF_E, "C1", ("A", "B", "D", "E")), OF_E, lambda s: s.put("E")
    ),
    "a compaction": Race(Changing.compact, 3, changed(SOME, "C1")),
    "a vacuum": Race(Changing.vacuum, 2, changed(SOME, "C1", ("B", "D")), before=lambda s: s.revert("A")),
    "an undo": Race(Changing.undo, 3, changed(SOME, "C1"), before=lambda s: s.revert("A")),
}


@races(FIRST, STEPS, ("a consolidation", 2, "before_commit"), ("a compaction", 3, "after_search"))
def test_what_is_committed_before_changes_is_older_and_found_wherever_it_is_by_then(
    story: Changing, case: Race, step: str
) -> None:
    case.before(story)

    result = story.change(*case.changes, **{step: lambda: case.act(story)})

    assert (result.succeeded, result.rows_erased) == (True, case.erased)
    story.check_reads(case.rows)


@moments(["after_write", "before_commit"])
def test_rows_that_are_committed_after_changes_are_newer_or_were_gone(story: Changing, step: str) -> None:
    """A consolidation had written its rows before, and so had a vacuum: its files hold rows that the changes took."""
    story.put("E")
    story.consolidate("E", **{step: lambda: story.change(*OF_E)})
    newer = changed(OF_E, "C1") + of_batches("E")
    story.check_reads(newer)
    story.revert("B")
    gone = delete(row("D", 0))

    story.vacuum(**{step: lambda: story.change(gone, by="C2")})

    left = newer - of_batches("B") - Counter([gone[1]])
    assert story.physical() == left
    story.check_reads(left)


@moments(LATE, (3, "after_search"))
def test_of_two_changes_at_one_moment_the_later_commit_is_the_newer(story: Changing, step: str) -> None:
    key = row("A", 0)

    mine = story.change(upsert(key, day=1), by="C1", **{step: lambda: story.change(upsert(key, day=2), by="C2")})

    assert mine.rows_erased == 1  # that of the other
    story.check_reads(of_batches("A", "B", "D") - Counter([key]) + Counter([("C1", key[1], 1)]))


@moments(LATE, (2, "before_commit"))
def test_changes_that_another_run_carries_out_at_the_same_moment_are_made_once(story: Changing, step: str) -> None:
    """Else the second would take the rows of the first for older ones."""
    request = story.a_change(*SOME)
    theirs: list[RunResult] = []
    again = story.restatement(request).model_copy(update={"run_id": "f" * 32})

    mine = story.restate_all(request, **{step: lambda: theirs.append(story.run(again))})

    assert (mine.outcome, mine.requests) == ("AlreadyCommitted", theirs[0].requests)
    assert story.written_by(story.restatement(request)) == []
    story.check_reads(changed(SOME, "C1"))


@VERSION_3
def test_a_reader_at_any_step_sees_all_of_the_changes_or_none(story: Changing) -> None:
    """Never a row and the one that stands for it, never neither: also not for one moment between two snapshots."""
    before, after = of_batches("A", "B", "D"), changed(SOME, "C1")
    seen = []

    def read() -> None:
        seen.append((of_arrow(lethe.scan(story.full_name).to_arrow()), story.physical()))

    at = dict.fromkeys(["after_list", *STEPS, "after_commit"], read)
    snapshots = len(story.snapshots())
    story.change(*SOME, **at)

    assert seen == [(before, before)] * 5 + [(after, after)]
    assert len(story.snapshots()) == snapshots + 1
    story.check_reads(after)

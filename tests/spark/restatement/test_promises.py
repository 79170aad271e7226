"""Promises that hold across several requests, runs, people and clusters; each docstring tells what would break it.

What one job does by itself is told beside it, in `test_jobs_restate`, `..._group`, `..._undo`, `..._erase`, `..._id_lists`;
what happens between a plan and its commit in `test_races_*`; what becomes of the objects that ask for it in
tests/unit/operator.
"""

import itertools
import unicodedata
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from lethe.base.errors import TableError
from lethe.contract.result import RequestResult
from lethe.contract.run import DatasetRef, RestatementRequest, RunSpec
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.built_once import built_once
from tests.spark.support.erases import Names, but, name_of, row
from tests.spark.support.story import ALL_GONE, Story, local, of_batches
from tests.support.builders import a_request
from tests.support.lake import Lake


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A, B and D are in the table."""
    story = Story.begin(spark, lake)
    story.put("A", "B", "D")
    story.consolidate("A", "B", "D")
    return story


@pytest.fixture
def format_version() -> int:
    return 2


@pytest.fixture
@built_once
def people(spark: SparkSession, lake: Lake, format_version: int) -> Names:
    """The same in a table of this format version, and each row names somebody."""
    return Names.of(Story.begin(spark, lake), format_version).filled()


def an_undo(of: str, name: str = "undo") -> RestatementRequest:
    return a_request(name, "Undo", batch_ids=(), undoes=f"ns/{of}/0")


# --- taken back, shown again, purged --------------------------------------------------------------------------------


@pytest.mark.long
def test_a_batch_shown_again_and_taken_back_again_while_a_vacuum_worked_is_purged_as_it_is_then(story: Story) -> None:
    """A is reverted, and a vacuum writes its files without A. Meanwhile an Undo shows A, somebody appends a row of it, and
    another Revert takes it back. The same ids are deleted as before, and yet what the vacuum wrote is not what has to go: by
    ids alone it would end the tombstone, and the appended row would be seen."""
    story.revert("A")

    def meanwhile() -> None:
        assert story.undo().succeeded
        story.append_as_foreign_writer("A")
        assert story.revert("A", name="again").succeeded

    story.vacuum(before_commit=meanwhile)

    story.check_reads(of_batches("B", "D"))
    assert "A" not in itertools.chain(*story.files().values())
    refused = story.undo("again", "undo-again")
    assert (refused.succeeded, refused.reason) == (False, "AlreadyPurged")
    story.check_reads(of_batches("B", "D"))


@pytest.mark.long
def test_an_id_restated_several_times_is_hidden_once_and_each_result_reports_it(story: Story) -> None:
    """By another Revert, by a list and by a Replay: each succeeds, and none counts what was not left to do."""
    ids = story.lake.home / f"{story.name}.ids"
    ids.write_text("A\nB\nB\nnobody\n")
    story.revert("A", "B", "nobody")

    inline = story.revert("A", "B", "nobody", name="inline")
    listed = story.restate(a_request("listed", batch_ids=(), batch_ids_uri=f"file://{ids}"))
    replay = story.replay("A", by="A2")

    reported = [(r.succeeded, r.already_deleted_batch_ids_count) for r in (inline, listed, replay)]
    assert reported == [(True, 3), (True, 3), (True, 1)]
    assert {(r.rows_deleted, r.tombstones_added, r.unknown_batch_ids_count) for r in (inline, listed, replay)} == {
        (0, 0, 0)
    }
    story.check_reads(of_batches("D") + of_batches("A2", rows=3))


# --- who comes first ------------------------------------------------------------------------------------------------


ORDERS = [("first", "second"), ("second", "first")]


@pytest.mark.parametrize("order", some(ORDERS, ORDERS[1]), ids=" then ".join)
def test_of_a_chain_of_replays_only_the_last_batch_is_seen_whichever_run_comes_first(
    story: Story, order: tuple[str, str]
) -> None:
    """A is replaced by B2, and B2 by C2; both were created in one second, and each has a run of its own. If the second comes
    first, B2 must not come in after it was replaced, and A must go all the same, or two of them would be seen."""
    requests = {
        "first": story.a_replay("A", by="B2", name="first"),
        "second": story.a_replay("B2", by="C2", name="second"),
    }

    results = {name: story.restate(requests[name]) for name in order}

    assert all(r.succeeded for r in results.values())
    came = order[0] == "first"
    assert (results["first"].rows_added, results["first"].replacement_withheld) == (3, None) if came else (0, True)
    story.check_reads(of_batches("B", "D") + of_batches("C2", rows=3))
    story.put("B2")  # nor by the buffer
    assert story.consolidate("B2").batches_promoted == 0
    story.check_reads(of_batches("B", "D") + of_batches("C2", rows=3))


@pytest.mark.long
def test_a_replacement_whose_id_was_taken_back_stays_out_and_a_replay_of_that_id_brings_the_rows(story: Story) -> None:
    """The id was used before, and its batch reverted. What is to be replaced goes, nothing comes, and the result says so; the
    same rows under a new id then take its place."""
    story.revert("B")

    out = story.replay("A", by="B")

    assert (out.succeeded, out.rows_deleted, out.rows_added, out.replacement_withheld) == (True, 4, 0, True)
    story.check_reads(of_batches("D"))
    assert story.replay("B", by="B2", name="again").rows_added == 3
    story.check_reads(of_batches("D") + of_batches("B2", rows=3))


# --- applied again --------------------------------------------------------------------------------------------------


def test_another_cluster_may_apply_everything_again_in_any_order_long_afterwards(story: Story) -> None:
    """A was reverted, shown again and reverted; then it was purged, and the snapshots in which all that happened are gone. A
    cluster is built recreated from Git: its Dataset has another UID, and it applies the three in whatever order. Each tells its
    first result; if one of them were carried out again, rows would return or a batch that was shown again would be gone."""
    revert, undo, again = a_request("revert"), an_undo("revert"), a_request("again")
    other = a_request("other", batch_ids=["B"])
    first = {r.key: story.restate(r) for r in (revert, undo, again, other, an_undo("other", "back"))}
    story.vacuum(ALL_GONE)
    head = story.head()
    assert head.parent_snapshot_id not in [s.snapshot_id for s in story.table().snapshots()]

    def elsewhere(*requests: RestatementRequest) -> tuple[RequestResult, ...]:
        recreated = DatasetRef(namespace="air", name=story.name, uid="made-recreated")
        result = story.run(story.restatement(*requests, dataset=recreated, run_id="e" * 32))
        assert (result.outcome, result.snapshot_id) == ("AlreadyCommitted", None)
        return result.requests

    orders = list(itertools.permutations((revert, undo, again)))
    reported = [
        *itertools.chain(*(elsewhere(*order) for order in orders)),
        *(elsewhere(r)[0] for r in (other, *orders[-1])),
    ]

    assert {(r.succeeded, r.snapshot_id == first[r.key].snapshot_id) for r in reported} == {(True, True)}
    assert story.head() == head
    story.check_reads(of_batches("B", "D"))


# --- erased ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_version", some([2, 3], 3), ids=["v2", "v3"])
def test_an_erased_row_stays_gone_whichever_way_its_batch_goes_and_comes(people: Names) -> None:
    """A row of A is erased, A is reverted, and the Undo must show the others only. Reverted again, another row of it is
    erased while nobody sees the batch, and a second Undo must not bring that one, nor the first. A vacuum then leaves neither
    in a file."""
    first, second = row("A", 0), row("A", 1)
    people.erase(first)
    people.revert("A")
    people.undo()
    after_one = people.physical()

    people.revert("A", name="again")
    erased = people.erase(second, name="hidden")
    undone = people.undo("again", "undo-again")

    assert after_one == but(first)
    assert (erased.rows_erased, undone.succeeded, undone.reason) == (1, True, "")
    assert people.physical() == but(first, second)
    people.check_reads(but(first, second))
    people.vacuum()
    assert {v for _, v, _ in (first, second)}.isdisjoint(in_files(people))
    people.check_reads(but(first, second))


def in_files(story: Story) -> list[int]:
    """The values of `v` in the live data files, native deletes or not."""
    return [v for p in story.files() for v in pq.read_table(local(p), partitioning=None)["v"].to_pylist()]


def test_an_undo_does_not_let_in_what_an_erase_could_not_search(people: Names) -> None:
    """A batch was reverted before it came, and lies in the buffer with a row of somebody whose records are erased then. The Undo
    would promote it, and with it the row. It is refused for that; under a new id, without the row, the batch comes."""
    people.revert("late")
    people.put("late")
    assert people.consolidate("late").batches_withheld == 1
    somebody = row("late", 0)
    assert people.restate(people.an_erase(name_of(somebody[1]))).rows_erased == 0

    undone = people.undo()

    assert (undone.succeeded, undone.again, undone.reason) == (False, False, "ErasedSince")
    assert "under a new batch id" in undone.message
    assert people.consolidate("late").batches_promoted == 0
    assert people.physical() == of_batches("A", "B", "D")


def test_a_reverted_batch_that_is_erased_does_not_come_back_by_an_undo_of_the_revert(story: Story) -> None:
    """Neither before its rows are purged nor afterwards."""
    story.revert("A")
    assert story.restate(a_request("erase", "Erase", batch_ids=["A"])).succeeded

    before = story.undo()
    story.vacuum()
    after = story.undo(name="later")

    assert [(r.succeeded, r.reason) for r in (before, after)] == [(False, "HeldByAnother"), (False, "AlreadyPurged")]
    story.check_reads(of_batches("B", "D"))


# --- rolled back by somebody else -----------------------------------------------------------------------------------


def seeing_the_head(story: Story, *requests: RestatementRequest) -> RunSpec:
    head = story.head()
    return story.restatement(*requests, seen_snapshot_id=head.snapshot_id, seen_sequence_number=head.sequence_number)


@pytest.mark.long
@pytest.mark.parametrize(
    "step",
    ["", "after_write", "before_commit"],
    ids=["before", "while written", "at the end"],
)
def test_a_group_changes_nothing_on_a_table_that_was_rolled_back_under_it(story: Story, step: str) -> None:
    """The operator decides on a group, and then, or while the run works, somebody takes the table back to before E came. Rows
    would be replaced that nobody expects there. None of the group is refused for that: once the head is accepted, all are
    carried out on the table as it is then, once."""
    story.put("E")
    story.consolidate("E")
    replay, revert = story.a_replay("A", by="A2"), a_request("revert", batch_ids=["E"])
    spec, files = seeing_the_head(story, replay, revert), story.data_folder()

    def roll_back() -> None:
        before = story.snapshots()[1].snapshot_id
        story.spark.sql(f"CALL {story.catalog}.system.set_current_snapshot('{story.name}', {before})")

    if not step:
        roll_back()
    with pytest.raises(TableError, match=r"TableRolledBack: .* does not descend from snapshot .* Accept the head"):
        story.run(spec, **({step: roll_back} if step else {}))

    assert story.states() == {"A": "promoted", "B": "promoted", "D": "promoted"}
    assert (story.rows_at(), story.data_folder()) == (of_batches("A", "B", "D"), files)
    accepted = story.run(seeing_the_head(story, replay, revert))
    assert [(r.succeeded, r.group_size) for r in accepted.requests] == [(True, 2)] * 2
    assert story.consolidate("E").batches_withheld == 1
    story.check_reads(of_batches("B", "D") + of_batches("A2", rows=3))


# --- ids ------------------------------------------------------------------------------------------------------------

# One word in both of its normal forms; ids that UTF-16 sorts otherwise than code points; what paths and SQL take for theirs.
ODD_IDS = (
    unicodedata.normalize("NFC", "größe"),
    unicodedata.normalize("NFD", "größe"),
    "\uff5e航班",
    "😀/1 %2F",
    'it\'s "a\\b"',
    "x" * 200,
)


def test_a_batch_is_meant_by_its_id_to_the_last_code_point(story: Story) -> None:
    """Half of the ids go, by a list in a file; those that only look like them, or sort beside them, stay. An Undo brings the very
    same back, and after a second Revert a vacuum purges the very same."""
    gone, kept = ODD_IDS[::2], ODD_IDS[1::2]
    story.put(*ODD_IDS)
    story.consolidate(*ODD_IDS)
    ids = Path(story.lake.home, f"{story.name}.ids")
    ids.write_text("".join(f"{i}\n" for i in gone), encoding="utf-8")

    listed = story.restate(a_request("listed", batch_ids=(), batch_ids_uri=f"file://{ids}"))
    hidden = story.rows_at()
    undone = story.undo("listed")
    shown = story.rows_at()
    story.revert(*gone)
    replay = story.replay(kept[0], by=f"{kept[0]}.2")
    purged = story.vacuum()

    assert (listed.rows_deleted, listed.unknown_batch_ids_count, undone.rows_restored) == (12, 0, 12)
    assert hidden == of_batches("A", "B", "D", *kept)
    assert shown == of_batches("A", "B", "D", *ODD_IDS)
    assert (replay.rows_deleted, purged.rows_purged) == (4, 16)
    story.check_reads(of_batches("A", "B", "D", *kept[1:]) + of_batches(f"{kept[0]}.2", rows=3))
    assert set(itertools.chain(*story.files().values())) == {"A", "B", "D", *kept[1:], f"{kept[0]}.2"}

"""Batches are taken back or replaced in one snapshot, once and for ever; a Revert is undone whole, or the Undo is refused."""

import itertools
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from lethe.contract.result import RequestResult
from lethe.contract.run import DatasetRef, RestatementRequest
from lethe.contract.settings import UnknownBatches
from pyspark.sql import SparkSession

from tests.spark.parameters import named, some
from tests.spark.support.built_once import built_once
from tests.spark.support.erases import Names, but, name_of, row
from tests.spark.support.story import ALL_GONE, Story, an_undo, avro, local, of_batches
from tests.support.builders import a_request
from tests.support.lake import Lake


@pytest.fixture
def format_version() -> int:
    return 2


@pytest.fixture
@built_once
def people(spark: SparkSession, lake: Lake, format_version: int) -> Names:
    """Batches A, B and D are in a table of this format version, and each row names somebody."""
    return Names.begin(spark, lake, format_version=format_version).filled()


# --- taken back, replaced, shown again ------------------------------------------------------------------------------


def test_a_revert_takes_its_batches_out_of_sight_and_touches_no_data_file(story: Story) -> None:
    before = story.files()

    result = story.revert("A", "D", reason="late", evict_by_seconds=60)

    assert (result.succeeded, result.rows_deleted, result.tombstones_added) == (True, 8, 2)
    assert result.snapshot_id == story.head().snapshot_id
    assert len(story.snapshots()) == 2
    assert story.files() == before
    story.check_reads(of_batches("B"))
    tombstones = {t["id"]: t for t in avro(story.keys()["tombstone.file"])}
    assert set(tombstones) == {"A", "D"}
    batch_column = story.table().schema().find_field("batch_id").field_id
    assert {t["namespace"] for t in tombstones.values()} == {batch_column}
    assert {t["meta"]["reason"] for t in tombstones.values()} == {"late"}
    assert {(t["evictBy"] - t["addedOn"]).total_seconds() for t in tombstones.values()} == {60}
    assert story.counts() == {"added": "2", "deleted": "0", "total": "2"}


def test_a_replay_shows_the_new_batch_and_hides_the_old_one_in_one_and_the_same_snapshot(story: Story) -> None:
    """There is no moment at which a reader sees both, or neither."""
    result = story.replay("A", by="A2")

    assert (result.rows_deleted, result.rows_added) == (4, 3)
    after, before = story.snapshots()
    assert result.snapshot_id == after.snapshot_id
    story.check_reads(of_batches("B", "D") + of_batches("A2", rows=3))
    assert story.rows_at(before.snapshot_id) == of_batches("A", "B", "D")
    assert story.states() == {"A": "replaced", "A2": "promoted", "B": "promoted", "D": "promoted"}
    # The replacement's folder is its producer's, so retention has no say.
    assert story.ledger().batches["A2"].objects == ()


def test_an_undo_shows_the_rows_again_and_touches_no_data_file(story: Story) -> None:
    files = story.files()
    story.revert("A", "D")

    result = story.undo()

    assert (result.succeeded, result.tombstones_removed, result.rows_restored) == (True, 2, 8)
    assert result.undoes == "ns/revert/0"
    assert (result.snapshot_id, story.files()) == (story.head().snapshot_id, files)
    assert story.states() == {"A": "promoted", "B": "promoted", "D": "promoted"}
    story.check_reads(of_batches("A", "B", "D"))
    assert story.rows_at(story.snapshots()[1].snapshot_id) == of_batches("B")  # the past stays as it was
    assert (story.tombstones(), story.counts()) == (set(), {"added": "0", "deleted": "2", "total": "0"})


def test_a_batch_replaced_while_it_waited_in_the_buffer_is_not_doubled_by_its_replacement(story: Story) -> None:
    """E2 is added in its place while the table does not know E yet; promoted afterwards, both would be seen."""
    story.put("E")
    story.replay("E", by="E2")

    story.consolidate("E")

    story.check_reads(of_batches("A", "B", "D") + of_batches("E2", rows=3))


Act = Callable[[Story], object]
ERASE_A = a_request("erase", "Erase", batch_ids=["A"])
TOO_LATE: dict[str, tuple[Act, str]] = {
    "purged in part": (lambda s: s.vacuum(max_bytes=1), "AlreadyPurged"),
    "erased": (lambda s: s.restate(ERASE_A), "HeldByAnother"),
    "erased and purged": (lambda s: (s.restate(ERASE_A), s.vacuum()), "AlreadyPurged"),
}


@pytest.mark.parametrize(("act", "reason"), named(TOO_LATE, "purged in part", "erased and purged"))
def test_a_batch_of_which_rows_are_gone_for_good_is_not_brought_back_in_part(
    story: Story, act: Act, reason: str
) -> None:
    story.revert("A")
    act(story)

    undone = story.undo()

    assert (undone.succeeded, undone.reason) == (False, reason)
    story.check_reads(of_batches("B", "D"))
    story.vacuum(key="2")
    story.check_reads(of_batches("B", "D"))


@pytest.mark.long
def test_a_batch_shown_again_and_taken_back_again_while_a_vacuum_worked_is_purged_as_it_is_then(story: Story) -> None:
    """The same ids are deleted as when the vacuum began, but one of them has a row more. By ids alone the vacuum would end the
    tombstone, and the appended row would be seen."""
    story.revert("A")

    def meanwhile() -> None:
        assert story.undo().succeeded
        story.append_as_foreign_writer("A")
        assert story.revert("A", name="again").succeeded

    story.vacuum(before_commit=meanwhile)

    story.check_reads(of_batches("B", "D"))
    assert "A" not in story.in_files()
    assert story.undo("again", "undo-again").reason == "AlreadyPurged"


# --- several times --------------------------------------------------------------------------------------------------


ORDERS = [("first", "second"), ("second", "first")]


@pytest.mark.parametrize("order", some(ORDERS, ORDERS[1]), ids=" then ".join)
def test_of_a_chain_of_replays_only_the_last_batch_is_seen_whichever_run_comes_first(
    story: Story, order: tuple[str, str]
) -> None:
    """A is replaced by B2, and B2 by C2; both were created in one second, and each has a run of its own. If the second comes
    first, B2 must not come in after it was replaced, and A must go all the same, or two of them would be seen."""
    requests = {
        "first": story.a_replay("A", by="B2", name="first"),
        "second": story.a_replay("B2", by="C2", name="second", unknown_batches=UnknownBatches.ALLOW),
    }

    results = {name: story.restate(requests[name]) for name in order}

    assert all(r.succeeded for r in results.values())
    came = order[0] == "first"
    assert (results["first"].rows_added, results["first"].replacement_withheld) == (3, None) if came else (0, True)
    story.check_reads(of_batches("B", "D") + of_batches("C2", rows=3))
    story.put("B2")  # nor by the buffer
    assert story.consolidate("B2").batches_promoted == 0


def test_another_cluster_may_apply_everything_again_in_any_order_long_afterwards(story: Story) -> None:
    """A was reverted, shown again and reverted; then it was purged, and the snapshots in which all that happened are gone. A
    cluster is built anew from Git: its Dataset has another UID, and it applies the three in whatever order. Each tells its
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
    people.vacuum()
    assert people.physical() == but(first, second)
    in_files = [v for p in people.files() for v in pq.read_table(local(p), partitioning=None)["v"].to_pylist()]
    assert {v for _, v, _ in (first, second)}.isdisjoint(in_files)
    people.check_reads(but(first, second))


def test_an_undo_does_not_let_in_what_an_erase_could_not_search(people: Names) -> None:
    """A batch was reverted before it came, and lies in the buffer with a row of somebody whose records are erased then. The Undo
    would promote it, and with it the row. It is refused for that; under a new id, without the row, the batch comes."""
    people.revert("late", unknown="Allow")
    people.put("late")
    assert people.consolidate("late").batches_withheld == 1
    somebody = row("late", 0)
    assert people.restate(people.an_erase(name_of(somebody[1]))).rows_erased == 0

    undone = people.undo()

    assert (undone.succeeded, undone.again, undone.reason) == (False, False, "ErasedSince")
    assert "under a new batch id" in undone.message
    assert people.consolidate("late").batches_promoted == 0
    assert people.physical() == of_batches("A", "B", "D")


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
    assert story.in_files().keys() == {"A", "B", "D", *kept[1:], f"{kept[0]}.2"}

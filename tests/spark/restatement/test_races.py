"""Undos and groups meet others between their plan and their commit: each request is carried out once, or refused with a reason,
and the rest of its group goes on, whatever was written for it in files that replacements share."""

import shutil
from collections import Counter
from collections.abc import Callable

import pytest
from lethe.base.errors import ConflictError, UnknownCommitState
from lethe.contract.result import RequestResult, RunResult
from lethe_spark.commit import group_commit, ledger_commit

from tests.spark.parameters import named, some
from tests.spark.support.story import Row, Story, local, of_batches, reasons

Act = Callable[[Story], object]

# --- undos ----------------------------------------------------------------------------------------------------------


def test_a_vacuum_that_has_written_its_files_without_the_rows_does_not_commit_them_after_an_undo(story: Story) -> None:
    """The ledger is then as empty as the vacuum meant to leave it; its files would lose the rows for good."""
    story.revert("A")
    undone: list[RequestResult] = []

    vacuumed = story.vacuum(before_commit=lambda: undone.append(story.undo()))

    assert (undone[0].succeeded, vacuumed.outcome, vacuumed.rows_purged) == (True, "NothingToDo", 0)
    story.check_reads(of_batches("A", "B", "D"))
    story.check_storage()  # what the vacuum wrote in vain is gone


FIRST: dict[str, tuple[Act, str, Counter[Row]]] = {
    "a vacuum": (lambda s: s.vacuum(), "AlreadyPurged", of_batches("B", "D")),
    "a partial vacuum": (lambda s: s.vacuum(max_bytes=1), "AlreadyPurged", of_batches("B", "D")),
    "a second revert": (lambda s: s.revert("A", name="second"), "HeldByAnother", of_batches("B", "D")),
    "a replay": (
        lambda s: s.replay("A", by="A2"),
        "AlreadyReplaced",
        of_batches("B", "D") + of_batches("A2", rows=3),
    ),
    "the same undo": (lambda s: s.undo(), "", of_batches("A", "B", "D")),
    "another undo": (lambda s: s.undo(name="theirs"), "NotUndoable", of_batches("A", "B", "D")),
    "an append": (
        lambda s: s.append_as_foreign_writer("A"),
        "",
        of_batches("A", "B", "D") + Counter({("A", 500, 1): 1}),
    ),
}


@pytest.mark.parametrize(("first", "reason", "rows"), named(FIRST, "a vacuum", "a second revert"))
def test_an_undo_counts_what_is_committed_before_it(story: Story, first: Act, reason: str, rows: Counter[Row]) -> None:
    """It was planned before. What is purged does not come back, another's Revert is not overruled, and no batch is doubled."""
    story.revert("A")

    undone = story.undo(before_commit=lambda: first(story))

    assert (undone.succeeded, undone.reason) == (not reason, reason)
    story.check_reads(rows)


# --- batches that the ledger does not know --------------------------------------------------------------------------


def test_a_batch_that_is_promoted_while_it_is_looked_for_is_not_unknown(story: Story) -> None:
    """The run has read the ledger without it, and finds nothing in the buffer: retention has cleared it."""

    def promoted() -> None:
        story.filled("E")
        shutil.rmtree(story.folder("E"))

    reverted = story.revert("E", before_look=promoted)

    assert (reverted.succeeded, reverted.rows_deleted) == (True, 4)
    story.check_reads(of_batches("A", "B", "D"))


def test_a_batch_that_arrives_while_it_is_looked_for_is_not_promoted_after_the_revert(story: Story) -> None:
    """Incomplete ones count: the producer has begun, and the Revert is about what it brings."""
    reverted = story.revert("E", before_look=lambda: _begin(story, "E"))

    assert (reverted.succeeded, reverted.unknown_batch_ids) == (True, ("E",))
    story.put("E")
    story.consolidate("E")
    story.check_reads(of_batches("A", "B", "D"))


def _begin(story: Story, batch_id: str) -> None:
    story.put(batch_id)
    (story.folder(batch_id) / "_SUCCESS").unlink()


# --- groups ---------------------------------------------------------------------------------------------------------

MEANWHILE: dict[str, tuple[dict[str, str], Act, list[str], Counter[Row]]] = {
    "another run replaces one of the batches": (
        {"A": "M", "B": "B2"},
        lambda s: s.replay("A", by="T", name="theirs"),
        ["AlreadyReplaced", ""],
        of_batches("D") + of_batches("T", "B2", rows=3),
    ),
    "another writer appends to both": (
        {"A": "A2", "B": "B2"},
        lambda s: s.append_as_foreign_writer("A", "B", "x"),
        ["", ""],
        of_batches("D") + of_batches("A2", "B2", rows=3) + Counter({("x", 502, 1): 1}),
    ),
    "a replaced batch is promoted": (
        {"E": "E2", "A": "A2"},
        lambda s: s.filled("E"),
        ["", ""],
        of_batches("B", "D") + of_batches("E2", "A2", rows=3),
    ),
    "the id of a replacement is promoted": (
        {"A": "X", "B": "B2"},
        lambda s: s.filled("X"),
        ["ReplacementAlreadyPromoted", ""],
        of_batches("A", "D", "X") + of_batches("B2", rows=3),
    ),
    "a replacement is reverted": (
        {"A": "A2", "B": "B2"},
        lambda s: s.revert("A2"),
        ["", ""],
        of_batches("D") + of_batches("B2", rows=3),
    ),
}


@pytest.mark.parametrize(
    ("replays", "act", "wanted", "rows"), named(MEANWHILE, "another run replaces one of the batches")
)
def test_no_batch_of_a_group_is_doubled_or_lost_by_what_is_committed_before_it(
    story: Story, replays: dict[str, str], act: Act, wanted: list[str], rows: Counter[Row]
) -> None:
    """Files for rows that must not come are written again for the others, and the first ones leave the storage."""
    requests = [story.a_replay(old, by=new, name=old.lower()) for old, new in replays.items()]

    result = story.restate_all(*requests, before_commit=lambda: act(story))

    assert [r.reason for r in result.requests] == wanted
    story.check_reads(rows)
    story.check_storage()


@pytest.mark.parametrize("step", some(["after_list", "after_write", "before_commit"], "before_commit"))
def test_two_groups_that_overlap_at_one_moment_carry_out_each_request_once(story: Story, step: str) -> None:
    """The files of the first hold rows of a replacement that the second has brought in: those rows must not come twice,
    and the others in the files must come."""
    only_mine, only_theirs = story.a_replay("A", by="A2", name="mine"), story.a_replay("D", by="D2", name="theirs")
    both = story.a_replay("B", by="B2", name="both")
    theirs: list[RunResult] = []

    mine = story.restate_all(only_mine, both, **{step: lambda: theirs.append(story.restate_all(both, only_theirs))})

    assert set(reasons(mine).values()) | set(reasons(theirs[0]).values()) == {""}
    assert mine.requests[1] == theirs[0].requests[0]
    assert [r.group_size for r in (*mine.requests, *theirs[0].requests)] == [1, 2, 2, 2]
    assert len(story.snapshots()) == 3
    story.check_reads(of_batches("A2", "B2", "D2", rows=3))
    story.check_storage()


@pytest.mark.long
def test_a_group_whose_files_are_outdated_again_and_again_gives_up_and_leaves_nothing(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again later, as after any lost race."""
    monkeypatch.setattr(group_commit, "WRITES", 1)
    mine = story.a_replay("A", by="M", name="doubling"), story.a_replay("B", by="B2", name="fine")
    theirs = story.a_replay("A", by="T", name="theirs")

    with pytest.raises(ConflictError, match="ReplacementsMoved"):
        story.restate_all(*mine, before_commit=lambda: story.restate(theirs))

    story.check_reads(of_batches("B", "D") + of_batches("T", rows=3))
    story.check_storage()


def test_files_of_a_refused_request_stay_if_an_attempt_to_commit_them_is_in_doubt(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit may still arrive at the catalog, which then accepts it if it does not see the other one."""
    mine = story.a_replay("D", by="M", name="mine")
    theirs = story.a_replay("D", by="T", name="theirs")
    really, lost = ledger_commit.commit, []

    def another_commits_and_the_answer_is_lost(*arguments: object, **named: object) -> int:
        if not lost:
            lost.append(True)
            story.restate(theirs)
            raise UnknownCommitState("CommitStateUnknown", "the answer is lost")
        return really(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(ledger_commit, "commit", another_commits_and_the_answer_is_lost)

    refused = story.restate(mine)

    assert refused.reason == "AlreadyReplaced"
    assert story.data_folder() > {local(p) for p in story.files()}
    story.check_reads(of_batches("A", "B") + of_batches("T", rows=3))

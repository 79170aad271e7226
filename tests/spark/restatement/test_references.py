"""What a run of another program delivered is taken back by its id: in the table, in the buffer, and what arrives meanwhile."""

import json

import pytest
from lethe.contract.run import RestatementRequest
from lethe.ledger.ledger import BatchState

from tests.spark.support.story import Story, of_batches
from tests.support.builders import a_request
from tests.support.steps import Killed, die

RUN = "dag-7"


def put(story: Story, *batch_ids: str, reference: object = RUN) -> None:
    """Batches of a delivery whose marker names the run."""
    story.put(*batch_ids)
    for batch_id in batch_ids:
        (story.folder(batch_id) / "_SUCCESS").write_text(json.dumps({"reference": reference}))


def by_run(operation: str = "Revert", name: str = "by-run", **changes: object) -> RestatementRequest:
    return a_request(name, operation, batch_ids=(), reference=RUN, **changes)


def delivered(story: Story) -> dict[str, str]:
    return {i: str(b.state) for i, b in story.ledger().batches.items() if b.reference == RUN}


def test_all_that_a_run_delivered_is_gone_at_once_and_what_it_delivers_later_arrives(story: Story) -> None:
    """A run that is repeated after a correction keeps its id: Airflow's, when its tasks are cleared."""
    put(story, "E", "F")
    put(story, "G", reference="dag-8")
    story.consolidate("E", "F", "G")
    put(story, "W")

    result = story.restate(by_run(), before_commit=lambda: put(story, "late"))

    assert (result.succeeded, result.rows_deleted, result.batch_ids_count) == (True, 8, 3)
    assert delivered(story) == dict.fromkeys("EFW", "reverted")
    story.consolidate("W", "late")
    story.check_reads(of_batches("A", "B", "D", "G", "late"))
    undone = story.restate(a_request("undo", "Undo", batch_ids=(), undoes="ns/by-run/0"))
    assert undone.rows_restored == 8
    story.consolidate("W")
    story.check_reads(of_batches("A", "B", "D", "E", "F", "G", "W", "late"))


def test_a_batch_that_is_promoted_between_the_listing_and_the_commit_is_taken_back(story: Story) -> None:
    put(story, "E")
    story.consolidate("E")

    def promote() -> None:
        put(story, "F")
        story.consolidate("F")

    result = story.restate(by_run(), before_commit=promote)

    assert (result.succeeded, result.batch_ids_count) == (True, 2)
    assert delivered(story) == dict.fromkeys("EF", "reverted")
    story.check_reads(of_batches("A", "B", "D"))


def test_a_replay_replaces_all_that_a_run_delivered(story: Story) -> None:
    put(story, "E", "F")
    story.consolidate("E", "F")

    result = story.restate(by_run("Replay", replacement=story.replacement("E2")))

    assert (result.rows_deleted, result.rows_added) == (8, 3)
    story.check_reads(of_batches("A", "B", "D") + of_batches("E2", rows=3))


def test_a_run_that_died_after_it_staged_batches_keeps_their_references(story: Story) -> None:
    put(story, "E", "F")
    with pytest.raises(Killed):
        story.consolidate("E", "F", after_stage=die)

    story.consolidate("E", "F")

    assert delivered(story) == dict.fromkeys("EF", "promoted")


def test_a_marker_that_names_no_usable_run_refuses_its_batch_and_no_other(story: Story) -> None:
    put(story, "E", reference=" blanks ")
    put(story, "F")

    result = story.consolidate("E", "F")

    assert (result.batches_promoted, [r.reason for r in result.refused]) == (1, ["InvalidReference"])
    assert story.ledger().batches["E"].state is BatchState.REFUSED
    assert not (story.folder("E") / "_SUCCESS").exists()


@pytest.mark.parametrize("reference", ["dag-9", "dag-7 "])
def test_a_run_that_delivered_nothing_fails_alone(story: Story, reference: str) -> None:
    put(story, "E")
    story.consolidate("E")
    typo = a_request("typo", batch_ids=(), reference=reference)

    results = story.restate_all(typo, by_run()).requests

    assert {r.name: (r.succeeded, r.reason) for r in results} == {
        "ns/typo": (False, "UnknownBatches"),
        "ns/by-run": (True, ""),
    }

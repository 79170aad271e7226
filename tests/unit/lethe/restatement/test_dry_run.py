"""What a dry run is dry_run_of: by the ledger and the bounds of files, as the request would find them now."""

from dataclasses import replace

from lethe.contract.result import RequestResult, RestatementPlan
from lethe.contract.run import RestatementRequest
from lethe.ledger.ledger import BatchState, Ledger
from lethe.ledger.tombstone import META_PURGED_BY
from lethe.restatement.group import plan_dry_run
from lethe.restatement.plan import PlanScope, Restated, plan_restatement

from tests.support.builders import (
    FIELD,
    NOW,
    RUN,
    a_batch,
    a_file,
    a_ledger,
    a_replay,
    a_request,
    a_request_entry,
    a_tombstone,
)

FILES = (a_file("A", size=1), a_file("A", nulls=1, size=10), a_file("A", "C", size=100), a_file("D", size=1000))


def dry_run_of(
    request: RestatementRequest, ledger: Ledger | None = None, in_files: tuple[str, ...] = ()
) -> RequestResult:
    known = a_ledger(batches=[a_batch(i) for i in "ABCD"]) if ledger is None else ledger
    return plan_dry_run(known, request, FILES, PlanScope(RUN, NOW, FIELD, in_files))


def test_files_whose_bounds_can_hold_a_batch_are_counted_and_those_that_hold_nothing_else() -> None:
    """A row without a batch id makes a file one that holds something else."""
    assert dry_run_of(a_request(batch_ids=["A"])).plan == RestatementPlan(files=3, bytes=111, whole_files=1)
    assert dry_run_of(a_request(batch_ids=["A", "D"])).plan == RestatementPlan(files=4, bytes=1111, whole_files=2)
    assert dry_run_of(a_request(batch_ids=["Z"])).plan == RestatementPlan(files=0, bytes=0, whole_files=0)


def test_rows_tombstones_and_unknown_ids_are_those_that_the_request_itself_would_report() -> None:
    request = a_request(batch_ids=["A", "B", "X", "Y"])
    ledger = a_ledger("B", batches=[a_batch("A"), a_batch("B", BatchState.REVERTED)])
    real = plan_restatement(ledger, request, PlanScope(RUN, NOW, FIELD, ("Y",)))
    assert isinstance(real, Restated)

    found = dry_run_of(request, ledger, ("Y",))

    set_by_the_run = {"plan": None, "committed_time": NOW, "group_size": 1}
    assert found.model_copy(update=set_by_the_run) == real.result
    assert (found.rows_deleted, found.tombstones_added, found.unknown_batch_ids) == (3, 3, ("X",))


def test_an_undo_touches_the_files_of_what_it_takes_back() -> None:
    ledger = a_ledger(
        a_tombstone("D", restatements=("ns/revert-d/0",)),
        batches=[a_batch("D", BatchState.REVERTED)],
        requests=[a_request_entry("ns/revert-d/0", operation="Revert", batch_ids=("D",))],
    )
    undo = a_request("undo", "Undo", batch_ids=(), undoes="ns/revert-d/0")

    found = dry_run_of(undo, ledger)

    assert found.plan == RestatementPlan(files=1, bytes=1000, whole_files=1)
    assert (found.rows_restored, found.tombstones_removed) == (3, 1)


def test_what_would_be_refused_is_refused_with_its_reason() -> None:
    replaced = a_ledger(batches=[a_batch("A", BatchState.REPLACED, replaced_by="A1")])
    purged = a_ledger(
        replace(a_tombstone("A", restatements=("ns/r/0",)), meta={META_PURGED_BY: "v", "restatements": "ns/r/0"}),
        batches=[a_batch("A", BatchState.REVERTED)],
        requests=[a_request_entry("ns/r/0", operation="Revert", batch_ids=("A",))],
    )

    for found in (
        dry_run_of(a_replay(), replaced),
        dry_run_of(a_request("undo", "Undo", batch_ids=(), undoes="ns/r/0"), purged),
    ):
        assert (found.succeeded, found.again, found.plan) == (False, False, None)
    assert dry_run_of(a_replay(), replaced).reason == "AlreadyReplaced"
    assert dry_run_of(a_request("undo", "Undo", batch_ids=(), undoes="ns/r/0"), purged).reason == "AlreadyPurged"

"""Which batches a Restatement concerns that names the run that delivered them."""

from collections.abc import Collection, Mapping

import pytest
from lethe.base.errors import InputError
from lethe.contract.run import Replacement, RestatementRequest
from lethe.contract.settings import Operation
from lethe.ledger.ledger import BatchState, Ledger, apply
from lethe.restatement.group import GroupFindings, GroupPlan, plan_dry_run, plan_group
from lethe.restatement.plan import PlanScope, ReplacementRows
from lethe.restatement.selection import CHANGED_STATES, Deliveries, with_selected

from tests.support.builders import FIELD, NOW, RUN, a_batch, a_ledger, a_replay, a_request, an_undo

REFERENCE = "dag-7"
OTHERS = [a_batch("other", reference="dag-8"), a_batch("none")]


def deliveries(ledger: Ledger, waiting: Collection[str] = ()) -> Deliveries:
    """As the I/O around a plan finds them."""
    known: dict[str, set[str]] = {}
    for b in ledger.batches.values():
        if b.reference:
            known.setdefault(b.reference, set()).add(b.id)
    return Deliveries(known, {REFERENCE: waiting})


def planned(
    ledger: Ledger, *requests: RestatementRequest, waiting: Collection[str] = (), rows: Mapping[str, int] | None = None
) -> GroupPlan:
    written = {key: ReplacementRows(n, n) for key, n in (rows or {}).items()}
    scope = PlanScope(RUN, NOW, FIELD, deliveries=deliveries(ledger, waiting))
    return plan_group(ledger, requests, scope, GroupFindings(written))


def by_run(operation: str = "Revert", name: str = "by-run") -> RestatementRequest:
    replacement = Replacement(batch_id="new", uri="s3://lake/new/") if operation == "Replay" else None
    return a_request(name, operation, batch_ids=(), reference=REFERENCE, replacement=replacement)


@pytest.mark.parametrize("operation", [Operation.REVERT, Operation.REPLAY, Operation.ERASE, Operation.APPROVE])
def test_an_operation_concerns_the_batches_of_the_run_in_the_states_that_it_changes(operation: Operation) -> None:
    batches = [a_batch(str(state), state, reference=REFERENCE) for state in BatchState]
    ledger = a_ledger(batches=[*batches, *OTHERS])

    plan = planned(ledger, by_run(operation), rows={by_run(operation).key: 5})

    changed = {b.id for b in plan.delta.set_batches} - {"new"}
    assert changed == {str(s) for s in CHANGED_STATES[operation]}
    (result,) = plan.results.values()
    assert (result.succeeded, result.batch_ids_count) == (True, len(changed))


def test_a_revert_keeps_the_batches_of_the_run_that_wait_in_the_buffer_out_of_the_table() -> None:
    ledger = a_ledger(batches=[a_batch("A", reference=REFERENCE), *OTHERS])

    plan = planned(ledger, by_run(), waiting=["W"])

    after = apply(ledger, plan.delta)
    assert {i: b.state for i, b in after.batches.items() if b.reference == REFERENCE} == dict.fromkeys(
        "AW", BatchState.REVERTED
    )
    assert after.batches["W"].blocks_promotion


def test_a_run_with_too_many_batches_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lethe.restatement.selection.BATCHES_AT_MOST", 1)
    ledger = a_ledger(batches=[a_batch(i, reference=REFERENCE) for i in "AB"])

    with pytest.raises(InputError, match=r"TooManyBatches: .* delivered 2 batches, expected at most 1"):
        with_selected(ledger, by_run(), deliveries(ledger))


def test_a_batch_of_the_buffer_that_was_promoted_or_taken_back_meanwhile_is_what_the_ledger_says() -> None:
    """The buffer is listed before the ledger is read, so a listing may be older."""
    batches = [a_batch("A", reference=REFERENCE), a_batch("B", BatchState.REPLACED, reference=REFERENCE)]

    plan = planned(a_ledger(batches=batches), by_run(), waiting=["A", "B"])

    assert [b.id for b in plan.delta.set_batches] == ["A"]


def test_what_the_run_delivers_until_the_commit_counts_and_later_batches_are_promoted() -> None:
    before = a_ledger(batches=[a_batch("A", reference=REFERENCE)])
    first = planned(before, by_run())
    at_commit = a_ledger(batches=[a_batch(i, reference=REFERENCE) for i in "AB"])

    second = planned(at_commit, by_run())

    assert [[b.id for b in p.delta.set_batches] for p in (first, second)] == [["A"], ["A", "B"]]
    assert "C" not in apply(at_commit, second.delta).batches


@pytest.mark.parametrize(
    ("batches", "says"),
    [
        (OTHERS, "Neither the table nor the buffer has a batch of it."),
        ([a_batch("A", BatchState.REVERTED, reference=REFERENCE)], "Of its batches, 1 reverted."),
    ],
)
def test_a_run_without_a_batch_to_take_back_is_refused_and_the_message_says_what_became_of_them(
    batches: list, says: str
) -> None:
    ledger = a_ledger(batches=batches)

    plan = planned(ledger, by_run())

    (result,) = plan.results.values()
    assert (result.succeeded, result.reason, plan.delta.is_empty) == (False, "UnknownBatches", True)
    assert says in result.message
    scope = PlanScope(RUN, NOW, FIELD, deliveries=deliveries(ledger))
    assert plan_dry_run(ledger, by_run(), (), scope).reason == "UnknownBatches"


def test_a_repeated_request_reports_its_first_result_although_nothing_is_left_to_take_back() -> None:
    ledger = a_ledger(batches=[a_batch("A", reference=REFERENCE)])
    done = apply(ledger, planned(ledger, by_run()).delta)

    again = planned(done, by_run())

    (result,) = again.results.values()
    assert (result.succeeded, result.tombstones_added, again.delta.is_empty) == (True, 1, True)


def test_an_undo_shows_exactly_the_batches_that_the_revert_of_the_run_took_back() -> None:
    ledger = a_ledger(
        batches=[a_batch("A", reference=REFERENCE), a_batch("B", BatchState.REVERTED, reference=REFERENCE)]
    )
    reverted = apply(ledger, planned(ledger, by_run(), waiting=["W"]).delta)

    undone = apply(reverted, planned(reverted, an_undo("by-run")).delta)

    assert {i: b.state for i, b in undone.batches.items()} == {"A": BatchState.PROMOTED, "B": BatchState.REVERTED}


def test_in_a_group_a_revert_of_the_run_leaves_out_what_a_replay_before_it_replaced() -> None:
    ledger = a_ledger(batches=[a_batch(i, reference=REFERENCE) for i in "AB"])
    replay = a_replay("replay-a", by="A2")

    plan = planned(ledger, replay, by_run(name="z"), rows={replay.key: 5})

    states = {i: b.state for i, b in apply(ledger, plan.delta).batches.items()}
    assert states == {"A": BatchState.REPLACED, "A2": BatchState.PROMOTED, "B": BatchState.REVERTED}

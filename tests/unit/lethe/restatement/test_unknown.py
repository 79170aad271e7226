"""A request that names batches that its Dataset does not know is refused, unless it may; the message helps to correct the ids."""

import pytest
from lethe.base.errors import InputError
from lethe.contract.settings import UnknownBatches
from lethe.ledger.ledger import BatchState, Ledger, apply
from lethe.restatement.group import GroupFindings, plan_dry_run, plan_group
from lethe.restatement.plan import AlreadyDone, PlanScope, ReplacementRows, Restated, plan_restatement
from lethe.restatement.unknown import COMPARED_AT_MOST, refuse_unknown, unknown_ids_of

from tests.support.builders import FIELD, NOW, RUN, OnFiles, a_batch, a_ledger, a_replay, a_request, an_undo, settled

DAYS = ("2026-03-01", "2026-03-02", "2026-03-03", "2026-03-04", "orders")
LEDGER = a_ledger(batches=[a_batch(i) for i in DAYS])


def scope(*absent: str) -> PlanScope:
    return PlanScope(RUN, NOW, FIELD, absent=absent)


def message(ledger: Ledger, *ids: str, **changes: str) -> str:
    with pytest.raises(InputError) as refused:
        refuse_unknown(ledger, a_request(batch_ids=ids, **changes), ids)
    assert refused.value.reason == "UnknownBatches"
    return refused.value.message


@pytest.mark.parametrize("request_", [a_request, a_replay, lambda **c: a_request(operation="Erase", **c)])
def test_whatever_restates_an_absent_batch_is_refused_and_what_may_name_it_blocks_it(request_) -> None:  # type: ignore[no-untyped-def]
    refused, allowed = request_(batch_ids=("X",)), request_(batch_ids=("X",), unknown_batches=UnknownBatches.ALLOW)

    with pytest.raises(InputError, match="1 of 1 batch ids are in neither the table nor the buffer: 'X'"):
        plan_restatement(LEDGER, refused, scope("X"), ReplacementRows(1, 1))

    done = plan_restatement(LEDGER, allowed, scope("X"), ReplacementRows(1, 1))
    assert isinstance(done, Restated)
    assert apply(LEDGER, done.delta).batches["X"].blocks_promotion
    assert done.result.unknown_batch_ids == ("X",)


def test_an_id_that_nobody_looked_for_is_not_refused() -> None:
    """It may wait in the buffer: only ids that were found nowhere are."""
    planned = plan_restatement(LEDGER, a_request(batch_ids=("X",)), scope())

    assert isinstance(planned, Restated)


def test_a_batch_that_was_promoted_since_it_was_looked_for_is_known() -> None:
    planned = plan_restatement(LEDGER, a_request(batch_ids=("orders",)), scope("orders"))

    assert isinstance(planned, Restated)
    assert planned.result.rows_deleted == 3


@pytest.mark.parametrize("state", BatchState)
def test_a_batch_that_the_ledger_knows_in_any_state_is_known(state: BatchState) -> None:
    ledger = a_ledger(batches=[a_batch("X", state)])

    refuse_unknown(ledger, a_request(batch_ids=("X",)), ("X",))


def test_the_message_names_the_first_three_and_similar_known_ids() -> None:
    assert "'2026-03-05' (similar: '2026-03-04', '2026-03-03', '2026-03-02')." in message(LEDGER, "2026-03-05")
    assert (
        "4 of 4 batch ids are in neither the table nor the buffer: 'order' (similar: 'orders'), 'b', 'c' and 1 more."
        in (message(LEDGER, "order", "b", "c", "d"))
    )


def test_lines_of_a_list_by_reference_and_ids_similar_to_them_are_not_in_the_message() -> None:
    """The reference may name the wrong file."""
    said = message(LEDGER, "order", batch_ids_sha256="0" * 64)

    assert "1 of 1 batch ids are in neither the table nor the buffer. Nothing was changed." in said
    assert "order" not in said


def test_the_ids_of_a_large_ledger_are_not_read_to_find_similar_ones() -> None:
    large = a_ledger()
    batches = OnFiles({f"order{n}": a_batch("A") for n in range(COMPARED_AT_MOST + 1)})

    assert "similar" not in message(Ledger(batches=batches), "order")
    assert "similar" not in message(large, "order")


def test_a_request_that_was_carried_out_keeps_its_result() -> None:
    """Also one of an earlier version, which has hidden unknown batches."""
    done = plan_restatement(LEDGER, a_request(batch_ids=("X",)), scope())
    assert isinstance(done, Restated)
    ledger = settled(apply(LEDGER, done.delta), 9)

    again = plan_restatement(ledger, a_request(batch_ids=("X",)), scope("X"))

    assert isinstance(again, AlreadyDone)
    assert unknown_ids_of(ledger, [a_request(batch_ids=("X",))]) == []


def test_a_group_goes_on_without_the_request_that_is_refused() -> None:
    """And a batch that an earlier member adds is known to the later ones."""
    replay = a_replay("first", batch_ids=("orders",), by="orders-2")
    later, wrong = a_request("later", batch_ids=("orders-2",)), a_request("wrong", batch_ids=("X", "2026-03-01"))

    planned = plan_group(LEDGER, [replay, later, wrong], scope("X", "orders-2"), GroupFindings())

    assert planned.carried_out == (replay.key, later.key)
    assert (planned.results[wrong.key].succeeded, planned.results[wrong.key].reason) == (False, "UnknownBatches")
    assert "2026-03-01" not in {b.id for b in planned.delta.set_batches}


def test_a_dry_run_is_refused_like_the_request() -> None:
    result = plan_dry_run(LEDGER, a_request(batch_ids=("X",)), (), scope("X"))

    assert (result.succeeded, result.again, result.reason) == (False, False, "UnknownBatches")


def test_an_undo_names_no_batches_and_is_never_refused_for_them() -> None:
    refuse_unknown(LEDGER, an_undo(), ("X",))

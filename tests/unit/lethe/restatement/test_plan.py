"""A restatement takes its batches back once, never doubles rows, and is remembered for ever."""

from collections.abc import Collection
from datetime import timedelta
from typing import Any

import pytest
from lethe.base.errors import InputError
from lethe.contract.run import Replacement, RestatementRequest, RowsRef
from lethe.contract.settings import Operation
from lethe.ledger.erasure import Erasure
from lethe.ledger.ledger import BatchState, Ledger, apply
from lethe.restatement.plan import (
    AlreadyDone,
    ErasedRows,
    PlanScope,
    ReplacementRows,
    Restated,
    check_request,
    plan_restatement,
)

from tests.support.builders import (
    FIELD,
    NOW,
    RUN,
    a_batch,
    a_change,
    a_ledger,
    a_replay,
    a_request,
    a_tombstone,
    an_object,
    settled,
)

ROWS = ReplacementRows(5, 50)
ROWS_REF = RowsRef(column="tailnum", values_file="/etc/lethe/values/0")


def _keyed(*columns: str, op: str = "") -> Replacement:
    return Replacement(batch_id="A2", uri="s3://lake/A2/", key_columns=columns, op_column=op)


def plan(ledger: Ledger, request: RestatementRequest, in_files: Collection[str] = ()) -> Restated:
    rows = ROWS if request.replacement else None
    planned = plan_restatement(ledger, request, PlanScope(RUN, NOW, FIELD, in_files), rows)
    assert isinstance(planned, Restated)
    return planned


def after(ledger: Ledger, *requests: RestatementRequest) -> Ledger:
    for request in requests:
        ledger = settled(apply(ledger, plan(ledger, request).delta), 99)
    return ledger


def states(ledger: Ledger) -> dict[str, str]:
    return {i: str(b.state) for i, b in ledger.batches.items()}


def test_a_revert_hides_its_batches_and_remembers_who_asked() -> None:
    request = a_request(batch_ids=["A", "B"], reason="late", evict_by_seconds=60)

    planned = plan(a_ledger(batches=[a_batch("A"), a_batch("B"), a_batch("C")]), request)

    assert [(t.id, t.namespace, t.restatements) for t in planned.delta.add_tombstones] == [
        ("A", FIELD, (request.key,)),
        ("B", FIELD, (request.key,)),
    ]
    assert {t.evict_by for t in planned.delta.add_tombstones} == {NOW + timedelta(seconds=60)}
    assert {t.meta["reason"] for t in planned.delta.add_tombstones} == {"late"}
    assert {b.id: (str(b.state), b.restatement) for b in planned.delta.set_batches} == {
        "A": ("reverted", request.key),
        "B": ("reverted", request.key),
    }
    assert not planned.add_replacement
    result = planned.result
    assert (result.succeeded, result.tombstones_added, result.rows_deleted, result.rows_added) == (True, 2, 6, 0)


def test_a_replay_hides_the_old_batch_and_promotes_the_new_one_in_one_delta() -> None:
    planned = plan(a_ledger(batches=[a_batch("A")]), a_replay(by="A2"))

    assert planned.add_replacement
    entries = {b.id: b for b in planned.delta.set_batches}
    assert (str(entries["A"].state), entries["A"].replaced_by) == ("replaced", "A2")
    assert (str(entries["A2"].state), entries["A2"].rows, entries["A2"].objects) == ("promoted", 5, ())
    assert [t.id for t in planned.delta.add_tombstones] == ["A"]
    assert (planned.result.rows_deleted, planned.result.rows_added) == (3, 5)


def test_a_request_carried_out_before_reports_its_first_result() -> None:
    """A Restatement that its TTL deleted is created again by GitOps: nothing happens twice."""
    ledger = after(a_ledger(batches=[a_batch("A")]), a_request())

    again = plan_restatement(ledger, a_request(), PlanScope("another-run", NOW + timedelta(days=9), FIELD))

    assert isinstance(again, AlreadyDone)
    assert (again.result.snapshot_id, again.result.rows_deleted, again.result.committed_time) == (99, 3, NOW)


def test_a_replay_of_a_request_carried_out_before_is_not_refused_for_what_it_did_itself() -> None:
    ledger = after(a_ledger(batches=[a_batch("A")]), a_replay())

    assert isinstance(plan_restatement(ledger, a_replay(), PlanScope(RUN, NOW, FIELD)), AlreadyDone)


def test_two_replays_of_one_batch_cannot_both_add_their_rows() -> None:
    """A to B and A to C race; whoever comes second has to plan on the first's ledger, and is refused."""
    ledger = after(a_ledger(batches=[a_batch("A")]), a_replay("first", by="B"))

    with pytest.raises(InputError, match="already replaced by 'B'") as refused:
        plan(ledger, a_replay("second", by="C"))

    assert refused.value.reason == "AlreadyReplaced"


def test_a_replacement_that_is_in_the_table_already_is_refused() -> None:
    with pytest.raises(InputError, match="'A2' is already in the table") as refused:
        plan(a_ledger(batches=[a_batch("A"), a_batch("A2")]), a_replay(by="A2"))

    assert refused.value.reason == "ReplacementAlreadyPromoted"


def test_unknown_ids_are_reported_and_block_their_later_promotion() -> None:
    """A is replaced while it is still buffered: were it forgotten, A2 and then A would go in, and double."""
    request = a_replay(batch_ids=[f"x{i:02}" for i in range(30)])

    planned = plan(a_ledger(), request, in_files={"x05"})

    assert planned.result.unknown_batch_ids_count == 29
    assert planned.result.unknown_batch_ids == tuple(f"x{i:02}" for i in range(21) if i != 5)
    assert planned.result.succeeded
    ledger = apply(a_ledger(), planned.delta)
    assert all(ledger.batches[i].blocks_promotion for i in request.batch_ids)
    assert ledger.ids(FIELD) == set(request.batch_ids)  # rows that a foreign writer brings are hidden too


def test_a_replacement_restated_before_it_came_is_not_added_but_its_tombstones_are() -> None:
    """A to B and B to C are applied together and carried out in the other order: only C may be seen."""
    ledger = after(a_ledger(batches=[a_batch("A")]), a_replay("second", by="C", batch_ids=["B"]))

    planned = plan(ledger, a_replay("first", by="B"))

    assert not planned.add_replacement
    assert (planned.result.rows_added, planned.result.replacement_withheld) == (0, True)
    assert states(apply(ledger, planned.delta)) == {"A": "replaced", "B": "replaced", "C": "promoted"}
    assert apply(ledger, planned.delta).ids(FIELD) == {"A", "B"}


def test_a_batch_reverted_once_may_be_replaced_later() -> None:
    ledger = after(a_ledger(batches=[a_batch("A")]), a_request("revert"), a_replay("replay"))

    assert states(ledger) == {"A": "replaced", "A2": "promoted"}
    assert ledger.tombstones[(FIELD, "A")].restatements == ("ns/revert/0", "ns/replay/0")


def test_a_revert_of_a_replaced_batch_leaves_its_replacement_and_its_state() -> None:
    ledger = after(a_ledger(batches=[a_batch("A")]), a_replay(), a_request("revert-late"))

    assert states(ledger) == {"A": "replaced", "A2": "promoted"}
    assert ledger.batches["A"].replaced_by == "A2"


def test_a_second_revert_counts_neither_rows_nor_tombstones_again() -> None:
    ledger = after(a_ledger(batches=[a_batch("A")]), a_request("first"))

    result = plan(ledger, a_request("second")).result

    assert (result.succeeded, result.tombstones_added, result.rows_deleted) == (True, 0, 0)


def test_an_id_named_twice_counts_once() -> None:
    result = plan(a_ledger(batches=[a_batch("A")]), a_request(batch_ids=["A", "A", "X", "X"])).result

    assert (result.tombstones_added, result.rows_deleted, result.unknown_batch_ids_count) == (2, 3, 1)


def test_a_revert_after_the_vacuum_finds_nothing_to_hide_and_still_succeeds() -> None:
    ledger = a_ledger(batches=[a_batch("A", BatchState.REVERTED)])

    assert plan(ledger, a_request()).result.rows_deleted == 0


def test_the_objects_of_a_refused_batch_are_not_taken_for_promoted_ones_once_it_is_reverted() -> None:
    """Retention deletes the recorded objects of a promoted batch; these are the only copy of rows never promoted."""
    refused = a_batch("A", BatchState.REFUSED, rows=None, objects=(an_object(),), refusal="CorruptFile: x")

    ledger = after(a_ledger(batches=[refused]), a_request())

    assert (states(ledger), ledger.batches["A"].objects) == ({"A": "reverted"}, ())


def test_a_registered_batch_is_still_one_when_it_is_reverted() -> None:
    """Retention must not take the table's files for copies."""
    ledger = after(a_ledger(batches=[a_batch("A", objects=(an_object(),), registered=True)]), a_request())

    assert (states(ledger), ledger.batches["A"].registered) == ({"A": "reverted"}, True)


def test_a_promoted_batch_keeps_its_objects_when_it_is_reverted() -> None:
    """Its folder was promoted once: it may go as any other."""
    ledger = after(a_ledger(batches=[a_batch("A", objects=(an_object(),))]), a_request())

    assert ledger.batches["A"].objects == (an_object(),)


def test_tombstones_of_two_restatements_keep_both_and_the_earlier_deadline() -> None:
    first, second = a_request("first", evict_by_seconds=9), a_request("second")

    ledger = after(a_ledger(batches=[a_batch("A")]), first, second)

    (tombstone,) = ledger.tombstones.values()
    assert tombstone.restatements == (first.key, second.key)
    assert tombstone.evict_by == NOW + timedelta(seconds=9)


# --- change data ----------------------------------------------------------------------------------------------------


def test_changes_add_their_batch_and_remember_how_many_older_rows_went() -> None:
    """They take back no batch but those that are named, and owe the bytes only if that is asked for."""
    request, owing = a_change(), a_change(batch_ids=("A",), evict_by_seconds=60)
    ledger = a_ledger(batches=[a_batch("A", rows=4), a_batch("B", rows=4)])

    planned, owed = (
        plan_restatement(ledger, r, PlanScope(RUN, NOW, FIELD), ROWS, ErasedRows(7, 4)) for r in (request, owing)
    )

    assert isinstance(planned, Restated)
    assert isinstance(owed, Restated)
    assert (planned.add_replacement, planned.erase_rows) == (True, True)
    reported = planned.result
    assert (reported.rows_added, reported.rows_erased, reported.rows_deleted, reported.tombstones_added) == (5, 7, 0, 0)
    assert states(apply(ledger, planned.delta)) == {"A": "promoted", "B": "promoted", "C1": "promoted"}
    assert (planned.delta.set_erasures, owed.delta.set_erasures) == (
        (),
        (Erasure(owing.key, 4, NOW + timedelta(seconds=60)),),
    )
    assert states(apply(ledger, owed.delta)) == {"A": "replaced", "B": "promoted", "C1": "promoted"}


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (a_replay(batch_ids=()), "Replay requires spec.batchIds or spec.replacement.keyColumns"),
        (a_change(replacement=_keyed("a", op="a")), "spec.replacement.opColumn a is also in"),
        (a_change(replacement=_keyed("a", "b", "a")), "spec.replacement.keyColumns names a column twice"),
        (a_change(batch_ids=("A",), replacement=_keyed(op="op")), "opColumn requires spec.replacement.keyColumns"),
    ],
)
def test_keys_that_mean_nothing_are_refused(request_: RestatementRequest, text: str) -> None:
    """As the schema does, if the resource comes by it."""
    with pytest.raises(InputError) as refused:
        check_request(request_)

    assert refused.value.reason == "InvalidSpec"
    assert text in refused.value.message


def test_of_a_replacement_that_was_taken_back_before_it_came_the_keys_mean_nothing() -> None:
    ledger = a_ledger(batches=[a_batch("C1", BatchState.REVERTED, rows=None)])

    planned = plan(ledger, a_change(evict_by_seconds=60))

    assert (planned.add_replacement, planned.erase_rows, planned.delta.set_erasures) == (False, False, ())


# --- erase ----------------------------------------------------------------------------------------------------------


def an_erase(*batch_ids: str, name: str = "erase", **changes: Any) -> RestatementRequest:
    return a_request(name, "Erase", batch_ids=batch_ids, **changes)


def test_an_erase_hides_its_batches_for_good_and_leaves_an_obligation() -> None:
    request = an_erase("A", "X", evict_by_seconds=60)

    planned = plan(a_ledger(batches=[a_batch("A"), a_batch("B")]), request)

    due = NOW + timedelta(seconds=60)
    assert [(t.id, t.evict_by, t.restatements) for t in planned.delta.add_tombstones] == [
        ("A", due, (request.key,)),
        ("X", due, (request.key,)),
    ]
    ledger = apply(a_ledger(batches=[a_batch("A"), a_batch("B")]), planned.delta)
    assert states(ledger) == {"A": "erased", "B": "promoted", "X": "erased"}
    assert ledger.batches["X"].blocks_promotion
    assert ledger.erasures == (Erasure(request.key, FIELD, due),)
    result = planned.result
    assert (result.operation, result.rows_deleted, result.tombstones_added, result.unknown_batch_ids) == (
        *("Erase", 3, 2),
        ("X",),
    )


def test_an_erase_without_a_deadline_is_an_obligation_too() -> None:
    """Its bytes go when a policy says so."""
    assert plan(a_ledger(), an_erase("A")).delta.set_erasures == (Erasure("ns/erase/0", FIELD, None),)


def test_a_revert_or_a_replay_is_an_obligation_if_it_has_a_deadline() -> None:
    due = NOW + timedelta(seconds=60)
    replay = a_replay(evict_by_seconds=60)

    assert plan(a_ledger(), a_request(evict_by_seconds=60)).delta.set_erasures == (
        Erasure("ns/revert-a/0", FIELD, due),
    )
    assert plan(a_ledger(), replay).delta.set_erasures == (Erasure(replay.key, FIELD, due),)
    assert plan(a_ledger(), a_request()).delta.set_erasures == ()


def test_what_is_erased_stays_erased_when_it_is_reverted_as_well() -> None:
    """And what was reverted is erased by an Erase: the stronger of the two, in whatever order."""
    batches = [a_batch("A")]

    assert states(after(a_ledger(batches=batches), an_erase("A"), a_request("late"))) == {"A": "erased"}
    assert states(after(a_ledger(batches=batches), a_request("early"), an_erase("A"))) == {"A": "erased"}


def test_an_erase_of_a_replaced_batch_leaves_its_replacement_and_its_state() -> None:
    """Were it forgotten that A was replaced, a second Replay of it would double its rows."""
    request = an_erase("A", evict_by_seconds=9)

    ledger = after(a_ledger(batches=[a_batch("A")]), a_replay(), request)

    assert states(ledger) == {"A": "replaced", "A2": "promoted"}
    assert ledger.tombstones[(FIELD, "A")].evict_by == ledger.batches["A"].evict_by == NOW + timedelta(seconds=9)
    with pytest.raises(InputError, match="already replaced by 'A2'"):
        plan(ledger, a_replay("again", by="A3"))


def test_an_erase_by_records_changes_no_batch_and_remembers_how_many_rows_went() -> None:
    """No tombstone could name them: they go with the commit itself."""
    request = a_request("erase", "Erase", batch_ids=[], rows=ROWS_REF, evict_by_seconds=60)
    ledger = a_ledger("A", batches=[a_batch("A", BatchState.REVERTED), a_batch("B")])

    planned = plan_restatement(ledger, request, PlanScope(RUN, NOW, FIELD), erased=ErasedRows(7, 4))

    assert isinstance(planned, Restated)
    assert (planned.erase_rows, planned.add_replacement, planned.result.rows_erased) == (True, False, 7)
    afterwards = apply(ledger, planned.delta)
    assert (afterwards.tombstones, afterwards.batches) == (ledger.tombstones, ledger.batches)
    assert afterwards.erasures == (Erasure(request.key, 4, NOW + timedelta(seconds=60)),)
    assert afterwards.requests[request.key].result["rowsErased"] == 7


INVALID = {
    "InvalidSpec": a_request(operation="Replay"),
    "ReplacementIsReplaced": a_replay(by="A"),
}


@pytest.mark.parametrize(("reason", "request_"), INVALID.items(), ids=INVALID)
def test_a_request_that_no_ledger_can_make_right_is_refused(reason: str, request_: RestatementRequest) -> None:
    with pytest.raises(InputError) as refused:
        check_request(request_)
    with pytest.raises(InputError):
        plan(a_ledger(), request_)

    assert refused.value.reason == reason
    assert refused.value.message.startswith(f"Restatement {request_.name}: spec.")


NOT_AN_ERASE = {
    "an Erase of nothing": a_request(operation="Erase", batch_ids=[]),
    "an Erase of batches and rows": a_request(operation="Erase", rows=ROWS_REF),
    "a Revert of rows": a_request(batch_ids=[], rows=ROWS_REF),
}


@pytest.mark.parametrize("request_", NOT_AN_ERASE.values(), ids=NOT_AN_ERASE)
def test_rows_belong_to_an_erase_that_names_no_batches(request_: RestatementRequest) -> None:
    with pytest.raises(
        InputError,
        match=r"Restatement ns/revert-a: (only spec\.operation Erase accepts spec\.rows|spec\.operation Erase requires)",
    ) as e:
        plan(a_ledger(), request_)

    assert e.value.reason == "InvalidSpec"


def test_a_revert_with_a_replacement_is_refused() -> None:
    with pytest.raises(InputError, match=r"Replay requires spec\.replacement"):
        check_request(a_replay().model_copy(update={"operation": Operation.REVERT}))


def test_the_ledger_it_was_planned_on_stays_as_it_was() -> None:
    ledger = a_ledger(a_tombstone("Z"), batches=[a_batch("A")])

    plan(ledger, a_request())

    assert ledger == a_ledger(a_tombstone("Z"), batches=[a_batch("A")])

"""Undo brings back every row of a revert, or nothing and says why."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from lethe.base.errors import InputError
from lethe.base.names import request_key
from lethe.buffer.promotion import plan_promotion
from lethe.contract.result import RequestResult
from lethe.contract.run import RestatementRequest
from lethe.ledger.ledger import BatchState, Ledger, apply
from lethe.ledger.tombstone import META_PURGED_BY
from lethe.restatement.plan import AlreadyDone, ErasedRows, PlanScope, Restated, check_request, plan_restatement
from lethe.vacuum.plan import PurgeStep, plan_purge

from tests.support.builders import (
    FIELD,
    NOW,
    RUN,
    a_batch,
    a_file,
    a_ledger,
    a_replay,
    a_request,
    an_erase_of_rows,
    an_undo,
    batch_states,
    settled,
)
from tests.support.vacuuming import plan_vacuum

LATER = NOW + timedelta(hours=1)


def after(ledger: Ledger, *requests: RestatementRequest) -> Ledger:
    for n, request in enumerate(requests):
        ledger = settled(apply(ledger, plan(ledger, request).delta), 99 + n)
    return ledger


def reverted_later(ledger: Ledger, request: RestatementRequest) -> Ledger:
    """A second after everything else."""
    return settled(apply(ledger, plan(ledger, request, LATER + timedelta(seconds=1)).delta), 150)


def plan(ledger: Ledger, request: RestatementRequest, now: datetime = LATER) -> Restated:
    planned = plan_restatement(ledger, request, PlanScope(RUN, now, FIELD), erased=ErasedRows(1, FIELD + 1))
    assert isinstance(planned, Restated)
    return planned


def vacuumed(ledger: Ledger, *files: Any, keep: Any = ()) -> Ledger:
    """After a vacuum that removed `files` while the files `keep` stayed."""
    purge = plan_purge(plan_vacuum(ledger, 1, files, FIELD), ledger, [*files, *keep], "v" * 32)
    assert isinstance(purge, PurgeStep)
    return apply(ledger, purge.delta)


LEDGER = a_ledger(batches=[a_batch("A"), a_batch("B"), a_batch("C")])
REVERTED = after(LEDGER, a_request(batch_ids=["A", "B"]), a_request("other", batch_ids=["C"]))


def test_a_revert_can_be_undone_whatever_its_name() -> None:
    """A program names it, and a tombstone lists the keys of its requests in lines."""
    key = request_key("sdk", "too early\nagain", {})
    ledger = after(LEDGER, a_request(key=key, batch_ids=["A"]))

    undo = plan(ledger, a_request("undo", "Undo", batch_ids=(), undoes=key))

    assert batch_states(apply(ledger, undo.delta))["A"] == "promoted"


def test_the_batches_of_a_revert_are_promoted_again_and_its_tombstones_gone() -> None:
    planned = plan(REVERTED, an_undo())

    ledger = apply(REVERTED, planned.delta)
    assert ledger.ids(FIELD) == {"C"}
    assert batch_states(ledger) == {"A": "promoted", "B": "promoted", "C": "reverted"}
    result = planned.result
    assert (result.operation, result.undoes, result.tombstones_removed, result.rows_restored) == (
        "Undo",
        "ns/revert-a/0",
        2,
        6,
    )
    assert (ledger.batches["A"].rows, ledger.batches["A"].restatement) == (3, "ns/undo/0")


def test_the_request_that_was_undone_stays_remembered_and_is_not_carried_out_again() -> None:
    """GitOps applies Revert, Undo and Revert again in any order after a rebuild of the cluster."""
    ledger = after(REVERTED, an_undo())

    again = plan_restatement(ledger, a_request(batch_ids=["A", "B"]), PlanScope("another-run", LATER, FIELD))

    assert isinstance(again, AlreadyDone)
    assert (again.result.snapshot_id, again.result.undone_by, again.result.batch_ids) == (99, "ns/undo/0", ())
    assert isinstance(plan_restatement(ledger, an_undo(), PlanScope(RUN, LATER, FIELD)), AlreadyDone)


def test_the_ledger_stores_every_id_and_the_reported_result_none() -> None:
    ids = [f"x{n:04}" for n in range(1000)]
    planned = plan(a_ledger(), a_request(batch_ids=ids))

    (entry,) = planned.delta.set_requests
    assert RequestResult.model_validate(dict(entry.result)).batch_ids == tuple(ids)
    assert planned.result.batch_ids == ()
    ledger = apply(a_ledger(), planned.delta)
    assert len(plan(ledger, an_undo()).delta.forget_batches) == 1000


def replaced_meanwhile() -> Ledger:
    return after(REVERTED, a_replay("replay", batch_ids=["A"]))


REFUSED: dict[str, tuple[Ledger, RestatementRequest, str, str]] = {
    "never carried out": (LEDGER, an_undo("no-such"), "UnknownRestatement", "ns/no-such, which was never carried out"),
    "a replay": (after(LEDGER, a_replay("replay")), an_undo("replay"), "NotUndoable", "would duplicate"),
    "an undo": (after(REVERTED, an_undo()), an_undo("undo", "undo-undo"), "NotUndoable", "is not a Revert"),
    "an erase": (
        after(LEDGER, a_request("erase", "Erase", batch_ids=["A"])),
        an_undo("erase"),
        "NotUndoable",
        "names the Erase ns/erase. An Erase cannot be undone",
    ),
    "a revert of what was erased since": (
        after(REVERTED, a_request("erase", "Erase", batch_ids=["A"])),
        an_undo(),
        "HeldByAnother",
        "ns/erase has deleted its batch 'A' as well",
    ),
    "a revert of what had been erased": (
        after(LEDGER, a_request("erase", "Erase", batch_ids=["A"]), a_request()),
        an_undo(),
        "HeldByAnother",
        "ns/erase has deleted its batch 'A' as well",
    ),
    "undone before": (after(REVERTED, an_undo()), an_undo(name="second"), "NotUndoable", "ns/undo has already undone"),
    "held by another, the first": (
        after(REVERTED, a_request("second", batch_ids=["B"])),
        an_undo(),
        "HeldByAnother",
        "ns/second has deleted its batch 'B' as well",
    ),
    "held by another, the second": (
        after(REVERTED, a_request("second", batch_ids=["B"])),
        an_undo("second"),
        "HeldByAnother",
        "ns/revert-a has deleted its batch 'B' as well",
    ),
    "replaced meanwhile": (replaced_meanwhile(), an_undo(), "AlreadyReplaced", "batch 'A' was replaced by 'A2'"),
    "purged": (vacuumed(REVERTED, a_file("A", "C")), an_undo(), "AlreadyPurged", "purged its batch 'A'"),
    "purged in part": (
        vacuumed(REVERTED, a_file("B", path="f1"), keep=[a_file("A", "C", path="f2")]),
        an_undo(),
        "AlreadyPurged",
        "purged its batch 'B', completely or partly",
    ),
    "records were erased while its batch was yet to come": (
        after(LEDGER, a_request(batch_ids=["A", "late"]), an_erase_of_rows("people")),
        an_undo(),
        "ErasedSince",
        "reverted batch 'late' before it was promoted. Restatement ns/people has erased or redacted records since",
    ),
    "purged before it was reverted a second time": (
        after(vacuumed(REVERTED, a_file("A", "C")), a_request("second", batch_ids=["A"])),
        an_undo("second"),
        "AlreadyPurged",
        "'A'",
    ),
}


@pytest.mark.parametrize(("ledger", "undo", "reason", "expected_text"), REFUSED.values(), ids=REFUSED)
def test_a_request_that_cannot_be_undone_completely_is_refused_with_the_reason(
    ledger: Ledger, undo: RestatementRequest, reason: str, expected_text: str
) -> None:
    with pytest.raises(InputError) as refused:
        plan(ledger, undo)

    assert refused.value.reason == reason
    assert expected_text in refused.value.message
    assert refused.value.message.startswith(f"Restatement {undo.name}: spec.undoes names ")
    assert len(refused.value.message.split(". ")) > 1  # what to do instead


def test_an_erase_of_records_does_not_block_an_undo_of_a_batch_that_it_has_searched() -> None:
    """Rows in the table were searched, whether or not their batch was taken back; what comes after the Erase is not its concern,
    nor is an Erase of whole batches that of what else comes."""
    searched = after(REVERTED, an_erase_of_rows("people"))
    came_later = after(LEDGER, an_erase_of_rows("people")), a_request(batch_ids=["A", "late"])
    whole = after(LEDGER, a_request(batch_ids=["A", "late"]), a_request("erase", "Erase", batch_ids=["C"]))

    undone = [after(ledger, an_undo()) for ledger in (searched, reverted_later(*came_later), whole)]

    assert [batch_states(ledger)["A"] for ledger in undone] == ["promoted"] * 3


def test_an_erase_of_records_blocks_an_undo_even_after_it_is_verified() -> None:
    """That says nothing of a batch that has not been searched."""
    reverted = after(a_ledger(), a_request(batch_ids=("to come",)))
    erased = reverted_later(reverted, an_erase_of_rows("people"))
    verified = replace(erased, erasures=tuple(replace(e, verified=True) for e in erased.erasures))

    with pytest.raises(InputError) as refused:
        plan(verified, an_undo(), LATER + timedelta(hours=1))

    assert refused.value.reason == "ErasedSince"


@pytest.mark.parametrize("seconds", [10, -10, 3600, -3600])
def test_ledger_versions_and_not_clocks_decide_whether_records_were_erased_since(
    seconds: int,
) -> None:
    """Each run has its own clock. Only what was reverted before the Erase has not been searched by it."""
    skewed = LATER + timedelta(seconds=seconds)
    late = a_request(batch_ids=["A", "late"])

    def then(ledger: Ledger, request: RestatementRequest, now: datetime) -> Ledger:
        return settled(apply(ledger, plan(ledger, request, now).delta), 150)

    erased_since = then(after(LEDGER, late), an_erase_of_rows("people"), skewed)
    erased_before = then(after(LEDGER, an_erase_of_rows("people")), late, skewed)

    with pytest.raises(InputError, match="has erased or redacted records since"):
        plan(erased_since, an_undo())
    assert batch_states(after(erased_before, an_undo()))["A"] == "promoted"


def test_the_order_of_requests_from_before_versions_were_kept_is_unknown() -> None:
    """So the Undo is refused, whatever the clocks of their runs expected_text."""
    known = after(LEDGER, an_erase_of_rows("people"), a_request(batch_ids=["A", "late"]))
    entries = [
        replace(e, result={k: v for k, v in e.result.items() if k != "ledgerVersion"}) for e in known.requests.values()
    ]

    with pytest.raises(InputError, match="has erased or redacted records since"):
        plan(replace(known, requests={e.key: e for e in entries}), an_undo())


def test_an_undo_ends_the_obligation_that_the_revert_left() -> None:
    """Its rows are to stay."""
    reverted = after(a_ledger(batches=[a_batch("A")]), a_request(evict_by_seconds=60), an_erase_of_rows("people"))

    undone = after(reverted, an_undo())

    assert [e.restatement for e in reverted.erasures] == ["ns/revert-a/0", an_erase_of_rows("people").key]
    assert [e.restatement for e in undone.erasures] == [an_erase_of_rows("people").key]


def test_a_mark_of_a_partial_vacuum_survives_whatever_else_happens_to_the_tombstone() -> None:
    ledger = vacuumed(REVERTED, a_file("B", path="f1"), keep=[a_file("A", "C", path="f2")])
    ledger = after(ledger, a_request("second", batch_ids=["B"]))

    assert ledger.tombstones[(FIELD, "B")].meta[META_PURGED_BY] == "v" * 32
    assert META_PURGED_BY not in ledger.tombstones[(FIELD, "A")].meta


INVALID = {
    "names nothing": a_request("x", "Undo", batch_ids=()),
    "names batches": a_request("x", "Undo", undoes="ns/revert-a/0"),
    "a revert that undoes": a_request("x", undoes="ns/revert-a/0"),
}


@pytest.mark.parametrize("request_", INVALID.values(), ids=INVALID)
def test_a_request_that_mixes_undo_with_something_else_is_refused(request_: RestatementRequest) -> None:
    with pytest.raises(InputError, match=r"Restatement ns/x: spec\.") as refused:
        check_request(request_)

    assert refused.value.reason == "InvalidSpec"


def test_a_refused_batch_that_was_reverted_may_be_read_again_after_the_undo() -> None:
    refused = a_batch("A", BatchState.REFUSED, rows=None, refusal="CorruptFile: x")
    ledger = after(a_ledger(batches=[refused]), a_request())

    assert plan_promotion(after(ledger, an_undo()), ["A"]) == plan_promotion(a_ledger(), ["A"])

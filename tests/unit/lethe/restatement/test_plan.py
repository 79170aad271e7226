"""A restatement takes its batches back once, never doubles rows, and is remembered for ever; a dry run says the same."""

import hashlib
import itertools
from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.base.errors import InputError
from lethe.contract.result import AffectedFiles, RequestResult
from lethe.contract.run import ConditionRef, Replacement, RestatementRequest, RowsRef
from lethe.contract.settings import Operation
from lethe.ledger.ledger import BatchEntry, BatchState, Ledger, apply
from lethe.ledger.tombstone import Erasure
from lethe.restatement import group
from lethe.restatement.group import LISTED_IDS_AT_MOST, IdList, parse_ids, plan_dry_run
from lethe.restatement.plan import (
    AlreadyDone,
    ErasedRows,
    PlanScope,
    ReplacementRows,
    Restated,
    check_request,
    plan_restatement,
    reported,
    values_digest,
)

from tests.support.builders import (
    FIELD,
    NOW,
    RUN,
    a_batch,
    a_change,
    a_file,
    a_ledger,
    a_redact,
    a_replay,
    a_request,
    a_request_entry,
    a_tombstone,
    an_erase_of_rows,
    an_object,
    an_undo,
    batch_states,
    settled,
)

ROWS = ReplacementRows(5, 50)
ROWS_REF = RowsRef(conditions=(ConditionRef(column="tailnum", values_file="/etc/lethe/values/0"),))


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


def test_two_replays_of_one_batch_cannot_both_add_their_rows() -> None:
    """A to B and A to C race; whoever comes second has to plan on the first's ledger, and is refused."""
    ledger = after(a_ledger(batches=[a_batch("A")]), a_replay("first", by="B"))

    with pytest.raises(InputError, match="already replaced by 'B'") as refused:
        plan(ledger, a_replay("second", by="C"))

    assert refused.value.reason == "AlreadyReplaced"


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
    assert batch_states(apply(ledger, planned.delta)) == {"A": "replaced", "B": "replaced", "C": "promoted"}
    assert apply(ledger, planned.delta).ids(FIELD) == {"A", "B"}


def test_a_revert_of_a_replaced_batch_leaves_its_replacement_and_its_state() -> None:
    ledger = after(a_ledger(batches=[a_batch("A")]), a_replay(), a_request("revert-late"))

    assert batch_states(ledger) == {"A": "replaced", "A2": "promoted"}
    assert ledger.batches["A"].replaced_by == "A2"


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        # The recorded objects of a refused batch are the only copy of rows never promoted.
        (a_batch("A", BatchState.REFUSED, rows=None, objects=(an_object(),), refusal="CorruptFile: x"), ((), False)),
        (a_batch("A", BatchState.HELD, rows=None, objects=(an_object(),), refusal="CheckFailed: x"), ((), False)),
        (a_batch("A", objects=(an_object(),), registered=True), ((an_object(),), True)),
        (a_batch("A", objects=(an_object(),)), ((an_object(),), False)),
    ],
    ids=["refused", "held", "registered", "promoted"],
)
def test_retention_deletes_of_a_reverted_batch_only_objects_that_were_promoted_as_copies(
    batch: BatchEntry, expected: tuple[object, bool]
) -> None:
    found = after(a_ledger(batches=[batch]), a_request()).batches["A"]

    assert (str(found.state), found.objects, found.registered) == ("reverted", *expected)


# --- approvals ------------------------------------------------------------------------------------------------------
HELD = a_batch("A", BatchState.HELD, rows=None, bytes=None, objects=(an_object(),), refusal="CheckFailed: check c")


def an_approval(*batch_ids: str, name: str = "approve-a") -> RestatementRequest:
    return a_request(name, "Approve", batch_ids=batch_ids or ("A",))


def test_an_approval_keeps_the_batch_held_and_says_whose_it_is_until_a_run_promotes_it() -> None:
    planned = plan(a_ledger(batches=[HELD]), an_approval())

    (entry,) = planned.delta.set_batches
    assert (entry.state, entry.is_approved, entry.restatement) == (BatchState.HELD, True, "ns/approve-a/0")
    assert (entry.refusal, entry.objects) == (HELD.refusal, HELD.objects)
    assert not planned.delta.add_tombstones
    assert (planned.result.operation, planned.result.rows_deleted) == (Operation.APPROVE, 0)
    assert [r.key for r in planned.delta.set_requests] == ["ns/approve-a/0"]


@pytest.mark.parametrize("state", [s for s in BatchState if s is not BatchState.HELD])
def test_only_a_held_batch_can_be_approved_and_then_none_of_the_request_is(state: BatchState) -> None:
    ledger = a_ledger(batches=[HELD, a_batch("B", state)])

    with pytest.raises(InputError, match=rf"NotHeld: Restatement ns/approve-a: batch 'B' is {state}\. Only a batch"):
        plan(ledger, an_approval("A", "B"))


def test_a_batch_that_the_ledger_does_not_know_cannot_be_approved() -> None:
    with pytest.raises(InputError, match="batch 'A' is not in the ledger"):
        plan(a_ledger(), an_approval())


@pytest.mark.parametrize(("minutes", "is_refused"), [(-60, False), (-5, True), (60, True)])
def test_a_batch_that_was_held_when_records_were_erased_cannot_be_approved(minutes: int, is_refused: bool) -> None:
    """The Erase did not wait for it: the rows would be in the table again. Five minutes may be the difference of two clocks."""
    erase = replace(a_request_entry("ns/erase/0"), time=HELD.time + timedelta(minutes=minutes))
    ledger = a_ledger(batches=[HELD], requests=[erase], erasures=(Erasure("ns/erase/0", FIELD + 1, None),))

    if is_refused:
        with pytest.raises(InputError, match="ErasedSince: Restatement ns/approve-a: batch 'A' is held since"):
            plan(ledger, an_approval())
    else:
        assert plan(ledger, an_approval()).delta.set_batches[0].is_approved


def test_an_approval_cannot_be_undone_and_the_message_says_what_to_do() -> None:
    ledger = apply(a_ledger(batches=[HELD]), plan(a_ledger(batches=[HELD]), an_approval()).delta)

    with pytest.raises(InputError, match=r"NotUndoable: .* To delete the batches, create a Revert"):
        plan(ledger, an_undo("approve-a"))


# --- redacts ----------------------------------------------------------------------------------------------------------


def test_a_redact_of_batches_leaves_them_and_owes_the_bytes_of_values() -> None:
    """Its erasure is about records: one about the batches would wait for rows that stay."""
    ledger, request = a_ledger(batches=[a_batch("A"), a_batch("B")]), a_redact("A", evict_by_seconds=60)

    planned = plan_restatement(ledger, request, PlanScope(RUN, NOW, FIELD), erased=ErasedRows(3, FIELD + 1))

    assert isinstance(planned, Restated)
    assert (planned.result.rows_redacted, planned.result.rows_erased, planned.erase_rows) == (3, 0, True)
    assert planned.delta.set_erasures == (Erasure(request.key, FIELD + 1, NOW + timedelta(seconds=60)),)
    assert (planned.delta.add_tombstones, planned.delta.set_batches) == ((), ())
    (entry,) = planned.delta.set_requests
    assert entry.result["redaction"] == {
        "columns": [{"column": "email", "method": "SetNull"}, {"column": "owner.name", "method": "KeyedHash"}],
        "hashKey": "erase-hash-2026/key",
        "batchIds": ["A"],
    }
    assert not entry.result.get("batchIds")
    told = reported(RequestResult.model_validate(dict(entry.result)))
    assert told.redaction is not None
    assert told.redaction.batch_ids == ()


@pytest.mark.parametrize(
    ("batches", "in_files", "is_refused"),
    [
        ([a_batch("A")], (), False),
        ([a_batch("A", BatchState.REVERTED)], (), False),
        ([], ("A",), False),
        ([], (), True),
        ([a_batch("A", BatchState.REFUSED)], (), True),
        ([a_batch("A", BatchState.HELD)], (), True),
    ],
    ids=["promoted", "reverted", "in files only", "unknown", "refused", "held"],
)
def test_a_redact_names_only_batches_that_are_in_the_table(
    batches: list[BatchEntry], in_files: tuple[str, ...], is_refused: bool
) -> None:
    """It would not find rows that are promoted after it."""
    if is_refused:
        with pytest.raises(InputError, match=r"UnknownBatches: .*1 of 1 batch ids are not in the table: 'A'"):
            plan(a_ledger(batches=batches), a_redact("A"), in_files)
    else:
        assert plan(a_ledger(batches=batches), a_redact("A"), in_files).erase_rows


def test_a_redact_is_never_undone_and_the_message_says_why() -> None:
    ledger = after(a_ledger(batches=[a_batch("A")]), a_redact("A"))

    with pytest.raises(InputError, match=r"NotUndoable: .* names the Redact ns/redact\. A Redact cannot be undone"):
        plan(ledger, an_undo("redact"))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"operation": "Erase"}, "requires spec.redact, and no other operation accepts it"),
        ({"redact": None}, "requires spec.redact, and no other operation accepts it"),
        ({"rows": None}, "spec.operation Redact requires either spec.batchIds or spec.rows"),
    ],
)
def test_a_redact_says_what_and_which_rows(changes: dict[str, Any], text: str) -> None:
    request = a_redact()
    with pytest.raises(InputError, match=f"InvalidSpec: .*{text}"):
        plan(a_ledger(), request.model_copy(update={**changes, **_operation(changes)}))


def _operation(changes: dict[str, Any]) -> dict[str, Any]:
    return {"operation": Operation(changes["operation"])} if "operation" in changes else {}


def test_a_replacement_that_another_tool_brought_back_after_a_rollback_is_not_added_again() -> None:
    """Its rows are there, and its request is not. Of change data it is unknown which older rows had its keys."""
    request = a_replay(by="A2")
    by_keys = request.model_copy(update={"replacement": _keyed("a")})
    ledger = a_ledger(batches=[a_batch("A"), a_batch("A2", restatement=request.key)])

    planned = plan(ledger, request)
    with pytest.raises(InputError, match="'A2' is already in the table") as refused:
        plan(ledger, by_keys)

    assert not planned.add_replacement
    assert planned.result.replacement_withheld is None
    assert batch_states(apply(ledger, planned.delta)) == {"A": "replaced", "A2": "promoted"}
    assert (by_keys.key, refused.value.reason) == (request.key, "ReplacementAlreadyPromoted")


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
    assert batch_states(apply(ledger, planned.delta)) == {"A": "promoted", "B": "promoted", "C1": "promoted"}
    assert (planned.delta.set_erasures, owed.delta.set_erasures) == (
        (),
        (Erasure(owing.key, 4, NOW + timedelta(seconds=60)),),
    )
    assert batch_states(apply(ledger, owed.delta)) == {"A": "replaced", "B": "promoted", "C1": "promoted"}


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
    assert batch_states(ledger) == {"A": "erased", "B": "promoted", "X": "erased"}
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


def test_what_is_erased_stays_erased_when_it_is_reverted_as_well() -> None:
    """And what was reverted is erased by an Erase: the stronger of the two, in whatever order."""
    batches = [a_batch("A")]

    assert batch_states(after(a_ledger(batches=batches), an_erase("A"), a_request("late"))) == {"A": "erased"}
    assert batch_states(after(a_ledger(batches=batches), a_request("early"), an_erase("A"))) == {"A": "erased"}


def test_an_erase_of_a_replaced_batch_leaves_its_replacement_and_its_state() -> None:
    """Were it forgotten that A was replaced, a second Replay of it would double its rows."""
    request = an_erase("A", evict_by_seconds=9)

    ledger = after(a_ledger(batches=[a_batch("A")]), a_replay(), request)

    assert batch_states(ledger) == {"A": "replaced", "A2": "promoted"}
    assert ledger.tombstones[(FIELD, "A")].evict_by == ledger.batches["A"].evict_by == NOW + timedelta(seconds=9)
    with pytest.raises(InputError, match="already replaced by 'A2'"):
        plan(ledger, a_replay("again", by="A3"))


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
        match=r"Restatement ns/revert-a: (only spec\.operation Erase and Redact accept|spec\.operation Erase requires)",
    ) as e:
        plan(a_ledger(), request_)

    assert e.value.reason == "InvalidSpec"


def test_a_revert_with_a_replacement_is_refused() -> None:
    with pytest.raises(InputError, match=r"Replay requires spec\.replacement"):
        check_request(a_replay().model_copy(update={"operation": Operation.REVERT}))


FILES = (a_file("A", size=1), a_file("A", nulls=1, size=10), a_file("A", "C", size=100), a_file("D", size=1000))


def dry_run_of(
    request: RestatementRequest, ledger: Ledger | None = None, in_files: tuple[str, ...] = ()
) -> RequestResult:
    known = a_ledger(batches=[a_batch(i) for i in "ABCD"]) if ledger is None else ledger
    return plan_dry_run(known, request, FILES, PlanScope(RUN, NOW, FIELD, in_files))


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
    undo = an_undo("revert-d")

    found = dry_run_of(undo, ledger)

    assert found.plan == AffectedFiles(files=1, bytes=1000, whole_files=1)
    assert (found.rows_restored, found.tombstones_removed) == (3, 1)


WHERE = "The list of batch ids in ConfigMap lists, key ids"
# Whatever a batch id may be but an end of line, and a blank at either end.
IDS = st.text(st.characters(exclude_characters="\n\r", exclude_categories=("Cs",)), min_size=1, max_size=256).filter(
    lambda text: text == text.strip()
)


def refused_list(content: bytes) -> str:
    with pytest.raises(InputError) as raised:
        parse_ids(content, WHERE)
    assert raised.value.reason == "InvalidIdList"
    return raised.value.message


@given(st.lists(IDS, min_size=1), st.sampled_from(["\n", "\r\n", "\n\n"]), st.booleans(), st.booleans())
def test_each_line_is_an_id_once_in_any_script_and_with_any_end_of_line(
    ids: list[str], end: str, ends: bool, marked: bool
) -> None:
    content = (b"\xef\xbb\xbf" if marked else b"") + (end.join(ids) + (end if ends else "")).encode()

    if marked or not ids[0].startswith("\ufeff"):
        assert parse_ids(content, WHERE) == IdList(tuple(dict.fromkeys(ids)), hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "the list contains no batch id"),
        (b"\n\r\n\n", "the list contains no batch id"),
        (b"a\nsecret\xff\n", "the list is not UTF-8 at byte 8"),
        (b"a\n\n secret", "line 3 begins or ends with a blank"),
        (b"secret\t\n", "line 1 begins or ends with a blank"),
        (b"a\n" + b"s" * 257, "line 2 has 257 characters, expected at most 256"),
    ],
)
def test_what_is_no_list_is_refused_by_its_line_and_not_quoted(content: bytes, why: str) -> None:
    """It may be another file altogether, and statuses are read by many."""
    message = refused_list(content)

    assert message.startswith(f"{WHERE}: {why}.")
    assert "secret" not in message


def test_a_list_that_is_too_long_or_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    content = "\n".join(f"batch-{n}" for n in range(LISTED_IDS_AT_MOST)).encode()

    assert len(parse_ids(content + b"\nbatch-0\n", WHERE).ids) == LISTED_IDS_AT_MOST
    assert "the list has 100001 batch ids, expected at most 100000" in refused_list(content + b"\none-more")
    monkeypatch.setattr(group, "LIST_BYTES_AT_MOST", 3)
    assert parse_ids(b"a\nb", WHERE).ids == ("a", "b")
    assert "more than 3 bytes" in refused_list(b"a\nbc")


KEY, OTHER_KEY = b"k" * 32, b"o" * 32


def an_erase_by(values: bytes = b"N1\nN2\n", key: bytes = KEY, days: int = 0) -> RestatementRequest:
    return an_erase_of_rows(digest=values_digest([values], key), creation_time=NOW + timedelta(days=days))


def planned(first: RestatementRequest, second: RestatementRequest) -> AlreadyDone | Restated:
    """The second one, on the ledger that the first one leaves."""
    done = plan_restatement(a_ledger(), first, PlanScope(RUN, NOW, 7), erased=ErasedRows(2, 8))
    assert isinstance(done, Restated)
    return plan_restatement(a_ledger(requests=done.delta.set_requests), second, PlanScope(RUN, NOW, 7))


def test_the_digest_is_of_the_set_of_lines_and_of_nothing_without_the_key() -> None:
    same = (b"a\nb\n", b"b\na", b"a\r\n\r\nb\r\na\n", b"\xef\xbb\xbfa\nb")
    other = (b"a\n", b"a\nb\nc\n", b"a \nb\n", b"ab\n")
    assert len({values_digest([v], KEY) for v in same}) == 1
    assert len({values_digest([v], k) for v, k in itertools.product((same[0], *other), (KEY, OTHER_KEY))}) == 10
    assert [values_digest([b"a\n"], key) for key in (b"", b"short")] == ["", ""]
    several = ([b"a\n", b"b\n"], [b"b\n", b"a\n"], [b"a\nb\n"], [b"a\nb\n", b""], [b"", b"a\nb\n"])
    assert len({values_digest(lists, KEY) for lists in several}) == len(several)
    assert values_digest([b"b\na\n", b"c\r\n"], KEY) == values_digest([b"a\nb\n", b"c\n\n"], KEY)


def test_an_attempt_that_is_made_again_for_the_same_object_is_not_compared() -> None:
    """It was carried out; whoever changes the Secret after that has not changed what was asked for."""
    assert isinstance(planned(an_erase_by(), an_erase_by(b"N3\n")), AlreadyDone)


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (an_erase_by(), an_erase_by(b"N3\n", days=9), "ValuesChanged"),
        (an_erase_by(), an_erase_by(key=OTHER_KEY, days=9), "ValuesNotComparable"),
        (an_erase_by(), an_erase_by(key=b"", days=9), "ValuesNotComparable"),
        (an_erase_by(key=b""), an_erase_by(days=9), "ValuesNotComparable"),
        (an_erase_by(key=b""), an_erase_by(key=b"", days=9), "ValuesNotComparable"),
    ],
)
def test_a_request_with_other_values_does_not_get_the_result(
    first: RestatementRequest, second: RestatementRequest, reason: str
) -> None:
    with pytest.raises(InputError, match=r"Nothing was (searched or )?erased") as refused:
        planned(first, second)

    assert refused.value.reason == reason
    assert "N3" not in str(refused.value)

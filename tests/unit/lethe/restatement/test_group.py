"""A group is one change, and comes to what its requests come to one after the other."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.base.errors import InputError, Verdict
from lethe.contract.result import RequestResult
from lethe.contract.run import Replacement, RestatementRequest, RowsRef
from lethe.ledger.ledger import BatchState, Delta, Ledger, apply
from lethe.restatement.group import Dependencies, GroupFindings, GroupPlan, in_order, place_of, plan_group, set_aside
from lethe.restatement.plan import AlreadyDone, ErasedRows, PlanScope, ReplacementRows, plan_restatement

from tests.support.builders import (
    FIELD,
    NOW,
    RUN,
    OnFiles,
    a_batch,
    a_change,
    a_ledger,
    a_redact,
    a_replay,
    a_request,
    ago,
    an_erase_of_rows,
    an_undo,
    on_files,
)

ROWS = ReplacementRows(5, 50)
LEDGER = a_ledger(batches=[a_batch("A"), a_batch("B"), a_batch("C")])


def plan(ledger: Ledger, *requests: RestatementRequest, aside: Mapping[str, RequestResult] | None = None) -> GroupPlan:
    written = {r.key: ROWS for r in requests if r.replacement}
    return plan_group(ledger, requests, PlanScope(RUN, NOW, FIELD), GroupFindings(written, aside or {}))


def reasons(planned: GroupPlan) -> dict[str, str]:
    return {r.name.removeprefix("ns/"): r.reason for r in planned.results.values()}


def unread(request: RestatementRequest) -> dict[str, RequestResult]:
    return {request.key: set_aside(request, Verdict("AccessDenied", "not now", transient=True))}


# --- one change -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        a_replay("bad", by="B", batch_ids=["A"]),  # is in the table
        a_replay("bad", by="A", batch_ids=["A"]),
        an_undo("nobody", "bad"),
    ],
    ids=["ReplacementAlreadyPromoted", "ReplacementIsReplaced", "UnknownRestatement"],
)
def test_one_bad_request_never_fails_its_group(bad: RestatementRequest, request: pytest.FixtureRequest) -> None:
    good = a_request("good", batch_ids=["C"])

    planned = plan(LEDGER, bad, good)

    assert reasons(planned) == {"bad": request.node.callspec.id, "good": ""}
    refused, done = planned.results[bad.key], planned.results[good.key]
    assert (refused.succeeded, refused.again, refused.group_size) == (False, False, 0)
    assert (done.succeeded, done.group_size) == (True, 1)
    assert planned.delta == plan(LEDGER, good).delta


# --- order ----------------------------------------------------------------------------------------------------------
FIRST = a_replay("first", by="B2", batch_ids=["A"])
SECOND = a_replay("second", by="C2", batch_ids=["B2"])


def test_an_undo_leaves_the_group_size_of_what_it_takes_back() -> None:
    before = apply(LEDGER, plan(LEDGER, a_request("revert"), a_request("other", batch_ids=["B"])).delta)

    after = apply(before, plan(before, an_undo("revert")).delta)

    assert {key: e.result["groupSize"] for key, e in after.requests.items()} == {
        "ns/revert/0": 2,
        "ns/other/0": 2,
        "ns/undo/0": 1,
    }


# --- kept out for now -----------------------------------------------------------------------------------------------
def test_what_builds_on_a_replacement_that_cannot_be_read_now_waits_with_it_and_the_others_go_on() -> None:
    """Carried out alone, C2 would be seen beside A, which it stands for."""
    other = a_request("other", batch_ids=["C"])
    third = a_request("third", batch_ids=["C2"])

    planned = plan(LEDGER, FIRST, SECOND, third, other, aside=unread(FIRST))

    waits = "WaitingForRestatement"
    assert reasons(planned) == {"first": "AccessDenied", "second": waits, "third": waits, "other": ""}
    assert [r.again for r in planned.results.values()].count(True) == 3
    assert "ns/second depends on Restatement ns/first" in planned.results[SECOND.key].message
    assert planned.delta == plan(LEDGER, other).delta


def test_where_native_deletes_are_written_who_takes_back_a_replacement_of_the_group_goes_after_it() -> None:
    """A native delete is of rows that are in the table; those of the replacement come with the commit."""
    third, other = a_request("third", batch_ids=["C2"]), a_request("other", batch_ids=["C"])
    requests = (FIRST, SECOND, third, other)
    written = {r.key: ROWS for r in requests if r.replacement}

    planned = plan_group(LEDGER, requests, PlanScope(RUN, NOW, FIELD), GroupFindings(written), masking=True)

    waits = "WaitingForRestatement"
    assert reasons(planned) == {"first": "", "second": waits, "third": waits, "other": ""}
    assert set(planned.carried_out) == {FIRST.key, other.key}
    assert reasons(plan(LEDGER, *requests)) == {"first": "", "second": "", "third": "", "other": ""}


def test_what_builds_on_a_replacement_that_is_refused_does_not_wait_for_it() -> None:
    """It was refused for good: as if it had never been asked for."""
    planned = plan(LEDGER, FIRST, SECOND, aside={FIRST.key: set_aside(FIRST, Verdict("UnreadableFile", "broken"))})

    assert reasons(planned) == {"first": "UnreadableFile", "second": ""}
    assert planned.delta == plan(LEDGER, SECOND).delta


def test_what_somebody_else_carried_out_meanwhile_is_not_kept_out() -> None:
    before = apply(LEDGER, plan(LEDGER, FIRST).delta)

    planned = plan(before, FIRST, SECOND, aside=unread(FIRST))

    assert reasons(planned) == {"first": "", "second": ""}


# --- one after the other --------------------------------------------------------------------------------------------
ids = st.sampled_from("ABCDE")
batch_lists = st.lists(ids, min_size=1, max_size=3)
created = st.integers(0, 3).map(lambda hours: ago(hours=hours))
names = st.sampled_from(("p", "q", "r", "s", "t"))


@st.composite
def some_requests(draw: st.DrawFn) -> RestatementRequest:
    name, at = draw(names), draw(created)
    match draw(st.sampled_from(("Revert", "Replay", "Erase", "Undo"))):
        case "Revert":
            return a_request(name, batch_ids=draw(batch_lists), creation_time=at, evict_by_seconds=draw(st.just(60)))
        case "Erase":
            return a_request(name, "Erase", batch_ids=draw(batch_lists), creation_time=at)
        case "Replay":
            return a_replay(name, by=draw(ids), batch_ids=draw(batch_lists), creation_time=at)
        case _:
            return an_undo(draw(names), name, creation_time=at)


groups = st.lists(some_requests(), max_size=5, unique_by=lambda r: r.key)
known = st.lists(
    st.builds(lambda i, state: a_batch(i, state), ids, st.sampled_from((BatchState.PROMOTED, BatchState.REFUSED))),
    max_size=3,
    unique_by=lambda b: b.id,
)


def one_by_one(ledger: Ledger, requests: Sequence[RestatementRequest]) -> tuple[Ledger, dict[str, RequestResult]]:
    """Each as a commit of its own."""
    results: dict[str, RequestResult] = {}
    for request in in_order(requests, place_of):
        try:
            planned = plan_restatement(ledger, request, PlanScope(RUN, NOW, FIELD), ROWS)
        except InputError as e:
            results[request.key] = set_aside(request, e.verdict)
            continue
        results[request.key] = planned.result
        if not isinstance(planned, AlreadyDone):
            ledger = apply(ledger, planned.delta)
    return ledger, results


def without_size(ledger: Ledger) -> Ledger:
    entries = {
        k: replace(e, result={f: v for f, v in e.result.items() if f not in ("groupSize", "ledgerVersion")})
        for k, e in ledger.requests.items()
    }
    return replace(ledger, requests=entries, version=0, pending_run="")


@given(known, groups, groups)
def test_a_group_comes_to_what_its_requests_come_to_one_after_the_other(
    batches: list[Any], earlier: list[RestatementRequest], group: list[RestatementRequest]
) -> None:
    before, _ = one_by_one(a_ledger(batches=batches), earlier)

    planned = plan(before, *group)

    wanted, results = one_by_one(before, group)
    assert without_size(apply(before, planned.delta)) == without_size(wanted)
    reported = {k: r.model_copy(update={"group_size": results[k].group_size}) for k, r in planned.results.items()}
    assert reported == results
    done = [r.group_size for k, r in planned.results.items() if r.succeeded and k not in before.requests]
    assert done == [len(done)] * len(done)


def test_the_ledger_is_asked_once_whatever_the_number_of_requests() -> None:
    """Each question to a ledger in files may be a request to the storage; what was asked for once is remembered."""
    asked: list[set[Any]] = []

    class Watched(OnFiles):
        def get_many(self, keys: Iterable[Any]) -> dict[Any, Any]:
            wanted = set(keys)
            if wanted.difference(*asked):
                asked.append(wanted)
            return super().get_many(wanted)

    before = apply(LEDGER, plan(LEDGER, a_request("revert", batch_ids=["A", "C"])).delta)
    watched = replace(
        before,
        tombstones=Watched(before.tombstones),
        batches=Watched(before.batches),
        requests=Watched(before.requests),
    )

    plan(watched, an_undo("revert"), *(a_replay(f"r{n}", by=f"b{n}", batch_ids=[f"a{n}"]) for n in range(20)))

    assert len(asked) == 3


def test_a_chain_of_a_thousand_is_one_group() -> None:
    group = [a_replay(f"r{n:04}", by=f"b{n + 1}", batch_ids=[f"b{n}"]) for n in range(1100)]

    planned = plan(on_files(LEDGER), *group)

    assert (len(planned.delta.add_tombstones), len(planned.delta.set_requests), len(planned.adds)) == (1100, 1100, 1100)


def test_erases_by_records_are_part_of_the_change_and_each_reports_its_rows() -> None:
    first, second, revert = an_erase_of_rows("first"), an_erase_of_rows("second"), a_request("revert")
    found = {first.key: ErasedRows(3, 4), second.key: ErasedRows(0, 5)}

    planned = plan_group(LEDGER, [second, revert, first], PlanScope(RUN, NOW, FIELD), GroupFindings({}, {}, found))

    assert (planned.erases, planned.adds) == ((first.key, second.key), ())
    assert {r.name: (r.rows_erased, r.group_size) for r in planned.results.values()} == {
        "ns/first": (3, 3),
        "ns/second": (0, 3),
        "ns/revert": (0, 3),
    }
    assert [(e.restatement, e.field_id) for e in planned.delta.set_erasures] == [(first.key, 4), (second.key, 5)]


def test_an_erase_by_records_goes_after_an_undo_that_lets_batches_in() -> None:
    """They may lie in the buffer, and are promoted and searched first. One that only shows rows of the table holds up nobody."""
    before = apply(LEDGER, plan(LEDGER, a_request("late", batch_ids=["X"]), a_request("there", batch_ids=["A"])).delta)
    erase, at = an_erase_of_rows(), ago(hours=1)

    waits = plan(before, an_undo("late", creation_time=at), erase)
    goes = plan(before, an_undo("there", creation_time=at), erase)

    assert (waits.carried_out, waits.erases) == (("ns/undo/0",), ())
    reported = waits.results[erase.key]
    assert (reported.again, reported.reason) == (True, "WaitingForRestatement")
    assert "rows that may be in batches that Restatement ns/undo allows to be promoted" in reported.message
    assert (goes.carried_out, goes.erases) == (("ns/undo/0", erase.key), (erase.key,))


def test_an_erase_by_records_goes_after_an_approval_of_the_same_commit() -> None:
    held = apply(LEDGER, Delta(RUN, set_batches=(a_batch("X", BatchState.HELD, time=NOW),)))
    erase = an_erase_of_rows()

    waits = plan(held, a_request("approve", "Approve", batch_ids=["X"], creation_time=ago(hours=1)), erase)

    assert (waits.carried_out, waits.erases) == (("ns/approve/0",), ())
    assert "batches that Restatement ns/approve allows to be promoted" in waits.results[erase.key].message


def test_changes_by_keys_go_after_the_replacements_before_them_and_before_an_erase() -> None:
    """Two of them are never in one commit: the younger has to find the rows of the older."""
    replay = a_replay("replay", by="A2", creation_time=ago(hours=4))
    older, younger = (
        a_change(n, by, creation_time=ago(hours=h)) for n, by, h in (("older", "C1", 3), ("young", "C2", 2))
    )
    erase = an_erase_of_rows(creation_time=ago(hours=1))

    with_erase, both = plan(LEDGER, older, erase), plan(LEDGER, older, younger)
    with_replay = plan(LEDGER, replay, older, younger)

    for planned, waiting in ((with_erase, erase), (both, younger)):
        assert (planned.adds, planned.erases) == ((older.key,), (older.key,))
        assert planned.results[waiting.key].reason == "WaitingForRestatement"
    assert "replaces rows that may be in the replacement of Restatement ns/older" in both.results[younger.key].message
    assert (with_replay.adds, with_replay.erases) == ((replay.key,), ())
    damaged = {older.key: set_aside(older, Verdict("DuplicateKey", "twice"))}
    assert plan(LEDGER, older, younger, aside=damaged).adds == (younger.key,)


def test_a_search_by_a_column_goes_after_the_redact_that_changes_it_and_others_go_with_it() -> None:
    """One pass over the files would find the rows by the old values."""
    redact = a_redact(creation_time=ago(hours=1))
    by = {
        "email": RowsRef(column="email", values_file="/v"),
        "owner": RowsRef(column="owner", values_file="/v"),
        "emails": RowsRef(column="emails", values_file="/v"),
    }
    erases = [a_request(name, "Erase", batch_ids=(), rows=rows) for name, rows in by.items()]
    change = a_change("change", replacement=Replacement(batch_id="C1", uri="s3://lake/c/", key_columns=("owner.name",)))

    planned = plan(LEDGER, redact, *erases, change, a_redact("A", name="again"))

    waiting = {"email", "owner", "change"}
    assert {r.name.removeprefix("ns/") for r in planned.results.values() if r.again} == waiting
    assert planned.erases == (redact.key, "ns/again/0", "ns/emails/0")
    assert "searches a column that Restatement ns/redact redacts" in planned.results["ns/email/0"].message


def test_a_redact_goes_after_the_replacements_before_it() -> None:
    replay = a_replay("replay", by="A2", creation_time=ago(hours=1))

    planned = plan(LEDGER, replay, a_redact())

    assert planned.carried_out == (replay.key,)
    assert "redacts rows that may be in the replacement of" in planned.results["ns/redact/0"].message


def named(*requests: RestatementRequest) -> list[str]:
    return [r.name.removeprefix("ns/") for r in in_order(requests, place_of)]


OLD = ago(hours=5)
ORDERED: dict[str, tuple[list[RestatementRequest], list[str]]] = {
    "a replacement comes before what restates it even if it is younger": (
        [
            a_replay("a-second", by="C", batch_ids=["B"], creation_time=OLD),
            a_replay("z-first", by="B", batch_ids=["A"]),
        ],
        ["z-first", "a-second"],
    ),
    "a restatement comes before its undo": ([an_undo("z", "a", creation_time=OLD), a_request("z")], ["z", "a"]),
    "then by creation, then by name": (
        [a_request("b"), a_request("a"), a_request("z", creation_time=OLD)],
        ["z", "a", "b"],
    ),
    # Only one of two can be carried out, and which one, nobody knows before: after it went, the other has to be refused
    # instead of hiding its batches under a replacement that is gone.
    "what restates a replacement that two bring comes after both": (
        [
            a_request("third", batch_ids=["X"], creation_time=OLD),
            a_replay("two", by="X", batch_ids=["B"]),
            a_replay("one", by="X"),
        ],
        ["one", "two", "third"],
    ),
    "a circle is broken at its oldest": (
        [
            a_replay("one", by="B"),
            a_replay("two", by="A", batch_ids=["B"], creation_time=ago(hours=1)),
            a_request("free", batch_ids=["Z"]),
        ],
        ["free", "two", "one"],
    ),
    "what needs itself does not wait for itself": (
        [a_replay("self", by="A"), a_request("other", batch_ids=["Z"], creation_time=ago(hours=-1))],
        ["self", "other"],
    ),
}


@pytest.mark.parametrize(("requests", "expected"), ORDERED.values(), ids=ORDERED)
def test_requests_go_in_an_order_in_which_each_finds_what_it_builds_on(
    requests: list[RestatementRequest], expected: list[str]
) -> None:
    assert named(*requests) == expected


def a_place(n: int, created: int, creates: set[int], needs: set[int]) -> Dependencies:
    return Dependencies(datetime.fromtimestamp(created, NOW.tzinfo), f"r{n}", creates, needs)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9))), max_size=8).map(
        # Bringing only what is smaller than all that is needed, so that there is no circle
        lambda drawn: [
            a_place(n, at, {b for b in creates if not needs or b > max(needs)}, needs)
            for n, (at, creates, needs) in enumerate(drawn)
        ]
    )
)
def test_each_finds_what_it_needs_and_none_waits_without_need(places: list[Dependencies]) -> None:
    ordered = in_order(places, lambda p: p)

    assert sorted(p.name for p in ordered) == sorted(p.name for p in places)
    for n, p in enumerate(ordered):
        assert not any(set(p.needs) & set(after.creates) for after in ordered[n + 1 :])
        waited = [q for q in ordered[n + 1 :] if (q.created, q.name) < (p.created, p.name)]
        assert all(any(thing in o.creates for o in ordered[n:] for thing in q.needs) for q in waited)

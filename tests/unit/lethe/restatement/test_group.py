"""A group is one change, and comes to what its requests come to one after the other."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.base.errors import InputError
from lethe.contract.result import RequestResult
from lethe.contract.run import RestatementRequest
from lethe.ledger.ledger import BatchState, Ledger, apply
from lethe.restatement.group import GroupFindings, in_order, place_of, plan_group, set_aside
from lethe.restatement.plan import AlreadyDone, PlanScope, plan_restatement

from tests.support.builders import (
    FIELD,
    NOW,
    RUN,
    OnFiles,
    a_batch,
    a_ledger,
    a_replay,
    a_request,
    ago,
    on_files,
    settled,
)
from tests.unit.lethe.restatement.grouping import LEDGER, ROWS, an_undo, plan, reasons, states, unread

# --- one change -----------------------------------------------------------------------------------------------------


def test_every_request_of_a_group_gets_its_own_result_and_all_are_one_change() -> None:
    revert, replay = a_request("revert", batch_ids=["A", "B"]), a_replay("replay", by="C2", batch_ids=["C"])

    planned = plan(LEDGER, revert, replay)

    results = [planned.results[r.key] for r in (revert, replay)]
    assert [(r.succeeded, r.rows_deleted, r.rows_added, r.group_size) for r in results] == [
        (True, 6, 0, 2),
        (True, 3, 5, 2),
    ]
    after = apply(LEDGER, planned.delta)
    assert states(after) == {"A": "reverted", "B": "reverted", "C": "replaced", "C2": "promoted"}
    assert {key: e.result["groupSize"] for key, e in after.requests.items()} == {revert.key: 2, replay.key: 2}
    assert (planned.carried_out, planned.adds) == ((replay.key, revert.key), (replay.key,))


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


def test_a_repeated_request_reports_its_first_result_and_does_not_count() -> None:
    before = settled(apply(LEDGER, plan(LEDGER, a_request("one")).delta), 99)

    planned = plan(before, a_request("one"), a_request("two", batch_ids=["B"]))

    assert [(r.snapshot_id, r.group_size) for r in planned.results.values()] == [(99, 1), (None, 1)]
    assert plan(before, a_request("one")).delta.is_empty


def test_a_request_named_twice_is_carried_out_once() -> None:
    planned = plan(LEDGER, a_request("one"), a_request("one"))

    assert planned.delta == plan(LEDGER, a_request("one")).delta


def test_ids_restated_twice_are_deleted_once_and_the_second_result_reports_it() -> None:
    first, second = a_request("first", batch_ids=["A", "X"]), a_request("second", batch_ids=["A", "B", "X"])

    planned = plan(LEDGER, first, second)

    reported = [planned.results[r.key] for r in (first, second)]
    counts = [(r.rows_deleted, r.tombstones_added, r.already_deleted_batch_ids_count) for r in reported]
    assert counts == [(6 - 3, 2, 0), (3, 1, 2)]
    assert [r.unknown_batch_ids for r in reported] == [("X",), ()]
    after = apply(LEDGER, planned.delta)
    assert after.tombstones[(FIELD, "A")].restatements == (first.key, second.key)


# --- order ----------------------------------------------------------------------------------------------------------

FIRST = a_replay("first", by="B2", batch_ids=["A"])
SECOND = a_replay("second", by="C2", batch_ids=["B2"])


@pytest.mark.parametrize("group", [(FIRST, SECOND), (SECOND, FIRST)], ids=["in order", "the other way round"])
@pytest.mark.parametrize("older", [FIRST, SECOND], ids=lambda r: f"the {r.name.removeprefix('ns/')} is older")
def test_of_a_replay_of_a_replay_only_the_last_batch_is_seen(
    group: Sequence[RestatementRequest], older: RestatementRequest
) -> None:
    """A to B2 and B2 to C2 from one `kubectl apply` are of one second; in the other order both would be seen."""
    requests = [r.model_copy(update={"creation_time": ago(hours=1)}) if r is older else r for r in group]

    planned = plan(LEDGER, *requests)

    after = apply(LEDGER, planned.delta)
    assert states(after) == {"A": "replaced", "B": "promoted", "B2": "replaced", "C": "promoted", "C2": "promoted"}
    assert after.ids(FIELD) == {"A", "B2"}
    assert planned.adds == (FIRST.key, SECOND.key)


def test_an_undo_of_a_revert_of_the_same_group_leaves_nothing_deleted() -> None:
    planned = plan(LEDGER, an_undo("revert", creation_time=ago(hours=1)), a_request("revert", batch_ids=["A", "X"]))

    after = apply(LEDGER, planned.delta)
    assert (states(after), after.ids(FIELD)) == (states(LEDGER), frozenset())
    assert after.requests["ns/revert/0"].result["undoneBy"] == "ns/undo/0"
    assert [r.result["groupSize"] for r in after.requests.values()] == [2, 2]


def test_an_undo_leaves_the_group_size_of_what_it_takes_back() -> None:
    before = apply(LEDGER, plan(LEDGER, a_request("revert"), a_request("other", batch_ids=["B"])).delta)

    after = apply(before, plan(before, an_undo("revert")).delta)

    assert {key: e.result["groupSize"] for key, e in after.requests.items()} == {
        "ns/revert/0": 2,
        "ns/other/0": 2,
        "ns/undo/0": 1,
    }


def test_of_two_replays_by_one_id_the_younger_is_refused_and_hides_nothing() -> None:
    older, younger = a_replay("older", by="X", creation_time=ago(hours=1)), a_replay("young", by="X", batch_ids=["B"])

    planned = plan(LEDGER, younger, older)

    assert reasons(planned) == {"older": "", "young": "ReplacementAlreadyPromoted"}
    assert planned.adds == (older.key,)
    assert apply(LEDGER, planned.delta).ids(FIELD) == {"A"}


def test_of_two_replays_by_one_id_the_younger_takes_the_place_of_one_that_cannot_be_used() -> None:
    older, younger = a_replay("older", by="X", creation_time=ago(hours=1)), a_replay("young", by="X", batch_ids=["B"])
    aside = {older.key: set_aside(older, InputError("UnreadableFile", "broken"))}

    planned = plan(LEDGER, younger, older, aside=aside)

    assert reasons(planned) == {"older": "UnreadableFile", "young": ""}
    assert planned.adds == (younger.key,)


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
    planned = plan(LEDGER, FIRST, SECOND, aside={FIRST.key: set_aside(FIRST, InputError("UnreadableFile", "broken"))})

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
            results[request.key] = set_aside(request, e)
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


@given(groups)
def test_a_group_is_the_same_in_whatever_order_it_is_listed(group: list[RestatementRequest]) -> None:
    assert plan(LEDGER, *group) == plan(LEDGER, *reversed(group))


def test_a_group_reads_of_the_ledger_what_its_requests_name() -> None:
    before = apply(LEDGER, plan(LEDGER, a_request("revert")).delta)

    group = an_undo("revert", creation_time=ago(hours=1)), FIRST

    planned = plan(on_files(before), *group, a_request("other", batch_ids=["A", "C", "X"]))

    assert set(reasons(planned).values()) == {""}


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


def test_a_chain_of_thousands_is_one_group() -> None:
    group = [a_replay(f"r{n:04}", by=f"b{n + 1}", batch_ids=[f"b{n}"]) for n in range(3000)]

    planned = plan(on_files(LEDGER), *group)

    assert (len(planned.delta.add_tombstones), len(planned.delta.set_requests), len(planned.adds)) == (3000, 3000, 3000)

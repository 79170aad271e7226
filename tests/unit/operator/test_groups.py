"""Which of the waiting Restatements of a Dataset make the next run, and when it starts."""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from lethe.run import RequestResult
from lethe_operator.decide import groups
from lethe_operator.decide.actions import Actions
from lethe_operator.decide.table import decide
from lethe_operator.resources.observed import AttemptState, Run
from lethe_operator.resources.restatement import Restatement

from tests.builders import NOW, a_batch, a_ledger, a_request_entry, ago
from tests.unit.operator.builders import (
    SETTINGS,
    a_buffered,
    a_consolidation,
    a_dataset,
    a_group,
    a_replay,
    a_restatement,
    a_result,
    a_run,
    a_table,
    a_world,
    an_attempt,
    condition,
)

R = [a_restatement(f"r{n}", batchIds=[f"b{n}"]) for n in range(8)]


def decided(*restatements: Restatement, runs: tuple[Run, ...] = (), **spec: Any) -> Actions:
    world = a_world(restatements=restatements, runs=runs, **spec.pop("world", {}))
    return decide(a_dataset(**spec), world, NOW, SETTINGS)


def members(actions: Actions) -> list[str]:
    """Names of those whose run starts now."""
    found = [x.run.restatement.requests for x in actions.launches if x.run.restatement]
    return [r.name.removeprefix("ns/") for requests in found for r in requests]


def came(name: str, seconds_ago: float, **changes: Any) -> Restatement:
    return a_restatement(name, meta={"creationTimestamp": ago(seconds=seconds_ago).isoformat()}, **changes)


def ended(seconds: float, *of: Restatement, state: AttemptState = AttemptState.SUCCEEDED, **changes: Any) -> Run:
    """A run that ended so many seconds ago, of a consolidation unless Restatements are named."""
    spec = a_group(*of) if of else a_consolidation(a_buffered("Z"))
    uid = of[0].meta.uid if len(of) == 1 else ""
    return a_run(spec, an_attempt(spec, state, finished_seconds=seconds, for_uid=uid, **changes))


# --- who -----------------------------------------------------------------------------------------------------------------


def test_all_that_wait_go_together_up_to_the_maximum() -> None:
    assert members(decided(*R)) == [f"r{n}" for n in range(8)]
    assert members(decided(*R, restatements={"maxPerCommit": 3})) == ["r0", "r1", "r2"]


def test_a_chain_of_replays_is_one_group_in_its_order() -> None:
    chain = (a_replay("C", "D", "first-by-name"), a_replay("A", "B", "y"), a_replay("B", "C", "z"))

    assert members(decided(*chain)) == ["y", "z", "first-by-name"]


@pytest.mark.parametrize(
    "held",
    [
        a_replay("A", "B", "a", suspend=True),
        a_replay("A", "B", "a", cancel=True),
        a_replay("A", "B", "a", dryRun=True),
    ],
    ids=["suspended", "cancelled", "not supported"],
)
def test_one_that_cannot_go_holds_back_nobody_but_what_depends_on_it(held: Restatement) -> None:
    dependent, other = a_replay("B", "C", "b"), a_replay("X", "Y", "c")

    actions = decided(held, dependent, other)

    waits = held.spec.suspend
    assert members(actions) == (["c"] if waits else ["b", "c"])
    if waits:
        assert condition(actions.restatement_statuses["b"], "Ready") == ("False", "WaitingForRestatement")


def test_what_depends_on_one_that_did_not_fit_in_waits_with_it() -> None:
    first = came("first", 9000, batchIds=["X"])
    made, dependent, other = a_replay("A", "B", "m"), a_replay("B", "C", "n"), a_restatement("o", batchIds=["Y"])

    actions = decided(first, made, dependent, other, restatements={"maxPerCommit": 1})

    assert members(actions) == ["first"]
    assert condition(actions.restatement_statuses["n"], "Ready")[1] == "WaitingForRestatement"
    assert condition(actions.restatement_statuses["o"], "Ready")[1] == "Queued"


def test_a_group_is_bounded_by_ids_by_its_document_and_by_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that is larger than any bound goes alone."""
    large = [a_restatement(f"r{n}", batchIds=[f"{n}-{i}" for i in range(100)]) for n in range(4)]
    ledger = a_ledger(batches=[a_batch(f"b{n}", bytes=60) for n in range(4)])
    replays = [a_replay(f"b{n}", f"c{n}", f"r{n}") for n in range(4)]
    read = {"consolidation": {"maxBytesPerRun": 120}, "world": {"table": a_table(ledger)}}

    assert members(decided(*replays, **read)) == ["r0", "r1"]
    monkeypatch.setattr(groups, "BATCH_IDS_AT_MOST", 299)
    assert members(decided(*large)) == ["r0", "r1"]
    monkeypatch.setattr(groups, "BATCH_IDS_AT_MOST", 99)
    assert members(decided(*large)) == ["r0"]
    monkeypatch.undo()
    monkeypatch.setattr(groups, "RUN_JSON_BYTES_AT_MOST", 3 * groups.document_bytes(large[0]))
    assert members(decided(*large)) == ["r0", "r1", "r2"]


@pytest.mark.parametrize("id", ["b", "ü", '"', "\\", "日" * 256])
def test_what_a_request_takes_of_a_document_is_rather_overrated(id: str) -> None:
    many = [f"{id}{n}"[-256:] for n in range(300)]
    for r in (a_restatement(batchIds=many, reason="x" * 1024), a_replay(id, f"{id}2", "ns-name" * 30)):
        assert len(a_group(r).restatement.to_json().encode()) <= groups.document_bytes(r)  # type: ignore[union-attr]


def test_an_undo_joins_once_what_it_takes_back_has_ended() -> None:
    undo = a_restatement("undo", operation="Undo", batchIds=[], undoes={"name": "r0"})

    assert members(decided(R[0], R[1], undo)) == ["r0", "r1"]


# --- when ----------------------------------------------------------------------------------------------------------------


def test_the_first_never_waits() -> None:
    new = came("new", 0)

    assert members(decided(new)) == ["new"]
    assert members(decided(new, runs=(ended(10),))) == ["new"]


@pytest.mark.parametrize("state", [AttemptState.SUCCEEDED, AttemptState.FAILED])
@pytest.mark.parametrize(
    ("commit_seconds_ago", "came_seconds_ago", "starts_in"),
    [
        (0, 0, 10),  # the window from the commit…
        (6, 2, 4),
        (9.5, 0, 0.5),
        (3, 6, 4),  # …or from when the oldest came…
        (3, 100, 2),  # …but other writers get their turn
        (5, 100, 0),
        (10, 0, 0),
    ],
)
def test_behind_a_commit_they_are_collected_for_the_window(
    commit_seconds_ago: float, came_seconds_ago: float, starts_in: float, state: AttemptState
) -> None:
    new, newer = came("a", came_seconds_ago), came("b", 0)
    run = ended(commit_seconds_ago, state=state, exit_code=20)

    actions = decided(new, newer, runs=(run,), world={"table": a_table(a_ledger(batches=[a_batch("Z")]))})

    assert members(actions) == ([] if starts_in else ["a", "b"])
    assert not starts_in or actions.look_again == NOW + timedelta(seconds=starts_in)


def test_a_full_group_and_a_window_of_none_wait_only_for_the_turn_of_other_writers() -> None:
    table = {"table": a_table(a_ledger(batches=[a_batch("Z")]))}
    new = (came("a", 0), came("b", 0))
    full, at_once = {"maxPerCommit": 2}, {"windowSeconds": 0}

    assert members(decided(*new, runs=(ended(4),), world=dict(table), restatements=full)) == []
    assert members(decided(*new, runs=(ended(5),), world=dict(table), restatements=full)) == ["a", "b"]
    assert members(decided(*new, runs=(ended(5),), world=dict(table), restatements=at_once)) == ["a", "b"]
    assert members(decided(*new, runs=(ended(5),), world=dict(table))) == []


def test_consolidation_does_not_take_the_turn_of_what_is_being_collected() -> None:
    table = a_table(a_ledger(batches=[a_batch("Z")]))
    world = a_world(a_buffered("A"), restatements=(came("a", 0),), runs=(ended(6),), table=table)

    actions = decide(a_dataset(consolidation={"minBatches": 1}), world, NOW, SETTINGS)

    assert actions.launches == ()
    told = actions.dataset_status["consolidation"]  # type: ignore[index]
    assert (told["decision"], told["reason"]) == ("Due", "Queued")


def test_while_a_run_is_under_way_none_starts_and_each_has_its_place() -> None:
    spec = a_group(R[0], R[1])
    run = a_run(spec, an_attempt(spec))

    actions = decided(*R[:5], runs=(run,))

    assert members(actions) == []
    phases = [actions.restatement_statuses[r.meta.name]["phase"] for r in R[:5]]
    assert phases == ["Running", "Running", "Queued", "Queued", "Queued"]
    places = [actions.restatement_statuses[r.meta.name].get("queuePosition") for r in R[:5]]
    assert places == [None, None, 1, 2, 3]


# --- after a run ---------------------------------------------------------------------------------------------------------


def test_each_member_has_the_end_that_the_run_told_of_it() -> None:
    """The ledger tells of those that were committed; the result of those that were refused."""
    refused = RequestResult(key=R[1].key, name="ns/r1", succeeded=False, reason="AlreadyReplaced", message="by X")
    done = [RequestResult(key=r.key, name=r.meta.full_name, succeeded=True, group_size=2) for r in (R[0], R[2])]
    run = ended(30, *R[:3], result=a_result(a_group(*R[:3]), requests=[done[0], refused, done[1]]))
    entries = [a_request_entry(r.key, group_size=2) for r in (R[0], R[2])]

    actions = decided(*R[:4], runs=(run,), world={"table": a_table(a_ledger(requests=entries))})

    ends = {n: (s["phase"], condition(s, "Succeeded")[0]) for n, s in actions.restatement_statuses.items()}
    assert ends == {
        "r0": ("Succeeded", "True"),
        "r1": ("Failed", "False"),
        "r2": ("Succeeded", "True"),
        "r3": ("Queued", "Unknown"),
    }
    assert condition(actions.restatement_statuses["r1"], "Stalled") == ("True", "AlreadyReplaced")
    (told,) = actions.dataset_status["runs"]  # type: ignore[index]
    assert told["message"] == "2 of 3 Restatements carried out, 0 rows deleted, 0 rows added."
    assert actions.restatement_statuses["r0"]["result"]["groupSize"] == 2
    assert members(actions) == ["r3"]


@pytest.mark.parametrize(("attempt", "pause_seconds"), [(1, 10), (2, 20), (3, 40)])
def test_one_that_the_run_kept_out_for_now_is_tried_again_after_growing_pauses(
    attempt: int, pause_seconds: float
) -> None:
    """Its replacement could not be read, say; the others of its group are done."""
    kept_out = RequestResult(
        key=R[1].key, name="ns/r1", succeeded=False, again=True, reason="StorageAway", message="It is away."
    )
    ledger = {"table": a_table(a_ledger(requests=[a_request_entry(R[0].key)]))}

    def after(seconds: float) -> Actions:
        result = a_result(a_group(*R[:2]), requests=[kept_out], attempt=attempt)
        run = ended(seconds, *R[:2], number=attempt, result=result)
        return decided(*R[:2], runs=(run,), world=dict(ledger))

    early, in_time = after(pause_seconds - 1), after(pause_seconds)

    assert (members(early), members(in_time)) == ([], ["r1"])
    assert early.look_again == NOW + timedelta(seconds=1)
    assert condition(early.restatement_statuses["r1"], "Ready") == ("False", "StorageAway")
    assert condition(early.restatement_statuses["r1"], "Succeeded")[0] == "Unknown"


def test_one_that_is_cancelled_in_a_group_does_not_stop_the_others() -> None:
    """Whether it came too late is known at the end: what the ledger then holds has succeeded."""
    cancelled = a_restatement("r0", batchIds=["b0"], cancel=True)
    spec = a_group(R[0], R[1])
    running, over = a_run(spec, an_attempt(spec)), ended(30, R[0], R[1], state=AttemptState.FAILED, exit_code=20)

    during, after = decided(cancelled, R[1], runs=(running,)), decided(cancelled, R[1], runs=(over,))
    landed = decided(
        cancelled,
        R[1],
        runs=(over,),
        world={"table": a_table(a_ledger(requests=[a_request_entry(r.key) for r in R[:2]]))},
    )

    assert during.delete_jobs == ()
    assert condition(during.restatement_statuses["r0"], "Succeeded") == ("Unknown", "Cancelling")
    assert after.restatement_statuses["r0"]["phase"] == "Cancelled"
    assert members(after) == ["r1"]
    assert landed.restatement_statuses["r0"]["phase"] == "Succeeded"


def test_those_that_a_run_failed_with_are_tried_together_again_without_what_came_since() -> None:
    failed = ended(30, *R[:3], state=AttemptState.FAILED, exit_code=None)

    first = decided(*R[:3], came("new", 15, batchIds=["n"]), runs=(failed,))
    behind = decided(*R[:3], came("old", 25, batchIds=["n"]), runs=(failed,))

    (launch,) = first.launches
    assert members(first) == ["r0", "r1", "r2"]
    assert (launch.run.run_id, launch.run.attempt) == (failed.run_id, 2)
    assert members(behind) == ["old"]  # which waits for longer than their pause is over


def test_while_they_pause_others_go() -> None:
    failed = ended(9, *R[:3], state=AttemptState.FAILED, exit_code=20)

    actions = decided(*R[:5], runs=(failed,))

    assert members(actions) == ["r3", "r4"]
    assert actions.restatement_statuses["r0"].get("queuePosition") is None
    assert condition(actions.restatement_statuses["r0"], "Ready") == ("False", "RunFailed")


def test_a_stored_intent_goes_as_it_was_stored_and_the_rest_afterwards() -> None:
    """Its Job may be there already, though nobody has seen it yet."""
    stored = a_run(a_group(*R[:3]))

    actions = decided(*R[:5], runs=(stored,))

    assert [x.run.run_id for x in actions.launches] == [stored.run_id]
    assert actions.drop_keys == ()


def test_a_stored_intent_of_a_group_that_has_changed_is_dropped() -> None:
    stored = a_run(a_group(*R[:3]))

    actions = decided(R[0], a_restatement("r1", batchIds=["b1"], suspend=True), R[2], runs=(stored,))

    assert members(actions) == ["r0", "r2"]
    assert actions.drop_keys == stored.keys


def test_what_a_group_was_told_stays_until_each_of_its_members_has_ended() -> None:
    """Who was in it is known from nothing else."""
    over = ended(30, *R[:3], state=AttemptState.FAILED, exit_code=10)
    told = decided(*R[:3], runs=(over,))
    shown = {"runs": told.dataset_status["runs"]}  # type: ignore[index]

    def left(*names: str) -> tuple[str, ...]:
        seen = [replace(r, status=told.restatement_statuses[r.meta.name]) for r in R[:3] if r.meta.name in names]
        rest = [r for r in R[:3] if r.meta.name not in names]
        return decided(*seen, *rest, runs=(over,), status=shown).drop_keys

    assert left("r0", "r1") == ()
    assert left("r0", "r1", "r2") == over.keys


def test_a_member_that_was_created_anew_starts_anew() -> None:
    failed = ended(30, *R[:2], state=AttemptState.FAILED, exit_code=10)
    again = came("r0", 5, batchIds=["b0"])

    actions = decided(again, R[1], runs=(failed,))

    assert again.key == R[0].key
    assert members(actions) == ["r0"]
    assert actions.restatement_statuses["r1"]["phase"] == "Failed"


# --- what is written of thousands ----------------------------------------------------------------------------------------


def seen(actions: Actions, restatements: Sequence[Restatement]) -> list[Restatement]:
    """As they are once what was decided is written."""
    return [replace(r, status=actions.restatement_statuses.get(r.meta.name, r.status)) for r in restatements]


def test_a_place_in_the_queue_is_told_again_when_it_has_halved() -> None:
    many = [a_restatement(f"r{n:03}", batchIds=[f"b{n}"]) for n in range(100)]
    spec = a_group(a_restatement("other"))
    run = a_run(spec, an_attempt(spec))
    many = seen(decided(*many, runs=(run,)), many)

    def told_after(gone: int) -> dict[str, int]:
        statuses = decided(*many[gone:], runs=(run,)).restatement_statuses
        return {name: s["queuePosition"] for name, s in statuses.items()}

    assert told_after(0) == {}
    assert told_after(1) == {"r001": 1}
    assert told_after(10) == {f"r{n:03}": n - 9 for n in range(10, 20)}


def test_those_that_merely_wait_are_told_so_bit_by_bit_and_whoever_has_ended_at_once() -> None:
    many = [a_restatement(f"r{n:03}", batchIds=[f"b{n}"]) for n in range(900)]
    ledger = {"table": a_table(a_ledger(requests=[a_request_entry(r.key, group_size=300) for r in many[600:]]))}
    spec = a_group(*many[:10])
    run = a_run(spec, an_attempt(spec))
    rounds: list[int] = []
    while rounds[-1:] != [0]:
        actions = decided(*many, runs=(run,), world=dict(ledger))
        rounds.append(len(actions.restatement_statuses))
        many = seen(actions, many)
        assert actions.look_again == (NOW + timedelta(seconds=5) if len(rounds) < 3 else None)

    assert rounds == [200 + 300, 200, 200, 0]


def test_an_event_for_each_member_is_posted_for_small_groups_only() -> None:
    def told(size: int) -> list[str]:
        ledger = a_ledger(requests=[a_request_entry(r.key, group_size=size) for r in R[:2]])
        return [e.reason for e in decided(*R[:2], world={"table": a_table(ledger)}).events if e.kind == "Restatement"]

    assert told(20) == ["Succeeded", "Succeeded"]
    assert told(21) == []


def test_what_happened_to_very_many_at_once_is_told_by_events_of_some_of_them() -> None:
    many = [a_restatement(f"r{n:03}", batchIds=[f"b{n}"]) for n in range(300)]
    failed = ended(30, *many, state=AttemptState.FAILED, exit_code=10)

    actions = decided(*many, runs=(failed,))

    assert len(actions.restatement_statuses) == 300
    assert len([e for e in actions.events if e.kind == "Restatement"]) == 100


def test_thousands_are_queued_in_time_that_grows_with_them() -> None:
    """Looking through the others for each of them took minutes."""
    many = [a_replay(f"b{n}", f"c{n}", f"r{n:05}") for n in range(5000)]
    spec = a_group(*many[:2500])
    world = a_world(restatements=tuple(many), runs=(a_run(spec, an_attempt(spec)),))
    began = time.process_time()

    actions = decide(a_dataset(), world, NOW, SETTINGS)

    assert actions.launches == ()
    assert time.process_time() - began < 10

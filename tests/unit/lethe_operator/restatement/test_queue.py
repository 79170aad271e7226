"""Which of the waiting Restatements of a Dataset make the next run, and when it starts."""

from datetime import timedelta
from typing import Any

import pytest
from lethe.buffer.layout import BufferedBatch
from lethe_operator.resources.observed import AttemptState, ObservedRun
from lethe_operator.resources.restatement import Restatement
from lethe_operator.restatement import queue

from tests.support.builders import NOW, a_batch, a_ledger
from tests.support.resources import (
    SETTINGS,
    a_buffered,
    a_dataset,
    a_group,
    a_replay,
    a_restatement,
    a_run,
    a_table,
    a_world,
    an_attempt,
    condition,
)
from tests.support.statuses import decide
from tests.unit.lethe_operator.queueing import R, came, decided, ended, members

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
        a_restatement("a", operation="Replay", replacement={"batchId": "B", "uri": "s3://lake/buffer/flights/B/"}),
    ],
    ids=["suspended", "cancelled", "refused"],
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


def test_one_that_replaces_rows_by_keys_waits_until_what_others_bring_is_committed() -> None:
    """In its turn: nobody behind it goes before it. What comes after it may go with it."""

    def bringing(name: str, seconds_ago: float, **more: Any) -> Restatement:
        replacement = {"batchId": name, "uri": f"s3://lake/{name}/", **more}
        return came(name, seconds_ago, operation="Replay", batchIds=["X"], replacement=replacement)

    revert, first, second = (
        came("revert", 90),
        bringing("c1", 70, keyColumns=["v"]),
        bringing("c2", 40, keyColumns=["v"]),
    )
    older, replay, younger = bringing("older", 80), bringing("between", 50), bringing("younger", 20)

    assert members(decided(revert, first, replay, second, younger)) == ["revert", "c1", "between"]
    assert members(decided(second, younger)) == ["c2", "younger"]
    assert members(decided(older, first, younger)) == ["older"]


def test_a_group_is_bounded_by_ids_by_its_document_and_by_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that is larger than any bound goes alone."""
    large = [a_restatement(f"r{n}", batchIds=[f"{n}-{i}" for i in range(100)]) for n in range(4)]
    ledger = a_ledger(batches=[a_batch(f"b{n}", bytes=60) for n in range(4)])
    replays = [a_replay(f"b{n}", f"c{n}", f"r{n}") for n in range(4)]
    read = {"consolidation": {"maxBytesPerRun": 120}, "world": {"table": a_table(ledger)}}

    assert members(decided(*replays, **read)) == ["r0", "r1"]
    monkeypatch.setattr(queue, "BATCH_IDS_AT_MOST", 299)
    assert members(decided(*large)) == ["r0", "r1"]
    monkeypatch.setattr(queue, "BATCH_IDS_AT_MOST", 99)
    assert members(decided(*large)) == ["r0"]
    monkeypatch.undo()
    monkeypatch.setattr(queue, "RUN_JSON_BYTES_AT_MOST", 3 * queue.document_bytes(large[0]))
    assert members(decided(*large)) == ["r0", "r1", "r2"]


@pytest.mark.parametrize("id", ["b", "ü", '"', "\\", "日" * 256])
def test_what_a_request_takes_of_a_document_is_rather_overrated(id: str) -> None:
    many = [f"{id}{n}"[-256:] for n in range(300)]
    rows = {"column": id * 99, "valuesFrom": {"secretKeyRef": {"name": "s" * 253, "key": "k" * 253}}}
    erase = a_restatement("ns-name" * 30, operation="Erase", batchIds=[], rows=rows)
    for r in (a_restatement(batchIds=many, reason="x" * 1024), a_replay(id, f"{id}2", "ns-name" * 30), erase):
        assert len(a_group(r).restatement.to_json().encode()) <= queue.document_bytes(r)  # type: ignore[union-attr]


def test_an_undo_joins_once_what_it_takes_back_has_ended() -> None:
    undo = a_restatement("undo", operation="Undo", batchIds=[], undoes={"name": "r0"})

    assert members(decided(R[0], R[1], undo)) == ["r0", "r1"]


WINDOW = {"windowSeconds": 10}


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

    table = {"table": a_table(a_ledger(batches=[a_batch("Z")]))}
    actions = decided(new, newer, runs=(run,), world=table, restatements=WINDOW)

    assert members(actions) == ([] if starts_in else ["a", "b"])
    assert not starts_in or actions.look_again == NOW + timedelta(seconds=starts_in)


def test_a_full_group_and_a_window_of_none_wait_only_for_the_turn_of_other_writers() -> None:
    table = {"table": a_table(a_ledger(batches=[a_batch("Z")]))}
    new = (came("a", 0), came("b", 0))
    full, at_once = {**WINDOW, "maxPerCommit": 2}, {"windowSeconds": 0}

    assert members(decided(*new, runs=(ended(4),), world=dict(table), restatements=full)) == []
    assert members(decided(*new, runs=(ended(5),), world=dict(table), restatements=full)) == ["a", "b"]
    assert members(decided(*new, runs=(ended(5),), world=dict(table), restatements=at_once)) == ["a", "b"]
    assert members(decided(*new, runs=(ended(5),), world=dict(table), restatements=WINDOW)) == []


def test_consolidation_does_not_take_the_turn_of_what_is_being_collected() -> None:
    table = a_table(a_ledger(batches=[a_batch("Z")]))
    world = a_world(a_buffered("A"), restatements=(came("a", 0),), runs=(ended(6),), table=table)

    actions = decide(a_dataset(consolidation={"minBatches": 1}, restatements=WINDOW), world, NOW, SETTINGS)

    assert actions.launches == ()
    told = actions.dataset_status["consolidation"]  # type: ignore[index]
    assert (told["decision"], told["reason"]) == ("Due", "Queued")


def test_restatements_that_never_end_go_before_the_same_batches_once() -> None:
    """While Replays come faster than they are carried out, the buffer would fill up for as long as they do."""
    table = a_table(a_ledger(batches=[a_batch("Z")]))
    before, during = a_buffered("A", age_seconds=100), a_buffered("A", age_seconds=30)
    restatement = ended(6, a_restatement("other"), ago_seconds=60)
    consolidation = ended(6, ago_seconds=50)

    def starts(batch: BufferedBatch, *runs: ObservedRun, came_seconds_ago: float = 40) -> list[str]:
        world = a_world(batch, restatements=(came("a", came_seconds_ago),), runs=runs, table=table)
        return [x.run.family for x in decide(a_dataset(consolidation={"minBatches": 1}), world, NOW, SETTINGS).launches]

    assert starts(before, restatement) == ["Consolidation"]
    assert starts(before, restatement, came_seconds_ago=0) == [
        "Consolidation"
    ]  # nor for those that are being collected
    assert starts(during, restatement) == ["Restatement"]
    assert starts(before, restatement, consolidation) == ["Restatement"]
    assert starts(before) == ["Restatement"]


def test_while_a_run_is_under_way_none_starts_and_each_has_its_place() -> None:
    spec = a_group(R[0], R[1])
    run = a_run(spec, an_attempt(spec))

    actions = decided(*R[:5], runs=(run,))

    assert members(actions) == []
    phases = [actions.restatement_statuses[r.meta.name]["phase"] for r in R[:5]]
    assert phases == ["Running", "Running", "Queued", "Queued", "Queued"]
    places = [actions.restatement_statuses[r.meta.name].get("queuePosition") for r in R[:5]]
    assert places == [None, None, 1, 2, 3]

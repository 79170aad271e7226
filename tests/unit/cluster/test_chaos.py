"""A run of chaos: its plan follows from its seed, what is not settled yet is told, and its report counts it all."""

from itertools import islice, permutations
from typing import Any

import pytest

from tests.cluster.chaos.plan import (
    SETUP,
    Act,
    Step,
    all_erased_marks,
    faults,
    may_be_purged,
    steps,
)
from tests.cluster.chaos.settled import WARM_DRIVER, unsettled
from tests.model.acts import Append, Erase, EraseRows, Revert, Undo, Vacuum
from tests.model.model import Model
from tests.model.rows import mark_of

SEEDS = range(3)
STEPS = 60
REVERT = Revert(("a000",))


def carried_out(*acts: Act) -> Model:
    model = Model(SETUP)
    for act in acts:
        model.carry_out(act)
    return model


def acts_of(seed: int, dataset: int = 0) -> list[Act]:
    return [act for step in islice(steps(seed, dataset), STEPS) for act in step]


def test_a_seed_gives_one_plan() -> None:
    assert list(islice(steps(7, 0), STEPS)) == list(islice(steps(7, 0), STEPS))
    assert list(islice(faults(7), STEPS)) == list(islice(faults(7), STEPS))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_model_carries_out_each_act(seed: int) -> None:
    """So no Restatement may be refused, except an Undo of purged rows, which this model does not know of."""
    model = Model(SETUP)
    for act in acts_of(seed):
        expected = model.foresee(act)
        model.carry_out(act)

        assert not expected.refusals
        assert expected.commits or isinstance(act, Vacuum)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_acts_of_a_step_may_come_in_any_order(seed: int) -> None:
    before: list[Act] = []
    for step in islice(steps(seed, 0), STEPS // 3):
        ends = [carried_out(*before, *order) for order in permutations(step)]
        before += step

        assert all(end.visible == ends[0].visible for end in ends)
        assert all(all_erased_marks(end) == all_erased_marks(ends[0]) for end in ends)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_row_that_is_erased_is_visible(seed: int) -> None:
    model = carried_out(*acts_of(seed))

    assert all_erased_marks(model)
    assert not all_erased_marks(model) & {mark_of(row) for row in model.visible}


@pytest.mark.parametrize("purges", [Vacuum(), Erase(("a001",)), EraseRows(("a001~1",))])
def test_an_undo_may_be_refused_only_once_a_vacuum_may_have_run(purges: Act) -> None:
    first: Step = (Append(("a000", "a001")), REVERT)

    assert not may_be_purged(Undo(REVERT), first)
    assert may_be_purged(Undo(REVERT), (*first, purges))
    assert not may_be_purged(Append(("a002",)), (*first, purges))


def conditions(**statuses: str) -> list[dict[str, str]]:
    return [{"type": kind, "status": status, "reason": "R"} for kind, status in statuses.items()]


def a_dataset(**status: Any) -> dict[str, Any]:
    settled = {"observedGeneration": 2, "conditions": conditions(Ready="True", Stalled="False")}
    return {"metadata": {"name": "d", "generation": 2}, "status": settled | status}


def a_restatement(operation: str = "Revert", **statuses: str) -> dict[str, Any]:
    wanted = {"Succeeded": "True", "Ready": "True", "Stalled": "False"} | statuses
    return {
        "metadata": {"name": "r"},
        "spec": {"operation": operation},
        "status": {"conditions": conditions(**wanted)},
    }


def a_job(name: str, *ends: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"conditions": conditions(**dict.fromkeys(ends, "True"))}}


def test_all_is_settled() -> None:
    dataset = a_dataset(
        runs=[{"name": "run", "finishTime": "2024-01-01T00:00:00Z"}],
        buffer={"batches": 0},
        erasures={"open": 0},
        vacuum={"decision": "Later"},
    )
    requests = [a_restatement(), a_restatement("Erase", Erased="True")]

    assert unsettled([dataset], requests, [a_job("one", "Complete"), a_job("two", "Failed")], ()) == []


NOT_READY, STALLED = (conditions(Ready="False", Stalled="False"), conditions(Ready="True", Stalled="True"))


@pytest.mark.parametrize(
    ("datasets", "restatements", "jobs", "said"),
    [
        ([a_dataset(observedGeneration=1)], [], [], "its last edit is not observed"),
        ([a_dataset(conditions=NOT_READY)], [], [], "Ready=False"),
        ([a_dataset(conditions=STALLED)], [], [], "Stalled=True"),
        ([a_dataset(runs=[{"name": "run", "phase": "Writing"}])], [], [], "run run is active (Writing)"),
        ([a_dataset(buffer={"batches": 2})], [], [], "2 batches wait"),
        ([a_dataset(erasures={"open": 1})], [], [], "1 erasures are open"),
        ([a_dataset(vacuum={"decision": "Running", "reason": "R"})], [], [], "vacuum Running"),
        ([], [a_restatement(Succeeded="Unknown")], [], "Succeeded=Unknown"),
        ([], [a_restatement(Stalled="True")], [], "Stalled=True"),
        ([], [a_restatement("Erase")], [], "Erased=None"),
        ([], [a_restatement("Erase", Erased="False")], [], "Erased=False"),
        ([], [], [a_job("one"), a_job(WARM_DRIVER)], "Job one is active"),
    ],
)
def test_what_is_not_settled_is_named(datasets: list[Any], restatements: list[Any], jobs: list[Any], said: str) -> None:
    (end,) = unsettled(datasets, restatements, jobs, ())

    assert (said in end.text, end.held) == (True, False)


def test_an_erasure_that_something_blocks_is_held() -> None:
    restatement = a_restatement("Erase")
    blocked = {"type": "Erased", "status": "False", "reason": "ErasureBlocked"}
    restatement["status"]["conditions"].append(blocked)
    datasets = [a_dataset(erasures={"open": 2, "blocked": 2}), a_dataset(erasures={"open": 2, "blocked": 1})]

    assert [end.held for end in unsettled(datasets, [restatement], [], ())] == [True, False, True]


def test_a_restatement_that_was_refused_is_settled() -> None:
    assert unsettled([], [a_restatement(Succeeded="False")], [], {"r"}) == []

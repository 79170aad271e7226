"""The plan of a run of chaos follows from its seed, and its acts are ones that Lethe has to carry out."""

from collections import Counter
from itertools import islice, permutations

import pytest

from tests.cluster.chaos.acts import FaultKind, Put, Step, Undo
from tests.cluster.chaos.model import Model
from tests.cluster.chaos.plan import WEIGHTS, faults, steps
from tests.model.rows import mark_of, marks_in

SEEDS = range(20)
STEPS = 60


def played(*some: Step) -> Model:
    model = Model()
    for step in some:
        model.announce(step)
        for act in step:
            model.carry_out(act)
    return model


def test_a_seed_gives_one_plan() -> None:
    assert list(islice(steps(7, 0), STEPS)) == list(islice(steps(7, 0), STEPS))
    assert list(islice(faults(7), STEPS)) == list(islice(faults(7), STEPS))


def test_datasets_and_seeds_have_plans_of_their_own() -> None:
    plans = [tuple(islice(steps(seed, dataset), STEPS)) for seed in (1, 2) for dataset in (0, 1)]

    assert len(set(plans)) == 4


def test_each_kind_of_act_comes() -> None:
    acts = Counter(type(act) for seed in SEEDS for step in islice(steps(seed, 0), STEPS) for act in step)

    assert set(acts) == set(WEIGHTS)


def test_each_round_of_faults_has_each_kind_once() -> None:
    two_rounds = list(islice(faults(3), 2 * len(FaultKind)))

    assert {f.kind for f in two_rounds[: len(FaultKind)]} == set(FaultKind)
    assert {f.kind for f in two_rounds[len(FaultKind) :]} == set(FaultKind)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_acts_of_a_step_may_come_in_any_order(seed: int) -> None:
    before: list[Step] = []
    for step in islice(steps(seed, 0), STEPS):
        ends = [played(*before, order) for order in permutations(step)]
        before.append(step)

        assert all(end.rows == ends[0].rows and end.erased == ends[0].erased for end in ends)


@pytest.mark.parametrize("seed", SEEDS)
def test_names_and_batches_are_used_once(seed: int) -> None:
    acts = [act for step in islice(steps(seed, 3), STEPS) for act in step]
    names = [act.name for act in acts if not isinstance(act, Put) and hasattr(act, "name")]
    batches = [act.batch.id for act in acts if isinstance(act, Put)]

    assert len(names) == len(set(names))
    assert len(batches) == len(set(batches))
    assert all(marks_in(mark_of((batch, 1, 1)).encode()) == {f"{batch}~1"} for batch in batches)


@pytest.mark.parametrize("seed", SEEDS)
def test_only_a_revert_is_undone_and_only_once(seed: int) -> None:
    undone = [a.of for step in islice(steps(seed, 0), STEPS) for a in step if isinstance(a, Undo)]

    assert len(undone) == len(set(undone))

"""The plan of a run of chaos follows from its seed, and its acts are ones that Lethe has to carry out."""

from collections import Counter
from itertools import islice, permutations

import pytest

from tests.cluster.chaos.plan import (
    SETUP,
    WEIGHTS,
    Act,
    FaultKind,
    Step,
    all_erased_marks,
    faults,
    may_be_purged,
    steps,
)
from tests.model.acts import Append, Erase, EraseRows, Replay, Revert, Undo, Vacuum, request_name
from tests.model.model import Model
from tests.model.rows import mark_of, marks_in

SEEDS = range(6)
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


def test_datasets_and_seeds_have_plans_of_their_own() -> None:
    plans = [tuple(islice(steps(seed, dataset), STEPS)) for seed in (1, 2) for dataset in (0, 1)]

    assert len(set(plans)) == 4


def test_each_kind_of_act_comes() -> None:
    acts = Counter(type(act) for seed in SEEDS for act in acts_of(seed))

    assert set(acts) == set(WEIGHTS)


def test_each_round_of_faults_has_each_kind_once() -> None:
    two_rounds = list(islice(faults(3), 2 * len(FaultKind)))

    assert {f.kind for f in two_rounds[: len(FaultKind)]} == set(FaultKind)
    assert {f.kind for f in two_rounds[len(FaultKind) :]} == set(FaultKind)


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
def test_names_and_batches_are_used_once(seed: int) -> None:
    acts = acts_of(seed, dataset=3)
    names = [request_name(act) for act in acts if not isinstance(act, Append | Vacuum)]
    batches = [i for act in acts if isinstance(act, Append) for i in act.ids]
    batches += [act.by for act in acts if isinstance(act, Replay)]

    assert len(names) == len(set(names))
    assert len(batches) == len(set(batches))
    marks = [mark_of(row) for i in batches for row in SETUP.replacement_of(i)]
    assert marks_in("\n".join(marks).encode()) == set(marks)


def test_tables_have_rows_of_their_own() -> None:
    ids = [{i for act in acts_of(1, n) if isinstance(act, Append) for i in act.ids} for n in range(2)]

    assert not ids[0] & ids[1]


@pytest.mark.parametrize("seed", SEEDS)
def test_only_a_revert_is_undone_and_only_once(seed: int) -> None:
    undone = [act.of for act in acts_of(seed) if isinstance(act, Undo)]

    assert len(undone) == len(set(undone))
    assert all(isinstance(request, Revert) for request in undone)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_row_that_is_erased_is_visible(seed: int) -> None:
    model = carried_out(*acts_of(seed))

    assert all_erased_marks(model)
    assert not all_erased_marks(model) & {mark_of(row) for row in model.visible}


def test_erased_are_the_rows_of_erased_batches_and_the_erased_records() -> None:
    a, b = SETUP.rows_of("a000"), SETUP.rows_of("a001")
    record = mark_of(min(b))

    model = carried_out(Append(("a000", "a001")), EraseRows((record,)), Erase(("a000",)))

    assert all_erased_marks(model) == {record, *map(mark_of, a)}


@pytest.mark.parametrize("purges", [Vacuum(), Erase(("a001",)), EraseRows(("a001~1",))])
def test_an_undo_may_be_refused_only_once_a_vacuum_may_have_run(purges: Act) -> None:
    first: Step = (Append(("a000", "a001")), REVERT)

    assert not may_be_purged(Undo(REVERT), first)
    assert may_be_purged(Undo(REVERT), (*first, purges))
    assert not may_be_purged(Append(("a002",)), (*first, purges))

"""Which runs are remembered, and for how long: their Jobs, what they were told, what they answered."""

from dataclasses import replace
from typing import Any

from lethe_operator.resources.observed import AttemptState, Unavailable

from tests.support.resources import (
    a_consolidation,
    a_dataset,
    a_restatement,
    a_restatement_run,
    a_run,
    a_vacuum,
    a_world,
    an_attempt,
)
from tests.unit.lethe_operator.deciding import EAGER, A, decided


def old_runs(count: int) -> tuple[Any, ...]:
    runs = []
    for n in range(count):
        spec = a_vacuum(str(n))
        done = an_attempt(spec, AttemptState.SUCCEEDED, ago_seconds=1000 * (n + 1), finished_seconds=900 * (n + 1))
        runs.append(a_run(spec, done))
    return tuple(runs)


def test_the_last_three_of_a_kind_stay() -> None:
    runs = old_runs(5)

    actions = decided(a_world(runs=runs))

    assert {r.attempts[0].job for r in runs[3:]} == set(actions.delete_jobs)
    assert {k for r in runs[3:] for k in r.keys} == set(actions.drop_keys)
    assert [r.attempts[0].job for r in runs[:3]] == [e["name"] for e in actions.dataset_status["runs"]]  # type: ignore[index]


def test_what_a_shown_run_was_told_goes_and_its_answer_stays() -> None:
    (run,) = old_runs(1)
    run = replace(run, keys=("x.executor.yaml", "x.progress.json", "x.result.json", "x.run.json"))
    shown = {"runs": [{"name": run.attempts[0].job, "kind": "Vacuum", "phase": "Succeeded"}]}

    actions = decided(a_world(runs=(run,)), a_dataset(status=shown, **EAGER))

    assert (actions.delete_jobs, actions.drop_keys) == ((), ("x.executor.yaml", "x.run.json"))


def test_the_jobs_of_a_restatement_stay_until_its_end_is_written() -> None:
    restatements = [a_restatement(f"r{n}") for n in range(5)]
    runs = tuple(
        a_run(
            a_restatement_run(r),
            an_attempt(a_restatement_run(r), AttemptState.FAILED, exit_code=10, for_uid=r.meta.uid),
        )
        for r in restatements
    )

    assert decided(a_world(restatements=tuple(restatements), runs=runs)).delete_jobs == ()


def test_of_many_attempts_the_jobs_of_the_last_three_stay() -> None:
    spec = a_consolidation(A)
    attempts = [an_attempt(spec, AttemptState.FAILED, number=n, exit_code=20, ago_seconds=100 - n) for n in range(1, 7)]
    shown = {"runs": [{"name": a.job, "kind": "Consolidation", "phase": "Failed"} for a in attempts]}

    actions = decided(a_world(A, runs=(a_run(spec, *attempts),)), a_dataset(status=shown, **EAGER))

    assert [a.job for a in attempts[:3]] == list(actions.delete_jobs)


def test_the_intent_of_a_restatement_that_is_gone_is_dropped() -> None:
    run = a_run(a_restatement_run(a_restatement()))

    assert run.keys == decided(a_world(runs=(run,))).drop_keys
    assert decided(a_world(runs=(run,), restatements=(a_restatement(),))).drop_keys == ()
    assert decided(a_world(runs=(run,), table=Unavailable("StorageUnavailable", "away"))).drop_keys == ()

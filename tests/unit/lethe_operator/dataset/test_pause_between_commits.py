"""Runs that commit do not follow on each other's heels, since other writers of the table want to commit as well."""

import pytest
from lethe.contract.run import RunSpec
from lethe.contract.settings import RunKind
from lethe_operator.actions import Actions
from lethe_operator.resources.observed import AttemptState
from lethe_operator.resources.restatement import Restatement

from tests.support.builders import a_batch, a_ledger, ago
from tests.support.resources import (
    a_buffered,
    a_consolidation,
    a_policy,
    a_restatement,
    a_restatement_run,
    a_run,
    a_table,
    a_world,
    an_attempt,
)
from tests.unit.lethe_operator.deciding import A, decided, kinds

ENDED = [
    pytest.param(a_consolidation(a_buffered("Z")), AttemptState.SUCCEEDED, id="batches"),
    pytest.param(a_restatement_run(a_restatement("other")), AttemptState.SUCCEEDED, id="another Restatement"),
    pytest.param(
        a_restatement_run(a_restatement("other")), AttemptState.FAILED, id="a failure, which may have committed"
    ),
]


@pytest.mark.parametrize(("spec", "state"), ENDED)
@pytest.mark.parametrize("waiting", [(), (a_restatement(),)], ids=["batches wait", "a Restatement waits"])
def test_between_two_runs_that_commit_other_writers_get_a_turn(
    spec: RunSpec, state: AttemptState, waiting: tuple[Restatement, ...]
) -> None:
    """Work that waits for ever, and runs that start at once, would starve a writer that tries a few times only."""

    def after(seconds: float) -> Actions:
        done = a_run(spec, an_attempt(spec, state, exit_code=10, finished_seconds=seconds), intent=False)
        ledger = a_ledger(batches=[a_batch("Z")])
        return decided(a_world(A, restatements=waiting, runs=(done,), table=a_table(ledger)))

    early, in_time = after(4), after(5)

    assert (kinds(early), ago(seconds=-1)) == ([], early.look_again)
    assert kinds(in_time) == [RunKind.RESTATEMENT if waiting else RunKind.CONSOLIDATION]
    told = early.dataset_status["consolidation"]  # type: ignore[index]
    assert (told["decision"], told["reason"], told["nextTime"]) == (
        "Due",
        "PauseBetweenCommits",
        "2026-03-01T12:00:01Z",
    )


@pytest.mark.parametrize(("ends_in", "starts"), [(30, False), (3600, True)])
def test_a_run_that_ended_in_the_future_holds_nothing_up(ends_in: int, starts: bool) -> None:
    """A clock was an hour ahead, and was put right. Clocks that differ by seconds are usual."""
    spec = a_consolidation(a_buffered("Z"))
    done = a_run(spec, an_attempt(spec, AttemptState.SUCCEEDED, finished_seconds=-ends_in), intent=False)
    table = a_table(a_ledger(batches=[a_batch("Z")]))

    consolidating = decided(a_world(A, runs=(done,), table=table))
    restating = decided(a_world(A, restatements=(a_restatement(),), runs=(done,), table=table))

    assert kinds(consolidating) == ([RunKind.CONSOLIDATION] if starts else [])
    assert kinds(restating) == ([RunKind.RESTATEMENT] if starts else [])


def test_a_vacuum_and_what_has_nothing_to_do_know_no_pause() -> None:
    spec = a_consolidation(a_buffered("Z"))
    done = a_run(spec, an_attempt(spec, AttemptState.SUCCEEDED, finished_seconds=1))
    table = a_table(a_ledger(*"ABCD", batches=[a_batch("Z")]))

    assert kinds(decided(a_world(runs=(done,), table=table, policies=(a_policy(),)))) == [RunKind.VACUUM]
    assert decided(a_world(runs=(done,), table=table)).look_again is None

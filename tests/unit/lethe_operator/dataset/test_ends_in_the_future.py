"""A process whose clock is ahead says that its run ended in the future: nothing waits until then."""

from datetime import timedelta

from lethe_operator.resources.observed import AttemptState, Engine

from tests.support.builders import NOW, a_ledger, a_run_result
from tests.support.resources import (
    SETTINGS,
    a_buffered,
    a_consolidation,
    a_dataset,
    a_policy,
    a_run,
    a_table,
    a_vacuum,
    a_world,
    an_attempt,
)
from tests.support.statuses import decide
from tests.unit.lethe_operator.vacuuming import a_plan

MONTH = 30 * 86_400
MANUAL = a_policy(approval="Manual")


def test_a_failed_run_is_retried_as_after_any_other_failure() -> None:
    batch = a_buffered()
    run = a_consolidation(batch)
    failed = an_attempt(
        run, AttemptState.FAILED, ago_seconds=900, finished_seconds=-MONTH, exit_code=20, engine=Engine.WARM_DRIVER
    )

    actions = decide(a_dataset(), a_world(batch, runs=(a_run(run, failed),)), NOW, SETTINGS)

    assert [(x.run.run_id, x.run.attempt) for x in actions.launches] == [(run.run_id, 2)]


def test_the_next_plan_of_a_vacuum_is_shown() -> None:
    first, second = a_vacuum(plan_only=True), a_vacuum(plan_only=True).model_copy(update={"run_id": "2" * 32})
    ahead, later = (
        a_run(
            run,
            an_attempt(
                run,
                AttemptState.SUCCEEDED,
                ago_seconds=seconds,
                finished_seconds=ended,
                result=a_run_result(run.kind, "Planned", run_id=run.run_id, plan=a_plan(digest)),
            ),
        )
        for run, seconds, ended, digest in ((first, 3600, -MONTH, "d1"), (second, 1800, 1700, "d2"))
    )
    table = a_table(a_ledger("A", "B", "C", "D"))
    seen = decide(a_dataset(), a_world(table=table, policies=(MANUAL,), runs=(ahead,)), NOW, SETTINGS).dataset_status
    assert seen is not None
    assert seen["vacuum"]["plan"]["digest"] == "d1"

    now = NOW + timedelta(minutes=1)
    world = a_world(table=table, policies=(MANUAL,), runs=(ahead, later))
    told = decide(a_dataset(status=seen), world, now, SETTINGS).dataset_status

    assert told is not None
    assert told["vacuum"]["plan"]["digest"] == "d2"

"""Small runs go to the warm driver of the namespace. What fails there, does not fit, or waits for too long, a Job carries out."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from lethe.contract.kubernetes import GIB, MIB
from lethe.contract.result import WARM_DRIVER_LIMIT
from lethe.contract.run import RunSpec
from lethe_operator.actions import Actions
from lethe_operator.reasons import Reason
from lethe_operator.resources.observed import AttemptState, Engine, ObservedRun, WorkerView
from lethe_operator.runs.retry import failure
from lethe_operator.runs.spec import ENDS_WITHIN, NEXT_DRIVER, STARTS_WITHIN
from lethe_operator.settings import WarmDriverSettings

from tests.support.builders import NOW, a_batch, a_ledger
from tests.support.resources import (
    SETTINGS,
    a_buffered,
    a_consolidation,
    a_dataset,
    a_group,
    a_policy,
    a_replay,
    a_restatement,
    a_result,
    a_run,
    a_table,
    a_world,
    an_attempt,
)
from tests.support.statuses import decide

ALIVE = WorkerView(alive=True, starting=True)
GONE = WorkerView(alive=False)
LATER = NOW + timedelta(minutes=5)
WARM = replace(SETTINGS, warm_drivers=WarmDriverSettings(enabled=True))
REPLAY = a_replay("A", "A2", "replay")
EAGER = a_dataset(consolidation={"minBatches": 1})


def decided(*restatements: Any, runs: tuple[ObservedRun, ...] = (), dataset: Any = None, **world: Any) -> Actions:
    wanted = {"warm_driver": ALIVE, "table": a_table(a_ledger(batches=[a_batch("A", bytes=10 * MIB)])), **world}
    buffered = wanted.pop("buffered", ())
    return decide(dataset or a_dataset(), a_world(*buffered, restatements=restatements, runs=runs, **wanted), NOW, WARM)


def engines(actions: Actions) -> list[Engine]:
    return [x.engine for x in actions.launches]


def given(spec: RunSpec, state: AttemptState = AttemptState.ACTIVE, **changes: Any) -> ObservedRun:
    return a_run(spec, an_attempt(spec, state, engine=Engine.WARM_DRIVER, **changes))


def key(spec: RunSpec) -> str:
    return spec.run_id[:12]


# --- which runs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world", "engine"),
    [
        ({}, Engine.WARM_DRIVER),
        ({"warm_driver": GONE}, Engine.WARM_DRIVER),
        ({"warm_driver": None}, Engine.JOB),
        ({"warm_driver": replace(GONE, away_until=LATER)}, Engine.JOB),
        ({"warm_driver": replace(ALIVE, mailbox=frozenset("12345678"))}, Engine.JOB),
        ({"warm_driver": replace(ALIVE, mailbox=frozenset("1234567"))}, Engine.WARM_DRIVER),
        ({"table": a_table(a_ledger(batches=[a_batch("A", bytes=257 * MIB)]))}, Engine.JOB),
    ],
    ids=["small", "it is started", "disabled", "it makes way", "full mailbox", "room in the mailbox", "large"],
)
def test_a_small_replay_goes_to_the_warm_driver(world: dict[str, Any], engine: Engine) -> None:
    assert engines(decided(REPLAY, **world)) == [engine]


@pytest.mark.parametrize(
    ("template", "engine"),
    [
        ({"driver": {"cpu": "500m", "memory": "2Gi"}}, Engine.WARM_DRIVER),
        ({"driver": {"memory": "3Gi"}}, Engine.JOB),
        ({"driver": {"cpu": 2}}, Engine.JOB),
        ({"driver": {"scratch": "20Gi"}}, Engine.JOB),
        ({"executors": {"min": 1}}, Engine.JOB),
        ({"podTemplate": {"spec": {"nodeSelector": {"disk": "ssd"}}}}, Engine.JOB),
    ],
)
def test_a_dataset_that_asks_for_more_than_the_warm_driver_has_gets_jobs(template: Any, engine: Engine) -> None:
    assert engines(decided(REPLAY, dataset=a_dataset(runTemplate=template))) == [engine]


IN_SECRET = {"secretKeyRef": {"name": "erase-1", "key": "values"}}
BY_VALUES = {"column": "name", "valuesFrom": IN_SECRET}
BY_HASH = {
    "columns": [{"column": "name", "method": "KeyedHash"}],
    "hashKeyFrom": {"secretKeyRef": {"name": "erase-hash", "key": "key"}},
}


@pytest.mark.parametrize(
    ("spec", "view", "engine"),
    [
        ({"operation": "Erase", "batchIds": (), "rows": BY_VALUES}, ALIVE, Engine.VALUES_DRIVER),
        ({"operation": "Erase", "batchIds": (), "rows": BY_VALUES}, GONE, Engine.VALUES_DRIVER),
        ({"operation": "Erase", "batchIds": (), "rows": BY_VALUES}, None, Engine.JOB),
        (
            {"operation": "Erase", "batchIds": (), "rows": BY_VALUES},
            replace(ALIVE, mailbox=frozenset("12345678")),
            Engine.JOB,
        ),
        (
            {"operation": "Erase", "batchIds": (), "rows": {**BY_VALUES, "valuesFrom": {"uri": "s3://lake/x/list"}}},
            ALIVE,
            Engine.VALUES_DRIVER,
        ),
        ({"operation": "Redact", "batchIds": ["A"], "redact": BY_HASH}, ALIVE, Engine.VALUES_DRIVER),
    ],
    ids=["alive", "it is started", "disabled", "full mailbox", "values at a URI", "key of hashes"],
)
def test_runs_with_values_go_to_a_warm_driver_of_their_own(
    spec: dict[str, Any], view: WorkerView | None, engine: Engine
) -> None:
    (launch,) = decided(a_restatement("e", **spec), values_driver=view).launches

    assert launch.engine is engine


def test_the_values_driver_is_started_with_the_secrets_of_the_runs_that_wait_for_it() -> None:
    erase = a_restatement("e", operation="Erase", batchIds=(), rows=BY_VALUES)
    (launch,) = decided(erase, values_driver=GONE).launches
    attempt = replace(
        an_attempt(launch.run, AttemptState.ACTIVE, engine=Engine.VALUES_DRIVER, ago_seconds=5, for_uid=launch.for_uid),
        secrets=launch.secrets,
    )
    runs = (a_run(launch.run, attempt),)

    gone, busy = (decided(erase, runs=runs, values_driver=view) for view in (GONE, ALIVE))

    assert gone.start_warm_drivers == {Engine.VALUES_DRIVER: launch.secrets}
    assert busy.start_warm_drivers == {}
    # It ends if it lacks the Secrets of the run, which then needs another one.
    assert busy.look_again is not None
    assert busy.look_again <= NOW + NEXT_DRIVER


def test_only_the_restatements_of_one_request_share_a_file_with_values() -> None:
    request = {"ownerReferences": [{"kind": "Restatement", "controller": True, "name": "all", "uid": "uid-all"}]}
    again = {"ownerReferences": [{"kind": "Restatement", "controller": True, "name": "all", "uid": "uid-again"}]}

    def file_of(name: str, **meta: Any) -> str:
        made = a_restatement(name, operation="Erase", batchIds=(), rows=BY_VALUES, meta=meta)
        (secret,) = made.secrets.values()
        return secret.file

    assert file_of("a", **request) == file_of("b", **request)
    assert len({file_of("a", **request), file_of("a", **again), file_of("a"), file_of("b")}) == 4


@pytest.mark.parametrize(("whole", "engine"), [(10 * MIB, Engine.WARM_DRIVER), (GIB, Engine.JOB)])
def test_a_replay_by_keys_is_as_large_as_the_table_that_it_searches(whole: int, engine: Engine) -> None:
    replacement = {"batchId": "A2", "uri": "s3://lake/x/A2", "keyColumns": ["id"]}
    keyed = a_restatement("keyed", operation="Replay", batchIds=["A"], replacement=replacement)
    table = a_table(a_ledger(batches=[a_batch("A", bytes=MIB)]), total_bytes=whole)

    assert engines(decided(keyed, table=table)) == [engine]


@pytest.mark.parametrize(("size", "engine"), [(MIB, Engine.WARM_DRIVER), (GIB, Engine.JOB)])
def test_consolidations_go_by_the_bytes_of_their_batches(size: int, engine: Engine) -> None:
    assert engines(decided(dataset=EAGER, buffered=[a_buffered("Z", size=size)])) == [engine]


@pytest.mark.parametrize(
    ("whole", "limits", "engine"),
    [(10 * MIB, {}, Engine.WARM_DRIVER), (GIB, {}, Engine.JOB), (10 * MIB, {"concurrentRuns": 1}, Engine.JOB)],
    ids=["small", "large", "takes one of the policy's places, which count Jobs"],
)
def test_vacuums_go_by_what_they_read(whole: int, limits: dict[str, int], engine: Engine) -> None:
    dataset = a_dataset(meta={"labels": {"app": "air"}, "annotations": {"lethe.dev/vacuum-now": "1"}})
    policy = a_policy(limits=limits) if limits else a_policy()
    ledger = a_ledger("A", batches=[a_batch("A")])

    actions = decided(dataset=dataset, policies=(policy,), table=a_table(ledger, total_bytes=whole))

    assert [x.engine for x in actions.launches if x.run.vacuum is not None] == [engine]


# --- what fails there -------------------------------------------------------------------------------------------------


def test_a_run_that_failed_there_is_retried_at_once_as_a_job() -> None:
    spec = a_group(REPLAY)
    result = a_result(spec, outcome="Failed", reason="WarmDriverEnded", message="It ended.")
    failed = given(spec, AttemptState.FAILED, for_uid=REPLAY.meta.uid, exit_code=20, result=result)

    (launch,) = decided(REPLAY, runs=(failed,)).launches

    assert (launch.engine, launch.run.run_id, launch.run.attempt) == (Engine.JOB, spec.run_id, 2)


def test_after_a_failed_consolidation_the_next_one_is_a_job_although_it_has_other_batches() -> None:
    spec = a_consolidation(a_buffered("Y"))
    failed = given(spec, AttemptState.FAILED, finished_seconds=3600)
    done = a_run(spec, an_attempt(spec, AttemptState.SUCCEEDED, number=2, finished_seconds=1800))
    buffered = [a_buffered("Z", size=MIB)]

    first = decided(dataset=EAGER, buffered=buffered, runs=(failed,))
    later = decided(
        dataset=EAGER, buffered=buffered, runs=(replace(failed, attempts=(*failed.attempts, *done.attempts)),)
    )

    assert (engines(first), engines(later)) == ([Engine.JOB], [Engine.WARM_DRIVER])


def test_after_one_that_needed_too_much_the_next_ones_are_jobs_also_when_a_job_has_carried_it_out() -> None:
    spec = a_consolidation(a_buffered("Y"))
    result = a_result(spec, outcome="Failed", reason=WARM_DRIVER_LIMIT, message="It used 9 GiB.")
    stopped = given(spec, AttemptState.FAILED, finished_seconds=3600, result=result)
    done = a_run(spec, an_attempt(spec, AttemptState.SUCCEEDED, number=2, finished_seconds=1800))
    both = replace(stopped, attempts=(*stopped.attempts, *done.attempts))

    assert engines(decided(dataset=EAGER, buffered=[a_buffered("Z", size=MIB)], runs=(both,))) == [Engine.JOB]
    assert [x.engine for x in decided(REPLAY, runs=(both,)).launches] == [Engine.WARM_DRIVER]


def test_an_attempt_without_a_result_has_failed_when_the_warm_driver_is_gone() -> None:
    spec = a_group(REPLAY)
    (attempt,) = given(spec, AttemptState.FAILED).attempts

    assert failure(attempt).reason == Reason.WARM_DRIVER_AWAY


# --- its runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "ago_seconds", "start", "withdrawn"),
    [
        (ALIVE, 600, False, False),
        (GONE, 5, True, False),
        (replace(GONE, starting=True), 5, False, False),
        (replace(GONE, starting=True), STARTS_WITHIN.total_seconds(), False, True),
        (GONE, STARTS_WITHIN.total_seconds(), False, True),
        (replace(GONE, away_until=LATER), 5, False, False),
        (replace(GONE, away_until=LATER), ENDS_WITHIN.total_seconds(), False, True),
        (replace(ALIVE, away_until=LATER), ENDS_WITHIN.total_seconds(), False, False),
    ],
    ids=[
        "alive",
        "ended",
        "starts",
        "does not start",
        "ended, too late",
        "makes way",
        "made way",
        "is to make way, and has a run",
    ],
)
def test_it_is_started_for_runs_that_wait_and_jobs_take_over_if_it_does_not_start(
    view: WorkerView, ago_seconds: float, start: bool, withdrawn: bool
) -> None:
    spec = a_group(REPLAY)
    waiting = given(spec, ago_seconds=ago_seconds, for_uid=REPLAY.meta.uid)
    view = replace(view, mailbox=frozenset({key(spec)}))

    actions = decided(REPLAY, runs=(waiting,), warm_driver=view)

    assert actions.start_warm_drivers == ({Engine.WARM_DRIVER: ()} if start else {})
    assert (bool(actions.withdraw), actions.launches) == (withdrawn, ())
    if not view.alive and not withdrawn:
        assert actions.look_again is not None
        assert actions.look_again <= NOW + STARTS_WITHIN - timedelta(seconds=ago_seconds)


def test_an_entry_that_a_crash_prevented_is_written_again() -> None:
    spec = a_group(REPLAY)
    waiting = given(spec, for_uid=REPLAY.meta.uid)

    assert decided(REPLAY, runs=(waiting,)).remind == waiting.attempts
    assert decided(REPLAY, runs=(waiting,), warm_driver=replace(ALIVE, mailbox=frozenset({key(spec)}))).remind == ()


def test_a_cancelled_restatement_stops_its_run_once() -> None:
    cancelled = a_replay("A", "A2", "replay", cancel=True)
    spec = a_group(cancelled)
    going = given(spec, for_uid=cancelled.meta.uid)
    view = replace(ALIVE, mailbox=frozenset({key(spec)}))

    first = decided(cancelled, runs=(going,), warm_driver=view)
    later = decided(cancelled, runs=(going,), warm_driver=replace(view, cancelled=view.mailbox))

    assert (first.cancel, later.cancel) == (going.attempts, ())
    assert first.restatement_statuses["replay"]["phase"] == "Running"


def test_no_other_run_that_commits_starts_beside_it() -> None:
    spec = a_group(REPLAY)
    going = given(spec, for_uid=REPLAY.meta.uid)
    view = replace(ALIVE, mailbox=frozenset({key(spec)}))

    assert decided(REPLAY, buffered=[a_buffered("Z")], runs=(going,), warm_driver=view).launches == ()

"""Small sets of files in Register mode are registered by the committer of the namespace, and otherwise by a Job."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from lethe.base.objects import BufferedObject
from lethe.buffer.digest import BufferDigest
from lethe.buffer.layout import BufferedBatch
from lethe.buffer.promotion import FILES_AT_MOST, OBJECTS_AT_MOST
from lethe.contract.run import RunSpec
from lethe_operator.actions import Actions
from lethe_operator.resources.observed import AttemptState, Engine, Observation, ObservedRun, WorkerView
from lethe_operator.runs.spec import AGAIN_AFTER

from tests.support.builders import NOW
from tests.support.resources import (
    SETTINGS,
    a_buffered,
    a_consolidation,
    a_dataset,
    a_replay,
    a_restatement,
    a_restatement_run,
    a_run,
    a_table,
    a_world,
    an_attempt,
)
from tests.support.statuses import decide

REGISTERS = {"consolidation": {"mode": "Register"}}
ALIVE = WorkerView(alive=True)
DUE = a_buffered("A", age_seconds=10_000)


def decided(world: Observation, **spec: Any) -> Actions:
    return decide(a_dataset(**{**REGISTERS, **spec}), world, NOW, SETTINGS)


def waiting(*batches: BufferedBatch, **changes: Any) -> Observation:
    return a_world(*(batches or (DUE,)), **{"committer": ALIVE, **changes})


def engines(actions: Actions) -> list[tuple[str, Engine]]:
    return [(x.run.family.value, x.engine) for x in actions.launches]


def of_files(count: int) -> BufferedBatch:
    objects = (BufferedObject(f"{DUE.folder}/part-{n}.parquet", 10, "e") for n in range(count))
    return replace(DUE, objects=(*objects, BufferedObject(f"{DUE.folder}/_SUCCESS", 0, "s")))


def asked(spec: RunSpec, state: AttemptState = AttemptState.ACTIVE, **changes: Any) -> ObservedRun:
    return a_run(spec, an_attempt(spec, state, engine=Engine.COMMITTER, **changes))


@pytest.mark.parametrize("files", [1, FILES_AT_MOST])
def test_a_small_set_goes_to_the_committer(files: int) -> None:
    assert engines(decided(waiting(of_files(files)))) == [("Consolidation", Engine.COMMITTER)]


@pytest.mark.parametrize(
    ("world", "spec"),
    [
        (waiting(), {"consolidation": {"mode": "Rewrite"}}),
        (waiting(committer=None), {}),
        (waiting(committer=WorkerView(alive=False)), {}),
        (waiting(table=a_table(claim=None)), {}),
        (waiting(table=a_table(prepared=False)), {}),
        (waiting(of_files(FILES_AT_MOST + 1)), {}),
        (waiting(), {"runTemplate": {"podTemplate": {"spec": {"nodeSelector": {"disk": "fast"}}}}}),
    ],
    ids=[
        "it writes data",
        "no committer",
        "away",
        "a table that nobody has claimed",
        "a table that is not prepared",
        "many files",
        "a pod of its own",
    ],
)
def test_other_consolidations_go_to_a_job(world: Observation, spec: dict[str, Any]) -> None:
    assert engines(decided(world, **spec)) == [("Consolidation", Engine.JOB)]


@pytest.mark.parametrize(("more", "engine"), [(0, Engine.COMMITTER), (1, Engine.JOB)])
def test_a_buffer_that_takes_long_to_list_is_left_to_a_job(more: int, engine: Engine) -> None:
    """Registered files stay in the buffer, and each run lists them."""
    world = waiting()
    assert isinstance(world.buffer, BufferDigest)
    world = replace(world, buffer=replace(world.buffer, objects=OBJECTS_AT_MOST + more))

    assert engines(decided(world)) == [("Consolidation", engine)]


@pytest.mark.parametrize(("late", "engine"), [(-1, Engine.JOB), (1, Engine.COMMITTER)])
def test_after_a_failure_it_is_left_alone_for_a_while(late: int, engine: Engine) -> None:
    """Its credentials may not allow it to read the buffer: then each run would be tried in vain."""
    before = a_consolidation(a_buffered("before"), dataset=a_dataset(**REGISTERS))
    ago = AGAIN_AFTER + timedelta(seconds=late)
    failed = asked(before, AttemptState.FAILED, exit_code=20, ago_seconds=ago.total_seconds())
    ended = an_attempt(before, AttemptState.SUCCEEDED, number=2, finished_seconds=60)
    run = replace(failed, attempts=(*failed.attempts, ended), intent=None)

    assert engines(decided(waiting(runs=(run,)))) == [("Consolidation", engine)]


def test_a_stored_intent_without_an_attempt_goes_to_the_committer() -> None:
    """The operator crashed after it had stored it."""
    spec = a_consolidation(DUE, dataset=a_dataset(**REGISTERS))

    assert engines(decided(waiting(runs=(a_run(spec),)))) == [("Consolidation", Engine.COMMITTER)]


def test_no_job_commits_while_the_committer_registers_and_reverts_wait_for_it() -> None:
    """As beside a consolidation by a Job; entries of a Dataset are carried out one after the other."""
    spec = a_consolidation(DUE, dataset=a_dataset(**REGISTERS))
    restatements = (a_restatement("revert", batchIds=["C"]), a_replay("X", "Y", "replay"))

    actions = decided(waiting(restatements=restatements, runs=(asked(spec),)))

    assert actions.launches == ()


def test_a_set_waits_for_a_job_that_commits() -> None:
    """As a consolidation by a Job does."""
    replay = a_replay("X", "Y", "replay")
    spec = a_restatement_run(replay)

    actions = decided(waiting(restatements=(replay,), runs=(a_run(spec, an_attempt(spec)),)))

    assert actions.launches == ()

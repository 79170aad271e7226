"""Completes a launch that was decided: with what the decision saw, where it happens, and what it may use. Pure."""

from dataclasses import replace

from lethe_operator.decide.actions import Launch
from lethe_operator.decide.runs.failures import counted
from lethe_operator.resources.observed import LostLedger, TableView, World
from lethe_operator.settings import Settings


def seeing(world: World, launch: Launch) -> Launch:
    """With the table and the head that this decision is based on. The run checks that the table is still the same and was not
    rolled back."""
    view = world.table
    if isinstance(view, LostLedger):
        return replace(launch, run=launch.run.model_copy(update={"seen_table_uuid": view.uuid}))
    if not isinstance(view, TableView):
        return launch
    seen = {
        "seen_table_uuid": view.uuid,
        "seen_snapshot_id": view.head_id,
        "seen_sequence_number": view.head_sequence_number,
    }
    return replace(launch, run=launch.run.model_copy(update=seen))


def in_cluster(launch: Launch, cluster: str) -> Launch:
    """With the id of the cluster, for the claim of the buffer."""
    of = launch.run.dataset.model_copy(update={"cluster": cluster})
    return replace(launch, run=launch.run.model_copy(update={"dataset": of}))


def after_failures(world: World, launch: Launch) -> Launch:
    """With the failures of earlier attempts, which the Job records."""
    before = next((r.attempts for r in world.runs if r.run_id == launch.run.run_id), ())
    return replace(launch, failures=counted(before, launch.generation, launch.for_uid))


def within_boundary(launch: Launch, settings: Settings) -> Launch:
    """With the current boundary, also for an intent that was stored under another one."""
    boundary = settings.boundaries.of(launch.run.dataset.namespace).of_runs
    return replace(launch, run=launch.run.model_copy(update={"boundary": boundary}))

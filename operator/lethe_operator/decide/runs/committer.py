"""Decides which runs the committer of the namespace carries out, and which runs a Job must take over. Pure."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from lethe.buffer.digest import BufferDigest
from lethe.buffer.small_sets import FILES_AT_MOST, OBJECTS_AT_MOST
from lethe.contract.run import RunKind, RunSpec
from lethe.contract.settings import ConsolidationMode

from lethe_operator.resources.common import KEY_PREFIX_LENGTH
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.engine import Engine
from lethe_operator.resources.observed import Attempt, AttemptState, ObservedRun, TableView, World
from lethe_operator.resources.restatement import Restatement

# After the committer has failed at a consolidation, Jobs carry out those of the Dataset for this time: its credentials may not
# allow it to read the buffer.
AGAIN_AFTER: Final = timedelta(minutes=10)


def may_ask(dataset: Dataset, world: World) -> bool:
    """Whether the committer is alive and can change this table. A run must have claimed and prepared the table before, and the
    format version must be at least 2."""
    committer, view = world.committer, world.table
    if committer is None or not committer.alive or not isinstance(view, TableView):
        return False
    return view.claim == dataset.meta.full_name and view.prepared and view.format_version >= 2


def can_do(restatement: Restatement, dataset: Dataset, run: ObservedRun | None) -> bool:
    """Whether the committer may carry out a Restatement: it changes metadata only, and the committer did not fail at it last.
    Native deletes name rows of data files, which only Spark can find.

    Args:
        run: The latest run that it was a member of; None: there was none.
    """
    spec = restatement.spec
    if not spec.operation.is_metadata_only or dataset.spec.deletes.native is not None:
        return False
    return not (spec.rows or spec.dry_run or restatement.list_uri or committer_failed(run))


def may_register(dataset: Dataset, world: World, run: RunSpec, now: datetime) -> bool:
    """Whether the committer may carry out a consolidation: it registers few files, from a buffer with few objects, and the
    committer did not fail at a consolidation of the Dataset lately. A Job makes further attempts. A pod template of the Dataset
    may hold credentials for the buffer, which only its own pods have."""
    spec, buffer = run.consolidation, world.buffer
    if (
        run.attempt > 1
        or spec is None
        or spec.mode is not ConsolidationMode.REGISTER
        or not isinstance(buffer, BufferDigest)
    ):
        return False
    if not may_ask(dataset, world) or dataset.spec.run_template.pod_template or _failed_since(world, now - AGAIN_AFTER):
        return False
    files = {b.id: b.files for b in buffer.oldest}
    if buffer.objects > OBJECTS_AT_MOST or not files.keys() >= set(spec.batch_ids):
        return False
    return sum(files[i] for i in spec.batch_ids) <= FILES_AT_MOST


def _failed_since(world: World, time: datetime) -> bool:
    """Whether the committer failed at a consolidation that it received after this time."""
    asked = (a for r in world.runs for a in r.attempts if a.engine is Engine.COMMITTER)
    return any(a.kind is RunKind.CONSOLIDATION and a.state is AttemptState.FAILED and a.created >= time for a in asked)


def committer_failed(run: ObservedRun | None) -> bool:
    """Whether the last attempt of the run was by the committer and failed. Then a Job makes the next attempt."""
    last = run.last if run is not None else None
    return last is not None and last.engine is Engine.COMMITTER and last.state is AttemptState.FAILED


def is_asked(world: World) -> bool:
    return any(True for _ in _under_way(world))


def forgotten(world: World) -> tuple[Attempt, ...]:
    """The active attempts whose entry the mailbox lacks, because the operator crashed before it wrote the entry."""
    committer = world.committer
    if committer is None or not committer.alive:
        return ()
    return tuple(a for a in _under_way(world) if a.run_id[:KEY_PREFIX_LENGTH] not in committer.mailbox)


def withdrawn(world: World) -> tuple[Attempt, ...]:
    """Attempts to remove from the mailbox because the committer is not alive. Another attempt may start only after that."""
    committer = world.committer
    if committer is None or committer.alive:
        return ()
    return tuple(a for a in _under_way(world) if a.run_id[:KEY_PREFIX_LENGTH] in committer.mailbox)


def _under_way(world: World) -> Iterable[Attempt]:
    return (
        a for r in world.runs for a in r.attempts if a.engine is Engine.COMMITTER and a.state is AttemptState.ACTIVE
    )

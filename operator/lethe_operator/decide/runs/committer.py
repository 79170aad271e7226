"""Decides which runs the committer of the namespace carries out, and which runs a Job must take over. Pure."""

from collections.abc import Iterable

from lethe_operator.resources.common import KEY_PREFIX_LENGTH
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.engine import Engine
from lethe_operator.resources.observed import Attempt, AttemptState, ObservedRun, TableView, World
from lethe_operator.resources.restatement import Restatement


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

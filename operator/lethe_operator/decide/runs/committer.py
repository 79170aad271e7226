"""What the committer of the namespace is asked for, and when somebody else has to do it. Pure."""

from collections.abc import Iterable
from typing import Final

from lethe.contract.run import Deletes

from lethe_operator.resources.common import KEY_PREFIX_LENGTH
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Attempt, AttemptState, ObservedRun, TableView, World
from lethe_operator.resources.restatement import Restatement

# Values of spec.deletes. Iceberg's own deletes name rows of data files, which only Spark finds.
WITHOUT_SPARK: Final[frozenset[Deletes]] = frozenset({"Ledger"})


def may_ask(dataset: Dataset, world: World) -> bool:
    """Whether it is there, and can change this table: one that is there, and that a run has claimed and prepared before."""
    committer, view = world.committer, world.table
    if committer is None or not committer.alive or not isinstance(view, TableView):
        return False
    return view.claim == dataset.meta.full_name and view.prepared and view.format_version >= 2


def can_do(restatement: Restatement, dataset: Dataset, run: ObservedRun | None) -> bool:
    """Whether it may carry this out: that changes metadata alone, and it has not failed at it. `run`: the latest one for it."""
    spec = restatement.spec
    if not spec.operation.is_metadata_only or dataset.spec.deletes not in WITHOUT_SPARK:
        return False
    return not (spec.rows or spec.dry_run or restatement.list_uri or committer_failed(run))


def committer_failed(run: ObservedRun | None) -> bool:
    """Whether it has tried this run last, and failed: then a Job tries."""
    last = run.last if run is not None else None
    return last is not None and last.by_committer and last.state is AttemptState.FAILED


def is_asked(world: World) -> bool:
    return any(True for _ in _under_way(world))


def forgotten(world: World) -> tuple[Attempt, ...]:
    """What it is to be asked for once more: a crash of ours has kept it out of the mailbox."""
    committer = world.committer
    if committer is None or not committer.alive:
        return ()
    return tuple(a for a in _under_way(world) if a.run_id[:KEY_PREFIX_LENGTH] not in committer.mailbox)


def withdrawn(world: World) -> tuple[str, ...]:
    """Keys of its mailbox to be taken out, since it is away: only then another attempt may start."""
    committer = world.committer
    if committer is None or committer.alive:
        return ()
    return tuple(sorted({a.run_id[:KEY_PREFIX_LENGTH] for a in _under_way(world)} & committer.mailbox))


def _under_way(world: World) -> Iterable[Attempt]:
    return (a for r in world.runs for a in r.attempts if a.by_committer and a.state is AttemptState.ACTIVE)

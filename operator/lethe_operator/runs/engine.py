"""Decides which runs the committer of the namespace carries out, and which runs a Job must take over. Pure.

Decides which runs the warm driver of the namespace carries out, when it starts, and which runs a Job takes over. Pure.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, assert_never

from lethe.buffer.digest import BufferDigest
from lethe.buffer.promotion import FILES_AT_MOST, OBJECTS_AT_MOST
from lethe.contract.dataset import PodSize, RunTemplate
from lethe.contract.run import RunKind, RunSpec
from lethe.contract.settings import ConsolidationMode, Launcher

from lethe_operator.actions import Launch, earliest
from lethe_operator.resources.common import KEY_PREFIX_LENGTH
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Attempt, AttemptState, Engine, Observation, ObservedRun, TableView
from lethe_operator.resources.restatement import Restatement
from lethe_operator.settings import Settings, WarmDriverSettings

# After the committer has failed at a consolidation, Jobs carry out those of the Dataset for this time: its credentials may not
# allow it to read the buffer.
AGAIN_AFTER: Final = timedelta(minutes=10)


def may_ask(dataset: Dataset, world: Observation) -> bool:
    """Whether the committer is alive and can change this table.

    A run must have claimed and prepared the table before, and the format version must be at least 2.
    """
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


def may_register(dataset: Dataset, world: Observation, run: RunSpec, now: datetime) -> bool:
    """Whether the committer may carry out a consolidation.

    It registers few files, from a buffer with few objects, and the committer did not fail at a consolidation of the
    Dataset lately. A Job makes further attempts. A pod template of the Dataset may hold credentials for the buffer,
    which only its own pods have.
    """
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


def _failed_since(world: Observation, time: datetime) -> bool:
    """Whether the committer failed at a consolidation that it received after this time."""
    asked = (a for r in world.runs for a in r.attempts if a.engine is Engine.COMMITTER)
    return any(a.kind is RunKind.CONSOLIDATION and a.state is AttemptState.FAILED and a.created >= time for a in asked)


def committer_failed(run: ObservedRun | None) -> bool:
    """Whether the last attempt of the run was by the committer and failed. Then a Job makes the next attempt."""
    last = run.last if run is not None else None
    return last is not None and last.engine is Engine.COMMITTER and last.state is AttemptState.FAILED


def is_asked(world: Observation) -> bool:
    return any(True for _ in _in_committer(world))


def forgotten(world: Observation) -> tuple[Attempt, ...]:
    """The active attempts whose entry the mailbox lacks, because the operator crashed before it wrote the entry."""
    committer = world.committer
    if committer is None or not committer.alive:
        return ()
    return tuple(a for a in _in_committer(world) if a.run_id[:KEY_PREFIX_LENGTH] not in committer.mailbox)


def withdrawn(world: Observation) -> tuple[Attempt, ...]:
    """Attempts to remove from the mailbox because the committer is not alive. Another attempt may start only after that."""
    committer = world.committer
    if committer is None or committer.alive:
        return ()
    return tuple(a for a in _in_committer(world) if a.run_id[:KEY_PREFIX_LENGTH] in committer.mailbox)


def _in_committer(world: Observation) -> Iterable[Attempt]:
    return (
        a for r in world.runs for a in r.attempts if a.engine is Engine.COMMITTER and a.state is AttemptState.ACTIVE
    )


# If the warm driver has not started within this time, Jobs take over its runs.
STARTS_WITHIN: Final = timedelta(seconds=90)


@dataclass(frozen=True)
class WarmDriverCare:
    """What to do about the runs that the warm driver received."""

    start: bool = False
    """Start it: runs wait, and there is none."""
    remind: tuple[Attempt, ...] = ()
    """Attempts whose entry the mailbox lacks."""
    cancel: tuple[Attempt, ...] = ()
    """Attempts that the warm driver is to stop."""
    withdraw: tuple[Attempt, ...] = ()
    """Attempts whose entry is to be removed: a Job takes over."""
    look_again: datetime | None = None
    """When to decide again; None: when something changes."""


def with_engine(launch: Launch, dataset: Dataset, world: Observation, settings: Settings) -> Launch:
    """The launch, given to the warm driver if that may carry it out."""
    if launch.engine is not Engine.JOB or _is_launched_otherwise(settings.run_template):
        return launch
    if may_carry_out(launch, dataset, world, settings.warm_drivers):
        return replace(launch, engine=Engine.WARM_DRIVER)
    return launch


def may_carry_out(launch: Launch, dataset: Dataset, world: Observation, settings: WarmDriverSettings) -> bool:
    """Whether a run is small enough, needs nothing that the warm driver lacks, and has never failed.

    One that failed, whatever the cause, gets a pod of its own: a run that breaks the warm driver does so at most once.
    """
    there = world.warm_driver
    if there is None or len(there.mailbox) >= settings.max_waiting:
        return False
    if launch.secrets or launch.place is not None or not _is_standard(dataset.spec.run_template, settings.driver):
        return False
    if launch.run.attempt > 1 or _failed_last(launch.run, world):
        return False
    size = _reads(launch, world)
    return size is not None and size <= settings.max_bytes_per_run


def care_for_warm_driver(world: Observation, unwanted: Collection[str], now: datetime) -> WarmDriverCare:
    """What to do about the runs that the warm driver received.

    Args:
        unwanted: Names of attempts that nobody needs any more.
    """
    there = world.warm_driver
    mine = tuple(_in_warm_driver(world))
    if there is None or not mine:
        return WarmDriverCare()
    cancel = tuple(a for a in mine if a.job in unwanted and _key(a) not in there.cancelled)
    if there.alive:
        return WarmDriverCare(remind=tuple(a for a in mine if _key(a) not in there.mailbox), cancel=cancel)
    late = tuple(a for a in mine if a.created + STARTS_WITHIN <= now)
    waits = tuple(a for a in mine if a not in late)
    return WarmDriverCare(
        start=bool(waits) and not there.starting,
        withdraw=late,
        look_again=earliest(*(a.created + STARTS_WITHIN for a in waits)),
    )


def _in_warm_driver(world: Observation) -> Iterable[Attempt]:
    attempts = (a for r in world.runs for a in r.attempts)
    return (a for a in attempts if a.engine is Engine.WARM_DRIVER and a.state is AttemptState.ACTIVE)


def _key(attempt: Attempt) -> str:
    return attempt.run_id[:KEY_PREFIX_LENGTH]


def _is_launched_otherwise(template: RunTemplate) -> bool:
    """Whether runs wait in a queue, or another operator starts them."""
    return bool(template.queue) or template.launcher not in (None, Launcher.JOB)


def _is_standard(template: RunTemplate, warm: PodSize) -> bool:
    """Whether a Dataset asks for nothing that the warm driver lacks: a pod template, executors, a larger driver, or a queue."""
    if template.pod_template or template.executors.min or _is_launched_otherwise(template):
        return False
    asked = template.driver
    return all(
        wanted is None or (has is not None and wanted <= has)
        for wanted, has in ((asked.cpu, warm.cpu), (asked.memory, warm.memory), (asked.scratch, warm.scratch))
    )


def _failed_last(run: RunSpec, world: Observation) -> bool:
    """Whether the Dataset's last run of this family failed for a reason that another attempt might not meet.

    Its members or its batches may be in this run again.
    """
    attempts = (
        a for r in world.runs if r.kind.family is run.family for a in r.attempts if a.engine is not Engine.COMMITTER
    )
    ended = [a for a in attempts if a.state is not AttemptState.ACTIVE]
    last = max(ended, key=lambda a: a.finished or a.created, default=None)
    if last is None or last.state is not AttemptState.FAILED:
        return False
    return last.result is None or not last.result.permanent


def _reads(launch: Launch, world: Observation) -> int | None:
    """How many bytes a run reads at most; None: unknown."""
    view, run = world.table, launch.run
    whole = view.total_bytes if isinstance(view, TableView) else 0
    match run.kind:
        case RunKind.CONSOLIDATION | RunKind.REANCHORING:
            return launch.bytes
        case RunKind.RESTATEMENT:
            group = run.restatement
            assert group is not None
            # Searches and native deletes read data files of the table.
            searches = group.deletes.native is not None or any(r.searches for r in group.requests)
            return max(launch.bytes, whole) if searches or group.dry_run else launch.bytes
        case RunKind.VACUUM:
            return launch.bytes if not world.open_erasures else None
        case RunKind.ERASURE_CHECK:
            return None
        case _:
            assert_never(run.kind)

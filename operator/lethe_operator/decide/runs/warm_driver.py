"""Decides which runs the warm driver of the namespace carries out, when it starts, and which runs a Job takes over. Pure."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, assert_never

from lethe.contract.run import RunKind, RunSpec

from lethe_operator.decide.actions import Launch, earliest
from lethe_operator.resources.common import KEY_PREFIX_LENGTH
from lethe_operator.resources.dataset import Dataset, PodSize, RunTemplate
from lethe_operator.resources.engine import Engine
from lethe_operator.resources.launcher import Launcher
from lethe_operator.resources.observed import Attempt, AttemptState, TableView, World
from lethe_operator.settings import Settings, WarmDriverSettings

# If the warm driver has not started within this time, Jobs take over its runs.
STARTS_WITHIN: Final = timedelta(seconds=90)


@dataclass(frozen=True)
class WarmDriverCare:
    """What to do about the runs that the warm driver received."""

    # Start it: runs wait, and there is none.
    start: bool = False
    # Attempts whose entry the mailbox lacks.
    remind: tuple[Attempt, ...] = ()
    # Attempts that the warm driver is to stop.
    cancel: tuple[Attempt, ...] = ()
    # Attempts whose entry is to be removed: a Job takes over.
    withdraw: tuple[Attempt, ...] = ()
    # When to decide again; None: when something changes.
    look_again: datetime | None = None


def with_engine(launch: Launch, dataset: Dataset, world: World, settings: Settings) -> Launch:
    """The launch, given to the warm driver if that may carry it out."""
    if launch.engine is not Engine.JOB or _is_launched_otherwise(settings.run_template):
        return launch
    if may_carry_out(launch, dataset, world, settings.warm_drivers):
        return replace(launch, engine=Engine.WARM_DRIVER)
    return launch


def may_carry_out(launch: Launch, dataset: Dataset, world: World, settings: WarmDriverSettings) -> bool:
    """Whether a run is small enough, needs nothing that the warm driver lacks, and has never failed. One that failed, whatever
    the cause, gets a pod of its own: a run that breaks the warm driver does so at most once."""
    there = world.warm_driver
    if there is None or len(there.mailbox) >= settings.max_waiting:
        return False
    if launch.secrets or launch.place is not None or not _is_standard(dataset.spec.run_template, settings.driver):
        return False
    if launch.run.attempt > 1 or _failed_last(launch.run, world):
        return False
    size = _reads(launch, world)
    return size is not None and size <= settings.max_bytes_per_run


def care(world: World, unwanted: Collection[str], now: datetime) -> WarmDriverCare:
    """What to do about the runs that the warm driver received.

    Args:
        unwanted: Names of attempts that nobody needs any more.
    """
    there = world.warm_driver
    mine = tuple(_under_way(world))
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


def _under_way(world: World) -> Iterable[Attempt]:
    found = (a for r in world.runs for a in r.attempts)
    return (a for a in found if a.engine is Engine.WARM_DRIVER and a.state is AttemptState.ACTIVE)


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


def _failed_last(run: RunSpec, world: World) -> bool:
    """Whether the Dataset's last run of this family failed for a reason that another attempt might not meet: its members or its
    batches may be in this run again."""
    found = (
        a for r in world.runs if r.kind.family is run.family for a in r.attempts if a.engine is not Engine.COMMITTER
    )
    ended = [a for a in found if a.state is not AttemptState.ACTIVE]
    last = max(ended, key=lambda a: a.finished or a.created, default=None)
    if last is None or last.state is not AttemptState.FAILED:
        return False
    return last.result is None or not last.result.permanent


def _reads(launch: Launch, world: World) -> int | None:
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

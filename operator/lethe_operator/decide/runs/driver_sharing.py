"""Decides which runs share a driver, and when they start. Pure."""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from lethe_operator.decide.actions import earliest
from lethe_operator.resources.members import SharedJob
from lethe_operator.settings import SharedRuns

H = TypeVar("H", bound=Hashable)
# Time until the next check whether the reconcile of a Dataset has finished.
SOON = timedelta(seconds=1)


@dataclass(frozen=True)
class WaitingRun(Generic[H]):
    """A Dataset whose run is due and waits for others to share a driver with."""

    dataset: str
    company: H  # only runs with equal values can share a driver
    since: datetime  # since when the run is due


@dataclass(frozen=True)
class DriverGroups:
    # Names of the Datasets whose runs start now. Each group shares a driver.
    groups: tuple[tuple[str, ...], ...] = ()
    # When to decide again; None: no run waits.
    look_again: datetime | None = None


def gather(
    waiting: Collection[WaitingRun[H]], busy: Collection[str], now: datetime, limits: SharedRuns
) -> DriverGroups:
    """Decide which runs start now. Runs start in the order in which they became due: as soon as there are enough of them for a
    full Job, or when the oldest has waited for the window.

    Args:
        busy: Datasets that cannot start at this moment because they are being reconciled. The others wait for them, but at most
            for one more window.
    """
    window = timedelta(seconds=limits.gather_seconds)
    groups: list[tuple[str, ...]] = []
    again: list[datetime] = []
    for company in dict.fromkeys(w.company for w in _in_order(waiting)):
        there = [w for w in _in_order(waiting) if w.company == company]
        free = [w.dataset for w in there if w.dataset not in busy]
        full = free[: len(free) - len(free) % limits.max_datasets]
        groups += _cut(full, limits.max_datasets)
        rest = [w for w in there if w.dataset not in full]
        if not rest:
            continue
        ripe, goes = rest[0].since + window, [w.dataset for w in rest if w.dataset in free]
        if ripe > now:
            again.append(ripe)
        elif len(goes) < len(rest) and (ripe + window > now or not goes):
            again.append(now + SOON)
        else:
            groups.append(tuple(goes))
            if len(goes) < len(rest):
                again.append(now + SOON)
    return DriverGroups(tuple(groups), earliest(*again))


def forgotten(jobs: Collection[SharedJob], uids: Collection[str]) -> tuple[str, ...]:
    """Names of the finished Jobs that no existing Dataset needs.

    Args:
        uids: Of the existing Datasets.
    """
    return tuple(j.name for j in jobs if j.over and not j.needed_by & frozenset(uids))


def _in_order(waiting: Collection[WaitingRun[H]]) -> Sequence[WaitingRun[H]]:
    return sorted(waiting, key=lambda w: (w.since, w.dataset))


def _cut(names: Sequence[str], size: int) -> list[tuple[str, ...]]:
    return [tuple(names[i : i + size]) for i in range(0, len(names), size)]

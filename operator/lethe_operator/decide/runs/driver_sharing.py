"""Which of the runs that wait for company start now, and who shares with whom. Pure."""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from lethe_operator.decide.actions import earliest
from lethe_operator.resources.members import SharedJob
from lethe_operator.settings import SharedRuns

H = TypeVar("H", bound=Hashable)
# How often it is asked whether a Dataset that is being reconciled has done.
SOON = timedelta(seconds=1)


@dataclass(frozen=True)
class WaitingRun(Generic[H]):
    """A Dataset whose run waits `since` it was due. Only those of one `company` can share."""

    dataset: str
    company: H
    since: datetime


@dataclass(frozen=True)
class DriverGroups:
    """Names of Datasets that start now; a group of one gets a driver of its own."""

    groups: tuple[tuple[str, ...], ...] = ()
    look_again: datetime | None = None


def gather(
    waiting: Collection[WaitingRun[H]], busy: Collection[str], now: datetime, limits: SharedRuns
) -> DriverGroups:
    """Say who goes now. A company goes when the first of it has waited long enough, or as many as one Job takes are there;
    the first to come are the first to go.

    Args:
        busy: Datasets that cannot go at this moment, since something else is being decided about them. The others wait for
            them, but not for more than another window.
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
    """Names of the Jobs that are over and that none of the Datasets there are (`uids`) has need of."""
    return tuple(j.name for j in jobs if j.over and not j.needed_by & frozenset(uids))


def _in_order(waiting: Collection[WaitingRun[H]]) -> Sequence[WaitingRun[H]]:
    return sorted(waiting, key=lambda w: (w.since, w.dataset))


def _cut(names: Sequence[str], size: int) -> list[tuple[str, ...]]:
    return [tuple(names[i : i + size]) for i in range(0, len(names), size)]

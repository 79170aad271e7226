"""Which of the waiting Restatements of a Dataset make the next run, and when it starts. Pure.

A group is taken from the front of the queue, whose order is that of dependencies and age. One that cannot start now is no member
and holds back only what restates its replacement. Those that a run has failed with stay among themselves, since they may be what
it failed of, and have their turn by when their pause was over: one that fails for ever does not go before all others for ever.

One that replaces single rows by their keys ends a group in which another brings rows: these have to be committed before it.

Where a committer carries out what changes metadata alone, there are two queues, of which each waits only for those of the other
that came before and are about one of its batches.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from lethe_operator.decide.restatement.assessment import Assessment, Ready
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.restatement import Restatement

# Every commit of ours makes another writer's attempt fail that has begun before it, and such a writer tries a few times only.
# Between two runs it shall have the table for itself for longer than an append takes, however fast runs start.
PAUSE_BETWEEN_COMMITS: Final = timedelta(seconds=5)
# What a run has to hold in memory, and its document.
BATCH_IDS_AT_MOST: Final = 200_000
RUN_JSON_BYTES_AT_MOST: Final = 32 * 1024 * 1024
_BYTES_OF_A_REQUEST: Final = 512  # field names, key, name and times
Standings = Sequence[tuple[Restatement, Assessment]]


@dataclass(frozen=True)
class RestatementQueue:
    """`group`: the next run's members; `is_full`: no other fits in, or none may join; `positions`: by name of each that waits
    for its turn, from 1; `waits_for`: by name of one that another has to go before, that other's name."""

    group: tuple[tuple[Restatement, Ready], ...] = ()
    is_full: bool = False
    positions: Mapping[str, int] = field(default_factory=dict)
    waits_for: Mapping[str, str] = field(default_factory=dict)


def queue(
    dataset: Dataset, standings: Standings, bytes_of: Callable[[Restatement], int], quick: bool | None = None
) -> RestatementQueue:
    """The group that goes next, and what is behind it. O(n) and the number of batch ids.

    Args:
        standings: In the order in which they go.
        bytes_of: How much is read to carry one out.
        quick: Of those only that the committer carries out, or only of the others; None: of all.
    """
    chosen = _longest_ready(standings, quick)
    room = _Room(dataset, chosen) if chosen is not None else None
    group: list[tuple[Restatement, Ready]] = []
    positions: dict[str, int] = {}
    waits_for: dict[str, str] = {}
    held: dict[str, str] = {}  # by batch that is yet to come, or that others are about: who goes first
    for r, standing in standings:
        if standing.finished:
            continue
        ready, first = standing.ready, _first_of(r, held)
        if ready is not None:
            positions[r.meta.name] = len(positions) + 1
        mine = ready is not None and quick in (None, ready.quick)
        if first and mine:
            waits_for[r.meta.name] = first
        if room is not None and ready is not None and mine and not first and room.takes(r, ready, bytes_of):
            group.append((r, ready))
            continue
        if standing.waits and r.brings is not None:
            held[r.brings] = r.meta.name
        if quick is not None and not mine and (ready is not None or standing.phase == "Running"):
            held |= dict.fromkeys(r.batch_ids, r.meta.name)
    is_full = room is not None and (room.is_full or bool(room.first.after))
    return RestatementQueue(tuple(group), is_full, positions, waits_for)


def start(found: RestatementQueue, dataset: Dataset, commit_ended: datetime | None, now: datetime) -> datetime | None:
    """When the group starts, `now` or later; None: there is none.

    The first one waits for nobody. What comes behind a commit that was just made is collected: for the window, counted from
    that commit or from when the oldest of them came if that was before it; unless no other can join.

    Args:
        commit_ended: When the last run that commits ended; None: none is remembered.
    """
    if not found.group:
        return None
    if commit_ended is None:
        return now
    window = timedelta(seconds=dataset.spec.restatements.window_seconds)
    at = commit_ended + PAUSE_BETWEEN_COMMITS
    if not found.is_full:
        oldest = min(r.created for r, _ in found.group)
        at = max(at, min(commit_ended, oldest) + window)
    return max(at, now)


@dataclass
class _Room:
    """What is left of the next group, whose first member says whom it may be with."""

    dataset: Dataset
    first: Ready
    members: int = 0
    ids: int = 0
    document_bytes: int = 0
    data_bytes: int = 0
    brings: bool = False
    is_full: bool = False

    def takes(self, r: Restatement, ready: Ready, bytes_of: Callable[[Restatement], int]) -> bool:
        """Whether it is a member. When one does not fit in, nobody behind it goes before it."""
        if self.is_full or ready.company != self.first.company:
            return False
        spec = self.dataset.spec
        ids = self.ids + r.batches
        document, data = self.document_bytes + document_bytes(r), self.data_bytes + bytes_of(r)
        fits = (
            ids <= BATCH_IDS_AT_MOST
            and document <= RUN_JSON_BYTES_AT_MOST
            and data <= spec.consolidation.max_bytes_per_run
        )
        if self.members and (not fits or (r.by_keys and self.brings)):
            self.is_full = True
            return False
        self.brings = self.brings or r.brings is not None
        self.members, self.ids, self.document_bytes, self.data_bytes = self.members + 1, ids, document, data
        self.is_full = self.members >= min(spec.restatements.max_per_commit, self.first.at_most or self.members + 1)
        return True


def document_bytes(r: Restatement) -> int:
    """About how many bytes a Restatement takes in the run's document, rather too many."""
    texts = [r.spec.reason, r.list_uri, *r.batch_ids]
    if r.spec.replacement is not None:
        replacement = r.spec.replacement
        texts += [replacement.batch_id, replacement.uri, *replacement.key_columns, replacement.op_column]
    if r.spec.rows is not None:
        texts += [r.spec.rows.column, r.spec.rows.secret.name, r.spec.rows.secret.key]
    return _BYTES_OF_A_REQUEST + 3 * len(r.key) + sum(len(t.encode()) + 3 for t in texts)


def _longest_ready(standings: Standings, quick: bool | None) -> Ready | None:
    """Of those that depend on nobody who waits, the one that has waited longest for its turn: it says who goes next."""
    chosen: Ready | None = None
    makers: set[str] = set()
    for r, standing in standings:
        ready = standing.ready if standing.ready is not None and quick in (None, standing.ready.quick) else None
        if ready is not None and makers.isdisjoint(r.batch_ids) and (chosen is None or ready.since < chosen.since):
            chosen = ready
        if standing.waits and r.brings is not None:
            makers.add(r.brings)
    return chosen


def _first_of(r: Restatement, held: Mapping[str, str]) -> str:
    """Who is to go before it, "" when nobody."""
    if not held or held.keys().isdisjoint(r.batch_ids):
        return ""
    return next(held[i] for i in r.batch_ids if i in held)

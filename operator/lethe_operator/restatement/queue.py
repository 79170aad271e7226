"""Decides which waiting Restatements of a Dataset are in the next run, when it starts, and makes its launch. Pure.

A group is taken from the front of the queue, which is sorted by dependency and age, in the order of `lethe.restatement.group`. A
Restatement that cannot start now is not a member, and delays only those that restate its replacement. The members of a failed
run are grouped only with each other, because one of them may be the cause. Their turn depends on the end of their delay, so
Restatements that keep failing do not always go first.

A Replay with key columns does not join a group in which another member adds rows, because these rows must be committed first.

If a committer carries out the metadata-only Restatements, there are two queues. A Restatement waits for one in the other queue
only if that one came before it and names one of its batches.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from lethe.restatement import group

from lethe_operator.actions import Launch
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Engine, Observation, TableView
from lethe_operator.resources.restatement import Restatement
from lethe_operator.restatement import assess
from lethe_operator.restatement.outcome import Assessment, Ready
from lethe_operator.runs import spec as run_specs


def in_order(restatements: Iterable[Restatement]) -> tuple[Restatement, ...]:
    """Sort by dependency, then by creation time, then by name. O(n log n).

    A Restatement comes before the one that restates its replacement, and before its Undo.
    """
    return group.in_order(restatements, _place)


def _place(restatement: Restatement) -> group.Dependencies:
    spec, name = restatement.spec, restatement.meta.name
    undoes = spec.undoes.name if spec.undoes else None
    return group.place(restatement.created, name, name, restatement.batch_ids, restatement.added_batch_id, undoes)


# A commit of Lethe makes the active commit attempts of other writers fail, and those writers retry only a few times. This pause
# is longer than an append takes, so that other writers can commit between two runs.
PAUSE_BETWEEN_COMMITS: Final = timedelta(seconds=5)
# Limits for the memory of a run and for the size of its document.
BATCH_IDS_AT_MOST: Final = 200_000
RUN_JSON_BYTES_AT_MOST: Final = 32 * 1024 * 1024
_BYTES_OF_A_REQUEST: Final = 512  # field names, numbers and times
_BYTES_OF_A_CONDITION: Final = 256  # field names, and paths of files
Standings = Sequence[tuple[Restatement, Assessment]]


@dataclass(frozen=True)
class RestatementQueue:
    """The group that runs next, and the places of all Restatements that wait."""

    group: tuple[tuple[Restatement, Ready], ...] = ()
    """The members of the next run."""
    is_full: bool = False
    """No other Restatement fits in, or may join."""
    positions: Mapping[str, int] = field(default_factory=dict)
    """Places of the waiting Restatements by name, from 1."""
    waits_for: Mapping[str, str] = field(default_factory=dict)
    """For each Restatement that must wait for another one: the other's name, by name."""


def queue(
    dataset: Dataset, standings: Standings, bytes_of: Callable[[Restatement], int], quick: bool | None = None
) -> RestatementQueue:
    """Choose the next group, and number the others. O(number of Restatements and of batch ids).

    Args:
        standings: In queue order.
        bytes_of: How many bytes a run reads for a Restatement.
        quick: True: only Restatements for the committer; False: only the others; None: all.
    """
    chosen = _longest_ready(standings, quick)
    room = _GroupBuilder(dataset, chosen) if chosen is not None else None
    group: list[tuple[Restatement, Ready]] = []
    positions: dict[str, int] = {}
    waits_for: dict[str, str] = {}
    held: dict[str, str] = {}  # names of Restatements that must go first, by the id of the batch that they add or name
    for r, standing in standings:
        if standing.finished:
            continue
        ready, first = standing.ready, _first_of(r, held)
        if ready is not None:
            positions[r.meta.name] = len(positions) + 1
        mine = ready is not None and quick in (None, ready.quick)
        if first and mine:
            waits_for[r.meta.name] = first
        if room is not None and ready is not None and mine and not first and room.try_add(r, ready, bytes_of):
            group.append((r, ready))
            continue
        if standing.waits and r.added_batch_id is not None:
            held[r.added_batch_id] = r.meta.name
        if quick is not None and not mine and (ready is not None or standing.under_way):
            held |= dict.fromkeys(r.batch_ids, r.meta.name)
    is_full = room is not None and (room.is_full or bool(room.first.after))
    return RestatementQueue(tuple(group), is_full, positions, waits_for)


def start(found: RestatementQueue, dataset: Dataset, commit_ended: datetime | None, now: datetime) -> datetime | None:
    """When the group starts, `now` or later; None: the group is empty.

    Without an earlier commit, the group starts at once. After a commit, Restatements are collected for a window of
    spec.restatements.windowSeconds. The window starts with the commit, or with the creation of the oldest member if that was
    earlier. A full group does not wait for the window.

    Args:
        commit_ended: When the last run that commits ended; None: no such run is known.
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
class _GroupBuilder:
    """The size of the next group so far, and whether another Restatement fits in."""

    dataset: Dataset
    first: Ready
    """The others must have the same `group_key`."""
    members: int = 0
    ids: int = 0
    """Batch ids of the members."""
    document_bytes: int = 0
    """Of the run's document."""
    data_bytes: int = 0
    """That the run reads."""
    adds_rows: bool = False
    """A member adds rows."""
    is_full: bool = False

    def try_add(self, r: Restatement, ready: Ready, bytes_of: Callable[[Restatement], int]) -> bool:
        """Add a Restatement if it fits, and return whether it did.

        If one does not fit, the group is full, so that later ones do not overtake it.
        """
        if self.is_full or ready.group_key != self.first.group_key:
            return False
        spec = self.dataset.spec
        ids = self.ids + r.batches
        document, data = self.document_bytes + document_bytes(r), self.data_bytes + bytes_of(r)
        fits = (
            ids <= BATCH_IDS_AT_MOST
            and document <= RUN_JSON_BYTES_AT_MOST
            and data <= spec.consolidation.max_bytes_per_run
        )
        if self.members and (not fits or (r.by_keys and self.adds_rows)):
            self.is_full = True
            return False
        self.adds_rows = self.adds_rows or r.added_batch_id is not None
        self.members, self.ids, self.document_bytes, self.data_bytes = self.members + 1, ids, document, data
        self.is_full = self.members >= min(spec.restatements.max_per_commit, self.first.at_most or self.members + 1)
        return True


def document_bytes(r: Restatement) -> int:
    """An upper estimate of the size of a Restatement in the run's document, in bytes."""
    texts = [r.spec.reason, r.list_uri, r.spec.reference, *r.batch_ids]
    if r.spec.replacement is not None:
        replacement = r.spec.replacement
        texts += [replacement.batch_id, replacement.uri, *replacement.key_columns, replacement.op_column]
    conditions = r.spec.rows.conditions if r.spec.rows is not None else ()
    texts += [text for c in conditions for text in (c.column, c.values_from.uri)]
    texts += [text for c in conditions if c.via for text in (c.via.dataset, c.via.from_column, c.via.to_column)]
    if r.spec.redact is not None:
        texts += [text for c in r.spec.redact.columns for text in (c.column, c.method, c.value or "")]
    texts += [text for secret in r.secrets.values() for text in (secret.secret, secret.key)]
    own = _BYTES_OF_A_REQUEST + _BYTES_OF_A_CONDITION * len(conditions)
    return own + 3 * len(r.key) + sum(len(t.encode()) + 3 for t in texts)


def _longest_ready(standings: Standings, quick: bool | None) -> Ready | None:
    """The Restatement that has been ready longest, among those that do not depend on a waiting one.

    The next group consists of those that may share a run with it.
    """
    chosen: Ready | None = None
    makers: set[str] = set()
    for r, standing in standings:
        ready = standing.ready if standing.ready is not None and quick in (None, standing.ready.quick) else None
        if ready is not None and makers.isdisjoint(r.batch_ids) and (chosen is None or ready.since < chosen.since):
            chosen = ready
        if standing.waits and r.added_batch_id is not None:
            makers.add(r.added_batch_id)
    return chosen


def _first_of(r: Restatement, held: Mapping[str, str]) -> str:
    """Name of the Restatement that must go before it; "": there is none."""
    if not held or held.keys().isdisjoint(r.batch_ids):
        return ""
    return next(held[i] for i in r.batch_ids if i in held)


def restatements_launch(
    dataset: Dataset, world: Observation, queued: RestatementQueue, engine: Engine = Engine.JOB
) -> Launch | None:
    """One run for all members of the group; None: the group is empty."""
    members = [r for r, _ in queued.group]
    if not members:
        return None
    listed = assess.listed_head(members, world.buffer)
    lookups = {name: view.dataset for name, view in world.lookups.items()}
    run = run_specs.restatements(dataset, ((r, ready.undoes) for r, ready in queued.group), listed, lookups)
    tried = [a.number for known in world.runs if known.run_id == run.run_id for a in known.attempts]
    run = run.model_copy(update={"attempt": max(tried, default=0) + 1})
    return Launch(
        run,
        bytes=sum(bytes_of(r, world) for r in members),
        generation=dataset.meta.generation,
        why=f"{_what(members)}, attempt {run.attempt}",
        for_uid=members[0].meta.uid if len(members) == 1 else "",
        engine=engine,
        secrets=tuple(dict.fromkeys(secret for r in members for secret in r.secrets.values())),
    )


def bytes_of(restatement: Restatement, world: Observation) -> int:
    """An estimate of how many bytes the run reads for a Restatement.

    A replacement has about the size of the batches that it replaces, and a Redact of batches writes them again. For other
    operations, and for dry runs, it is not known, or nothing.
    """
    redacts = restatement.spec.redact is not None and not restatement.spec.dry_run
    if not (restatement.added_batch_id or redacts) or not isinstance(world.table, TableView):
        return 0
    if restatement.has_unread_ids:  # the batches are unknown; the table's size is the upper limit
        return world.table.total_bytes
    batches = world.table.ledger.batches
    some = restatement.sized_by
    total = sum(batches[i].bytes or 0 for i in some if i in batches)
    return total * len(restatement.batch_ids) // max(1, len(some))


def _what(members: list[Restatement]) -> str:
    spec = members[0].spec
    dry = "dry run of " if spec.dry_run else ""
    if len(members) > 1:
        most = "at most " if any(r.has_unread_ids and not r.list_sha256 for r in members) else ""
        batches = sum(r.batches for r in members)
        return f"{dry}{len(members)} Restatements of {most}{batches} batches, the first of them {members[0].meta.name}"
    if spec.rows is not None:
        columns = spec.rows.columns
        by = f"the {'columns' if len(columns) > 1 else 'column'} {', '.join(columns)}"
        return f"{dry}Restatement {members[0].meta.name}: {spec.operation} of records by {by}"
    which = [f"the batches in {members[0].list_uri}" if members[0].list_uri else f"{members[0].batches} batches"]
    if spec.reference:
        which = [f"the batches of {spec.reference!r}"]
    if spec.replacement is not None and spec.replacement.key_columns:
        rows = f"rows by {', '.join(spec.replacement.key_columns)}"
        which = [*which, rows] if members[0].batches else [rows]
    if spec.undoes is not None:
        which = [spec.undoes.name]
    return f"{dry}Restatement {members[0].meta.name}: {spec.operation} of {' and '.join(which)}"

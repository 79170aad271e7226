"""Makes the status of a Restatement from its assessment, with the events of changes, and decides when it is deleted. Pure.

Finished Restatements are deleted by ttlSecondsAfterFinished. The ledger keeps their results.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeVar

from lethe.contract.schema import ApiModel
from lethe.contract.status import Condition, FailedAttempts, RestatementPlan, RestatementStatus

from lethe_operator import conditions
from lethe_operator.actions import Event, earliest
from lethe_operator.erasure.decide import is_awaited
from lethe_operator.reasons import Reason
from lethe_operator.resources.restatement import Restatement
from lethe_operator.restatement import outcome
from lethe_operator.restatement.outcome import Assessment

P = TypeVar("P", bound=ApiModel)

# Thousands of Restatements may expire together. Each deletion takes some milliseconds and delays the Dataset's reconcile.
DELETED_AT_ONCE: Final = 100
DELETED_AGAIN_AFTER: Final = timedelta(seconds=5)


@dataclass(frozen=True)
class ExpiredRestatements:
    """Which Restatements to delete now."""

    names: tuple[str, ...] = ()
    look_again: datetime | None = None
    """When the next ones expire; None: no other one does."""


def expired(standings: Iterable[tuple[Restatement, Assessment]], now: datetime) -> ExpiredRestatements:
    """The expired Restatements, at most DELETED_AT_ONCE, those that expired first."""
    times = [(at, r.meta.name) for r, s in standings if (at := expires(r, s, now)) is not None]
    over = sorted((at, name) for at, name in times if at <= now)
    later = now + DELETED_AGAIN_AFTER if len(over) >= DELETED_AT_ONCE else None
    next_one = earliest(later, *(at for at, _ in times if at > now))
    return ExpiredRestatements(tuple(name for _, name in over[:DELETED_AT_ONCE]), next_one)


def expires(restatement: Restatement, standing: Assessment, now: datetime) -> datetime | None:
    """When a Restatement expires; None: never, or it has not finished, or its erasure is not verified yet."""
    ttl = restatement.spec.ttl_seconds_after_finished
    if ttl is None or not standing.finished or is_awaited(restatement.status):
        return None
    if restatement.status.value_of(conditions.SUCCEEDED) != standing.succeeded or standing.finished_time is None:
        return None  # the status does not show the end yet; the time counts from that status
    return datetime.fromtimestamp(standing.finished_time.timestamp() + ttl, tz=now.tzinfo)


# At most this many statuses of waiting and running Restatements are written at once. They are soon outdated, and must not delay
# the statuses of finished ones.
COURTESIES_AT_ONCE: Final = 200
COURTESIES_AGAIN_AFTER: Final = timedelta(seconds=5)
# At most this many statuses are written by one reconcile, which would otherwise occupy its thread for minutes. The next reconcile
# writes the rest.
STATUSES_AT_ONCE: Final = 5000
# The members of larger groups get no event when they succeed: their statuses say the same.
EVENTS_FOR_GROUPS_UP_TO: Final = 20
# The reasons of the condition Erased that cause an event.
_ERASURE_EVENTS: Final = tuple(
    map(str, (Reason.ERASED, Reason.ERASURE_BLOCKED, Reason.GC_DISABLED, Reason.ERASURE_OVERDUE))
)
EVENTS_AT_ONCE: Final = 100  # the rest is visible in the statuses only


@dataclass(frozen=True)
class StatusChanges:
    """What one reconcile writes about Restatements: only statuses that differ, up to a limit."""

    statuses: Mapping[str, RestatementStatus]
    """The statuses to write, by name."""
    events: tuple[Event, ...]
    look_again: datetime | None = None
    """When to write the statuses that were postponed; None: none was."""


@dataclass(frozen=True)
class Visibility:
    """Whether engines that do not know Lethe see what Restatements have done."""

    is_masked: bool
    """Native deletes hide the rows of every active tombstone."""
    files_left: int = 0
    """Data files whose native deletes follow; 0: unknown."""

    def of(self, restatement: Restatement, standing: Assessment) -> Condition | None:
        """The condition VisibleToAllEngines; None: it stays as it is. Once True, it stays True."""
        before = restatement.status.condition(conditions.VISIBLE_TO_ALL_ENGINES)
        if before is not None and before.status == conditions.TRUE:
            return None
        if standing.succeeded != conditions.TRUE or (before is None and standing.from_status):
            return None
        if restatement.spec.dry_run or restatement.spec.rows is not None or restatement.spec.redact is not None:
            return None
        if self.is_masked:
            reason = Reason.NATIVE_DELETES_WRITTEN
            return Condition.of(conditions.VISIBLE_TO_ALL_ENGINES, conditions.TRUE, reason, reason.meaning)
        reason = Reason.NATIVE_DELETES_FOLLOW
        left = f" {self.files_left} data files are left." if self.files_left else ""
        return Condition.of(conditions.VISIBLE_TO_ALL_ENGINES, conditions.FALSE, reason, f"{reason.meaning}{left}")


def changes(
    standings: Iterable[tuple[Restatement, Assessment]], now: datetime, visibility: Visibility | None = None
) -> StatusChanges:
    """The statuses of these Restatements that differ from the current ones, with their events.

    In this order, and only the first STATUSES_AT_ONCE.

    Args:
        visibility: None: it is unknown, or the Dataset writes no native deletes.
    """
    statuses: dict[str, RestatementStatus] = {}
    new_events: list[Event] = []
    courtesies, waiting, more = 0, False, False
    for restatement, standing in standings:
        old = restatement.status
        visible = visibility.of(restatement, standing) if visibility is not None else None
        if standing.from_status and old.observed_generation == restatement.meta.generation and visible is None:
            continue
        new = status(restatement, standing, now, visible)
        if new == old:
            continue
        if len(statuses) >= STATUSES_AT_ONCE:
            more = True
            break
        if standing.waits and standing.cancel_job is None:
            courtesies += 1
            if courtesies > COURTESIES_AT_ONCE:
                waiting = True
                continue
        statuses[restatement.meta.name] = new
        new_events += events(restatement.meta.name, old, new)
    later = now if more else now + COURTESIES_AGAIN_AFTER if waiting else None
    return StatusChanges(statuses, tuple(new_events[:EVENTS_AT_ONCE]), later)


def status(
    restatement: Restatement, standing: Assessment, now: datetime, visible: Condition | None = None
) -> RestatementStatus:
    """The complete status.

    Args:
        visible: The condition VisibleToAllEngines; None: it stays as it is.
    """
    old, generation = restatement.status, restatement.meta.generation
    position, erasure = standing.position, standing.erasure
    return RestatementStatus(
        observed_generation=generation,
        phase=standing.phase,
        progress=standing.progress or None,
        queue_position=_position(old.queue_position, position) if position is not None else None,
        conditions=conditions.written(old.conditions, _conditions(restatement, standing, visible), generation, now),
        undoes_key=standing.undoes or old.undoes_key or None,
        plan=_plan(restatement, standing),
        attempts=_attempts(old, standing),
        result=_unless_empty(standing.result),
        erasure=_unless_empty(erasure.status if erasure is not None else old.erasure),
    )


def _unless_empty(part: P | None) -> P | None:
    """A part of the status that has any value."""
    return part if part is not None and any(value is not None for _, value in part) else None


def _plan(restatement: Restatement, standing: Assessment) -> RestatementPlan | None:
    """`status.plan`. What identifies lists by reference, `batchIds` and `valuesDigest`, never changes once it is written."""
    old, new = restatement.status.plan or RestatementPlan(), standing.plan or RestatementPlan()
    changes = {name: value for name, value in new if value is not None}
    first = _unless_empty(old.batch_ids) or new.batch_ids or outcome.seen(restatement.listed)
    digest = old.values_digest or new.values_digest
    return _unless_empty(old.model_copy(update={**changes, "batch_ids": first, "values_digest": digest}))


def _attempts(old: RestatementStatus, standing: Assessment) -> FailedAttempts | None:
    """`status.attempts`: the numbers of failed attempts.

    It is written at the end, because updates at each failure of a large group would write thousands of statuses. Later statuses
    keep it, because the runs may be deleted by then.
    """
    ended = old.value_of(conditions.SUCCEEDED) in (conditions.TRUE, conditions.FALSE)
    if ended and old.attempts is not None:
        return old.attempts
    failed = standing.failures
    return FailedAttempts(run=failed.run, infrastructure=failed.infrastructure) if failed.total else None


def _position(shown: int | None, position: int) -> int:
    """The place in the queue to show.

    It is updated only when it has halved or grown, because thousands may wait, and all of them move with each run.
    """
    return shown if shown is not None and shown / 2 < position <= shown else position


def _conditions(restatement: Restatement, standing: Assessment, visible: Condition | None) -> list[Condition]:
    verdict = standing.verdict
    # A cancelled Restatement is Ready: no action is needed, and deployment tools do not wait for it.
    if standing.finished and not standing.stalled:
        written_conditions = list(conditions.healthy(verdict))
    elif standing.stalled:
        written_conditions = list(conditions.stalled(verdict))
    else:
        written_conditions = list(conditions.waiting(verdict))
    written_conditions.append(Condition.of(conditions.SUCCEEDED, standing.succeeded, verdict.reason, verdict.message))
    if standing.erasure is not None:
        written_conditions.append(standing.erasure.condition)
    elif before := restatement.status.condition(conditions.ERASED):  # the ledger was not read
        written_conditions.append(before)
    if visible := visible or restatement.status.condition(conditions.VISIBLE_TO_ALL_ENGINES):
        written_conditions.append(visible)
    return written_conditions


def events(name: str, old: RestatementStatus, new: RestatementStatus) -> tuple[Event, ...]:
    """An event for the end, for each reason to wait or stall, and for changes of the erasure.

    No event for waiting in the queue, because thousands may wait there.
    """
    return (*_events(name, old, new), *_erasure_events(name, old, new))


def _erasure_events(name: str, old: RestatementStatus, new: RestatementStatus) -> tuple[Event, ...]:
    was, now = old.condition(conditions.ERASED), new.condition(conditions.ERASED)
    if now is None or now.reason not in _ERASURE_EVENTS or (was is not None and now.reason == was.reason):
        return ()
    return (Event("Restatement", name, now.verdict, warning=now.reason == Reason.ERASURE_OVERDUE),)


def _events(name: str, old: RestatementStatus, new: RestatementStatus) -> tuple[Event, ...]:
    was, now = old.condition(conditions.READY), new.condition(conditions.READY)
    assert now is not None
    if was is not None and (was.status, was.reason, old.phase) == (now.status, now.reason, new.phase):
        return ()
    stalled = new.is_true(conditions.STALLED)
    ended = new.value_of(conditions.SUCCEEDED) != conditions.UNKNOWN
    members = (new.result.group_size or 1) if new.result is not None else 1
    if ended and not stalled and members > EVENTS_FOR_GROUPS_UP_TO:
        return ()
    is_known = was is not None and was.reason == now.reason
    if not (stalled or ended) and (now.reason == Reason.QUEUED or is_known):
        return ()
    return (Event("Restatement", name, now.verdict, warning=stalled),)

"""When a run checks the erasures of a table, and what statuses say about them. Pure.

Each vacuum checks the erasures at its end. An extra run, which purges nothing, starts when an erasure is due, when its blockers
are gone, or when a vacuum failed before its check.

Everything comes from the ledger, the refs and the clock, so a Restatement that was deleted and created again gets the same
status.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final, assert_never

from lethe.base.errors import Verdict
from lethe.contract.result import ErasureCheckResult, RequestResult
from lethe.contract.settings import RunFamily, RunKind
from lethe.contract.status import Condition, ConditionStatus, ErasureCounts, ErasureStatus, RestatementStatus
from lethe.contract.vacuum_policy import VacuumPolicySpec
from lethe.erasure.record import Signer, Statement
from lethe.ledger.ledger import Ledger
from lethe.ledger.tombstone import BlockerKind, Erasure, ErasureBlocker
from lethe.restatement.plan import name_of
from lethe.vacuum.housekeeping import KEEPS_FILES
from pydantic import ValidationError

from lethe_operator import conditions
from lethe_operator.actions import Launch, earliest
from lethe_operator.conditions import timestamp
from lethe_operator.reasons import Reason
from lethe_operator.resources.common import FOR_ERASURES
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Attempt, Observation, ObservedRun, TableView
from lethe_operator.resources.restatement import Restatement
from lethe_operator.resources.vacuum_policy import match
from lethe_operator.runs import spec as run_specs
from lethe_operator.runs.retry import (
    Exhausted,
    NotStarted,
    RetryAt,
    RetryState,
    Running,
    Succeeded,
    back_off_seconds,
    retry_state,
)
from lethe_operator.settings import Settings


@dataclass(frozen=True)
class ErasuresChoice:
    """What the decision about the check of erasures says of runs: which one starts, and what became of the last one."""

    launch: Launch | None = None
    """None: no run starts now."""
    look_again: datetime | None = None
    """None: no time at which the decision changes by itself."""
    latest: RetryState | None = None
    """The state of `latest_run`; None: there is no run, or it is not continued."""
    latest_run: ObservedRun | None = None
    """The run for the current state of the erasures, or the newest run if no check is wanted or possible now; None: no run."""
    abandoned: tuple[str, ...] = ()
    """Ids of runs that are not continued."""


def decide_erasures(
    dataset: Dataset, world: Observation, stops: Verdict | None, now: datetime, settings: Settings
) -> ErasuresChoice:
    """Decide whether a run that checks the erasures starts now. It never runs at the same time as a vacuum of the table."""
    runs = [r for r in world.runs if r.kind is RunKind.ERASURE_CHECK]
    latest = max(runs, key=_age, default=None)
    state = retry_state(latest, dataset.meta.generation, settings, FOR_ERASURES) if latest is not None else None
    view = world.table
    unfinished = (latest.run_id,) if latest is not None and not isinstance(state, Running | Succeeded) else ()
    if not isinstance(view, TableView) or not view.ledger.open_erasures:
        return ErasuresChoice(None, None, None if unfinished else state, latest, unfinished)
    policy = match(world.policies, dataset.meta.labels).decides
    rules = policy.spec if policy is not None else VacuumPolicySpec()
    lead = rules.triggers.evict_by_lead_seconds
    due_by = now + timedelta(seconds=lead)
    ripe = [e for e in view.ledger.open_erasures if may_come_further(e, view, now, due_by)]
    later = earliest(*_changes(view.ledger.open_erasures, now, lead))
    if stops is not None or not ripe or any(r.active for r in world.runs if r.kind.family is RunFamily.VACUUM):
        return ErasuresChoice(None, later, state, latest)
    name = policy.meta.full_name if policy is not None else dataset.meta.full_name
    run = run_specs.erasures(dataset, name, rules.expire_snapshots, lead, _key(ripe, now, due_by))
    same = next((r for r in runs if r.run_id == run.run_id), None)
    abandoned = unfinished if latest is not same else ()
    stands = retry_state(same, dataset.meta.generation, settings, FOR_ERASURES) if same is not None else None
    match stands:
        case Succeeded(attempt):
            again = _again(attempt, settings)
            if again is None or again > now:
                return ErasuresChoice(None, earliest(again, later), stands, same, abandoned)
        case RetryAt(at) if at > now:
            return ErasuresChoice(None, earliest(at, later), stands, same, abandoned)
        case Exhausted(attempt):
            pause = (attempt.finished or attempt.created) + timedelta(seconds=settings.retry.max_seconds)
            if pause > now:
                return ErasuresChoice(None, earliest(pause, later), stands, same, abandoned)
        case NotStarted() | RetryAt() | Running() | None:
            pass
        case _:
            assert_never(stands)
    number = max((a.number for a in same.attempts), default=0) + 1 if same is not None else 1
    launch = Launch(
        run.model_copy(update={"attempt": number}),
        bytes=0,
        generation=dataset.meta.generation,
        why=f"{len(ripe)} erasures are ready to be checked",
        for_uid=FOR_ERASURES,
    )
    return ErasuresChoice(launch, later, stands, same, abandoned)


def _again(attempt: Attempt, settings: Settings) -> datetime | None:
    """When to check the same state again; None: another check would find the same.

    A check closes each erasure whose rows have left the head, or names what blocks it; neither, if others commit meanwhile.
    """
    erasures = attempt.result.erasures if isinstance(attempt.result, ErasureCheckResult) else ()
    left = (e for e in erasures if e.verified_time is None and e.vacuum_snapshot_id is not None)
    if all(e.blocked_by_count for e in left):
        return None
    pause = back_off_seconds(attempt.number, settings.retry)
    return (attempt.finished or attempt.created) + timedelta(seconds=pause)


def may_come_further(erasure: Erasure, view: TableView, now: datetime, due_by: datetime) -> bool:
    """Whether a check, which purges nothing, may find more progress than the last one."""
    due = erasure.is_due(due_by)
    if not erasure.is_purged:
        if erasure.field_id != view.batch_field_id:
            # In format version 2, an Erase of records rewrites the data files itself; in version 3, a vacuum must rewrite them.
            return due or (view.format_version < 3 and not view.ledger.tombstones)
        return not view.ledger.tombstones  # the rows are purged, but the vacuum failed before it recorded that
    if not erasure.blockers_count or (erasure.look_again is not None and erasure.look_again <= now):
        return True
    return all(_lets_go(b, view, now, due) for b in erasure.blockers)


def _lets_go(blocker: ErasureBlocker, view: TableView, now: datetime, due: bool) -> bool:
    if blocker.until is not None and blocker.until <= now:
        return True
    match blocker.kind:
        case BlockerKind.TAG | BlockerKind.BRANCH:
            return blocker.name not in view.refs
        case BlockerKind.SNAPSHOT:
            return due or int(blocker.name) not in view.snapshot_ids
        case BlockerKind.TABLE_PROPERTY:
            return not view.keeps_files
        case BlockerKind.HOLD:
            return True  # of rows that have left the head since
        case BlockerKind.STAGED_SNAPSHOT:
            return int(blocker.name) not in view.snapshot_ids
        case (
            BlockerKind.OBJECT_LOCK
            | BlockerKind.LEGAL_HOLD
            | BlockerKind.OBJECT_VERSION
            | BlockerKind.OBJECT
            | BlockerKind.RUN
        ):
            return False  # only the storage knows
        case _:
            assert_never(blocker.kind)


def held_beyond_deadline(ledger: Ledger, now: datetime) -> str:
    """A message about the erasures that holds keep open beyond their deadlines; "": there are none."""
    late = [e for e in ledger.open_erasures if e.is_held and _outlasts(e, now)]
    if not late:
        return ""
    name = name_of(late[0].restatement)
    others = f" and {len(late) - 1} more" if len(late) > 1 else ""
    due = timestamp(late[0].evict_by) if late[0].evict_by is not None else ""
    return f"Restatement {name}{others}: bytes must be gone by {due}. {_progress(late[0])[2]}"


def _outlasts(erasure: Erasure, now: datetime) -> bool:
    ends = [b.until for b in erasure.blockers if b.kind is BlockerKind.HOLD]
    due = erasure.evict_by
    return due is not None and (due <= now or any(until is None or until > due for until in ends))


def is_overdue(erasure: Erasure, now: datetime) -> bool:
    """Whether the evictBy of an erasure has come before its verification. One without an evictBy is never overdue."""
    return erasure.is_open and erasure.is_due(now)


def _key(ripe: Iterable[Erasure], now: datetime, due_by: datetime) -> str:
    """Identifies the state that a run checks: any change of it gives another key, and so another run."""
    lines = sorted(
        repr((e.restatement, e.purged_at, e.look_again, e.blockers, e.is_due(now), e.is_due(due_by))) for e in ripe
    )
    return f"erasures\n{sha256(chr(10).join(lines).encode()).hexdigest()}"


def _changes(erasures: Iterable[Erasure], now: datetime, lead_seconds: int) -> list[datetime]:
    """The times at which the decision or the status of an erasure changes by itself."""
    found: list[datetime] = []
    for e in erasures:
        times = [e.look_again, e.evict_by, *(b.until for b in e.blockers)]
        if e.evict_by is not None:
            times.append(e.evict_by - timedelta(seconds=lead_seconds))
        found += [t for t in times if t is not None and t > now]
    return found


def _age(run: ObservedRun) -> tuple[bool, float]:
    return (run.last is None, run.last.created.timestamp() if run.last else 0.0)


NAMED_AT_MOST: Final = 3  # blockers of an erasure that a message names
# Reasons of the condition Erased after which the operator does not track the erasure any more.
_NOT_WATCHED: Final = (str(Reason.ERASURE_NOT_WATCHED), str(Reason.ERASURE_UNDONE), str(Reason.TABLE_REPLACED))


@dataclass(frozen=True)
class ErasureState:
    """What the status of a Restatement shows of its erasure."""

    condition: Condition
    """Erased."""
    status: ErasureStatus = field(default_factory=ErasureStatus)
    """`status.erasure`."""

    @property
    def digest(self) -> str:
        """A text that is equal for states that look the same in a status; messages do not count."""
        return _digest(self.condition, self.status)


def erasure_state(
    restatement: Restatement, world: Observation, now: datetime, signer: Signer | None = None
) -> ErasureState | None:
    """The erasure status of a Restatement that is in the ledger; None: its rows need not be erased, or the ledger cannot be read.

    Args:
        signer: Signs the records of erasures; None: they are not signed.
    """
    if not isinstance(world.table, TableView):
        return None
    entry = world.table.ledger.requests.get(restatement.key)
    if (erasure := world.open_erasures.get(restatement.key)) is not None:
        return of_open(erasure, now)
    try:
        result = RequestResult.model_validate(dict(entry.result)) if entry is not None else None
    except ValidationError:
        result = None
    if result is not None and result.erasure is not None and result.erasure.verified_time is not None:
        return _verified(restatement, result, world.table.uuid, signer)
    if restatement.spec.evict_by_seconds is None or restatement.spec.dry_run:
        return None
    if result is not None and result.undone_by:
        text = f"Restatement {name_of(result.undone_by)} undid this Restatement, so its rows are kept."
        return ErasureState(Condition.of(conditions.ERASED, conditions.FALSE, Reason.ERASURE_UNDONE, text))
    text = "A version of Lethe that did not track erasures committed this Restatement. evictBy still applies to its tombstones."
    return ErasureState(Condition.of(conditions.ERASED, conditions.UNKNOWN, Reason.ERASURE_NOT_WATCHED, text))


def of_open(erasure: Erasure, now: datetime) -> ErasureState:
    """The status of an erasure that is not verified yet."""
    is_blocked = erasure.blockers_count > 0
    shown = ErasureStatus(
        due_time=erasure.evict_by,
        vacuum_snapshot_id=erasure.purged_by,
        blocked_by=tuple(str(b) for b in erasure.blockers) if is_blocked else None,
        blocked_by_count=erasure.blockers_count if is_blocked else None,
    )
    status, reason, text = _progress(erasure)
    if erasure.evict_by is not None and is_overdue(erasure, now):
        status, reason = conditions.FALSE, reason if erasure.is_held else Reason.ERASURE_OVERDUE
        text = f"The erasure was due at {timestamp(erasure.evict_by)}. {text}"
    return ErasureState(Condition.of(conditions.ERASED, status, reason, text), shown)


def _progress(erasure: Erasure) -> tuple[ConditionStatus, Reason, str]:
    if erasure.is_held:
        by = ", ".join(str(b) for b in erasure.blockers)
        text = f"The table's data files contain the rows, and no vacuum may purge all of them: {by}. "
        return conditions.FALSE, Reason.LEGAL_HOLD, f"{text}It goes on by itself when that has ended."
    if not erasure.is_purged:
        text = "Data files of the table contain the rows until a vacuum purges them."
        return conditions.FALSE, Reason.ROWS_IN_TABLE, text
    purged = f"Snapshot {erasure.purged_by} removed the rows from the table's data files."
    if not erasure.blockers_count:
        return (
            conditions.UNKNOWN,
            Reason.ERASURE_NOT_VERIFIED,
            f"{purged} No run has verified yet that no file in the storage contains them.",
        )
    if any(b.kind is BlockerKind.TABLE_PROPERTY for b in erasure.blockers):
        return (
            conditions.FALSE,
            Reason.GC_DISABLED,
            f"{purged} Old files that contain them cannot be deleted: {KEEPS_FILES}.",
        )
    first = ", ".join(str(b) for b in erasure.blockers[:NAMED_AT_MOST])
    more = erasure.blockers_count - min(NAMED_AT_MOST, len(erasure.blockers))
    others = f" and {more} more (status.erasure.blockedBy)" if more > 0 else ""
    return (
        conditions.FALSE,
        Reason.ERASURE_BLOCKED,
        f"{purged} Old files that contain them are kept by {first}{others}.",
    )


def _verified(restatement: Restatement, result: RequestResult, table_uuid: str, signer: Signer | None) -> ErasureState:
    outcome = result.erasure
    assert outcome is not None
    assert outcome.verified_time is not None
    seconds, committed = restatement.spec.evict_by_seconds, result.committed_time
    shown = ErasureStatus(
        due_time=committed + timedelta(seconds=seconds) if seconds is not None and committed is not None else None,
        vacuum_snapshot_id=outcome.vacuum_snapshot_id,
        verified_time=outcome.verified_time,
        record=outcome.record,
        record_sha256=outcome.record_sha256,
    )
    if signer is not None:
        statement = Statement(table_uuid, restatement.key, outcome.record_sha256, outcome.verified_time)
        own = f"{signer.public.id}:{signer.sign(statement)}"
        shown = shown.model_copy(update={"signature": _shown_signature(restatement.status, shown) or own})
    text = f"A run verified that no file in the storage contains the rows. The record is {outcome.record}."
    return ErasureState(Condition.of(conditions.ERASED, conditions.TRUE, Reason.ERASED, text), shown)


def _shown_signature(status: RestatementStatus, new: ErasureStatus) -> str | None:
    """The signature of the same record that a status shows: an earlier key may have made it, and it stays. None: none."""
    shown = status.erasure
    if shown is None or _record_of(shown) != _record_of(new):
        return None
    return shown.signature


def _record_of(erasure: ErasureStatus) -> tuple[object, ...]:
    return erasure.verified_time, erasure.record, erasure.record_sha256


def is_awaited(status: RestatementStatus) -> bool:
    """Whether a status shows an erasure that the operator still tracks."""
    condition = status.condition(conditions.ERASED)
    return condition is not None and condition.status != conditions.TRUE and condition.reason not in _NOT_WATCHED


def digest_of(status: RestatementStatus) -> str:
    """The digest of what a status shows, to be compared with `ErasureState.digest`."""
    condition = status.condition(conditions.ERASED)
    return _digest(condition, status.erasure or ErasureStatus()) if condition is not None else ""


def digests(ledger: Ledger, now: datetime) -> dict[str, str]:
    """The digest of what to show for each open erasure, by the key of its Restatement."""
    return {e.restatement: of_open(e, now).digest for e in ledger.open_erasures}


def of_dataset(ledger: Ledger, now: datetime) -> ErasureCounts:
    """`status.erasures` of a Dataset: numbers of open erasures and the next deadline."""
    erasures = ledger.open_erasures
    due = [e.evict_by for e in erasures if e.evict_by is not None]
    return ErasureCounts(
        open=len(erasures),
        blocked=sum(e.blockers_count > 0 for e in erasures),
        overdue=sum(is_overdue(e, now) for e in erasures),
        next_due_time=min(due, default=None),
    )


def overdue(ledger: Ledger, now: datetime) -> str:
    """A message about the overdue erasures and what blocks the first one; "": none is overdue, or holds keep them all."""
    late = [e for e in ledger.open_erasures if is_overdue(e, now) and not e.is_held]
    if not late:
        return ""
    name = name_of(late[0].restatement)
    others = f" and {len(late) - 1} more" if len(late) > 1 else ""
    return f"The deadline to erase the rows of Restatement {name}{others} has passed. {_progress(late[0])[2]}"


def _digest(condition: Condition, erasure: ErasureStatus) -> str:
    return f"{condition.status} {condition.reason} {erasure.model_dump_json(exclude_none=True)}"

"""Judges a run by its attempts: whether it is active, has ended, is retried and when, or is given up. Pure.

Failed attempts are classified by cause, and each cause is counted and delayed separately. Of this, `status.runs` of a Dataset,
the events of its runs and the Jobs to delete are made, and whether runs report another version of Lethe than the operator's.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, assert_never

from lethe.base.errors import EXIT_INPUT, Verdict
from lethe.contract.result import (
    AnyRunResult,
    ConsolidationResult,
    ErasureCheckResult,
    Phase,
    ReanchoringResult,
    RequestResult,
    RestatementGroupResult,
    RunOutcome,
    VacuumResult,
)
from lethe.contract.settings import RunFamily
from lethe.contract.status import ENDED_RUNS_OF_A_KIND, RunEntry

from lethe_operator.actions import Event
from lethe_operator.reasons import Reason
from lethe_operator.resources.common import EXECUTOR_KEY, RUN_KEY
from lethe_operator.resources.observed import (
    NO_FAILURES,
    Attempt,
    AttemptState,
    Engine,
    Failures,
    ObservedRun,
    TableView,
)
from lethe_operator.settings import BackOff, Settings

# Reasons that a run reports for errors of unknown cause.
_OWN_FAULT: Final = frozenset({"SparkFailed", "UnexpectedError"})
# Exit codes: unknown, SIGKILL, SIGTERM.
_TAKEN_AWAY: Final = frozenset({None, 128 + 9, 128 + 15})


class FailureCause(Enum):
    """The cause of a failed attempt."""

    RUN = "Run"
    """The run itself. The next attempt may fail in the same way."""
    INFRASTRUCTURE = "Infrastructure"
    """Something temporary that would make any run fail: a node or service became unavailable, memory was too small, another
    writer committed first, or an object does not exist yet.
    """


def cause(attempt: Attempt) -> FailureCause:
    """The cause of a failed attempt."""
    if attempt.oom or _never_started(attempt):
        return FailureCause.INFRASTRUCTURE
    if attempt.job_reason == "DeadlineExceeded":
        return FailureCause.RUN
    result = attempt.result
    if result is not None and result.reason:
        return FailureCause.RUN if result.permanent or result.reason in _OWN_FAULT else FailureCause.INFRASTRUCTURE
    return FailureCause.INFRASTRUCTURE if attempt.exit_code in _TAKEN_AWAY else FailureCause.RUN


# Clocks of machines differ by less, unless one is wrong.
CLOCKS_DIFFER_BY: Final = timedelta(minutes=1)


def with_known_ends(runs: Sequence[ObservedRun], now: datetime) -> tuple[ObservedRun, ...]:
    """The runs without ends in the future, which are of a clock that was wrong. Then the time of the creation counts.

    The process that carries out a run may say when it ended. A pause after such a time could last for days, and later runs would
    seem to have ended before it.
    """
    latest = now + CLOCKS_DIFFER_BY
    return tuple(_with_known_ends(r, latest) if any(_is_after(a, latest) for a in r.attempts) else r for r in runs)


def _with_known_ends(run: ObservedRun, latest: datetime) -> ObservedRun:
    attempts = (replace(a, finished=a.created) if _is_after(a, latest) else a for a in run.attempts)
    return replace(run, attempts=tuple(attempts))


def _is_after(attempt: Attempt, latest: datetime) -> bool:
    return attempt.finished is not None and attempt.finished > latest


def less_might_help(attempt: Attempt) -> bool:
    """Whether a smaller run might succeed where this failed attempt did not."""
    return attempt.oom or cause(attempt) is FailureCause.RUN


def counted(attempts: Iterable[Attempt], generation: int, for_uid: str = "") -> Failures:
    """The number of failures of a run, including attempts whose Jobs were deleted.

    Args:
        attempts: Its known attempts, oldest first. The oldest may be missing.
        generation: The Dataset's. Failures before its last edit do not count.
        for_uid: Only attempts with this `for_uid` count.
    """
    same = [a for a in attempts if (a.generation, a.for_uid) == (generation, for_uid)]
    failed = [cause(a) for a in same if a.state is AttemptState.FAILED]
    own = sum(c is FailureCause.RUN for c in failed)
    return (same[0].failures_before if same else Failures()) + Failures(own, len(failed) - own)


def pause_seconds(last: Attempt, failures: Failures, settings: Settings) -> float:
    """The delay between a failed attempt and the next one. Only failures with the same cause make it longer."""
    if cause(last) is FailureCause.RUN:
        return back_off_seconds(failures.run, settings.retry)
    return back_off_seconds(failures.infrastructure, settings.infrastructure_retry)


def back_off_seconds(failures: int, back_off: BackOff) -> float:
    """The delay after this many failures: the base delay, doubled with each further failure, up to the maximum."""
    return float(min(back_off.max_seconds, back_off.base_seconds * 2 ** min(max(failures - 1, 0), 30)))


def failure(attempt: Attempt) -> Verdict:
    """Why an attempt failed, from the most reliable source that is available."""
    if attempt.oom:
        return Verdict(Reason.OOM_KILLED, f"The driver of {attempt.job} exceeded its memory limit and was killed.")
    result = attempt.result
    if result is not None and result.reason:
        return result.verdict
    if _never_started(attempt):
        return Verdict(Reason.POD_WAITING, f"The pod of {attempt.job} did not start within the time limit of a run.")
    if attempt.job_reason == "DeadlineExceeded":
        return Verdict(Reason.DEADLINE_EXCEEDED, f"{attempt.job} exceeded the time limit of a run and was stopped.")
    if attempt.engine is Engine.COMMITTER:
        return Verdict(Reason.COMMITTER_AWAY, f"The committer of the namespace did not report how {attempt.job} ended.")
    if attempt.job_reason == Reason.SUBMISSION_FAILED:
        why = attempt.job_message.rstrip(".")
        return Verdict(Reason.SUBMISSION_FAILED, f"Kubeflow's operator could not submit {attempt.job}: {why}.")
    if attempt.engine in (Engine.WARM_DRIVER, Engine.VALUES_DRIVER):
        return Verdict(
            Reason.WARM_DRIVER_AWAY, f"The warm driver of the namespace did not report how {attempt.job} ended."
        )
    if attempt.exit_code is None:
        return Verdict(Reason.DRIVER_LOST, f"The driver pod of {attempt.job} disappeared before it reported a result.")
    return Verdict(Reason.RUN_FAILED, f"{attempt.job} ended with exit code {attempt.exit_code}. See its log.")


def _never_started(attempt: Attempt) -> bool:
    """Whether the time limit passed, and the driver has reported nothing."""
    has_started = attempt.progress is not None or attempt.result is not None or attempt.exit_code is not None
    return attempt.job_reason == "DeadlineExceeded" and not has_started


# A driver that was killed for its memory is retried twice, because the need may vary. Then a user must raise the memory.
OOM_ATTEMPTS: Final = 3
# Failures that depend on the state of the table are never final: no run starts while the Dataset's conditions show them.
OF_THE_TABLE: Final = frozenset({Reason.TABLE_ROLLED_BACK, Reason.TABLE_REPLACED, Reason.LEDGER_LOST})


@dataclass(frozen=True)
class NotStarted:
    """The document of the run is stored, and there is no attempt yet."""

    number: int
    """Of the next attempt."""


@dataclass(frozen=True)
class Running:
    """An attempt is active."""

    attempt: Attempt
    failures: Failures = NO_FAILURES
    """Of the attempts before it."""
    failure: Verdict | None = None
    """The last one before it; None: there was none."""


@dataclass(frozen=True)
class Succeeded:
    """The last attempt succeeded."""

    attempt: Attempt


@dataclass(frozen=True)
class RetryAt:
    """The last attempt failed for a temporary reason."""

    at: datetime
    """The next attempt does not start earlier."""
    number: int
    """Of the next attempt."""
    failure: Verdict
    failures: Failures
    """Since the last edit of the Dataset."""
    attempt: Attempt
    """The last one."""


@dataclass(frozen=True)
class Exhausted:
    """No attempt follows until something changes."""

    attempt: Attempt
    """The last one."""
    failure: Verdict
    permanent: bool
    """True: the run reported a permanent error; False: it failed too often."""


RetryState = NotStarted | Running | Succeeded | RetryAt | Exhausted


def retry_state(run: ObservedRun, generation: int, settings: Settings, for_uid: str = "") -> RetryState:
    """Judge a run by its attempts.

    Args:
        generation: The Dataset's. Failures under other generations do not count, so the operator retries at once after an edit.
        for_uid: Only attempts with this `for_uid` count, so a Restatement that was deleted and created again starts from the
            beginning.
    """
    active = [a for a in run.attempts if a.state is AttemptState.ACTIVE]
    if active:
        before = [a for a in run.attempts if a.state is not AttemptState.ACTIVE]
        earlier = retry_state(replace(run, attempts=tuple(before)), generation, settings, for_uid)
        if isinstance(earlier, RetryAt):
            return Running(active[-1], earlier.failures, earlier.failure)
        return Running(active[-1])
    number = max((a.number for a in run.attempts), default=0) + 1
    mine = [a for a in run.attempts if a.for_uid == for_uid]
    if not mine:
        return NotStarted(number)
    last = mine[-1]
    if last.state is AttemptState.SUCCEEDED:
        return Succeeded(last)
    why = failure(last)
    ended = last.finished or last.created
    same_generation = [a for a in mine if a.generation == generation]
    final = last.exit_code == EXIT_INPUT and not last.oom and why.reason not in OF_THE_TABLE
    if final and same_generation:
        return Exhausted(last, why, permanent=True)
    if sum(a.oom for a in same_generation) >= OOM_ATTEMPTS:
        hint = f"This happened {OOM_ATTEMPTS} times. Increase spec.runTemplate.driver.memory of the Dataset."
        return Exhausted(last, why.adding(hint), permanent=False)
    if not same_generation:
        return RetryAt(ended, number, why, NO_FAILURES, last)
    failures = counted(run.attempts, generation, for_uid)
    if last.engine is not Engine.JOB:  # a Job tries the same at once
        return RetryAt(ended, number, why, failures, last)
    at = ended + timedelta(seconds=pause_seconds(last, failures, settings))
    return RetryAt(at, number, why, failures, last)


SHOWN_AT_MOST: Final = 30
MESSAGE_AT_MOST: Final = 500
# Scheduling a pod and pulling its image normally takes less; only then the status says why the pod waits.
WAITING_IS_LONG_AFTER: Final = timedelta(seconds=30)
ENDING: Final = "Ending"
_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)
ENDED_PHASES: Final = (Phase.SUCCEEDED.value, Phase.FAILED.value)
# Reasons of active runs that get an event.
_WAITS: Final = (Reason.POD_WAITING, Reason.EXECUTORS_MISSING)


def entries(
    runs: Iterable[ObservedRun], view: TableView | None, old: Sequence[RunEntry], now: datetime
) -> tuple[RunEntry, ...]:
    """`status.runs`: the active runs and the last few finished runs of each kind, newest first.

    Args:
        view: None: the table cannot be read.
        old: The current `status.runs`. A finished run keeps its entry even if its Job was deleted.
    """
    before = {e.name: e for e in old}
    succeeded = {e.name for e in old if e.phase == Phase.SUCCEEDED}
    shown = [
        # A run that was once shown as committed stays so: its snapshot may have expired, and its run.json may be deleted.
        entry(
            a,
            a.job in succeeded or (a is r.last and view is not None and view.has_committed(r)),
            now,
            before[a.job].finish_time if a.job in before else None,
        )
        for r in runs
        for a in r.attempts
    ]
    there = {e.name for e in shown}
    shown += [e for e in old if e.name not in there and e.phase in ENDED_PHASES]
    shown.sort(key=started, reverse=True)
    kept: list[RunEntry] = []
    counts: dict[str, int] = {}
    for e in shown:
        if e.phase in ENDED_PHASES:
            counts[e.kind] = counts.get(e.kind, 0) + 1
            if counts[e.kind] > ENDED_RUNS_OF_A_KIND:
                continue
        kept.append(e)
    return tuple(kept[:SHOWN_AT_MOST])


def started(entry: RunEntry) -> tuple[datetime, str]:
    """The sort key of entries: the start of the run."""
    return entry.start_time or _BEGINNING, entry.name


def entry(attempt: Attempt, committed: bool, now: datetime, ended: datetime | None = None) -> RunEntry:
    """One entry of `status.runs`.

    Args:
        committed: The table has a commit of this run, whatever its pod says.
        ended: The time of the end that the current entry shows. None: it shows none.
    """
    phase, why = _state(attempt, committed, now)
    progress = attempt.progress
    executors = progress.executors if progress is not None and not attempt.suspended else None
    is_active = attempt.state is AttemptState.ACTIVE
    added = attempt.result if isinstance(attempt.result, ConsolidationResult) else None
    return RunEntry(
        name=attempt.job,
        kind=attempt.kind.family.value,
        phase=phase,
        progress=(
            f"{progress.tasks_done}/{progress.tasks_total} tasks"
            if progress is not None and progress.tasks_total
            else None
        ),
        executors=(
            f"{executors.running}/{executors.planned}"
            if is_active and executors is not None and not executors.alone
            else None
        ),
        message=why.message or None,
        reason=why.reason or None,
        batches=added.batches_promoted if added is not None else None,
        rows=added.rows_added if added is not None else None,
        attempt=attempt.number,
        start_time=attempt.created,
        # If nothing reported the end, as when a warm driver is gone, it ended when the operator saw that.
        finish_time=attempt.finished or (None if is_active else ended or now),
    )


def _state(attempt: Attempt, committed: bool, now: datetime) -> tuple[str, Verdict]:
    """The phase of an attempt, and why it is in this phase."""
    match attempt.state:
        case AttemptState.ACTIVE:
            return _phase_under_way(attempt), _under_way(attempt, now)
        case AttemptState.SUCCEEDED:
            result = attempt.result
            is_anchor = isinstance(result, ReanchoringResult) and result.outcome is not RunOutcome.NOTHING_TO_DO
            text = " ".join([outcome(result), *_executors_lost(attempt)])
            return Phase.SUCCEEDED, Verdict(Reason.HEAD_REANCHORED if is_anchor else "", text)
        case AttemptState.FAILED if committed:
            what = "Committed the finished steps" if attempt.kind.commits_in_steps else "Committed"
            text = f"{what}; its pod failed afterwards: {failure(attempt).message}"
            return Phase.SUCCEEDED, Verdict("", text[:MESSAGE_AT_MOST])
        case AttemptState.FAILED:
            why = failure(attempt)
            return Phase.FAILED, replace(why, message=why.message[:MESSAGE_AT_MOST])
        case _:
            assert_never(attempt.state)


def _under_way(attempt: Attempt, now: datetime) -> Verdict:
    """What an active attempt waits for or does; empty texts: nothing to show."""
    # A suspended object may start no pod, so only the time since then counts.
    long = now - (attempt.started or attempt.created) >= WAITING_IS_LONG_AFTER
    progress = attempt.progress
    if attempt.suspended:
        return Verdict(Reason.RUN_SUSPENDED, attempt.suspended[:MESSAGE_AT_MOST])
    if attempt.waiting and long:
        return Verdict(Reason.POD_WAITING, attempt.waiting[:MESSAGE_AT_MOST])
    if missing := executors_missing(attempt, long):
        return Verdict(Reason.EXECUTORS_MISSING, missing[:MESSAGE_AT_MOST])
    if progress is not None and (progress.message or progress.rows):
        return Verdict("", progress.message or f"{progress.rows} rows")
    return Verdict("", "")


def _phase_under_way(attempt: Attempt) -> str:
    """The phase that the driver reported. Only the Job shows, a little later, whether the run succeeded or failed."""
    if attempt.suspended:
        return Phase.PENDING.value
    if attempt.progress is None:
        return Phase.PENDING.value if attempt.waiting else Phase.STARTING.value
    return ENDING if attempt.progress.phase.value in ENDED_PHASES else attempt.progress.phase.value


def executors_missing(attempt: Attempt, long: bool) -> str:
    """Why an active run has fewer executors than planned; "": it has them, or they are starting.

    Args:
        long: The attempt started so long ago that executors normally run.
    """
    executors = attempt.progress.executors if attempt.progress is not None else None
    parts = [executors.message] if executors is not None and executors.message else []
    if attempt.executors_waiting and long and not (executors is not None and executors.alone):
        parts.append(attempt.executors_waiting)
    return ". ".join(p.rstrip(".") for p in parts) + "." if parts else ""


def _executors_lost(attempt: Attempt) -> tuple[str, ...]:
    """What a finished run lacked."""
    executors = attempt.progress.executors if attempt.progress is not None else None
    if executors is None or not (executors.alone or executors.lost):
        return ()
    return (executors.message,) if executors.alone else (f"{executors.lost} executors were lost.",)


def outcome(result: AnyRunResult | None) -> str:
    """One line about what a run did."""
    if result is None:
        return "Succeeded."
    match result.outcome:
        case RunOutcome.NOTHING_TO_DO:
            return _idle(result)
        case RunOutcome.PLANNED:
            return _planned(result)
        case RunOutcome.ALREADY_COMMITTED:
            return f"Committed by an earlier attempt: {_done(result)}."
        case RunOutcome.COMMITTED | RunOutcome.FAILED:
            return f"{_done(result)}."
        case _:
            assert_never(result.outcome)


def _done(result: AnyRunResult) -> str:
    match result:
        case ConsolidationResult():
            return (
                f"{result.batches_promoted} batches promoted, {result.rows_added} rows in {result.files_added} files, "
                f"{result.refused_count} batches refused, {result.held_count} held, {result.batches_withheld} withheld"
            )
        case ReanchoringResult():
            return "The ledger is attached to the head, which another writer committed"
        case RestatementGroupResult():
            return _of_group(result.requests)
        case VacuumResult() | ErasureCheckResult():
            done = ", ".join([*_purged(result), f"{result.snapshots_expired} snapshots expired", *_besides(result)])
            return f"{done}. {result.message.removesuffix('.')}" if result.message else done
        case _:
            assert_never(result)


def _idle(result: AnyRunResult) -> str:
    """The line for a run without a commit. A vacuum may still have expired snapshots or removed orphan files."""
    match result:
        case ConsolidationResult() | ReanchoringResult() | RestatementGroupResult():
            return result.message or "There was nothing to do."
        case VacuumResult() | ErasureCheckResult():
            besides = _besides(result)
            if not besides and not result.snapshots_expired:
                return result.message or "There was nothing to do."
            done = ", ".join([f"{result.snapshots_expired} snapshots expired", *besides])
            return f"There was nothing to purge: {done}. {result.message}".strip()
        case _:
            assert_never(result)


def _planned(result: AnyRunResult) -> str:
    match result:
        case RestatementGroupResult():
            refused = sum(not r.succeeded for r in result.requests)
            return f"Restatements planned: {len(result.requests) - refused}, refused: {refused}. Nothing was changed."
        case VacuumResult() if result.plan is not None:
            plan, orphans = result.plan, f", {result.orphan_files_found} orphan files to remove"
            text = f"Planned: {plan.files} files to rewrite, {plan.bytes} bytes{orphans if result.orphan_files_found else ''}"
            return f"{text}. Nothing was changed."
        case VacuumResult() | ConsolidationResult() | ReanchoringResult() | ErasureCheckResult():
            return "Planned. Nothing was changed."
        case _:
            assert_never(result)


def _purged(result: VacuumResult | ErasureCheckResult) -> list[str]:
    if isinstance(result, ErasureCheckResult):
        return []
    return [
        f"{result.tombstones_purged} tombstones purged",
        f"{result.files_rewritten} files rewritten",
        f"{result.files_deleted} files deleted",
    ]


def _besides(result: VacuumResult | ErasureCheckResult) -> list[str]:
    """What a vacuum left, and what it did in addition to purging."""
    texts = _maintained(result) if isinstance(result, VacuumResult) else []
    if result.erasures or result.erasures_open:
        verified = sum(e.verified_time is not None for e in result.erasures)
        texts.append(f"{verified} erasures verified, {result.erasures_open} open")
    return texts


def _maintained(result: VacuumResult) -> list[str]:
    texts = []
    if result.files_left:
        texts.append(f"{result.files_left} files left{f' ({result.stopped})' if result.stopped else ''}")
    if result.small_files_compacted:
        texts.append(f"{result.small_files_compacted} small files compacted")
    if result.manifests_rewritten:
        texts.append(f"{result.manifests_rewritten} manifests rewritten")
    if result.orphan_files_found:
        of = f" of {result.orphan_files_found}" if result.orphan_files_found > result.orphan_files_removed else ""
        texts.append(f"{result.orphan_files_removed}{of} orphan files removed")
    return texts


def _of_group(requests: Sequence[RequestResult]) -> str:
    done = [r for r in requests if r.succeeded]
    rows = f"{sum(r.rows_deleted for r in done)} rows deleted, {sum(r.rows_added for r in done)} rows added"
    if len(requests) <= 1:
        return rows
    return f"{len(done)} of {len(requests)} Restatements carried out, {rows}"


def ended(old: Sequence[RunEntry], new: Sequence[RunEntry]) -> list[RunEntry]:
    """The entries of the runs that ended since the old status was written."""
    before = {e.name: e.phase for e in old}
    return [e for e in new if _ends(e, before.get(e.name))]


def _ends(entry: RunEntry, phase_before: str | None) -> bool:
    return entry.phase in ENDED_PHASES and entry.phase != phase_before


def events(dataset: str, old: Sequence[RunEntry], new: Sequence[RunEntry]) -> tuple[Event, ...]:
    """Events for the runs that ended or were deleted, and for pods that are missing, since the old status was written."""
    before = {e.name: e for e in old}
    events_of_runs = [*_deleted(dataset, old, new)]
    for e in reversed(new):
        was = before.get(e.name)
        text = f"{e.kind} {e.name}: {e.message or ''}"
        if _ends(e, was.phase if was is not None else None):
            ok = e.phase == Phase.SUCCEEDED
            reason = e.reason or (Reason.RUN_SUCCEEDED if ok else Reason.RUN_FAILED)
            events_of_runs.append(Event("Dataset", dataset, Verdict(reason, text), warning=not ok))
        elif e.reason in _WAITS and (was is None or was.reason != e.reason):
            events_of_runs.append(Event("Dataset", dataset, Verdict(e.reason, text), warning=True))
    return tuple(events_of_runs)


def _deleted(dataset: str, old: Sequence[RunEntry], new: Sequence[RunEntry]) -> Iterator[Event]:
    """Events for active runs whose objects are gone, so that no entry of `new` shows how they ended."""
    if len(new) >= SHOWN_AT_MOST:  # such an entry may only have no room
        return
    there = {e.name for e in new}
    for e in old:
        if e.phase not in ENDED_PHASES and e.name not in there:
            text = f"{e.kind} {e.name} was deleted before it ended. If it is still due, it starts again."
            yield Event("Dataset", dataset, Verdict(Reason.RUN_DELETED, text), warning=True)


@dataclass(frozen=True)
class Prunable:
    """Jobs and keys of the Dataset's ConfigMap that are no longer needed."""

    jobs: tuple[str, ...] = ()
    """Names."""
    keys: tuple[str, ...] = ()


def prunable(runs: Iterable[ObservedRun], mirrored: Sequence[RunEntry], needed: frozenset[str]) -> Prunable:
    """What to delete: all but the last few runs of each family, inputs of finished runs, and old attempts of long runs.

    Args:
        mirrored: `status.runs` as the API server has it.
        needed: Ids of the runs that are active, will be retried, or are not reported yet.
    """
    ended = {e.name for e in mirrored if e.phase in ENDED_PHASES}
    jobs: list[str] = []
    keys: list[str] = []
    by_family: dict[RunFamily, list[ObservedRun]] = {}
    for run in runs:
        if run.attempts:
            by_family.setdefault(run.kind.family, []).append(run)
    for same_family in by_family.values():
        same_family.sort(key=lambda r: r.attempts[-1].created, reverse=True)
        for i, run in enumerate(same_family):
            if i >= ENDED_RUNS_OF_A_KIND and not run.active and run.run_id not in needed:
                jobs += [a.job for a in run.attempts]
                keys += run.keys
                continue
            if run.run_id not in needed and not run.active and run.attempts[-1].job in ended:
                # The size of a ConfigMap is limited, so the inputs of a finished run are deleted; its results stay.
                keys += [k for k in run.keys if k.endswith((RUN_KEY, EXECUTOR_KEY))]
            if len(run.attempts) > ENDED_RUNS_OF_A_KIND:
                # Later attempts have the number of earlier failures in an annotation.
                oldest = run.attempts[:-ENDED_RUNS_OF_A_KIND]
                jobs += [a.job for a in oldest if a.state is not AttemptState.ACTIVE and a.job in ended]
    return Prunable(tuple(jobs), tuple(keys))


def ended_versions(runs: Iterable[ObservedRun], old: Sequence[RunEntry], new: Sequence[RunEntry]) -> frozenset[str]:
    """The versions of the runs that ended since the old status was written; "": of one that reported none.

    Args:
        old: Entries of status.runs, as they were.
        new: The same, now.
    """
    names = {e.name for e in ended(old, new)}
    return frozenset(a.result.version for r in runs for a in r.attempts if a.job in names and a.result is not None)


def skew_event(dataset: str, reported: str, own: str, image: str) -> Event:
    """Tell the user that an image does not match."""
    text = (
        f"A run reported version {reported or 'none (it is older)'} of Lethe, and the operator has {own}. Runs that started "
        f"before an upgrade end with their old image. If new runs report it too, the image {image} of runs is not of the "
        "operator's release: set the chart's values image.operator and image.spark to the same release."
    )
    return Event("Dataset", dataset, Verdict(Reason.VERSION_SKEW, text), warning=True)

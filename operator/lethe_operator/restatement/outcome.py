"""The assessment of a Restatement as a value, and that of finished ones: from the ledger, a dry run, or an earlier status. Pure.

Many Restatements may be members of one run. A run reports a request that it refuses. But if a request makes the process fail,
the run reports nothing, and it is unknown which request it was. So the group is halved until the request is alone: it delays n
others by about log n runs, not forever. Alone, it gets a few more attempts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, assert_never

from lethe.base.errors import InputError, Verdict
from lethe.contract.result import LISTED_AT_MOST, RequestResult, RestatementGroupResult
from lethe.contract.run import RestatementRequest, RunKind
from lethe.contract.settings import Operation
from lethe.contract.status import (
    BatchIdList,
    Condition,
    ConditionStatus,
    ErasureStatus,
    RestatementPlan,
    RestatementResult,
)
from lethe.restatement.group import IdList, changed
from lethe.restatement.plan import name_of
from pydantic import ValidationError

from lethe_operator.conditions import ERASED, FALSE, READY, SUCCEEDED, TRUE, UNKNOWN, timestamp
from lethe_operator.erasure.decide import ErasureState
from lethe_operator.guards.preconditions import forgets_restatements, rolled_back
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import (
    NO_FAILURES,
    Attempt,
    AttemptState,
    Failures,
    Observation,
    ObservedRun,
    TableView,
)
from lethe_operator.resources.restatement import Restatement, Unmet
from lethe_operator.runs.retry import (
    Exhausted,
    NotStarted,
    RetryAt,
    RetryState,
    Succeeded,
    counted,
    less_might_help,
    retry_state,
)
from lethe_operator.runs.spec import restatement_run_id
from lethe_operator.settings import Settings


class RestatementPhase(StrEnum):
    """`status.phase`, for people. Programs read the conditions."""

    PENDING = "Pending"
    QUEUED = "Queued"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"
    CANCELLED = "Cancelled"
    ROLLED_BACK = "RolledBack"


@dataclass(frozen=True)
class Ready:
    """The Restatement may be a member of the next run."""

    since: datetime
    """Since when."""
    undoes: str = ""
    """Key of the request that an Undo takes back; "": it is not an Undo."""
    after: str = ""
    """Id of the last run that it was a member of; "": there was none."""
    # The largest number of members of the next run; None: no limit.
    at_most: int | None = None
    dry_run: bool = False
    quick: bool = False
    """The committer may carry it out."""

    @property
    def group_key(self) -> tuple[str, int | None, bool]:
        """Only Restatements with equal values may share a run."""
        return self.after, self.at_most, self.dry_run


@dataclass(frozen=True)
class Assessment:
    """The state of a Restatement, which its status shows."""

    phase: RestatementPhase
    succeeded: ConditionStatus
    """Status of the condition Succeeded."""
    verdict: Verdict
    stalled: bool = False
    """A user must act."""
    result: RestatementResult | None = None
    """`status.result`; None: there is none."""
    plan: RestatementPlan | None = None
    """For `status.plan`; None: nothing new."""
    progress: str = ""
    """Phase and tasks of the active run; "": not shown."""
    ready: Ready | None = None
    """None: it cannot start now."""
    position: int | None = None
    """Its place in the queue, from 1; None: it is not in the queue."""
    look_again: datetime | None = None
    """When the assessment changes by itself; None: at no known time."""
    cancel_job: str | None = None
    """Name of the active Job to stop if no member of its run is wanted any more; None: there is none."""
    finished_time: datetime | None = None
    """When the condition Succeeded in the status last changed; None: the status has none, or it has not finished."""
    undoes: str = ""
    """Key of the request that an Undo takes back; "": it is not an Undo, or the key is unknown."""
    failures: Failures = NO_FAILURES
    """Of its runs, once it has ended or stalled."""
    erasure: ErasureState | None = None
    """The state of its erasure; None: its rows need not be erased, or the ledger was not read."""
    has_run: bool = False
    """It is in a run that has an object but has not started: the object is suspended."""
    from_status: bool = False
    """The assessment was read from the status."""

    @property
    def finished(self) -> bool:
        """Whether the condition Succeeded is True or False, not Unknown."""
        return self.succeeded != UNKNOWN

    @property
    def under_way(self) -> bool:
        """Whether a run that has it may commit at any time."""
        return self.phase is RestatementPhase.RUNNING or self.has_run

    @property
    def waits(self) -> bool:
        """Whether it will continue without an action of a user. Others may depend on it."""
        return not self.finished and not self.stalled


def stalled(verdict: Verdict, final: bool = False) -> Assessment:
    """The assessment of a Restatement for which a user must act.

    Args:
        final: It has failed, so the user must create another Restatement.
    """
    if final:
        return Assessment(RestatementPhase.FAILED, FALSE, verdict, stalled=True)
    return Assessment(RestatementPhase.PENDING, UNKNOWN, verdict, stalled=True)


def without_list(restatement: Restatement, earlier: RestatementRequest | None, now: datetime) -> Assessment | None:
    """The assessment of a Restatement whose list is missing, invalid or changed; None: the list is usable, or there is none.

    Args:
        earlier: Its request in the document of an earlier run, which has the list's digest even if the status was not written;
            None: there is no earlier run.
    """
    id_list = restatement.listed
    if isinstance(id_list, Unmet):
        if id_list.final:
            return stalled(id_list, final=True)
        again = now + timedelta(seconds=id_list.again_seconds)
        return Assessment(RestatementPhase.PENDING, UNKNOWN, id_list, look_again=again)
    first = restatement.list_sha256 or (earlier.batch_ids_sha256 if earlier is not None else "")
    if id_list is None or not first or id_list.sha256 == first:
        return None
    error: InputError = changed(f"Restatement {restatement.meta.name}: spec.batchIdsFrom", first, id_list.sha256)
    return stalled(error.verdict, final=True)


def seen(source: IdList | RestatementRequest | RequestResult | Unmet | None) -> BatchIdList | None:
    """The part of `status.plan` that identifies the list that was read; None: none was read."""
    match source:
        case IdList():
            return BatchIdList(count=len(source.ids), sha256=source.sha256)
        case RestatementRequest() if source.batch_ids_sha256 and source.batch_ids:
            return BatchIdList(count=len(source.batch_ids), sha256=source.batch_ids_sha256)
        case RequestResult() if source.batch_ids_sha256:
            return BatchIdList(count=source.batch_ids_count or 0, sha256=source.batch_ids_sha256)
    return None


def with_list(assessment: Assessment, source: RestatementRequest | RequestResult | None) -> Assessment:
    """The assessment with what identifies the lists that were read, unless it shows that."""
    plan = assessment.plan or RestatementPlan()
    read = {
        "batch_ids": seen(source),
        "values_digest": source.values_digest if isinstance(source, RequestResult) else None,
    }
    news = {name: value for name, value in read.items() if value is not None and getattr(plan, name) is None}
    return replace(assessment, plan=plan.model_copy(update=news)) if news else assessment


# More than one, because a single failure may be temporary.
FAILURES_BEFORE_HALVING: Final = 2
# Failures with cause RUN, after which a request that is alone is given up: each attempt delays the other requests in the queue.
FAILURES_ALONE: Final = 5


def at_most(runs: Iterable[ObservedRun], generation: int) -> int | None:
    """The largest number of members of the next run; None: no limit.

    Args:
        runs: The runs that the request was a member of, oldest first.
        generation: The Dataset's. Failures under other generations do not count, so an edit of the Dataset removes the limit.
    """
    failures, allowed = 0, None
    for run in runs:
        members = len(run.requests)
        for attempt in run.attempts:
            failed = attempt.state is AttemptState.FAILED and attempt.generation == generation
            if not failed or not less_might_help(attempt):
                continue
            failures += 1
            if failures >= FAILURES_BEFORE_HALVING:
                allowed = max(1, (members + 1) // 2)
    return allowed


@dataclass(frozen=True)
class RunHistory:
    """The outcome of a Restatement's runs."""

    state: RetryState
    run: ObservedRun | None = None
    """The latest run that it was a member of; None: there was none."""
    going: Attempt | None = None
    """The active attempt of that run; None: there is none."""
    at_most: int | None = None
    """The largest number of members of the next run; None: no limit."""
    tries: int = 0
    """Attempts of all its runs."""
    failures: Failures = NO_FAILURES
    """Of all its runs, since the Dataset was last edited."""
    undoes: str = ""
    """Key of the request to take back, in the document of the run; "": it is not an Undo."""
    earlier_request: RestatementRequest | None = None
    """Its request in the document of the run, if it has `undoes` or the digest of a list; None: not, or the request came from a
    deleted object of the same name.
    """
    _answers: Mapping[str, RequestResult] = field(default_factory=dict)
    """Results of the last attempt, by key."""

    @property
    def members(self) -> int:
        """The number of members of the run."""
        return max(1, len(self.run.requests)) if self.run is not None else 0

    def answer(self, key: str) -> RequestResult | None:
        """The result of a request in the last attempt; None: there is none."""
        return self._answers.get(key)


NEVER_TRIED = RunHistory(NotStarted(1))


class RunHistories:
    """The outcomes for all Restatements of a Dataset. Judges each run only once, also if it has many members."""

    def __init__(self, dataset: Dataset, runs: Iterable[ObservedRun], settings: Settings) -> None:
        self._dataset, self._settings = dataset, settings
        self._by_key: dict[str, list[ObservedRun]] = {}
        self._requests: dict[str, dict[str, RestatementRequest]] = {}
        self._without_intent: dict[str, ObservedRun] = {}
        self._judged: dict[tuple[str, str, bool], RunHistory] = {}
        for run in sorted((r for r in runs if r.kind is RunKind.RESTATEMENT), key=_age):
            self._requests[run.run_id] = {r.key: r for r in run.requests}
            for key in self._requests[run.run_id]:
                self._by_key.setdefault(key, []).append(run)
            if not run.requests:
                self._without_intent[run.run_id] = run

    def runs_of(self, restatement: Restatement) -> tuple[ObservedRun, ...]:
        """The known runs that had this Restatement as a member, oldest first."""
        runs = tuple(self._by_key.get(restatement.key, ()))
        if (
            self._without_intent
        ):  # without its document, a run is recognized by its id, and only if it had a single member
            alone = self._without_intent.get(restatement_run_id(self._dataset, restatement))
            runs = runs if alone is None else tuple(sorted((*runs, alone), key=_age))
        return runs

    def of(self, restatement: Restatement) -> RunHistory:
        """The outcome of the known runs of a Restatement; without any, that of one that was never tried."""
        runs = self.runs_of(restatement)
        if not runs:
            return NEVER_TRIED
        latest = next((r for r in reversed(runs) if r.active), runs[-1])
        request = self._requests[latest.run_id].get(restatement.key)
        grouped = len(latest.requests) > 1
        # A Restatement that was deleted and created again starts from the beginning. In a run of its own, its UID tells the two
        # objects apart; in a group, the creation time does.
        same = request is None or not grouped or request.creation_time == restatement.created
        of = (latest.run_id, "" if grouped else restatement.meta.uid, same)
        if of not in self._judged:
            self._judged[of] = self._judge(latest, runs, of[1], same)
        run_history = self._judged[of]
        if request is None or not (request.undoes or request.batch_ids_sha256):
            return run_history
        return replace(
            run_history,
            undoes=request.undoes,
            earlier_request=request if request.creation_time == restatement.created else None,
        )

    def _judge(self, latest: ObservedRun, runs: tuple[ObservedRun, ...], uid: str, same: bool) -> RunHistory:
        generation = self._dataset.meta.generation
        going = next((a for a in latest.attempts if a.state is AttemptState.ACTIVE), None)
        if not same and going is None:
            return RunHistory(NotStarted(latest.last.number + 1 if latest.last else 1))
        state = retry_state(latest, generation, self._settings, uid)
        result = latest.last.result if latest.last is not None else None
        answers = {r.key: r for r in result.requests} if isinstance(result, RestatementGroupResult) else {}
        tries = sum(r.last.number for r in runs if r.last is not None)
        failures = sum((_failures(r, generation, uid) for r in runs), NO_FAILURES)
        history = RunHistory(state, latest, going, at_most(runs, generation), tries, failures, _answers=answers)
        if history.members == 1 and isinstance(state, RetryAt) and state.failures.run >= FAILURES_ALONE:
            return replace(history, state=_given_up(state))
        if history.at_most is not None and history.at_most < history.members:
            return replace(history, state=_halved(state, history.at_most))
        return history


def _halved(state: RetryState, members: int) -> RetryState:
    """The state for a group that must be halved. A smaller group is another run, so it starts without a delay."""
    if (isinstance(state, Exhausted) and state.permanent) or not isinstance(state, RetryAt | Exhausted):
        return state
    last = state.attempt
    why = state.failure.adding(f"The next run has at most {members} Restatements of this group.")
    return RetryAt(last.finished or last.created, 1, why, NO_FAILURES, last)


def _given_up(state: RetryAt) -> Exhausted:
    how_often = f"It failed {state.failures.run} times in a run of its own."
    remedy = "The operator retries it only after an edit of its Dataset, or if it is deleted and created again."
    return Exhausted(state.attempt, state.failure.adding(f"{how_often} {remedy}"), permanent=False)


def _failures(run: ObservedRun, generation: int, uid: str) -> Failures:
    """The failures of a run. The UID counts only for a run with a single member."""
    return counted(run.attempts, generation, uid if len(run.requests) <= 1 else "")


def _age(run: ObservedRun) -> float:
    """Sort key: the creation of the last Job.

    A run without a Job is the latest, because its document is stored after the runs before it have ended.
    """
    return run.last.created.timestamp() if run.last else float("inf")


def finished_before(restatement: Restatement) -> Assessment | None:
    """The end that the status already shows; None: it shows none. A Restatement is a request, so it ends only once."""
    status = restatement.status
    condition, ready = status.condition(SUCCEEDED), status.condition(READY)
    if condition is None or condition.status == UNKNOWN:
        return None
    return Assessment(
        phase=_phase_of(status.phase, condition.status == TRUE),
        succeeded=condition.status,
        verdict=Verdict(condition.reason, condition.message or (ready.message if ready is not None else "")),
        stalled=condition.status == FALSE and condition.reason != Reason.CANCELLED,
        result=status.result,
        plan=status.plan,
        finished_time=condition.last_transition_time,
        from_status=True,
    )


def _phase_of(written: str | None, has_succeeded: bool) -> RestatementPhase:
    """The phase in a status. A user or another version may have written an unknown one: then the condition Succeeded decides."""
    for phase in RestatementPhase:
        if written == phase.value:
            return phase
    return RestatementPhase.SUCCEEDED if has_succeeded else RestatementPhase.FAILED


def in_ledger(restatement: Restatement, world: Observation, run_history: RunHistory) -> Assessment | None:
    """The end that the ledger shows; None: it does not contain the request, or perhaps with other values."""
    if not isinstance(world.table, TableView):
        return None
    entry = world.table.ledger.requests.get(restatement.key)
    if entry is None:
        return None
    try:
        result = RequestResult.model_validate(dict(entry.result))
    except ValidationError:
        result = RequestResult(key=restatement.key, name=restatement.meta.full_name, succeeded=True)
    if not _means_the_same(restatement, result, run_history):
        return None
    since = _since(restatement)
    if not result.succeeded:
        return Assessment(RestatementPhase.FAILED, FALSE, result.verdict, stalled=True, finished_time=since)
    batches = result.batch_ids_count or len(restatement.batch_ids)
    assessment = succeeded(result, batches, since, by_keys=restatement.by_keys)
    verdict = assessment.verdict
    return replace(assessment, verdict=replace(verdict, message=f"{verdict.message}{_too_late(restatement, result)}"))


def _since(restatement: Restatement) -> datetime | None:
    """When the condition Succeeded in the status last changed; None: the status has none."""
    condition = restatement.status.condition(SUCCEEDED)
    return condition.last_transition_time if condition is not None else None


def _means_the_same(restatement: Restatement, result: RequestResult, run_history: RunHistory) -> bool:
    """Whether the request in the ledger is known to have the same values as this Restatement.

    The Secret of an Erase by records may have changed since. Only a run can read the Secret and compare the values
    (`lethe.restatement.plan`). No comparison is needed if the request came from this same object.
    """
    if restatement.spec.rows is None or result.requested_time == restatement.created:
        return True
    if restatement.status.is_true(SUCCEEDED):
        return True
    answer = run_history.answer(restatement.key) if isinstance(run_history.state, Succeeded) else None
    return answer is not None and answer.succeeded


def _too_late(restatement: Restatement, result: RequestResult) -> str:
    """The sentence for a Restatement that was committed although it was cancelled or past its deadline; "": it was neither."""
    if restatement.spec.cancel:
        return " spec.cancel came too late: the Restatement was already committed."
    deadline, committed = restatement.deadline, result.committed_time
    if deadline is None or committed is None or committed <= deadline:
        return ""
    return f" It was committed at {timestamp(committed)}, after its deadline (spec.deadlineSeconds), before its run was stopped."


def succeeded(result: RequestResult, batches: int, since: datetime | None, *, by_keys: bool) -> Assessment:
    """The assessment of a committed request.

    Args:
        batches: The number of batches that it names.
        since: When the condition Succeeded in the status last changed; None: the status has none.
        by_keys: Whether it is a Replay with keyColumns, which also removes single rows.
    """
    fields = ["snapshot_id", "committed_time", "tombstones_added", "group_size"]
    by_records = result.operation is Operation.ERASE and not batches
    if not by_records and result.operation is not Operation.REDACT:  # these hide no rows: they change data files
        fields += ["rows_deleted", "rows_added"]
    match result.operation:
        case Operation.UNDO:
            fields += ["tombstones_removed", "rows_restored"]
            text = f"{result.rows_restored} rows restored, {result.tombstones_removed} tombstones removed."
        case Operation.ERASE if not batches:
            fields += ["rows_erased"]
            text = f"{result.rows_erased} rows were erased from the table's data files."
        case Operation.REDACT:
            fields += ["rows_redacted"]
            text = f"{result.rows_redacted} rows were redacted."
        case Operation.APPROVE:
            text = f"{batches} batches were approved. The next consolidation promotes them."
        case Operation.ERASE | Operation.REPLAY | Operation.REVERT | None:
            text = f"{result.rows_deleted} rows deleted, {result.rows_added} rows added, {result.tombstones_added} tombstones."
            if by_keys:
                fields += ["rows_erased"]
                text += f" {result.rows_erased} rows with the keys of its replacement were removed from the table's data files."
        case _:
            assert_never(result.operation)
    if result.undone_by:
        text += f" Restatement {name_of(result.undone_by)} undid it later."
    text += _already_deleted(result)
    if result.already_deleted_batch_ids_count:
        fields += ["already_deleted_batch_ids_count"]
    unknown = (
        f" {result.unknown_batch_ids_count} batch ids were unknown to the table. If such a batch arrives later, Lethe does not "
        "promote it."
        if result.unknown_batch_ids_count
        else ""
    )
    return Assessment(
        RestatementPhase.SUCCEEDED,
        TRUE,
        Verdict(Reason.SUCCEEDED, f"{text}{unknown}"),
        result=RestatementResult.model_validate({f: getattr(result, f) for f in fields}),
        plan=_plan(result, batches),
        finished_time=since,
    )


def _already_deleted(result: RequestResult) -> str:
    """The sentences about batches, including its replacement, that earlier requests had deleted; "": there are none."""
    count = result.already_deleted_batch_ids_count
    text = f" {count} of its batches were already deleted, so no rows of them were left to hide." if count else ""
    if result.replacement_withheld:
        text += (
            " The rows of its replacement were not added, because an earlier Restatement deleted the batch id "
            "spec.replacement.batchId. To add them, Replay that batch id with a replacement that has a new batch id."
        )
    return text


def _plan(result: RequestResult, batches: int) -> RestatementPlan:
    return RestatementPlan(
        **(dict(result.plan) if result.plan is not None else {}),
        batches=batches,
        batch_ids=seen(result),
        unknown_batch_ids_count=result.unknown_batch_ids_count,
        # An earlier version stored lines of lists in the ledger; the status must not show them.
        unknown_batch_ids=() if result.batch_ids_sha256 else result.unknown_batch_ids[:LISTED_AT_MOST],
    )


def planned(restatement: Restatement, run_history: RunHistory) -> Assessment | None:
    """The assessment of a dry run whose run has reported a plan; None: there is no plan, or it is not a dry run."""
    answer = (
        run_history.answer(restatement.key)
        if restatement.spec.dry_run and isinstance(run_history.state, Succeeded)
        else None
    )
    if answer is None or not answer.succeeded or answer.plan is None:
        return None
    plan = answer.plan
    match restatement.spec.operation:
        case Operation.UNDO:
            text = (
                f"Nothing was changed. The Undo would restore {answer.rows_restored} rows and remove {answer.tombstones_removed} "
                f"tombstones. {plan.files} data files of {plan.bytes} bytes may contain the rows."
            )
        case Operation.ERASE if restatement.spec.rows is not None:
            text = (
                f"Nothing was changed. The Erase would search {plan.files} data files of {plan.bytes} bytes, which may contain "
                "such rows, and the batches that arrived before it."
            )
        case Operation.REDACT:
            text = (
                f"Nothing was changed. The Redact would search {plan.files} data files of {plan.bytes} bytes, which may contain "
                "such rows, and the batches that arrived before it."
            )
        case Operation.APPROVE:
            text = "Nothing was changed. The next consolidation would promote the batches."
        case Operation.ERASE | Operation.REPLAY | Operation.REVERT:
            text = (
                f"Nothing was changed. The Restatement would hide {answer.rows_deleted} rows with {answer.tombstones_added} "
                f"tombstones. {plan.files} data files of {plan.bytes} bytes may contain them; {plan.whole_files} of these "
                "contain no other rows."
            )
        case _:
            assert_never(restatement.spec.operation)
    if restatement.spec.replacement is not None and restatement.spec.replacement.key_columns:
        text += " Rows with the keys of its replacement are not counted: a dry run does not search for them."
    text += _already_deleted(answer)
    if answer.unknown_batch_ids_count:
        text += f" {answer.unknown_batch_ids_count} batch ids are unknown to the table."
    since = _since(restatement)
    batches = answer.batch_ids_count or len(restatement.batch_ids)
    return Assessment(
        RestatementPhase.SUCCEEDED,
        TRUE,
        Verdict(Reason.PLANNED, text),
        plan=_plan(answer, batches),
        finished_time=since,
    )


def rolled_back_since(
    restatement: Restatement, dataset: Dataset, world: Observation, final: Assessment
) -> Assessment | None:
    """The assessment of a Restatement that succeeded and is no longer in the ledger.

    None: it has not succeeded. The caller has checked that the ledger does not contain the request. A ledger loses a
    request only when the table is rolled back or replaced.
    """
    view = world.table
    snapshot = final.result.snapshot_id if final.result is not None and final.result.snapshot_id else "unknown"
    if final.succeeded == TRUE and forgets_restatements(dataset, view):
        return _of_another_table(restatement, dataset, final, snapshot)
    if final.succeeded != TRUE or not isinstance(view, TableView) or not rolled_back(dataset, view):
        return None
    return Assessment(
        RestatementPhase.ROLLED_BACK,
        FALSE,
        Verdict(
            Reason.ROLLED_BACK,
            f"It was committed in snapshot {snapshot}, but then the table {dataset.spec.table.name} was rolled back to an "
            "earlier snapshot, so its changes are no longer in the table. To apply it again, delete this Restatement and create "
            "it again.",
        ),
        stalled=True,
        result=final.result,
        plan=final.plan,
    )


def _of_another_table(restatement: Restatement, dataset: Dataset, final: Assessment, snapshot: object) -> Assessment:
    """The assessment after the table was replaced. The condition Erased becomes False, because it is about the previous table."""
    name = dataset.spec.table.name
    text = (
        f"It was committed in snapshot {snapshot} of another table: {name} was dropped, created again or renamed since, and the "
        "current table does not contain it. To apply it to this table, delete this Restatement and create it again."
    )
    erased = None
    if restatement.status.condition(ERASED) is not None:
        condition = Condition.of(ERASED, FALSE, Reason.TABLE_REPLACED, text)
        erased = ErasureState(condition, restatement.status.erasure or ErasureStatus())
    return Assessment(
        RestatementPhase.ROLLED_BACK,
        FALSE,
        Verdict(Reason.ROLLED_BACK, text),
        stalled=True,
        result=final.result,
        plan=final.plan,
        erasure=erased,
    )

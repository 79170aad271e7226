"""How one Restatement stands. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from lethe.plan.places import overlap
from lethe.run import LISTED_AT_MOST, RequestResult
from pydantic import ValidationError

from lethe_operator.decide.conditions import FALSE, SUCCEEDED, TRUE, UNKNOWN, find, parsed_time
from lethe_operator.decide.retry import Again, Ended, Fresh, GivenUp, Going, back_off_seconds
from lethe_operator.decide.rollback import rolled_back
from lethe_operator.decide.trials import Trial
from lethe_operator.decide.undo import undone
from lethe_operator.decide.validation import Blocker
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Attempt, NoTable, TableView, World
from lethe_operator.resources.restatement import Restatement
from lethe_operator.settings import Settings

# Of a run with more members none shows its progress: their statuses would be written again every few seconds.
SHOWN_ONE_BY_ONE: Final = 20


@dataclass(frozen=True)
class Ready:
    """A Restatement may be a member of the next run. `since`: when it first might; `undoes`: the key of the request that an Undo
    takes back; `after`: the id of the run that it was a member of last, "" for none; `at_most`: so many may share the next one,
    None for as many as there are; `dry_run`: nothing of it is to be committed."""

    since: datetime
    undoes: str = ""
    after: str = ""
    at_most: int | None = None
    dry_run: bool = False

    @property
    def company(self) -> tuple[str, int | None, bool]:
        """The same of those that may share a run."""
        return self.after, self.at_most, self.dry_run


@dataclass(frozen=True)
class Standing:
    """How a Restatement stands. `succeeded` as the condition's status; `stalled`: somebody has to act; `ready`: it may start
    when its turn comes; `position`: its place in the queue until then, from 1; `cancel_job`: a run to stop; `waits`: others may
    depend on it and it will go on by itself; `undoes`: the key of the request that an Undo takes back; `is_told`: the
    status says just this."""

    phase: str
    succeeded: str
    reason: str
    message: str
    stalled: bool = False
    result: Mapping[str, Any] | None = None
    plan: Mapping[str, Any] | None = None
    progress: str = ""
    ready: Ready | None = None
    position: int | None = None
    look_again: datetime | None = None
    cancel_job: str | None = None
    finished_time: datetime | None = None
    undoes: str = ""
    is_told: bool = False

    @property
    def finished(self) -> bool:
        return self.succeeded != UNKNOWN

    @property
    def waits(self) -> bool:
        return not self.finished and not self.stalled


def unsupported_field(restatement: Restatement) -> str | None:
    spec, name = restatement.spec, restatement.meta.name
    if spec.operation not in ("Replay", "Revert", "Undo"):
        return f"Restatement {name}: spec.operation {spec.operation} is not supported yet. Replay, Revert and Undo are."
    if spec.batch_ids_from is not None:
        return f"Restatement {name}: spec.batchIdsFrom is not supported yet. List the ids in spec.batchIds."
    return None


def stand(
    restatement: Restatement,
    dataset: Dataset,
    world: World,
    blocker: Blocker | None,
    trial: Trial,
    now: datetime,
    settings: Settings,
) -> Standing:
    """Say how a Restatement stands. The ledger is asked before anything else: what it holds has succeeded, whatever a pod
    or an earlier status said. Of a dry run it knows nothing, and the run is believed."""
    known = _in_ledger(restatement, world) or _planned(restatement, trial)
    if known is not None:
        return known
    final = finished_before(restatement)
    if final is not None:
        return (None if restatement.spec.dry_run else _rolled_back(dataset, world, final)) or final
    unsupported = unsupported_field(restatement)
    if unsupported:
        return _stalled(Reason.NOT_SUPPORTED, unsupported)
    going = trial.going
    if restatement.spec.cancel:
        return _cancelled(restatement, trial)
    if going is None and restatement.spec.suspend:
        return Standing("Suspended", UNKNOWN, Reason.SUSPENDED, "spec.suspend is true; nothing is started.")
    if going is None and blocker is not None:
        message = f"Dataset {dataset.meta.name} cannot be restated now. {blocker.message}"
        return Standing("Pending", UNKNOWN, blocker.reason, message, stalled=not blocker.transient)
    refused = _refused(restatement, dataset, world) if going is None else None
    if refused is not None:
        return refused
    if restatement.spec.undoes is None:
        return _by_run(restatement, trial, "", now, settings)
    target = undone(restatement, world, trial.undoes)
    if target.key or going is not None:
        return replace(_by_run(restatement, trial, target.key, now, settings), undoes=target.key)
    if target.waits:
        return Standing("Queued", UNKNOWN, target.reason, target.message)
    return _stalled(target.reason, target.message, target.final)


def finished_before(restatement: Restatement) -> Standing | None:
    """What an earlier status says for good: a Restatement is a request, and it ends once."""
    condition = find(restatement.status, SUCCEEDED)
    if condition.get("status") not in (TRUE, FALSE):
        return None
    ready = find(restatement.status, "Ready")
    return Standing(
        phase=str(restatement.status.get("phase") or ("Succeeded" if condition["status"] == TRUE else "Failed")),
        succeeded=str(condition["status"]),
        reason=str(condition.get("reason", "")),
        message=str(condition.get("message") or ready.get("message") or ""),
        stalled=condition["status"] == FALSE and condition.get("reason") != Reason.CANCELLED,
        result=restatement.status.get("result"),
        plan=restatement.status.get("plan"),
        finished_time=parsed_time(condition.get("lastTransitionTime")),
        is_told=True,
    )


def _in_ledger(restatement: Restatement, world: World) -> Standing | None:
    if not isinstance(world.table, TableView):
        return None
    entry = world.table.ledger.requests.get(restatement.key)
    if entry is None:
        return None
    try:
        result = RequestResult.model_validate(dict(entry.result))
    except ValidationError:
        result = RequestResult(key=restatement.key, name=restatement.meta.full_name, succeeded=True)
    since = parsed_time(find(restatement.status, SUCCEEDED).get("lastTransitionTime"))
    if not result.succeeded:
        return Standing("Failed", FALSE, result.reason, result.message, stalled=True, finished_time=since)
    return succeeded(result, len(restatement.spec.batch_ids), since)


def succeeded(result: RequestResult, batches: int, since: datetime | None) -> Standing:
    """The standing of a committed request, in numbers."""
    wire = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    fields = ["snapshotId", "committedTime", "tombstonesAdded", "rowsDeleted", "rowsAdded", "groupSize"]
    text = f"{result.rows_deleted} rows deleted, {result.rows_added} rows added, {result.tombstones_added} tombstones."
    if result.operation == "Undo":
        fields += ["tombstonesRemoved", "rowsRestored"]
        text = f"{result.rows_restored} rows are seen again, {result.tombstones_removed} tombstones removed."
    if result.undone_by:
        text += f" Restatement {result.undone_by.rpartition('/')[0]} took it back afterwards."
    unknown = (
        f" {result.unknown_batch_ids_count} batch ids were not known to the table; should such a batch arrive later, it "
        "is not promoted."
        if result.unknown_batch_ids_count
        else ""
    )
    return Standing(
        "Succeeded",
        TRUE,
        Reason.SUCCEEDED,
        f"{text}{unknown}",
        result={f: wire[f] for f in fields if f in wire},
        plan=_plan(result, batches),
        finished_time=since,
    )


def _plan(result: RequestResult, batches: int) -> Mapping[str, Any]:
    touched = result.plan.model_dump(by_alias=True) if result.plan is not None else {}
    return {
        "batches": batches,
        **touched,
        "unknownBatchIdsCount": result.unknown_batch_ids_count,
        "unknownBatchIds": list(result.unknown_batch_ids[:LISTED_AT_MOST]),
    }


def _planned(restatement: Restatement, trial: Trial) -> Standing | None:
    """A dry run whose run has told what would be done."""
    told = trial.answer(restatement.key) if restatement.spec.dry_run and isinstance(trial.verdict, Ended) else None
    if told is None or not told.succeeded or told.plan is None:
        return None
    plan = told.plan
    text = (
        f"Nothing was changed. It would hide {told.rows_deleted} rows by {told.tombstones_added} tombstones; {plan.files} data "
        f"files of {plan.bytes} bytes can hold them, {plan.whole_files} of these hold nothing else."
    )
    if told.operation == "Undo":
        text = (
            f"Nothing was changed. It would show {told.rows_restored} rows again and remove {told.tombstones_removed} "
            f"tombstones; {plan.files} data files of {plan.bytes} bytes can hold them."
        )
    if told.unknown_batch_ids_count:
        text += f" {told.unknown_batch_ids_count} batch ids are not known to the table."
    since = parsed_time(find(restatement.status, SUCCEEDED).get("lastTransitionTime"))
    batches = len(restatement.spec.batch_ids)
    return Standing("Succeeded", TRUE, Reason.PLANNED, text, plan=_plan(told, batches), finished_time=since)


def _rolled_back(dataset: Dataset, world: World, final: Standing) -> Standing | None:
    """One that had succeeded and that the table does not know, while it is seen that the table was rolled back. A ledger
    never forgets a request otherwise."""
    view = world.table
    if final.succeeded != TRUE or not isinstance(view, TableView) or not rolled_back(dataset, view):
        return None
    snapshot = (final.result or {}).get("snapshotId", "unknown")
    return Standing(
        "RolledBack",
        FALSE,
        Reason.ROLLED_BACK,
        f"It was committed in snapshot {snapshot}, but the table {dataset.spec.table.name} was rolled back to before that "
        "and does not know it any more: what this Restatement changed is as it was. To have it carried out again, delete it and "
        "create it again.",
        stalled=True,
        result=final.result,
        plan=final.plan,
    )


def _cancelled(restatement: Restatement, trial: Trial) -> Standing:
    """Given up, once it is known that it was not committed. A run that others share goes on for them."""
    going = trial.going
    if going is not None and trial.members > 1:
        text = f"The run {going.job} goes on for the others of its group; when it ends it is known whether this came too late."
        return Standing("Running", UNKNOWN, Reason.CANCELLING, text)
    if going is not None:
        text = f"The run {going.job} is being stopped."
        return Standing("Running", UNKNOWN, Reason.CANCELLING, text, cancel_job=going.job)
    ended = trial.run.last if trial.run is not None else None
    why = f" Its last run was {ended.job}." if ended else ""
    return Standing(
        "Cancelled",
        FALSE,
        Reason.CANCELLED,
        f"Restatement {restatement.meta.name} was cancelled before it was committed; nothing was changed.{why}",
    )


def _refused(restatement: Restatement, dataset: Dataset, world: World) -> Standing | None:
    replacement, name = restatement.spec.replacement, restatement.meta.name
    if replacement is not None and overlap(dataset.spec.buffer.uri, replacement.uri):
        return _stalled(
            Reason.REPLACEMENT_IN_BUFFER,
            f"Restatement {name}: spec.replacement.uri {replacement.uri} lies inside the buffer of Dataset "
            f"{dataset.meta.name}, so consolidation would load it a second time. Put it outside "
            f"{dataset.spec.buffer.uri}, and create a new Restatement.",
            final=True,
        )
    if isinstance(world.table, NoTable):
        return Standing(
            "Pending",
            UNKNOWN,
            Reason.TABLE_NOT_FOUND,
            f"The table {dataset.spec.table.name} is not there yet: the first consolidation creates it.",
        )
    return None


def _by_run(restatement: Restatement, trial: Trial, undoes: str, now: datetime, settings: Settings) -> Standing:
    match trial.verdict:
        case Going(attempt, failures, _, before):
            return _running(attempt, trial.members, before if failures else "")
        case Ended(attempt):
            return _ended(restatement, trial, attempt, undoes, now, settings)
        case GivenUp(_, reason, message, permanent):
            return _stalled(reason, message, final=permanent)
        case Again(at, _, reason, message):
            again = f"{message} It is tried again at {at:%H:%M:%SZ}."
            if at > now:
                return Standing("Queued", UNKNOWN, reason, again, look_again=at)
            return _queued(restatement, trial, at, undoes, reason, again)
        case Fresh():
            return _queued(restatement, trial, restatement.created, undoes, Reason.QUEUED, "It waits for its turn.")


def _running(attempt: Attempt, members: int, before: str) -> Standing:
    if members > SHOWN_ONE_BY_ONE:
        text = f"{attempt.job} is under way for {members} Restatements; status.runs of the Dataset says how far it is."
        return Standing("Running", UNKNOWN, Reason.RUNNING, text)
    done = attempt.progress
    tasks = f"{done.tasks_done}/{done.tasks_total} tasks" if done and done.tasks_total else ""
    phase = f"{done.phase} {tasks}".strip() if done else "Starting"
    text = f"{attempt.job} is under way." + (f" {attempt.waiting}" if attempt.waiting else "")
    text += f" Before that: {before}" if before else ""
    return Standing("Running", UNKNOWN, Reason.RUNNING, text, progress=phase)


def _ended(
    restatement: Restatement, trial: Trial, attempt: Attempt, undoes: str, now: datetime, settings: Settings
) -> Standing:
    """The pod said 0, and the ledger does not know the request: the run refused it or kept it out for now, or something is
    odd."""
    mine = trial.answer(restatement.key)
    if mine is not None and not mine.succeeded and not mine.again:
        return _stalled(mine.reason, mine.message, final=True)
    at = (attempt.finished or attempt.created) + timedelta(seconds=back_off_seconds(trial.tries, settings))
    if mine is not None and mine.again:
        reason, message = mine.reason, f"{mine.message} It is tried again at {at:%H:%M:%SZ}."
    else:
        reason = str(Reason.COMMIT_NOT_SEEN)
        message = f"{attempt.job} ended well, but the table does not know this request."
    if at > now:
        return Standing("Queued", UNKNOWN, reason, message, look_again=at)
    return _queued(restatement, trial, at, undoes, reason, message)


def _queued(
    restatement: Restatement, trial: Trial, since: datetime, undoes: str, reason: str, message: str
) -> Standing:
    after = trial.run.run_id if trial.run is not None else ""
    ready = Ready(since, undoes, after, trial.at_most, restatement.spec.dry_run)
    return Standing("Queued", UNKNOWN, reason, message, ready=ready)


def _stalled(reason: str, message: str, final: bool = False) -> Standing:
    if final:
        return Standing("Failed", FALSE, reason, message, stalled=True)
    return Standing("Pending", UNKNOWN, reason, message, stalled=True)

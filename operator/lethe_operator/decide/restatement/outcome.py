"""What a Restatement has ended with: by the ledger, by a dry run's word, or by what its status said before. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, assert_never

from lethe.contract.operation import Operation
from lethe.contract.result import LISTED_AT_MOST, RequestResult
from lethe.restatement.record import name_of
from pydantic import ValidationError

from lethe_operator.decide.conditions import ERASED, FALSE, SUCCEEDED, TRUE, Condition, find, parsed_time, timestamp
from lethe_operator.decide.erasure.status import Told
from lethe_operator.decide.guards.rollback import rolled_back
from lethe_operator.decide.guards.table_identity import forgets_restatements
from lethe_operator.decide.restatement import id_list as id_lists
from lethe_operator.decide.restatement.assessment import Assessment
from lethe_operator.decide.restatement.run_outcomes import Trial
from lethe_operator.decide.runs.retry import Ended
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import TableView, World
from lethe_operator.resources.restatement import Restatement


def finished_before(restatement: Restatement) -> Assessment | None:
    """What an earlier status says for good: a Restatement is a request, and it ends once."""
    condition = find(restatement.status, SUCCEEDED)
    if condition.get("status") not in (TRUE, FALSE):
        return None
    ready = find(restatement.status, "Ready")
    return Assessment(
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


def in_ledger(restatement: Restatement, world: World, trial: Trial) -> Assessment | None:
    """What the table remembers of it, if that is about the same values."""
    if not isinstance(world.table, TableView):
        return None
    entry = world.table.ledger.requests.get(restatement.key)
    if entry is None:
        return None
    try:
        result = RequestResult.model_validate(dict(entry.result))
    except ValidationError:
        result = RequestResult(key=restatement.key, name=restatement.meta.full_name, succeeded=True)
    if not _means_the_same(restatement, result, trial):
        return None
    since = parsed_time(find(restatement.status, SUCCEEDED).get("lastTransitionTime"))
    if not result.succeeded:
        return Assessment("Failed", FALSE, result.reason, result.message, stalled=True, finished_time=since)
    found = succeeded(result, result.batch_ids_count or len(restatement.batch_ids), since)
    return replace(found, message=f"{found.message}{_too_late(restatement, result)}")


def _means_the_same(restatement: Restatement, result: RequestResult, trial: Trial) -> bool:
    """Whether what was carried out is what this Restatement asks for. Of an Erase by records its Secret may have changed since:
    only a run can read it, and says so (`lethe.restatement.values_digest`),
    unless it was this very object that was carried out."""
    if restatement.spec.rows is None or result.requested_time == restatement.created:
        return True
    if find(restatement.status, SUCCEEDED).get("status") == TRUE:
        return True
    answer = trial.answer(restatement.key) if isinstance(trial.verdict, Ended) else None
    return answer is not None and answer.succeeded


def _too_late(restatement: Restatement, result: RequestResult) -> str:
    """What is said of one that was committed although it was withdrawn."""
    if restatement.spec.cancel:
        return " The cancel came too late: it was committed already."
    deadline, committed = restatement.deadline, result.committed_time
    if deadline is None or committed is None or committed <= deadline:
        return ""
    return f" It was committed at {timestamp(committed)}, after spec.deadlineSeconds was over and before its run was stopped."


def succeeded(result: RequestResult, batches: int, since: datetime | None) -> Assessment:
    """The standing of a committed request, in numbers."""
    wire = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    fields = ["snapshotId", "committedTime", "tombstonesAdded", "rowsDeleted", "rowsAdded", "groupSize"]
    match result.operation:
        case Operation.UNDO:
            fields += ["tombstonesRemoved", "rowsRestored"]
            text = f"{result.rows_restored} rows are seen again, {result.tombstones_removed} tombstones removed."
        case Operation.ERASE if not batches:
            fields += ["rowsErased"]
            text = f"{result.rows_erased} rows were erased from the table's data files."
        case Operation.ERASE | Operation.REPLAY | Operation.REVERT | None:
            text = f"{result.rows_deleted} rows deleted, {result.rows_added} rows added, {result.tombstones_added} tombstones."
        case _:
            assert_never(result.operation)
    if result.undone_by:
        text += f" Restatement {name_of(result.undone_by)} took it back afterwards."
    text += _already_deleted(result)
    if result.already_deleted_batch_ids_count:
        fields += ["alreadyDeletedBatchIdsCount"]
    unknown = (
        f" {result.unknown_batch_ids_count} batch ids were not known to the table; should such a batch arrive later, it "
        "is not promoted."
        if result.unknown_batch_ids_count
        else ""
    )
    return Assessment(
        "Succeeded",
        TRUE,
        Reason.SUCCEEDED,
        f"{text}{unknown}",
        result={f: wire[f] for f in fields if f in wire},
        plan=_plan(result, batches),
        finished_time=since,
    )


def _already_deleted(result: RequestResult) -> str:
    """What is said of batches that others had taken back before, its replacement included."""
    count = result.already_deleted_batch_ids_count
    text = f" {count} of its batches had been taken back before; none of their rows were left to hide." if count else ""
    if result.replacement_withheld:
        text += (
            " The rows of its replacement stay out of the table, since the batch id spec.replacement.batchId had been taken back "
            "before. To bring them in, Replay that id by a batch with a new one."
        )
    return text


def _plan(result: RequestResult, batches: int) -> Mapping[str, Any]:
    touched = result.plan.model_dump(by_alias=True) if result.plan is not None else {}
    return {
        "batches": batches,
        **id_lists.seen(result),
        **touched,
        "unknownBatchIdsCount": result.unknown_batch_ids_count,
        # An earlier version kept lines of lists in the ledger; they are not shown either.
        "unknownBatchIds": [] if result.batch_ids_sha256 else list(result.unknown_batch_ids[:LISTED_AT_MOST]),
    }


def planned(restatement: Restatement, trial: Trial) -> Assessment | None:
    """A dry run whose run has told what would be done."""
    told = trial.answer(restatement.key) if restatement.spec.dry_run and isinstance(trial.verdict, Ended) else None
    if told is None or not told.succeeded or told.plan is None:
        return None
    plan = told.plan
    match restatement.spec.operation:
        case Operation.UNDO:
            text = (
                f"Nothing was changed. It would show {told.rows_restored} rows again and remove {told.tombstones_removed} "
                f"tombstones; {plan.files} data files of {plan.bytes} bytes can hold them."
            )
        case Operation.ERASE if restatement.spec.rows is not None:
            text = (
                f"Nothing was changed. {plan.files} data files of {plan.bytes} bytes may hold such rows, and would be searched "
                "for them. So would be the batches that come before it."
            )
        case Operation.ERASE | Operation.REPLAY | Operation.REVERT:
            text = (
                f"Nothing was changed. It would hide {told.rows_deleted} rows by {told.tombstones_added} tombstones; "
                f"{plan.files} data files of {plan.bytes} bytes can hold them, {plan.whole_files} of these hold nothing else."
            )
        case _:
            assert_never(restatement.spec.operation)
    if restatement.spec.replacement is not None and restatement.spec.replacement.key_columns:
        text += " The rows that its keys mean come on top: a dry run does not look for them."
    text += _already_deleted(told)
    if told.unknown_batch_ids_count:
        text += f" {told.unknown_batch_ids_count} batch ids are not known to the table."
    since = parsed_time(find(restatement.status, SUCCEEDED).get("lastTransitionTime"))
    batches = told.batch_ids_count or len(restatement.batch_ids)
    return Assessment("Succeeded", TRUE, Reason.PLANNED, text, plan=_plan(told, batches), finished_time=since)


def rolled_back_since(restatement: Restatement, dataset: Dataset, world: World, final: Assessment) -> Assessment | None:
    """One that had succeeded and that the table does not know, while it is seen that the table was rolled back or is another
    one. A ledger never forgets a request otherwise."""
    view = world.table
    snapshot = (final.result or {}).get("snapshotId", "unknown")
    if final.succeeded == TRUE and forgets_restatements(dataset, view):
        return _of_another_table(restatement, dataset, final, snapshot)
    if final.succeeded != TRUE or not isinstance(view, TableView) or not rolled_back(dataset, view):
        return None
    return Assessment(
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


def _of_another_table(restatement: Restatement, dataset: Dataset, final: Assessment, snapshot: object) -> Assessment:
    """That a former table's storage holds none of its rows says nothing of this table."""
    name = dataset.spec.table.name
    text = (
        f"It was committed in snapshot {snapshot} of another table: {name} was dropped, created again or renamed since, and the "
        "table of this name does not know it. To have it carried out on this table, delete it and create it again."
    )
    erased = None
    if find(restatement.status, ERASED):
        erased = Told(Condition(ERASED, FALSE, Reason.TABLE_REPLACED, text), restatement.status.get("erasure") or {})
    return Assessment(
        "RolledBack",
        FALSE,
        Reason.ROLLED_BACK,
        text,
        stalled=True,
        result=final.result,
        plan=final.plan,
        erasure=erased,
    )

"""Assesses finished Restatements, from the ledger, from the result of a dry run, or from an earlier status. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, assert_never

from lethe.contract.operation import Operation
from lethe.contract.result import LISTED_AT_MOST, RequestResult
from lethe.restatement.record import name_of
from pydantic import ValidationError

from lethe_operator.decide.conditions import ERASED, FALSE, SUCCEEDED, TRUE, Condition, find, parsed_time, timestamp
from lethe_operator.decide.erasure.status import ErasureState
from lethe_operator.decide.guards.rollback import rolled_back
from lethe_operator.decide.guards.table_identity import forgets_restatements
from lethe_operator.decide.restatement import id_list as id_lists
from lethe_operator.decide.restatement.assessment import Assessment, RestatementPhase
from lethe_operator.decide.restatement.run_outcomes import Trial
from lethe_operator.decide.runs.retry import Ended
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import TableView, World
from lethe_operator.resources.restatement import Restatement


def finished_before(restatement: Restatement) -> Assessment | None:
    """The end that the status already shows; None: it shows none. A Restatement is a request, so it ends only once."""
    condition = find(restatement.status, SUCCEEDED)
    if condition.get("status") not in (TRUE, FALSE):
        return None
    ready = find(restatement.status, "Ready")
    return Assessment(
        phase=_phase_of(restatement.status.get("phase"), condition["status"] == TRUE),
        succeeded=str(condition["status"]),
        reason=str(condition.get("reason", "")),
        message=str(condition.get("message") or ready.get("message") or ""),
        stalled=condition["status"] == FALSE and condition.get("reason") != Reason.CANCELLED,
        result=restatement.status.get("result"),
        plan=restatement.status.get("plan"),
        finished_time=parsed_time(condition.get("lastTransitionTime")),
        from_status=True,
    )


def _phase_of(written: object, has_succeeded: bool) -> RestatementPhase:
    """The phase in a status. A user or another version may have written an unknown one: then the condition Succeeded decides."""
    for phase in RestatementPhase:
        if written == phase.value:
            return phase
    return RestatementPhase.SUCCEEDED if has_succeeded else RestatementPhase.FAILED


def in_ledger(restatement: Restatement, world: World, trial: Trial) -> Assessment | None:
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
    if not _means_the_same(restatement, result, trial):
        return None
    since = parsed_time(find(restatement.status, SUCCEEDED).get("lastTransitionTime"))
    if not result.succeeded:
        return Assessment(
            RestatementPhase.FAILED, FALSE, result.reason, result.message, stalled=True, finished_time=since
        )
    batches = result.batch_ids_count or len(restatement.batch_ids)
    found = succeeded(result, batches, since, by_keys=restatement.by_keys)
    return replace(found, message=f"{found.message}{_too_late(restatement, result)}")


def _means_the_same(restatement: Restatement, result: RequestResult, trial: Trial) -> bool:
    """Whether the request in the ledger is known to have the same values as this Restatement.

    The Secret of an Erase by records may have changed since. Only a run can read the Secret and compare the values
    (`lethe.restatement.values_digest`). No comparison is needed if the request came from this same object."""
    if restatement.spec.rows is None or result.requested_time == restatement.created:
        return True
    if find(restatement.status, SUCCEEDED).get("status") == TRUE:
        return True
    answer = trial.answer(restatement.key) if isinstance(trial.verdict, Ended) else None
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
    wire = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    fields = ["snapshotId", "committedTime", "tombstonesAdded", "groupSize"]
    if result.operation is not Operation.ERASE or batches:  # an Erase by records hides no rows: it removes them
        fields += ["rowsDeleted", "rowsAdded"]
    match result.operation:
        case Operation.UNDO:
            fields += ["tombstonesRemoved", "rowsRestored"]
            text = f"{result.rows_restored} rows restored, {result.tombstones_removed} tombstones removed."
        case Operation.ERASE if not batches:
            fields += ["rowsErased"]
            text = f"{result.rows_erased} rows were erased from the table's data files."
        case Operation.ERASE | Operation.REPLAY | Operation.REVERT | None:
            text = f"{result.rows_deleted} rows deleted, {result.rows_added} rows added, {result.tombstones_added} tombstones."
            if by_keys:
                fields += ["rowsErased"]
                text += f" {result.rows_erased} rows with the keys of its replacement were removed from the table's data files."
        case _:
            assert_never(result.operation)
    if result.undone_by:
        text += f" Restatement {name_of(result.undone_by)} undid it later."
    text += _already_deleted(result)
    if result.already_deleted_batch_ids_count:
        fields += ["alreadyDeletedBatchIdsCount"]
    unknown = (
        f" {result.unknown_batch_ids_count} batch ids were unknown to the table. If such a batch arrives later, Lethe does not "
        "promote it."
        if result.unknown_batch_ids_count
        else ""
    )
    return Assessment(
        RestatementPhase.SUCCEEDED,
        TRUE,
        Reason.SUCCEEDED,
        f"{text}{unknown}",
        result={f: wire[f] for f in fields if f in wire},
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


def _plan(result: RequestResult, batches: int) -> Mapping[str, Any]:
    touched = result.plan.model_dump(by_alias=True) if result.plan is not None else {}
    return {
        "batches": batches,
        **id_lists.seen(result),
        **touched,
        "unknownBatchIdsCount": result.unknown_batch_ids_count,
        # An earlier version stored lines of lists in the ledger; the status must not show them.
        "unknownBatchIds": [] if result.batch_ids_sha256 else list(result.unknown_batch_ids[:LISTED_AT_MOST]),
    }


def planned(restatement: Restatement, trial: Trial) -> Assessment | None:
    """The assessment of a dry run whose run has reported a plan; None: there is no plan, or it is not a dry run."""
    answer = trial.answer(restatement.key) if restatement.spec.dry_run and isinstance(trial.verdict, Ended) else None
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
    since = parsed_time(find(restatement.status, SUCCEEDED).get("lastTransitionTime"))
    batches = answer.batch_ids_count or len(restatement.batch_ids)
    return Assessment(
        RestatementPhase.SUCCEEDED, TRUE, Reason.PLANNED, text, plan=_plan(answer, batches), finished_time=since
    )


def rolled_back_since(restatement: Restatement, dataset: Dataset, world: World, final: Assessment) -> Assessment | None:
    """The assessment of a Restatement that succeeded and is no longer in the ledger, because the table was rolled back or
    replaced; None: it was not. The caller has checked that the ledger does not contain the request. A ledger never loses a
    request in another way."""
    view = world.table
    snapshot = (final.result or {}).get("snapshotId", "unknown")
    if final.succeeded == TRUE and forgets_restatements(dataset, view):
        return _of_another_table(restatement, dataset, final, snapshot)
    if final.succeeded != TRUE or not isinstance(view, TableView) or not rolled_back(dataset, view):
        return None
    return Assessment(
        RestatementPhase.ROLLED_BACK,
        FALSE,
        Reason.ROLLED_BACK,
        f"It was committed in snapshot {snapshot}, but then the table {dataset.spec.table.name} was rolled back to an earlier "
        "snapshot, so its changes are no longer in the table. To apply it again, delete this Restatement and create it again.",
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
    if find(restatement.status, ERASED):
        erased = ErasureState(
            Condition(ERASED, FALSE, Reason.TABLE_REPLACED, text), restatement.status.get("erasure") or {}
        )
    return Assessment(
        RestatementPhase.ROLLED_BACK,
        FALSE,
        Reason.ROLLED_BACK,
        text,
        stalled=True,
        result=final.result,
        plan=final.plan,
        erasure=erased,
    )

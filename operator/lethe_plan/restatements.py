"""What a Restatement would do to its table now, by itself. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from lethe.base.errors import Verdict
from lethe.base.objects import BufferedObject
from lethe.contract.kubernetes import written
from lethe.contract.result import RequestResult
from lethe.contract.run import RestatementRequest
from lethe.contract.settings import Operation
from lethe.files.bounds import FileBounds, split_by_bounds
from lethe.ledger.ledger import BatchState, Ledger, get_many
from lethe.restatement.group import plan_dry_run
from lethe.restatement.plan import PlanScope
from lethe.vacuum.housekeeping import KEEPS_FILES
from lethe_operator.reasons import Reason
from lethe_operator.resources.restatement import Restatement
from lethe_operator.resources.vacuum_policy import VacuumPolicy
from lethe_operator.restatement.outcome import Assessment

from lethe_plan.effect import DeletedRows, Effect, many

_SHOWN_IDS: Final = 5


@dataclass(frozen=True)
class RestatedTable:
    """The table of a Restatement."""

    name: str
    """Catalog.namespace.table."""
    ledger: Ledger
    field_id: int
    """Iceberg field id of the batch column."""
    files: Sequence[FileBounds]
    """Of the head."""
    in_files: frozenset[str]
    """Batch ids of the request that the ledger does not know, and data files hold."""
    waiting: frozenset[str]
    """Ids of the batches that wait in the buffer."""
    is_cut: bool
    """More batches may wait than `waiting` has."""
    absent: frozenset[str] = frozenset()
    """Ids that a run would find nowhere."""
    keeps_files: bool = False
    """Its properties forbid to delete files."""


@dataclass(frozen=True)
class NamedBatches:
    """The batches that a Restatement names, by what is known of them."""

    in_table: tuple[str, ...]
    waiting: tuple[str, ...]
    deleted: tuple[str, ...]
    """By an earlier Restatement."""
    unknown: tuple[str, ...]

    def __str__(self) -> str:
        parts = [
            f"{len(self.in_table)} in the table",
            f"{_are(len(self.waiting), 'waits', 'wait')} in the buffer and will not be promoted"
            if self.waiting
            else "",
            f"{len(self.deleted)} deleted before" if self.deleted else "",
            f"{len(self.unknown)} unknown: {_shown(self.unknown)}" if self.unknown else "",
        ]
        return ", ".join(p for p in parts if p)


def deleted(restatement: Restatement) -> Effect:
    """What the deletion of a Restatement does."""
    phase = restatement.status.phase or "Pending"
    done = phase in ("Succeeded", "RolledBack")
    text = "what it did stays, and the ledger remembers it" if done else "it is not carried out, unless a run has begun"
    return Effect((("restatement", f"it is {phase}: {text}"),))


def ended(assessment: Assessment) -> Effect:
    """Of a Restatement that has ended: nothing happens again."""
    text = f"it is {assessment.phase}, and nothing is done again: {assessment.verdict.message}"
    return Effect((("done", text),), {"phase": str(assessment.phase), "reason": str(assessment.verdict.reason)})


def refused(verdict: Verdict) -> Effect:
    """Of a Restatement that Lethe would not carry out."""
    return Effect(document={"reason": str(verdict.reason)}, problem=str(verdict))


def effect(
    restatement: Restatement,
    request: RestatementRequest,
    assessment: Assessment,
    table: RestatedTable,
    added: Sequence[BufferedObject] | None,
    policy: VacuumPolicy | None,
    now: datetime,
) -> Effect:
    """What the Restatement would do if a run carried it out now.

    Args:
        assessment: What the operator would decide about it now; it has not ended, and no user must act.
        added: The files of its replacement; None: it has none.
        policy: Decides about vacuums of its Dataset; None: none does.
    """
    reason, message = assessment.verdict.reason, assessment.verdict.message
    if reason == Reason.WAITING_FOR_RESTATEMENT:
        return Effect((("waits", message),), unknown="it depends on a Restatement that has not ended")
    lines = [] if reason == Reason.QUEUED else [("waits", message)]
    if request.evict_by_seconds is not None or request.operation.always_evicts:
        lines += [("blocked", f"the erasure is not completed: {KEEPS_FILES}")] if table.keeps_files else []
    if request.rows is not None:
        return _by_values(request, table, lines)
    scope = PlanScope("", now, table.field_id, table.in_files, table.absent)
    result = plan_dry_run(table.ledger, request, table.files, scope)
    if not result.succeeded:
        return refused(result.verdict)
    chosen = batches(request.batch_ids, table)
    if request.redact is not None:
        known = get_many(table.ledger.batches, chosen.in_table)
        rows = f"{sum(b.rows or 0 for b in known.values()):,} redacted: {_columns(request)}"
        lines += [("batches", str(chosen)), ("rows", rows), *_files(result, policy, bool(restatement.spec.dry_run))]
        return Effect(tuple(lines), _document(result, chosen, None))
    if request.operation is Operation.APPROVE:
        text = f"{many(len(request.batch_ids), 'held batch')} will be promoted by the next consolidation"
        return Effect(
            (*lines, ("batches", text)), {"operation": str(request.operation), "approved": list(request.batch_ids)}
        )
    if request.batch_ids:
        lines.append(("batches", str(chosen)))
    lines += _rows(request, result, added)
    lines += _files(result, policy, bool(restatement.spec.dry_run))
    if request.evict_by_seconds is not None:
        lines.append(
            ("deadline", f"the bytes must be gone {many(request.evict_by_seconds, 'second')} after the commit")
        )
    deleted = _deleted(request, chosen, table) if request.batch_ids and not restatement.spec.dry_run else None
    return Effect(tuple(lines), _document(result, chosen, added), deleted, _unknown(request, chosen, table))


def also_named(ids: Sequence[str], waiting: Sequence[Restatement]) -> tuple[tuple[str, str], ...]:
    """The other Restatements that name batches of a request, and have not ended."""
    wanted = frozenset(ids)
    return tuple(
        (
            "others",
            f"restatement/{r.meta.name} ({r.status.phase or 'Pending'}) names {many(len(shared), 'batch')} of it, too",
        )
        for r in waiting
        if (shared := wanted.intersection(r.spec.batch_ids or ()))
    )


def batches(ids: Sequence[str], table: RestatedTable) -> NamedBatches:
    """Sort batch ids by where their rows are. Each id counts once and is in exactly one of the groups."""
    known = get_many(table.ledger.batches, ids)
    every = tuple(dict.fromkeys(ids))
    promoted = [i for i in every if i in known and known[i].state is BatchState.PROMOTED]
    deleted = [
        i for i in every if i in known and known[i].blocks_promotion and known[i].state is not BatchState.PROMOTED
    ]
    rest = [i for i in every if i not in promoted and i not in deleted]
    in_table = [*promoted, *(i for i in rest if i in table.in_files)]
    others = [i for i in rest if i not in table.in_files]
    waiting = [i for i in others if i in table.waiting]
    return NamedBatches(
        tuple(in_table), tuple(waiting), tuple(deleted), tuple(i for i in others if i not in table.waiting)
    )


def _deleted(request: RestatementRequest, named: NamedBatches, table: RestatedTable) -> DeletedRows:
    known = get_many(table.ledger.batches, named.in_table)
    split = split_by_bounds(table.files, request.batch_ids)
    return DeletedRows(
        {(table.name, i): (known[i].rows or 0) if i in known else 0 for i in named.in_table},
        {f.path: f.size for f in (*split.may_contain_deleted_rows, *split.all_rows_deleted)},
    )


def _by_values(request: RestatementRequest, table: RestatedTable, lines: list[tuple[str, str]]) -> Effect:
    assert request.rows is not None
    size = sum(f.size for f in table.files)
    conditions = request.rows.conditions
    columns = tuple(dict.fromkeys(c.column for c in conditions))
    which = f"the {'columns' if len(columns) > 1 else 'column'} {', '.join(columns)}"
    text = f"a run searches {which} of {many(len(table.files), 'file')} ({written(size)}) or fewer"
    sources = dict.fromkeys(f"in the Secret {c.secret}" if c.secret else f"at {c.values_uri}" for c in conditions)
    why = f"which rows are {request.operation.done}: only the run reads the values {' and '.join(sources)}"
    lines = [*lines, ("rows", text), *([("redacts", _columns(request))] if request.redact is not None else [])]
    return Effect(tuple(lines), {"operation": str(request.operation)}, unknown=why)


def _columns(request: RestatementRequest) -> str:
    """What a Redact writes into which columns."""
    return ", ".join(f"{c.column} ({c.method})" for c in (request.redact.columns if request.redact is not None else ()))


def _rows(
    request: RestatementRequest, result: RequestResult, added: Sequence[BufferedObject] | None
) -> list[tuple[str, str]]:
    rows = []
    if result.rows_deleted or request.batch_ids:
        rows.append(("rows", f"{result.rows_deleted:,} deleted"))
    if request.undoes:
        rows.append(
            ("rows", f"{result.rows_restored:,} restored, {many(result.tombstones_removed, 'tombstone')} removed")
        )
    if request.replacement is not None and added is not None:
        uri, batch = request.replacement.uri, request.replacement.batch_id
        withheld = ". They are not added, because that id was deleted before" if result.replacement_withheld else ""
        files = f"{many(len(added), 'file')} ({written(sum(o.size for o in added))})"
        rows.append(("adds", f"the rows of {files} in {uri}, as batch {batch}{withheld}"))
    return rows


def _files(result: RequestResult, policy: VacuumPolicy | None, dry_run: bool) -> list[tuple[str, str]]:
    plan = result.plan
    if plan is None:
        return []
    whole = f", {plan.whole_files} of them only these" if plan.whole_files else ""
    text = f"{many(plan.files, 'file')} ({written(plan.bytes)}) may contain these rows{whole}"
    lines = [("files", text)]
    if result.rows_restored or dry_run or not plan.files:
        return lines
    if policy is None:
        lines.append(("vacuum", "no VacuumPolicy selects the Dataset: the rows are hidden, and stay in the files"))
        return lines
    drops = f"drops {plan.whole_files} and " if plan.whole_files else ""
    rest = plan.files - plan.whole_files
    lines.append(
        ("vacuum", f"a vacuum of VacuumPolicy {policy.meta.name} {drops}rewrites at most {many(rest, 'file')}")
    )
    return lines


def _unknown(request: RestatementRequest, named: NamedBatches, table: RestatedTable) -> str:
    reasons = []
    foreign = [i for i in named.in_table if i in table.in_files]
    if foreign:
        reasons.append(f"how many rows {_shown(foreign)} has: another writer added the batch")
    if request.replacement is not None:
        keys = " and replaces by their keys" if request.by_keys else ""
        reasons.append(f"how many rows the replacement adds{keys}: only the run reads its files")
    if named.unknown and table.is_cut:
        reasons.append("whether the unknown batches wait in the buffer: it contains too many")
    return "; ".join(reasons)


def _document(result: RequestResult, named: NamedBatches, added: Sequence[BufferedObject] | None) -> Mapping[str, Any]:
    return {
        "operation": str(result.operation),
        "batches": {
            "inTable": list(named.in_table),
            "waiting": list(named.waiting),
            "deletedBefore": list(named.deleted),
            "unknown": list(named.unknown),
        },
        "rowsDeleted": result.rows_deleted,
        "rowsRestored": result.rows_restored,
        **({"adds": {"files": len(added), "bytes": sum(o.size for o in added)}} if added is not None else {}),
        "tombstonesAdded": result.tombstones_added,
        "tombstonesRemoved": result.tombstones_removed,
        **({"plan": result.plan.model_dump(by_alias=True)} if result.plan is not None else {}),
    }


def _shown(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
    return ", ".join(ids[:_SHOWN_IDS]) + more


def _are(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"

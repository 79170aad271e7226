"""What a Dataset would do to its table and its buffer. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lethe.base.errors import Verdict
from lethe.buffer.digest import BufferDigest
from lethe.contract.kubernetes import written
from lethe_operator.actions import Decision
from lethe_operator.dataset.consolidation import triggered
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import NoTable, NotListed, TableView, Unavailable

from lethe_plan.effect import Effect, many


@dataclass(frozen=True)
class DatasetFacts:
    """What is known of a Dataset's table and buffer."""

    table: TableView | NoTable | Unavailable
    buffer: BufferDigest | NotListed | Unavailable
    blocker: Verdict | None
    """What keeps its runs from starting; None: nothing."""
    columns: Sequence[str] = ()
    """That schemaEvolution would add or widen, with their types."""


def effect(dataset: Dataset, facts: DatasetFacts, now: datetime) -> Effect:
    """What happens to the table, and which batches are promoted."""
    if isinstance(facts.table, Unavailable):
        return Effect(_from_status(dataset), {}, unknown=facts.table.message)
    document: dict[str, Any] = {"table": _fate(dataset, facts.table)}
    lines = [("table", _table(dataset, facts.table))]
    problem = unknown = ""
    if facts.blocker is not None:
        problem = "" if facts.blocker.transient else str(facts.blocker)
        lines += [("waits", facts.blocker.message)] if facts.blocker.transient else []
    match facts.buffer:
        case BufferDigest() as buffer:
            document["buffer"] = {"batches": buffer.batches, "bytes": buffer.bytes, "incomplete": buffer.incomplete}
            lines.append(("buffer", _waiting(buffer)))
            if facts.blocker is None:
                lines.append(("consolidation", _consolidation(dataset, buffer, now)))
        case Unavailable():
            unknown = facts.buffer.message
        case NotListed():
            unknown = "the buffer was not listed"
    if facts.columns:
        document["columns"] = list(facts.columns)
        lines.append(("columns", f"adds or widens {', '.join(facts.columns)}"))
    return Effect(tuple(lines), document, unknown=unknown, problem=problem)


def deleted(dataset: Dataset) -> Effect:
    """What the deletion of a Dataset does."""
    spec = dataset.spec
    lines = (
        ("table", f"{spec.table.catalog}.{spec.table.name} stays, with its ledger"),
        ("buffer", f"{spec.buffer.uri} stays, and nothing reads it"),
        ("runs", "no run starts any more; Jobs, ServiceAccounts and Roles of the Dataset are deleted"),
        ("restatements", "they stay, and wait for a Dataset of this name"),
        ("deadlines", "no vacuum purges rows of the table until a Dataset has it"),
    )
    return Effect(lines)


def _fate(dataset: Dataset, table: TableView | NoTable) -> str:
    if isinstance(table, NoTable):
        return "create" if dataset.spec.table.create is not None else "missing"
    if table.claim == dataset.claim:
        return "keep"
    if table.prepared:
        return "use"
    return "adopt" if dataset.spec.table.adopt else "unprepared"


def _table(dataset: Dataset, table: TableView | NoTable) -> str:
    spec = dataset.spec.table
    name = f"{spec.catalog}.{spec.name}"
    rows = "" if isinstance(table, NoTable) or table.total_records is None else f", {many(table.total_records, 'row')}"
    match _fate(dataset, table):
        case "create":
            return f"the first run creates {name}"
        case "missing":
            return f"{name} does not exist, and spec.table.create is not set"
        case "adopt":
            return f"the first run adopts {name}{rows}: it sets the sort order and the metrics of {dataset.spec.batch_column}"
        case "use":
            return f"{name}{rows}, is prepared and not claimed: the first run claims it"
        case _:
            return f"{name}{rows}"


def _waiting(buffer: BufferDigest) -> str:
    text = f"{many(buffer.batches, 'batch')} ({written(buffer.bytes)}) waiting"
    return f"{text}, {buffer.incomplete} incomplete" if buffer.incomplete else text


def _consolidation(dataset: Dataset, buffer: BufferDigest, now: datetime) -> str:
    if dataset.paused:
        return "no run starts, because the annotation lethe.dev/paused is set"
    if dataset.spec.consolidation.suspend:
        return "no run starts, because spec.consolidation.suspend is true"
    trigger = triggered(buffer, dataset.spec.consolidation, now)
    verdict = trigger.verdict.adding("A run starts.") if trigger.decision is Decision.DUE else trigger.verdict
    return verdict.message


def _from_status(dataset: Dataset) -> tuple[tuple[str, str], ...]:
    """What the operator saw last."""
    batches, buffer = dataset.status.batches, dataset.status.buffer
    promoted = batches.promoted if batches is not None else None
    waiting = buffer.batches if buffer is not None else None
    if promoted is None and waiting is None:
        return ()
    return (("status", f"the operator last saw {promoted or 0} promoted and {waiting or 0} waiting batches"),)

"""What the console keeps of each Dataset and Restatement: rows of lists, and the totals of a namespace. Pure.

There may be tens of thousands of rows, so they have few and small values.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from lethe.contract.kubernetes import REQUESTED_BY
from lethe.contract.settings import RunFamily
from lethe.contract.status import ENDED_RUNS_OF_A_KIND
from lethe.restatement import repeats
from lethe.restatement.repeats import repetitions

from lethe_gateway.console import attention, text
from lethe_gateway.console.attention import Attention
from lethe_gateway.resources.datasets import DatasetView, RunView, dataset_of
from lethe_gateway.resources.restatements import restatement_of
from lethe_gateway.resources.views import ConditionView

TEXT_AT_MOST: Final = 160  # characters of a message or a reason
_HOUR: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class EndedConsolidation:
    """A consolidation that has ended."""

    started: datetime
    finished: datetime
    batches: int


@dataclass(frozen=True, slots=True)
class VacuumRow:
    """The next vacuum of a Dataset."""

    decision: str
    policy: str | None
    tombstones: int | None
    files: int | None
    bytes: int | None
    due: datetime | None
    message: str


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """A Dataset in lists."""

    name: str
    table: str | None
    ready: ConditionView | None
    waiting: int | None
    waiting_bytes: int | None
    oldest: datetime | None
    """When the oldest waiting batch was written."""
    promoted: int | None
    refused: int | None
    tombstones: int | None
    rows: int | None
    """Of the data files of the table's head."""
    open_erasures: int
    blocked_erasures: int
    overdue_erasures: int
    next_erasure: datetime | None
    vacuum: VacuumRow | None
    active_runs: int
    runs: tuple[str, ...]
    """Their names."""
    promotions: tuple[EndedConsolidation, ...]
    """The last ones, which the status remembers."""
    attention: tuple[Attention, ...]

    @property
    def is_ready(self) -> bool:
        """Whether the operator can work on it."""
        return self.ready is not None and self.ready.status == "True"


@dataclass(frozen=True, slots=True)
class RestatementRow:
    """A Restatement in lists."""

    name: str
    dataset: str
    """"": it erases or redacts a subject in several."""
    datasets: int | None
    """How many Datasets that are; None: it is not counted yet, or the Restatement changes one Dataset."""
    operation: str
    is_dry_run: bool
    phase: str | None
    progress: str | None
    created: datetime | None
    reason: str
    ticket: str
    requested_by: str
    request: repeats.Request
    attention: tuple[Attention, ...]
    """Of a failure, even if it was repeated."""


def dataset_row(resource: dict[str, Any]) -> DatasetRow:
    """The row of a Dataset."""
    dataset = dataset_of(resource)
    return DatasetRow(
        name=dataset.name,
        table=dataset.table.name if dataset.table is not None else None,
        ready=_short(dataset.ready),
        waiting=dataset.buffer.batches,
        waiting_bytes=dataset.buffer.bytes,
        oldest=dataset.buffer.oldest_batch_time,
        promoted=dataset.batches.promoted,
        refused=dataset.batches.refused,
        tombstones=dataset.tombstones.active,
        rows=dataset.table_state.rows,
        open_erasures=dataset.erasures.open or 0,
        blocked_erasures=dataset.erasures.blocked or 0,
        overdue_erasures=dataset.erasures.overdue or 0,
        next_erasure=dataset.erasures.next_due_time,
        vacuum=_vacuum(dataset),
        active_runs=dataset.active_runs,
        runs=tuple(run.name for run in dataset.runs),
        promotions=tuple(p for run in dataset.runs if (p := _promotion(run)) is not None),
        attention=tuple(attention.of_dataset(dataset)),
    )


def restatement_row(resource: dict[str, Any]) -> RestatementRow:
    """The row of a Restatement."""
    restatement = restatement_of(resource)
    annotations = resource["metadata"].get("annotations") or {}
    return RestatementRow(
        name=restatement.name,
        dataset=restatement.dataset,
        datasets=restatement.subject.selected if restatement.subject is not None else None,
        operation=restatement.operation,
        is_dry_run=restatement.dry_run,
        phase=restatement.phase,
        progress=restatement.progress,
        created=restatement.created_time,
        reason=(restatement.reason or "")[:TEXT_AT_MOST],
        ticket=restatement.ticket or "",
        requested_by=str(annotations.get(REQUESTED_BY) or ""),
        request=repeats.request_of(resource),
        attention=tuple(attention.of_restatement(resource)),
    )


def _short(condition: ConditionView | None) -> ConditionView | None:
    return condition.model_copy(update={"message": None}) if condition is not None else None


def _vacuum(dataset: DatasetView) -> VacuumRow | None:
    vacuum, plan = dataset.vacuum, dataset.vacuum.plan
    if not vacuum.decision:
        return None
    return VacuumRow(
        decision=vacuum.decision,
        policy=vacuum.policy,
        tombstones=plan.tombstones if plan is not None else None,
        files=plan.files if plan is not None else None,
        bytes=plan.bytes if plan is not None else None,
        due=vacuum.evict_by.time if vacuum.evict_by is not None else None,
        message=text.short(vacuum.message or vacuum.reason or "", TEXT_AT_MOST),
    )


def _promotion(run: RunView) -> EndedConsolidation | None:
    if run.kind != RunFamily.CONSOLIDATION.value or not run.batches:
        return None
    if run.start_time is None or run.finish_time is None:
        return None
    return EndedConsolidation(run.start_time, run.finish_time, run.batches)


@dataclass(frozen=True)
class NamespaceTotals:
    """The figures of the Datasets of a namespace."""

    datasets: int
    not_ready: int
    batches_per_hour: int
    """Promoted in the last hour, as far as the statuses remember runs."""
    rows: int
    waiting: int
    waiting_bytes: int
    oldest: datetime | None
    """When the oldest waiting batch was written, and of which Dataset it is."""
    oldest_of: str
    open_erasures: int
    active_runs: int


def totals(datasets: Collection[DatasetRow], now: datetime) -> NamespaceTotals:
    """The sums over Datasets."""
    oldest = min(((d.oldest, d.name) for d in datasets if d.oldest is not None), default=(None, ""))
    return NamespaceTotals(
        datasets=len(datasets),
        not_ready=sum(not d.is_ready for d in datasets),
        batches_per_hour=round(sum(per_hour(d.promotions, now) for d in datasets)),
        rows=sum(d.rows or 0 for d in datasets),
        waiting=sum(d.waiting or 0 for d in datasets),
        waiting_bytes=sum(d.waiting_bytes or 0 for d in datasets),
        oldest=oldest[0],
        oldest_of=oldest[1],
        open_erasures=sum(d.open_erasures for d in datasets),
        active_runs=sum(d.active_runs for d in datasets),
    )


def per_hour(promotions: Sequence[EndedConsolidation], now: datetime) -> float:
    """The batches that were promoted in the last hour.

    A status remembers the last few consolidations only. If all of these were in the last hour, there may have been more. Then
    the rate since the first one began is taken for the whole hour.
    """
    recent = [p for p in promotions if now - p.finished < _HOUR]
    batches = sum(p.batches for p in recent)
    if not recent or len(recent) < len(promotions) or len(recent) < ENDED_RUNS_OF_A_KIND:
        return float(batches)
    span = min(max(now - min(p.started for p in recent), timedelta(minutes=1)), _HOUR)
    return batches * (_HOUR / span)


def repeated_by(restatements: Iterable[RestatementRow]) -> dict[str, str]:
    """The failed Restatements that were repeated with success, each with the name of the later one."""
    return repetitions(r.request for r in restatements)


def needs(
    datasets: Iterable[DatasetRow], restatements: Collection[RestatementRow], others: Iterable[Attention] = ()
) -> list[Attention]:
    """What needs attention, the most urgent first. A failure that was repeated does not.

    Args:
        others: What is about the namespace.
    """
    repeated = repeated_by(restatements)
    found = [*others, *(a for d in datasets for a in d.attention)]
    found += [a for r in restatements if r.name not in repeated for a in r.attention]
    return sorted(found, key=key_of)


def key_of(item: Attention) -> str:
    """The place of an item among all that need attention."""
    return "\n".join((str(int(item.urgency)), item.dataset, item.restatement, f"{item.rank:02}"))


def newest_first(restatements: Iterable[RestatementRow]) -> list[RestatementRow]:
    """Restatements by the time of their creation, the newest first, then by name."""
    return sorted(restatements, key=age_key)


def age_key(row: RestatementRow) -> str:
    """The place of a Restatement in that order."""
    seconds = int(row.created.timestamp()) if row.created is not None else 0
    return f"{_LATEST - seconds:012d}\n{row.name}"


_LATEST: Final = 10**11  # in seconds since 1970


def matches(row: DatasetRow | RestatementRow, wanted: str) -> bool:
    """Whether a row is about a text, in any case of letters: a name, or of a Restatement also who asked and why."""
    folded = wanted.casefold()
    texts = [row.name]
    if isinstance(row, RestatementRow):
        texts += [row.ticket, row.reason, row.requested_by]
    return any(folded in t.casefold() for t in texts)


def runs_named(datasets: Iterable[DatasetRow], wanted: str) -> list[tuple[str, str]]:
    """The Datasets and names of the runs that contain a text."""
    folded = wanted.casefold()
    return [(d.name, run) for d in datasets for run in d.runs if folded in run.casefold()]


def by_name(rows: Mapping[str, DatasetRow]) -> list[DatasetRow]:
    """Datasets in the order of their names."""
    return [rows[name] for name in sorted(rows)]

"""What needs somebody's attention, and whether an operator acts in the namespace, by the Lease that it renews there. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, Final

from lethe_operator.cluster.leadership import CLAIM, CLAIM_LEASE, duration_of, holder_of

from lethe_gateway.resources.datasets import DatasetView
from lethe_gateway.resources.restatements import RestatementView, restatement_of
from lethe_gateway.resources.views import ConditionView

_TRUE: Final = "True"
_FALSE: Final = "False"


class Urgency(IntEnum):
    """The most urgent is first."""

    STOPPED = 0
    """Work does not go on, or a deadline has passed."""
    WAITS = 1
    """Somebody must decide."""
    NOTE = 2
    """Look at it at some time."""

    @property
    def word(self) -> str:
        """What a page shows for it, and the name of its CSS class."""
        return {Urgency.STOPPED: "stopped", Urgency.WAITS: "decide", Urgency.NOTE: "look"}[self]


@dataclass(frozen=True)
class Attention:
    """One thing to look at."""

    urgency: Urgency
    dataset: str
    what: str
    """In a few words."""
    detail: str
    """As the status says it."""
    restatement: str = ""
    """The Restatement that it is about; "": it is about the Dataset."""
    page: str = ""
    """Of the Dataset, where to see more: vacuum or erasures; "": its own page."""
    rank: int = 0
    """Its place among those of the same urgency and subject."""


def of_dataset(dataset: DatasetView) -> list[Attention]:
    """What a Dataset needs, the most urgent first."""
    stopped = _stopped(dataset)
    plan = dataset.vacuum.plan
    if dataset.vacuum.decision == "NeedsApproval" and plan is not None:
        stopped.append(
            Attention(
                Urgency.WAITS, dataset.name, "A vacuum waits for approval", dataset.vacuum.message or "", page="vacuum"
            )
        )
    if blocked := dataset.erasures.blocked:
        what = _count(blocked, "erasure is blocked", "erasures are blocked")
        stopped.append(
            Attention(
                Urgency.WAITS, dataset.name, what, "A tag, branch, snapshot or lock keeps files.", page="erasures"
            )
        )
    if dataset.held_batches:
        newest, count = dataset.held_batches[0], dataset.batches.held or len(dataset.held_batches)
        what = _count(count, "batch is held by a check", "batches are held by checks")
        detail = f"Approve or revert it. The latest is {newest.batch_id}: {newest.message or newest.reason or ''}"
        stopped.append(Attention(Urgency.WAITS, dataset.name, what, detail))
    if refused := dataset.batches.refused:
        last = dataset.refused_batches[0] if dataset.refused_batches else None
        detail = f"The latest is {last.batch_id}: {last.message or last.reason or ''}" if last is not None else ""
        stopped.append(
            Attention(Urgency.NOTE, dataset.name, _count(refused, "batch was refused", "batches were refused"), detail)
        )
    if invalid := dataset.buffer.invalid:
        what = _count(invalid, "folder in the buffer is no batch", "folders in the buffer are no batches")
        stopped.append(Attention(Urgency.NOTE, dataset.name, what, "status.buffer.invalidFolders says why."))
    return [replace(item, rank=rank) for rank, item in enumerate(stopped)]


def of_restatement(resource: Mapping[str, Any]) -> list[Attention]:
    """What a Restatement needs: it has failed, or cannot go on."""
    restatement = restatement_of(resource)
    succeeded, stalled = (condition(restatement, c) for c in ("Succeeded", "Stalled"))
    if restatement.phase == "Cancelled":
        return []
    if succeeded is not None and succeeded.status == _FALSE:
        return [_about(restatement, f"{restatement.operation} failed", succeeded)]
    if stalled is not None and stalled.status == _TRUE:
        return [_about(restatement, f"{restatement.operation} cannot go on", stalled)]
    return []


def condition(of: DatasetView | RestatementView, kind: str) -> ConditionView | None:
    """None: there is no such condition."""
    return next((c for c in of.conditions if c.type == kind), None)


def _stopped(dataset: DatasetView) -> list[Attention]:
    ready, on_time, source = (condition(dataset, c) for c in ("Ready", "EvictionOnTime", "SourceRead"))
    items: list[Attention] = []
    if ready is not None and ready.status == _FALSE:
        items.append(Attention(Urgency.STOPPED, dataset.name, f"Not ready: {ready.reason}", ready.message or ""))
    if source is not None and source.status == _FALSE:
        what = f"Its topics are not read: {source.reason}"
        items.append(Attention(Urgency.STOPPED, dataset.name, what, source.message or ""))
    if overdue := dataset.erasures.overdue:
        what = _count(overdue, "erasure is overdue", "erasures are overdue")
        items.append(Attention(Urgency.STOPPED, dataset.name, what, "The deadline has passed.", page="erasures"))
    elif on_time is not None and on_time.status == _FALSE:
        items.append(
            Attention(
                Urgency.STOPPED,
                dataset.name,
                f"Eviction is late: {on_time.reason}",
                on_time.message or "",
                page="vacuum",
            )
        )
    return items


def _about(restatement: RestatementView, what: str, why: ConditionView) -> Attention:
    detail = why.message or why.reason or ""
    return Attention(Urgency.STOPPED, restatement.dataset, what, detail, restatement.name)


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


LEASE: Final = CLAIM_LEASE
"""The name of the Lease."""


@dataclass(frozen=True)
class Health:
    """What the Lease of a namespace says."""

    state: str
    """acts, silent, absent or unknown."""
    holder: str = ""
    """The release that acts in the namespace."""
    renewed: datetime | None = None
    """When it last said so, by its own clock."""

    @property
    def attention(self) -> tuple[Attention, ...]:
        """What somebody must know of it."""
        match self.state:
            case "silent":
                at = f"{self.renewed:%Y-%m-%d %H:%M:%SZ}" if self.renewed is not None else "an unknown time"
                detail = (
                    f"{self.holder} has not renewed the Lease {LEASE} since {at}. Nothing is promoted or taken back."
                )
            case "absent":
                detail = f"No operator holds the Lease {LEASE}. Nothing is promoted or taken back."
            case _:
                return ()
        return (Attention(Urgency.STOPPED, "", "No operator acts here", detail),)


UNKNOWN: Final = Health("unknown")
"""The caller may not read the Lease."""


def health_of(lease: Mapping[str, Any], now: datetime) -> Health:
    """What a Lease says. A holder that is late by less than the duration of the Lease still acts."""
    holder = holder_of(lease)
    if not holder:
        return Health("absent")
    renewed = _time((lease.get("spec") or {}).get("renewTime"))
    if renewed is None:
        return Health("silent", holder)
    is_late = (now - renewed).total_seconds() > duration_of(lease, CLAIM)
    return Health("silent" if is_late else "acts", holder, renewed)


def _time(text: object) -> datetime | None:
    """A time of a Lease; None: it has none, or none that can be read."""
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)

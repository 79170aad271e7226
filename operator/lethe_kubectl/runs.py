"""The rows of `lethe runs`. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from lethe_kubectl.status import age

Document = Mapping[str, Any]
HEADERS: Final = ("RUN", "DATASET", "KIND", "PHASE", "PROGRESS", "ATTEMPT", "STARTED", "TOOK", "REASON")
WIDE: Final = ("EXECUTORS", "MESSAGE")
_ENDED: Final = frozenset({"Succeeded", "Failed"})


def runs_of(datasets: Sequence[Document], active: bool = False) -> list[Document]:
    """The runs in the statuses of Datasets, the newest first, each with `dataset`.

    Args:
        active: Only those that have not ended.
    """
    found = [
        {"dataset": d["metadata"]["name"], **run} for d in datasets for run in (d.get("status") or {}).get("runs") or ()
    ]
    found = [run for run in found if not active or run.get("phase") not in _ENDED]
    return sorted(found, key=lambda run: str(run.get("startTime") or "9"), reverse=True)


def rows(runs: Sequence[Document], now: datetime, wide: bool) -> Iterator[list[str]]:
    """One row for each run.

    Args:
        wide: Whether to add the columns of `WIDE`.
    """
    for run in runs:
        row = [str(run.get(key) or "") for key in ("name", "dataset", "kind", "phase", "progress", "attempt")]
        row += [age(run.get("startTime"), now), _took(run, now), str(run.get("reason") or "")]
        yield [*row, str(run.get("executors") or ""), str(run.get("message") or "")] if wide else row


def _took(run: Document, now: datetime) -> str:
    """Until now if the run has not ended."""
    finished = run.get("finishTime")
    if not finished and run.get("phase") in _ENDED:
        return ""
    return age(run.get("startTime"), datetime.fromisoformat(finished) if finished else now)

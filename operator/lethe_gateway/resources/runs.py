"""Runs, from the status of their Datasets. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pydantic import Field

from lethe_gateway.document import Document

_ENDED: Final = frozenset({"Succeeded", "Failed"})


class Run(Document):
    """One run."""

    dataset: str = Field(description="The Dataset whose table it changes.")
    name: str = Field(description="The name of its Job or SparkApplication.")
    kind: str = Field(description="Consolidation, Restatement or Vacuum.")
    phase: str | None = Field(default=None, description="The current phase, or Succeeded or Failed.")
    progress: str | None = Field(default=None, description="The progress of the phase, such as 12/40 tasks.")
    executors: str | None = Field(default=None, description="Executors that run, of those planned, such as 2/4.")
    message: str | None = Field(default=None, description="What the run does or did.")
    reason: str | None = Field(default=None, description="Why it failed, as one CamelCase word.")
    attempt: int | None = Field(default=None, description="The number of the attempt, from 1.")
    start_time: datetime | None = Field(default=None, description="When it started.")
    finish_time: datetime | None = Field(default=None, description="When it ended.")


def runs_of(dataset: Mapping[str, Any]) -> list[Run]:
    """The active runs of a Dataset and the last few of each kind, the newest first."""
    name = (dataset.get("metadata") or {}).get("name", "")
    return [Run.model_validate({**run, "dataset": name}) for run in (dataset.get("status") or {}).get("runs") or ()]


def is_active(run: Run) -> bool:
    """Whether the run has not ended."""
    return run.phase not in _ENDED

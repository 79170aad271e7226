"""The plans of vacuums and the policies that start them, from statuses. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import Field

from lethe_gateway.problems import Document
from lethe_gateway.resources.conditions import Condition, conditions_of


class EvictBy(Document):
    """The deadline that the next vacuum must meet."""

    time: datetime | None = Field(default=None, description="When bytes must be gone.")
    starts_by_time: datetime | None = Field(default=None, description="When the vacuum starts for it at the latest.")
    possible_until_time: datetime | None = Field(default=None, description="When a vacuum must start to meet it.")


class VacuumPlan(Document):
    """What the next vacuum would do, planned from metadata."""

    digest: str | None = Field(
        default=None, description="Identifies the plan. To approve it, annotate the Dataset with it."
    )
    snapshot_id: int | None = Field(default=None, description="The snapshot that was planned for.")
    planned_time: datetime | None = Field(default=None, description="When it was planned.")
    files: int | None = Field(default=None, description="Data files to rewrite, at most.")
    bytes: int | None = Field(default=None, description="The size of these files.")
    bytes_to_copy: int | None = Field(
        default=None, description="Expected bytes of these files in row groups that are copied as they are."
    )
    bytes_to_encode: int | None = Field(
        default=None, description="Expected bytes of these files in row groups and files that are encoded again."
    )
    whole_files: int | None = Field(default=None, description="Data files that are deleted without being read.")
    tombstones: int | None = Field(default=None, description="Tombstones to apply.")
    rows: int | None = Field(default=None, description="Rows of their batches, where known.")
    files_left: int | None = Field(default=None, description="Data files that are left to a later vacuum.")
    bytes_left: int | None = Field(default=None, description="The size of these files.")
    in_vain_percent: int | None = Field(
        default=None, description="The expected share of bytes in files without tombstoned rows."
    )
    sort_drift: str | None = Field(default=None, description="How many data files of a partition overlap, on average.")
    next_evict_by_time: datetime | None = Field(default=None, description="The earliest deadline of the rows to purge.")


class LastVacuum(Document):
    """The last vacuum that ended."""

    name: str | None = Field(default=None, description="The name of its Job or SparkApplication.")
    finish_time: datetime | None = Field(default=None, description="When it ended.")
    message: str | None = Field(default=None, description="What it did.")
    stopped: str | None = Field(default=None, description="Why it stopped before its plan was done.")


class RequestedVacuum(Document):
    """The vacuum that was last asked for by the annotation lethe.dev/vacuum-now."""

    value: str | None = Field(default=None, description="The value of the annotation.")
    outcome: str | None = Field(default=None, description="Pending, Running, Succeeded or Failed.")
    message: str | None = Field(default=None, description="What happened.")


class VacuumState(Document):
    """The next vacuum of a Dataset."""

    policy: str | None = Field(default=None, description="The VacuumPolicy that selects the Dataset.")
    decision: str | None = Field(default=None, description="Due, Later, Running or NeedsApproval.")
    reason: str | None = Field(default=None, description="Why, or what it waits for.")
    message: str | None = Field(default=None, description="The same in words.")
    due_reason: str | None = Field(default=None, description="The trigger that makes it due.")
    next_time: datetime | None = Field(default=None, description="When it is decided again at the latest.")
    waiting_since: datetime | None = Field(default=None, description="Since when a due vacuum waits.")
    evict_by: EvictBy | None = Field(default=None, description="The deadline that it must meet.")
    plan: VacuumPlan | None = Field(default=None, description="What it would do.")
    last_run: LastVacuum | None = Field(default=None, description="The last vacuum that ended.")
    requested: RequestedVacuum | None = Field(default=None, description="The vacuum that was last asked for.")


class DatasetVacuum(VacuumState):
    """The next vacuum, in a list."""

    dataset: str = Field(description="The Dataset.")


class VacuumPolicy(Document):
    """When vacuums run."""

    name: str = Field(description="The name of the policy.")
    approval: str | None = Field(default=None, description="Automatic or Manual.")
    schedule: str | None = Field(default=None, description="When windows begin, as a cron expression.")
    time_zone: str | None = Field(default=None, description="The time zone of the schedule.")
    duration_seconds: int | None = Field(default=None, description="How long a window is open.")
    datasets_count: int | None = Field(default=None, description="Datasets that it selects.")
    last_run_time: datetime | None = Field(default=None, description="When a vacuum last ended.")
    next_window_time: datetime | None = Field(default=None, description="When the next window begins.")
    conditions: list[Condition] = Field(default_factory=list, description="The conditions of the policy.")


def vacuum_of(dataset: Mapping[str, Any]) -> DatasetVacuum:
    """What the status of a Dataset says of its next vacuum. Without a status, only the name of the Dataset is set."""
    status = (dataset.get("status") or {}).get("vacuum") or {}
    return DatasetVacuum.model_validate({**status, "dataset": dataset["metadata"]["name"]})


def policy_of(resource: Mapping[str, Any]) -> VacuumPolicy:
    """A VacuumPolicy, from the window and approval of its spec and from its status."""
    spec, status = (resource.get(part) or {} for part in ("spec", "status"))
    return VacuumPolicy.model_validate(
        {
            **{k: status.get(k) for k in ("datasetsCount", "lastRunTime", "nextWindowTime")},
            **(spec.get("window") or {}),
            "name": resource["metadata"]["name"],
            "approval": spec.get("approval"),
            "conditions": conditions_of(resource),
        }
    )

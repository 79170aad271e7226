"""The plans of vacuums and the policies that start them, from statuses. Pure."""

from collections.abc import Mapping
from typing import Annotated, Any

from lethe.contract.schema import ApiModel, SameAs
from lethe.contract.status import (
    LastVacuum,
    RequestedVacuum,
    RetentionStatus,
    Time,
    VacuumPlan,
    VacuumPolicyStatus,
    VacuumStatus,
    parse_status,
)
from lethe.contract.vacuum_policy import Retention, VacuumPolicySpec, Window
from pydantic import Field

from lethe_gateway.ids import SnapshotIdText
from lethe_gateway.resources.views import ConditionView, conditions_of, part, without


@without("run", "state")
class VacuumPlanView(VacuumPlan, SnapshotIdText):
    """What the next vacuum would do, planned from metadata."""


@without("run_id", "left", "idle_runs", "state")
class LastVacuumView(LastVacuum):
    """The last vacuum that succeeded."""


@without("name", "run_id")
class RequestedVacuumView(RequestedVacuum):
    """The vacuum that was last requested by the annotation lethe.dev/vacuum-now."""


@without("rule", "snapshot_id")
class RetentionView(RetentionStatus):
    """What the last vacuum found about rows that are too old."""


@without("measured")
class VacuumView(VacuumStatus):
    """The next vacuum of a Dataset."""

    plan: VacuumPlanView | None = None
    last_run: LastVacuumView | None = None
    requested: RequestedVacuumView | None = None
    retention: RetentionView | None = None


class DatasetVacuum(VacuumView):
    """The next vacuum, in a list."""

    dataset: str
    """The Dataset."""


class VacuumPolicyView(ApiModel):
    """When vacuums run."""

    name: str
    """The name of the policy."""
    approval: Annotated[str | None, SameAs(VacuumPolicySpec)] = None
    schedule: Annotated[str | None, SameAs(Window)] = None
    time_zone: Annotated[str | None, SameAs(Window)] = None
    duration_seconds: Annotated[int | None, SameAs(Window)] = None
    datasets_count: Annotated[int | None, SameAs(VacuumPolicyStatus)] = None
    last_run_time: Annotated[Time | None, SameAs(VacuumPolicyStatus)] = None
    next_window_time: Annotated[Time | None, SameAs(VacuumPolicyStatus)] = None
    retention: Annotated[Retention | None, SameAs(VacuumPolicySpec)] = None
    conditions: tuple[ConditionView, ...] = Field(default_factory=tuple)
    """The conditions of the policy."""


def vacuum_of(dataset: Mapping[str, Any]) -> DatasetVacuum:
    """What the status of a Dataset says of its next vacuum. Without a status, only the name of the Dataset is set."""
    status = part(dataset, "status", "vacuum")
    return parse_status(DatasetVacuum, {**status, "dataset": dataset["metadata"]["name"]})


def policy_of(resource: Mapping[str, Any]) -> VacuumPolicyView:
    """A VacuumPolicy, from the window and approval of its spec and from its status."""
    status = part(resource, "status")
    return parse_status(
        VacuumPolicyView,
        {
            **{k: status.get(k) for k in ("datasetsCount", "lastRunTime", "nextWindowTime")},
            **part(resource, "spec", "window"),
            "name": resource["metadata"]["name"],
            "approval": part(resource, "spec").get("approval"),
            "retention": part(resource, "spec").get("retention"),
            "conditions": conditions_of(resource),
        },
    )

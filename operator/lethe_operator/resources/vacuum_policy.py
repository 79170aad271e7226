"""The VacuumPolicy resource as a frozen value. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from lethe_operator.resources.common import Meta, Spec, parse_meta, parse_spec

# The CRD sets it on every policy, so that its presence says nothing about what the author wants.
DEFAULT_EVICT_BY_LEAD_SECONDS = 86_400


class Requirement(Spec):
    key: str
    operator: str
    values: tuple[str, ...] = ()


class Selector(Spec):
    match_labels: Mapping[str, str] = Field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()


class Triggers(Spec):
    active_tombstones: int | None = None
    tombstoned_rows_percent: int | None = None
    oldest_tombstone_age_seconds: int | None = None
    evict_by_lead_seconds: int = DEFAULT_EVICT_BY_LEAD_SECONDS


class VacuumPolicySpec(Spec):
    dataset_selector: Selector = Selector()
    triggers: Triggers = Triggers()
    window: Mapping[str, Any] | None = None
    limits: Mapping[str, Any] | None = None
    approval: str = "Automatic"
    expire_snapshots: bool = True


@dataclass(frozen=True)
class VacuumPolicy:
    meta: Meta
    spec: VacuumPolicySpec
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def created(self) -> datetime:
        return self.meta.creation_timestamp or datetime.max.replace(tzinfo=UTC)


def parse_vacuum_policy(body: Mapping[str, Any]) -> VacuumPolicy:
    """Raises: InvalidSpec."""
    return VacuumPolicy(parse_meta(body), parse_spec(VacuumPolicySpec, "VacuumPolicy", body), body.get("status") or {})

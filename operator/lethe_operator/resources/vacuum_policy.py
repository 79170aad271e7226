"""The VacuumPolicy resource as a frozen value. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from lethe_operator.resources.common import Meta, Spec, parse_meta, parse_spec
from lethe_operator.resources.quantity import Bytes


class Requirement(Spec):
    key: str
    operator: str  # In, NotIn, Exists or DoesNotExist
    values: tuple[str, ...] = ()


class Selector(Spec):
    match_labels: Mapping[str, str] = Field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()


class Triggers(Spec):
    """What makes a vacuum due: any one trigger. None: the trigger is off."""

    active_tombstones: int | None = None  # at least this many
    tombstoned_rows_percent: int | None = None  # of the table's rows
    oldest_tombstone_age_seconds: int | None = None
    evict_by_lead_seconds: int = 86_400  # this long before an evictBy


class Window(Spec):
    """When vacuums may start. `lethe_operator.decide.vacuum.window` validates the schedule and the time zone."""

    schedule: str  # five cron fields
    time_zone: str = "UTC"  # IANA name
    duration_seconds: int


class Limits(Spec):
    """None in any field: no limit."""

    max_bytes_per_run: Bytes | None = None  # of data files to rewrite
    max_run_seconds: int | None = None  # a run starts no step after this time
    concurrent_runs: int | None = None  # of this policy


class OrphanFiles(Spec):
    older_than_seconds: int = 259_200


class MaintenanceSpec(Spec):
    rewrite_manifests: bool = False
    remove_orphan_files: OrphanFiles | None = None  # None: they are kept
    compact_small_files: bool = False


class VacuumPolicySpec(Spec):
    dataset_selector: Selector = Selector()
    triggers: Triggers = Triggers()
    window: Window | None = None
    limits: Limits = Limits()
    approval: str = "Automatic"  # Automatic or Manual
    expire_snapshots: bool = True
    maintenance: MaintenanceSpec = MaintenanceSpec()

    @property
    def is_manual(self) -> bool:
        return self.approval == "Manual"


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

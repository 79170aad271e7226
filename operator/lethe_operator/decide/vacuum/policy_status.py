"""The status of a VacuumPolicy: its conditions, and one entry for each Dataset that it selects. Pure."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

from lethe.contract.result import LISTED_AT_MOST

from lethe_operator.decide import conditions
from lethe_operator.decide.actions import Decision
from lethe_operator.decide.conditions import Condition, timestamp
from lethe_operator.decide.vacuum.window import Hours, Unusable, hours
from lethe_operator.reasons import Reason
from lethe_operator.resources.vacuum_policy import VacuumPolicy, VacuumPolicySpec

# The status lists a limited number of Datasets: those that may need attention first.
_RANKS: Final[Mapping[str, int]] = {Decision.NEEDS_APPROVAL: 0, Decision.DUE: 1, Decision.RUNNING: 2}


def with_entry(status: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """The status with the entry of one Dataset replaced. Fields that the new entry cannot know keep their values."""
    entries = {e["name"]: e for e in status.get("datasets") or ()}
    known = entries.get(entry["name"], {})
    kept = {k: v for k, v in known.items() if k == "lastRunTime" or (k == "activeTombstones" and k not in entry)}
    entries[entry["name"]] = {**kept, **entry}
    return _with_datasets(status, entries)


def without_others(status: Mapping[str, Any], selected: Collection[str]) -> dict[str, Any]:
    """The status without the entries of Datasets that do not exist or are no longer selected."""
    entries = {e["name"]: e for e in status.get("datasets") or () if e["name"] in selected}
    document = _with_datasets(status, entries)
    document["datasetsCount"] = len(selected)
    return document


def own(policy: VacuumPolicy, status: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The status with the fields that depend only on the policy's spec: conditions, and when its window opens next."""
    generation = policy.meta.generation
    old = status.get("conditions") or ()
    opens = next_window(policy, now)
    document = {
        **status,
        "observedGeneration": generation,
        "conditions": conditions.as_status(old, policy_conditions(policy, now), generation, now),
        "nextWindowTime": timestamp(opens) if opens is not None else None,
    }
    return {k: v for k, v in document.items() if v is not None}


def policy_conditions(policy: VacuumPolicy, now: datetime) -> tuple[Condition, ...]:
    name, spec = policy.meta.name, policy.spec
    if spec.window is not None and isinstance(window := hours(spec.window, now), Unusable):
        return conditions.stalled(window.reason, f"VacuumPolicy {name}: {window.message}")
    return conditions.healthy(Reason.IN_FORCE, f"A vacuum is due {_due(spec)}.")


def next_window(policy: VacuumPolicy, now: datetime) -> datetime | None:
    """When the policy's window opens next; None: it has no window, or the window never opens."""
    window = hours(policy.spec.window, now) if policy.spec.window is not None else None
    return window.opens if isinstance(window, Hours) else None


def _due(spec: VacuumPolicySpec) -> str:
    """When a vacuum is due, in words."""
    triggers = spec.triggers
    found = []
    if triggers.active_tombstones is not None:
        found.append(f"at {triggers.active_tombstones} active tombstones")
    if triggers.tombstoned_rows_percent is not None:
        found.append(f"when {triggers.tombstoned_rows_percent}% of the rows are hidden")
    if triggers.oldest_tombstone_age_seconds is not None:
        found.append(f"when a tombstone is {triggers.oldest_tombstone_age_seconds} s old")
    found.append(f"{triggers.evict_by_lead_seconds} s before an evictBy, or earlier if previous vacuums took longer")
    approved = ". It starts after its plan is approved" if spec.is_manual else ""
    return f"{', '.join(found)}{approved}"


def _with_datasets(status: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    times = [str(e["lastRunTime"]) for e in entries.values() if e.get("lastRunTime")]
    in_order = sorted(entries.values(), key=lambda e: (_RANKS.get(str(e.get("decision")), len(_RANKS)), e["name"]))
    document = {**status, "datasets": [dict(e) for e in in_order[:LISTED_AT_MOST]]}
    document["datasetsCount"] = max(len(entries), int(status.get("datasetsCount") or 0))
    if times:
        document["lastRunTime"] = max([*times, str(status.get("lastRunTime") or "")])
    return document

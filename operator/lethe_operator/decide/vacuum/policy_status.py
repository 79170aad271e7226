"""The status of a VacuumPolicy: its own conditions, and one entry for each Dataset that it selects. Pure."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

from lethe.contract.result import LISTED_AT_MOST

from lethe_operator.decide import conditions
from lethe_operator.decide.conditions import Condition, timestamp
from lethe_operator.decide.vacuum.status import DUE, NEEDS_APPROVAL, RUNNING
from lethe_operator.decide.vacuum.window import Hours, Unusable, hours
from lethe_operator.reasons import Reason
from lethe_operator.resources.vacuum_policy import VacuumPolicy, VacuumPolicySpec

# Of many Datasets those are listed first that somebody may want to know of.
_RANKS: Final = {NEEDS_APPROVAL: 0, DUE: 1, RUNNING: 2}


def with_entry(status: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """The status with the entry of one Dataset set; what the entry does not know stays."""
    entries = {e["name"]: e for e in status.get("datasets") or ()}
    known = entries.get(entry["name"], {})
    kept = {k: v for k, v in known.items() if k == "lastRunTime" or (k == "activeTombstones" and k not in entry)}
    entries[entry["name"]] = {**kept, **entry}
    return _with_datasets(status, entries)


def without_others(status: Mapping[str, Any], selected: Collection[str]) -> dict[str, Any]:
    """The status without entries of Datasets that are gone or no longer selected."""
    entries = {e["name"]: e for e in status.get("datasets") or () if e["name"] in selected}
    document = _with_datasets(status, entries)
    document["datasetsCount"] = len(selected)
    return document


def own(policy: VacuumPolicy, status: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The status with what follows from the policy's spec alone: conditions, and when its window opens next."""
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
    """When its window opens next; None: it has none, or it never does."""
    window = hours(policy.spec.window, now) if policy.spec.window is not None else None
    return window.opens if isinstance(window, Hours) else None


def _due(spec: VacuumPolicySpec) -> str:
    """In words, what makes one due."""
    triggers = spec.triggers
    found = []
    if triggers.active_tombstones is not None:
        found.append(f"at {triggers.active_tombstones} active tombstones")
    if triggers.tombstoned_rows_percent is not None:
        found.append(f"when {triggers.tombstoned_rows_percent}% of the rows are hidden")
    if triggers.oldest_tombstone_age_seconds is not None:
        found.append(f"when a tombstone is {triggers.oldest_tombstone_age_seconds} s old")
    found.append(f"{triggers.evict_by_lead_seconds} s before an evictBy, or earlier if it takes longer")
    approved = ", and waits to be approved" if spec.is_manual else ""
    return f"{', '.join(found)}{approved}"


def _with_datasets(status: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    times = [str(e["lastRunTime"]) for e in entries.values() if e.get("lastRunTime")]
    in_order = sorted(entries.values(), key=lambda e: (_RANKS.get(str(e.get("decision")), len(_RANKS)), e["name"]))
    document = {**status, "datasets": [dict(e) for e in in_order[:LISTED_AT_MOST]]}
    document["datasetsCount"] = max(len(entries), int(status.get("datasetsCount") or 0))
    if times:
        document["lastRunTime"] = max([*times, str(status.get("lastRunTime") or "")])
    return document

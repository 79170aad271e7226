"""The status of a VacuumPolicy: its own conditions, and one entry for each Dataset that it selects. Pure."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from lethe.run import LISTED_AT_MOST

from lethe_operator.decide import conditions
from lethe_operator.decide.conditions import Condition
from lethe_operator.decide.vacuum import unsupported_fields, unsupported_triggers
from lethe_operator.reasons import Reason
from lethe_operator.resources.vacuum_policy import VacuumPolicy


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
    """The status with the conditions that follow from the policy's spec alone."""
    generation = policy.meta.generation
    old = status.get("conditions") or ()
    return {
        **status,
        "observedGeneration": generation,
        "conditions": conditions.as_status(old, policy_conditions(policy), generation, now),
    }


def policy_conditions(policy: VacuumPolicy) -> tuple[Condition, ...]:
    name = policy.meta.name
    fields, triggers = unsupported_fields(policy), unsupported_triggers(policy)
    if fields:
        return conditions.stalled(
            Reason.NOT_SUPPORTED,
            f"VacuumPolicy {name}: {_listed(fields)} not supported yet. Since purging cannot be undone, the policy "
            "does not act at all until this is removed.",
        )
    limit = policy.spec.triggers.active_tombstones
    if limit is None:
        only = f"{_listed(triggers)} not supported yet. " if triggers else ""
        return conditions.stalled(
            Reason.TRIGGER_NOT_SUPPORTED,
            f"VacuumPolicy {name}: {only}Set spec.triggers.activeTombstones, the one trigger that this version has.",
        )
    acts = f"A vacuum is due at {limit} active tombstones."
    if triggers:
        return conditions.healthy(Reason.PARTLY_SUPPORTED, f"{acts} {_listed(triggers)} not supported yet: no effect.")
    return conditions.healthy(Reason.IN_FORCE, acts)


def _listed(fields: Collection[str]) -> str:
    return f"{', '.join(fields)} {'is' if len(fields) == 1 else 'are'}"


def _with_datasets(status: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    times = [str(e["lastRunTime"]) for e in entries.values() if e.get("lastRunTime")]
    document = {**status, "datasets": [dict(entries[n]) for n in sorted(entries)][:LISTED_AT_MOST]}
    document["datasetsCount"] = max(len(entries), int(status.get("datasetsCount") or 0))
    if times:
        document["lastRunTime"] = max([*times, str(status.get("lastRunTime") or "")])
    return document

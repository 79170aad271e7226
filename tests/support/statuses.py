"""Statuses: builders of each model, and documents as the API server shows them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from lethe.contract.schema import ApiModel
from lethe.contract.status import (
    Condition,
    DatasetStatus,
    RestatementStatus,
    StoredStatus,
    VacuumPolicyStatus,
    parse_status,
)
from lethe_operator.actions import Actions
from lethe_operator.dataset import decide as dataset_decide
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Observation
from lethe_operator.resources.restatement import Restatement
from lethe_operator.settings import Settings
from lethe_operator.vacuum.decide import VacuumChoice

from tests.support.builders import NOW

R = TypeVar("R", Dataset, Restatement)


@dataclass(frozen=True)
class Decided(Actions):
    """Actions with documents as statuses."""

    dataset_status: Mapping[str, Any] | None = None  # type: ignore[assignment]
    restatement_statuses: Mapping[str, Mapping[str, Any]] = None  # type: ignore[assignment]
    policy_entries: Mapping[str, Mapping[str, Any]] = None  # type: ignore[assignment]


def a_condition(
    type: str = "Succeeded", status: Any = "True", reason: str = "R", message: str = "", at: datetime = NOW
) -> Condition:
    return Condition(type=type, status=status, reason=reason, message=message, last_transition_time=at)


def a_dataset_status(**parts: Any) -> DatasetStatus:
    return parse_status(DatasetStatus, parts)


def a_restatement_status(*conditions: Condition, **parts: Any) -> RestatementStatus:
    return parse_status(RestatementStatus, {"conditions": conditions, **parts})


def a_policy_status(**parts: Any) -> VacuumPolicyStatus:
    return parse_status(VacuumPolicyStatus, parts)


def document(status: Any) -> Any:
    """A status, or a part of one, as the API server shows it."""
    return status.to_document() if isinstance(status, ApiModel) else status or {}


def showing(resource: R, status: Any) -> R:
    """A resource with this status."""
    return replace(resource, stored=StoredStatus(resource.stored.model, document(status)))


def decide(dataset: Dataset, world: Observation, now: datetime, settings: Settings) -> Decided:
    return _documents(dataset_decide.decide(dataset, world, now, settings))


def without_dataset(name: str, restatements: Sequence[Restatement], now: datetime) -> Decided:
    return _documents(dataset_decide.without_dataset(name, restatements, now))


def _documents(actions: Actions) -> Decided:
    found = dict(vars(actions))
    found["dataset_status"] = document(actions.dataset_status) if actions.dataset_status is not None else None
    for name in ("restatement_statuses", "policy_entries"):
        found[name] = {key: document(value) for key, value in found[name].items()}
    return Decided(**found)


@dataclass(frozen=True)
class DecidedVacuum(VacuumChoice):
    """A verdict with documents as statuses."""

    entries: Mapping[str, Mapping[str, Any]]  # type: ignore[assignment]
    status: Mapping[str, Any]  # type: ignore[assignment]


def vacuum_documents(verdict: VacuumChoice) -> DecidedVacuum:
    entries = {policy: document(entry) for policy, entry in verdict.entries.items()}
    return DecidedVacuum(**{**vars(verdict), "entries": entries, "status": document(verdict.status)})

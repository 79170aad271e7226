"""Which VacuumPolicy applies to a Dataset: the most specific, among equally specific ones the oldest. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lethe_operator.resources.vacuum_policy import Requirement, Selector, VacuumPolicy


@dataclass(frozen=True)
class Match:
    """The policies that select a Dataset."""

    decides: VacuumPolicy | None = None
    """The one that applies; None: no policy selects the Dataset."""
    tied: tuple[VacuumPolicy, ...] = ()
    """Equally specific and younger."""
    outranked: tuple[VacuumPolicy, ...] = ()
    """Less specific."""


def selects(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Whether the labels meet all requirements. As everywhere in Kubernetes, an empty selector selects everything."""
    return all(labels.get(k) == v for k, v in selector.match_labels.items()) and all(
        _met(r, labels) for r in selector.match_expressions
    )


def specificity(selector: Selector) -> int:
    return len(selector.match_labels) + len(selector.match_expressions)


def match(policies: Iterable[VacuumPolicy], labels: Mapping[str, str]) -> Match:
    candidates = [p for p in policies if not p.meta.deleting and selects(p.spec.dataset_selector, labels)]
    if not candidates:
        return Match()
    most = max(specificity(p.spec.dataset_selector) for p in candidates)
    top = sorted(
        (p for p in candidates if specificity(p.spec.dataset_selector) == most), key=lambda p: (p.created, p.meta.name)
    )
    rest = tuple(p for p in candidates if specificity(p.spec.dataset_selector) < most)
    return Match(top[0], tuple(top[1:]), rest)


def _met(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False

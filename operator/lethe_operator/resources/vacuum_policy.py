"""The VacuumPolicy resource as a frozen value, and which policy applies to a Dataset. Pure.

The most specific policy applies, among equally specific ones the oldest. The value of the annotation lethe.dev/vacuum-now is any
words, of which some may name batches. The operator acts on each value once; a new vacuum needs a new value, such as the current
time.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

from lethe.contract.settings import LabelOperator
from lethe.contract.status import StoredStatus, VacuumPolicyStatus, stored_status
from lethe.contract.vacuum_policy import Requirement, Selector, VacuumPolicySpec

from lethe_operator.resources.common import Meta, parse_meta, parse_spec

BATCHES: Final = "batches="
IDS_AT_MOST: Final = 1000
VALUE_AT_MOST: Final = 200  # characters of the value in the status
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


class InvalidVacuumNow(ValueError):
    """The list of batches in the value is not valid."""


@dataclass(frozen=True)
class VacuumNow:
    """A value of the annotation that is valid, with the batches that it names."""

    value: str
    batch_ids: tuple[str, ...] = ()
    """Purge only the rows of these batches; empty: of all tombstones."""


def parse_vacuum_now(value: str) -> VacuumNow:
    """Parse a value. `2026-03-01 batches=a,b%2Cc` names the batches `a` and `b,c`.

    Raises:
        InvalidVacuumNow: The list of batches in the value is not valid.
    """
    lists = [word.removeprefix(BATCHES) for word in value.split() if word.startswith(BATCHES)]
    if not lists:
        return VacuumNow(value)
    ids = tuple(dict.fromkeys(_decoded(i) for part in lists for i in part.split(",")))
    if "" in ids:
        raise InvalidVacuumNow(f"{BATCHES} takes batch ids separated by commas, and one of them is empty")
    if len(ids) > IDS_AT_MOST:
        raise InvalidVacuumNow(f"{BATCHES} names {len(ids)} batches, at most {IDS_AT_MOST} are allowed")
    return VacuumNow(value, ids)


def _decoded(text: str) -> str:
    if _BAD_ESCAPE.search(text):
        raise InvalidVacuumNow(
            f"{text[:VALUE_AT_MOST]!r} has a % without two hexadecimal digits after it; write %25 for a %"
        )
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise InvalidVacuumNow(f"{text[:VALUE_AT_MOST]!r} is not percent-encoded UTF-8") from None


@dataclass(frozen=True)
class VacuumPolicy:
    """A VacuumPolicy whose spec matches the schema; `stored` is its status."""

    meta: Meta
    spec: VacuumPolicySpec
    stored: StoredStatus[VacuumPolicyStatus]

    @property
    def status(self) -> VacuumPolicyStatus:
        """The parsed status."""
        return self.stored.parsed

    @property
    def created(self) -> datetime:
        """When the object was created; without a creation time, the latest time there is, which sorts last."""
        return self.meta.creation_timestamp or datetime.max.replace(tzinfo=UTC)


def parse_vacuum_policy(body: Mapping[str, Any]) -> VacuumPolicy:
    """Parse a VacuumPolicy.

    Raises:
        InvalidSpec: A spec that the schema of the CRD should have rejected; the message names the first invalid field.
    """
    spec = parse_spec(VacuumPolicySpec, "VacuumPolicy", body)
    return VacuumPolicy(parse_meta(body), spec, stored_status(VacuumPolicyStatus, body))


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
    """The number of requirements of a selector: the more, the more specific; 0: it selects everything."""
    return len(selector.match_labels) + len(selector.match_expressions)


def match(policies: Iterable[VacuumPolicy], labels: Mapping[str, str]) -> Match:
    """Choose the most specific policy; of several, the oldest. A policy that is being deleted does not count."""
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
        case LabelOperator.IN:
            return value in requirement.values
        case LabelOperator.NOT_IN:
            return value not in requirement.values
        case LabelOperator.EXISTS:
            return value is not None
        case LabelOperator.DOES_NOT_EXIST:
            return value is None
    return False

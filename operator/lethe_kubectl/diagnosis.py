"""Decides what is wrong in a namespace, from its resources and Leases, and what to do about it. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from lethe.cli.diagnosis import Finding, Level

from lethe_kubectl.errors import ResourcePlace
from lethe_kubectl.status import failures

Document = Mapping[str, Any]

OPERATOR_LEASE: Final = "lethe-operator"
COMMITTER_LEASE: Final = "lethe-committer"
DURATIONS: Final = 4
"""A Lease that was not renewed for this many of its durations is abandoned."""
NOT_OBSERVED: Final = timedelta(minutes=10)
"""After this time the operator must have seen a change."""
_ORDER: Final = list(Level)


@dataclass(frozen=True)
class SeenNamespace:
    """What was read of a namespace."""

    name: str
    resources: Sequence[tuple[str, Document]]
    """Kinds in lower case, and resources."""
    leases: Mapping[str, Document] | None
    """By name; None: there are none to read, as in `lethe local`."""


def diagnose_namespace(seen: SeenNamespace, now: datetime, place: ResourcePlace) -> list[Finding]:
    """What is wrong, the worst first.

    Args:
        place: Where it is: how the user runs commands there.
    """
    found = [
        *_leases(seen, now, place),
        *(f for kind, document in seen.resources for f in _resource(kind, document, now, place.run)),
        *_failed(seen, now, place.run),
    ]
    return sorted(found, key=lambda f: _ORDER.index(f.level))


def _leases(seen: SeenNamespace, now: datetime, place: ResourcePlace) -> Iterator[Finding]:
    if seen.leases is None:
        return
    operator, committer = seen.leases.get(OPERATOR_LEASE), seen.leases.get(COMMITTER_LEASE)
    if operator is None or _is_abandoned(operator, now):
        what = "there is no Lease" if operator is None else f"the Lease was last renewed at {_renewed(operator)}"
        yield Finding(
            Level.ERROR,
            "NoOperatorActs",
            f"no operator acts in namespace {seen.name}: {what} {OPERATOR_LEASE}.",
            "Look at the operator's pods, and whether the chart's watchNamespaces has the namespace.",
        )
    if committer is not None and _is_abandoned(committer, now):
        yield Finding(
            Level.WARNING,
            "CommitterAway",
            f"the committer of namespace {seen.name} was last seen at {_renewed(committer)}: Jobs carry out its runs.",
            f"{place.kubectl} get pods -n {seen.name} -l app.kubernetes.io/component=committer",
        )


def _renewed(lease: Document) -> str:
    return str((lease.get("spec") or {}).get("renewTime") or "an unknown time")


def _is_abandoned(lease: Document, now: datetime) -> bool:
    spec = lease.get("spec") or {}
    renewed = _time(spec.get("renewTime"))
    duration = timedelta(seconds=int(spec.get("leaseDurationSeconds") or 15))
    return renewed is None or now - renewed > DURATIONS * duration


def _resource(kind: str, document: Document, now: datetime, run: Callable[[str], str]) -> Iterator[Finding]:
    metadata, status = document["metadata"], document.get("status") or {}
    named, why = f"{kind}/{metadata['name']}", run(f"why {kind}/{metadata['name']}")
    conditions = {str(c.get("type")): c for c in status.get("conditions") or ()}

    def says(name: str) -> str:
        condition = conditions[name]
        return f"{named}: {condition.get('reason', '')}: {condition.get('message', '')}"

    def is_(name: str, value: str) -> bool:
        return str((conditions.get(name) or {}).get("status")) == value

    if is_("Stalled", "True"):
        yield Finding(Level.ERROR, "Stalled", says("Stalled"), why)
    elif kind == "dataset" and is_("Ready", "False"):
        yield Finding(Level.WARNING, "NotReady", says("Ready"), why)
    if is_("EvictionOnTime", "False"):
        yield Finding(Level.ERROR, "EvictionLate", says("EvictionOnTime"), why)
    for name in ("EventsReady", "EventsPublished", "SourceRead"):
        if is_(name, "False"):
            yield Finding(Level.WARNING, name, says(name), why)
    if is_("Paused", "True"):
        yield Finding(Level.NOTE, "Paused", f"{named}: it is paused, so no run starts.", why)
    if _is_unseen(metadata, status, now):
        yield Finding(
            Level.ERROR,
            "NotObserved",
            f"{named}: the operator has not seen its spec of generation {metadata.get('generation')}.",
            why,
        )


def _is_unseen(metadata: Document, status: Document, now: datetime) -> bool:
    """Whether the operator should have seen the spec: of a change only its writers' times are known."""
    if int(status.get("observedGeneration") or 0) >= int(metadata.get("generation") or 0):
        return False
    times = [_time(m.get("time")) for m in metadata.get("managedFields") or () if not m.get("subresource")]
    known = [t for t in (*times, _time(metadata.get("creationTimestamp"))) if t is not None]
    return bool(known) and now - max(known) > NOT_OBSERVED


def _failed(seen: SeenNamespace, now: datetime, run: Callable[[str], str]) -> Iterator[Finding]:
    failed = failures(seen.resources, now)
    for name in failed.restatements:
        text = f"restatement/{name} failed in the last day, and was not repeated with success."
        yield Finding(Level.WARNING, "RestatementFailed", text, run(f"why restatement/{name}"))
    for name in failed.runs:
        yield Finding(Level.WARNING, "RunFailed", f"run {name} failed in the last day.", run(f"logs {name}"))


def _time(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")) if text else None
    except ValueError:
        return None

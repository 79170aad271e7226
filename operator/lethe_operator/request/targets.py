"""Decides from which Datasets a subject is erased, by which columns, and in which order. Pure.

A Dataset is part of a request if the selector selects it and it declares one of the subject's identities, or if it is derived
from such a Dataset. A Dataset in which others look up keys comes after them: once its rows are hidden, the keys are not found.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lethe.base.errors import Verdict
from lethe.contract.restatement import RestatementSpec, RowsCondition
from lethe.contract.settings import Lookup

from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.vacuum_policy import selects

CONDITIONS_AT_MOST = 16
"""Conditions of `spec.rows` of one Restatement."""


@dataclass(frozen=True)
class Target:
    """A Dataset that is part of a request."""

    dataset: Dataset
    conditions: tuple[RowsCondition, ...] = ()
    """Which rows belong to the subject; empty if `problem` is set."""
    problem: Verdict | None = None
    """Why the rows cannot be named."""

    @property
    def name(self) -> str:
        """Name of the Dataset."""
        return self.dataset.meta.name

    @property
    def lookups(self) -> frozenset[str]:
        """Names of the other Datasets in which keys are looked up."""
        return frozenset(c.via.dataset for c in self.conditions if c.via is not None) - {self.name}


@dataclass(frozen=True)
class Targets:
    """The Datasets that a selector selects, and those that follow."""

    included: tuple[Target, ...]
    """By name."""
    without_identity: tuple[str, ...]
    """Names of selected Datasets that declare none of the subject's identities and are derived from no other target."""

    @property
    def readers_of(self) -> Mapping[str, frozenset[str]]:
        """The targets that look up in a target, by the name of the latter."""
        names = {t.name for t in self.included}
        return {n: frozenset(t.name for t in self.included if n in t.lookups) for n in names}


def targets_of(spec: RestatementSpec, datasets: Iterable[Dataset]) -> Targets:
    """The Datasets of a namespace that are part of a request, by its spec."""
    known = {d.meta.name: d for d in datasets if not d.meta.deleting}
    selector = spec.dataset_selector
    selected = {n for n, d in known.items() if selector is not None and selects(selector, d.meta.labels)}
    found: dict[str, Target] = {}
    for name in selected:
        if conditions := _own(spec, known[name]):
            found[name] = _target(known[name], conditions)
    while more := _derived(spec, known, found):
        found |= more
    included = _without_circles(found)
    return Targets(tuple(included[n] for n in sorted(included)), tuple(sorted(selected - included.keys())))


def _own(spec: RestatementSpec, dataset: Dataset) -> tuple[RowsCondition, ...]:
    """The conditions by the identities that a Dataset declares."""
    subject = spec.subject
    return tuple(
        RowsCondition(column=identity.column, values_from=asked.values_from, via=identity.via)
        for asked in (subject.identities if subject is not None else ())
        for identity in dataset.spec.identities
        if identity.name == asked.identity
    )


def _target(dataset: Dataset, conditions: tuple[RowsCondition, ...]) -> Target:
    if len(conditions) <= CONDITIONS_AT_MOST:
        return Target(dataset, conditions)
    text = (
        f"Dataset {dataset.meta.name} declares {len(conditions)} columns for the identities of the request; expected at most "
        f"{CONDITIONS_AT_MOST}. Divide the request."
    )
    return Target(dataset, problem=Verdict(Reason.TOO_MANY_COLUMNS, text))


def _derived(spec: RestatementSpec, known: Mapping[str, Dataset], found: Mapping[str, Target]) -> dict[str, Target]:
    """The Datasets that are derived from those found so far and are not among them."""
    more: dict[str, Target] = {}
    for name, dataset in known.items():
        sources = [d for d in dataset.spec.derived_from if d.dataset in found]
        if name in found or not sources:
            continue
        if conditions := _own(spec, dataset):
            more[name] = _target(dataset, conditions)
            continue
        by_batches: list[RowsCondition] = []
        problem = None
        for source in sources:
            rows = _of_batches(spec, known[source.dataset], source.batch_column)
            by_batches += rows
            if not rows:
                problem = Verdict(
                    Reason.DERIVED_WITHOUT_IDENTITY,
                    f"Dataset {name} is derived from {source.dataset}, and does not say which of its rows belong to the "
                    "subject. Declare the identity in its spec.identities, or the column with the ids of the batches in "
                    "spec.derivedFrom[].batchColumn.",
                )
        more[name] = Target(dataset, problem=problem) if problem else _target(dataset, tuple(by_batches))
    return more


def _of_batches(spec: RestatementSpec, source: Dataset, batch_column: str) -> list[RowsCondition]:
    """The conditions on rows that were made from batches with rows of the subject; empty: they cannot be named."""
    if not batch_column:
        return []
    return [
        RowsCondition(
            column=batch_column,
            values_from=own.values_from,
            via=Lookup(dataset=source.meta.name, from_column=own.column, to_column=source.spec.batch_column),
        )
        for own in _own(spec, source)
        if own.via is None
    ]


def _without_circles(found: Mapping[str, Target]) -> dict[str, Target]:
    """The targets; those that look up in one another are reported, since none of them can be the first."""
    left = dict(found)
    while done := [n for n, t in left.items() if not any(n in other.lookups for other in left.values())]:
        for name in done:
            del left[name]
    # What is left is looked up in by something that is left: a circle, or what only a circle looks up in.
    circle = {n for n in left if _reaches(n, n, left)}
    names = ", ".join(sorted(circle))
    text = f"The Datasets {names} look up keys in one another (spec.identities[].via), so none of them can be erased first."
    problem = Verdict(Reason.LOOKUPS_IN_CIRCLE, text)
    return {n: Target(t.dataset, problem=problem) if n in circle else t for n, t in found.items()}


def _reaches(start: str, goal: str, targets: Mapping[str, Target]) -> bool:
    """Whether lookups lead from a target to another one."""
    seen: set[str] = set()
    ahead = set(targets[start].lookups)
    while ahead:
        name = ahead.pop()
        if name == goal:
            return True
        if name in targets and name not in seen:
            ahead |= targets[name].lookups
        seen.add(name)
    return False

"""Decides from which Datasets a subject is erased, by which columns, and in which order. Pure.

A Dataset is part of a request if the selector selects it and it declares one of the subject's identities, or if it is derived
from such a Dataset. A Dataset in which others look up keys comes after them: once its rows are hidden, the keys are not found.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from lethe.base.errors import Verdict
from lethe.contract.restatement import RestatementSpec, RowsCondition
from lethe.contract.settings import Lookup

from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Invalid
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
    invalid: tuple[str, ...] = ()
    """Names of selected Datasets with an invalid spec, so it is not known what they declare."""

    @property
    def readers_of(self) -> Mapping[str, frozenset[str]]:
        """The targets that look up in a target, by the name of the latter."""
        names = {t.name for t in self.included}
        return {n: frozenset(t.name for t in self.included if n in t.lookups) for n in names}


def targets_of(spec: RestatementSpec, datasets: Iterable[Dataset | Invalid]) -> Targets:
    """The Datasets of a namespace that are part of a request, by its spec."""
    there, selector = [d for d in datasets if not d.meta.deleting], spec.dataset_selector
    known = {d.meta.name: d for d in there if isinstance(d, Dataset)}
    selected = {d.meta.name for d in there if selector is not None and selects(selector, d.meta.labels)}
    invalid, selected = selected - known.keys(), selected & known.keys()
    names = _with_derived({n for n in selected if _own(spec, known[n])}, known)
    included = _without_circles({n: _of(spec, known, names, n) for n in names})
    return Targets(
        tuple(included[n] for n in sorted(included)),
        tuple(sorted(selected - included.keys())),
        tuple(sorted(invalid)),
    )


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


def _with_derived(names: Collection[str], known: Mapping[str, Dataset]) -> frozenset[str]:
    """The names with those of all Datasets that are derived from them, or from one that is."""
    found = set(names)
    while more := {
        n for n, d in known.items() if n not in found and any(s.dataset in found for s in d.spec.derived_from)
    }:
        found |= more
    return frozenset(found)


def _of(spec: RestatementSpec, known: Mapping[str, Dataset], names: Collection[str], name: str) -> Target:
    """A Dataset that is part of a request.

    Args:
        names: Of all of them. A Dataset may be derived from several, of which one is itself derived from another.
    """
    dataset = known[name]
    if conditions := _own(spec, dataset):
        return _target(dataset, conditions)
    by_batches: list[RowsCondition] = []
    for source in dataset.spec.derived_from:
        if source.dataset not in names or source.dataset == name:
            continue
        rows = _of_batches(spec, known[source.dataset], source.batch_column)
        if not rows:
            why = (
                "whose rows are found by lookups (spec.identities[].via or spec.derivedFrom), so their batches are not known. "
                "Declare the identity in its spec.identities."
                if source.batch_column
                else "and does not say which of its rows belong to the subject. Declare the identity in its spec.identities, or "
                "the column with the ids of the batches in spec.derivedFrom[].batchColumn."
            )
            text = f"Dataset {name} is derived from {source.dataset}, {why}"
            return Target(dataset, problem=Verdict(Reason.DERIVED_WITHOUT_IDENTITY, text))
        by_batches += rows
    return _target(dataset, tuple(by_batches))


def _of_batches(spec: RestatementSpec, source: Dataset, batch_column: str) -> list[RowsCondition]:
    """The conditions on rows that were made from batches with rows of the subject; empty: not all of them can be named.

    A lookup leads to the batches of rows with certain values, and not to those of rows that are themselves found by a lookup.
    """
    every = _own(spec, source)
    if not batch_column or any(own.via is not None for own in every):
        return []
    return [
        RowsCondition(
            column=batch_column,
            values_from=own.values_from,
            via=Lookup(dataset=source.meta.name, from_column=own.column, to_column=source.spec.batch_column),
        )
        for own in every
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

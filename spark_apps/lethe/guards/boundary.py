"""Checks a Dataset, a run or an existing table against the boundary of the Dataset's Kubernetes namespace. Pure.

The operator checks before it starts a run. The run checks again, because only then is the location of the table known. A URI is
inside a boundary if every reading of it is: see `lethe.uri`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, assert_never

from lethe.base.errors import InputError
from lethe.base.names import DATA_PROPERTIES, METADATA_PROPERTY, matches_any
from lethe.contract.dataset import CreateSpec
from lethe.contract.run import (
    AllowedOperation,
    ConsolidationMode,
    Deletes,
    RestatementRequest,
    RunBoundary,
    RunKind,
    RunSpec,
)
from lethe.uri import surely_contains

REASON: Final = "OutsideBoundary"
PATH_PROPERTIES: Final = (*DATA_PROPERTIES, METADATA_PROPERTY)
"""Table properties that put files of a table outside its location."""
_SHOWN_AT_MOST: Final = 10


@dataclass(frozen=True)
class Outside:
    """Something that the boundary does not allow."""

    what: str
    """The field, or another subject such as "the table's location"."""
    value: str
    """The value of the field."""
    boundary: str
    """The key in the namespace's entry of the chart's value `boundaries`."""
    allowed: str
    """The values that the boundary allows, as text."""

    def message(self, namespace: str) -> str:
        """What is outside, what is allowed, and what the user can do, in two sentences for a status or an event."""
        return (
            f"{self.what} {self.value} is outside the boundary {self.boundary} of namespace {namespace}, which allows "
            f"{self.allowed}. Use what it allows, or ask the administrator of Lethe to extend the chart's value boundaries."
        )


def listed(allowed: Iterable[str]) -> str:
    """The values that a boundary allows, as text. A long list is cut."""
    items = list(allowed)
    more = f" and {len(items) - _SHOWN_AT_MOST} more" if len(items) > _SHOWN_AT_MOST else ""
    return (", ".join(items[:_SHOWN_AT_MOST]) or "none") + more


def outside_names(boundary: RunBoundary, catalog: str, table: str) -> Outside | None:
    """Check spec.table. None: it is inside the boundary; likewise for the other functions."""
    if boundary.catalogs is not None and catalog not in boundary.catalogs:
        return Outside("spec.table.catalog", catalog, "catalogs", listed(boundary.catalogs))
    if boundary.tables is not None and not matches_any(boundary.tables, table):
        return Outside("spec.table.name", table, "tables", listed(boundary.tables))
    return None


def outside_uri(boundary: RunBoundary, what: str, uri: str) -> Outside | None:
    """Check that a URI is below a prefix of the boundary's `uris`.

    Args:
        what: The field of the URI, or another subject of the message.
    """
    return outside_prefixes(boundary.uris, what, uri, "uris")


def outside_prefixes(prefixes: tuple[str, ...] | None, what: str, uri: str, name: str) -> Outside | None:
    """Check that a URI is below one of the prefixes.

    Args:
        prefixes: None: every URI is allowed.
        what: The field of the URI, or another subject of the message.
        name: The key of the boundary.
    """
    if prefixes is None or any(surely_contains(prefix, uri) for prefix in prefixes):
        return None
    return Outside(what, uri, name, listed(prefixes))


def outside_topics(patterns: tuple[str, ...] | None, cluster: str, topics: Iterable[str]) -> Outside | None:
    """Check the topics of a Kafka cluster.

    Args:
        patterns: Of "cluster/topic"; None: every topic is allowed.
    """
    for topic in topics:
        if patterns is not None and not matches_any(patterns, f"{cluster}/{topic}"):
            return Outside("spec.source.kafka.topics", f"{cluster}/{topic}", "topics", listed(patterns))
    return None


def outside_operation(boundary: RunBoundary, what: str, operation: AllowedOperation) -> Outside | None:
    """Check that a namespace may use an operation or a setting.

    Args:
        what: The field, for the message.
    """
    allowed = boundary.operations
    if allowed is None or operation in allowed:
        return None
    return Outside(what, operation, "operations", listed(allowed))


def outside_settings(
    boundary: RunBoundary,
    mode: ConsolidationMode | None,
    deletes: Deletes | None,
    adopt: bool,
    create: CreateSpec | None,
) -> Outside | None:
    """Check the settings of a Dataset. Restatements and vacuums are checked elsewhere.

    Args:
        mode: spec.consolidation.mode; None: not checked.
        deletes: spec.deletes; None: not checked.
        adopt: spec.table.adopt.
        create: spec.table.create; None: the Dataset creates no table.
    """
    asked: list[tuple[str, AllowedOperation]] = []
    match mode:
        case ConsolidationMode.REGISTER:
            asked.append(("spec.consolidation.mode", AllowedOperation.REGISTER))
        case ConsolidationMode.REWRITE | None:
            pass
        case _:
            assert_never(mode)
    if deletes not in (None, Deletes.LEDGER):
        asked.append((f"spec.deletes {deletes}, which is", AllowedOperation.NATIVE_DELETES))
    if adopt:
        asked.append(("spec.table.adopt, which is", AllowedOperation.ADOPT_TABLE))
    if create is not None:
        asked.append(("spec.table.create, which is", AllowedOperation.CREATE_TABLE))
    refusals = (outside_operation(boundary, what, operation) for what, operation in asked)
    first = next((f for f in refusals if f is not None), None)
    if first is not None or create is None:
        return first
    return outside_paths(boundary, create.properties, "spec.table.create.properties")


def outside_paths(boundary: RunBoundary, properties: Mapping[str, str], where: str) -> Outside | None:
    """Check the table properties that put files outside the table's location.

    Args:
        where: The subject of the message, before the name of the property.
    """
    refusals = (outside_uri(boundary, f"{where} {p}", properties[p]) for p in PATH_PROPERTIES if properties.get(p))
    return next((f for f in refusals if f is not None), None)


def outside_table(boundary: RunBoundary, location: str, properties: Mapping[str, str]) -> Outside | None:
    """Check an existing table."""
    return outside_uri(boundary, "the table's location", location) or outside_paths(
        boundary, properties, "the table property"
    )


def outside_request(boundary: RunBoundary, request: RestatementRequest) -> Outside | None:
    """Check the operation of a Restatement, then the URIs of its replacement and lists, then the tables in which it looks up."""
    outside = outside_operation(boundary, "spec.operation", AllowedOperation.of(request.operation))
    if outside is None and request.replacement is not None:
        outside = outside_uri(boundary, "spec.replacement.uri", request.replacement.uri)
    if outside is None and request.batch_ids_uri:
        outside = outside_uri(boundary, "spec.batchIdsFrom.uri", request.batch_ids_uri)
    for condition in request.conditions:
        if outside is None and condition.values_uri:
            outside = outside_uri(boundary, f"{condition.field}.valuesFrom.uri", condition.values_uri)
        if outside is None and condition.via is not None:
            outside = outside_names(boundary, condition.via.catalog, condition.via.table)
    return outside


def outside_run(spec: RunSpec) -> Outside | None:
    """Check everything that a run does. None: its boundary allows all of it."""
    boundary = spec.boundary
    if boundary is None:
        return None
    outside = outside_names(boundary, spec.table.catalog, spec.table.name)
    outside = outside or outside_uri(boundary, "spec.buffer.uri", spec.buffer.uri)
    mode = spec.consolidation.mode if spec.consolidation is not None else None
    deletes = spec.restatement.deletes if spec.restatement is not None else None
    outside = outside or outside_settings(boundary, mode, deletes, spec.table.adopt, spec.table.create)
    if outside is None:
        retains = spec.vacuum is not None and spec.vacuum.retention is not None
        outside = _outside_kind(boundary, spec.kind, retains)
    requests = spec.restatement.requests if spec.restatement is not None else ()
    return outside or next((o for r in requests if (o := outside_request(boundary, r)) is not None), None)


def outside_vacuum(boundary: RunBoundary, retains: bool) -> Outside | None:
    """Check a vacuum.

    Args:
        retains: Whether it removes rows for their age.
    """
    outside = outside_operation(boundary, "the vacuum, which is", AllowedOperation.VACUUM)
    if outside is None and retains:
        return outside_operation(
            boundary, "spec.retention of the VacuumPolicy, which needs", AllowedOperation.RETENTION
        )
    return outside


def _outside_kind(boundary: RunBoundary, kind: RunKind, retains: bool) -> Outside | None:
    match kind:
        case RunKind.VACUUM:
            return outside_vacuum(boundary, retains)
        case RunKind.CONSOLIDATION | RunKind.REANCHORING | RunKind.RESTATEMENT | RunKind.ERASURE_CHECK:
            return None  # checked by its fields, or needed to keep promises made before
        case _:
            assert_never(kind)


def require_run_within(spec: RunSpec) -> None:
    """Require that a run is within the boundary.

    Raises:
        InputError: `OutsideBoundary`, if the run does something that its boundary does not allow.
    """
    _refuse(outside_run(spec), spec)


def require_table_within(spec: RunSpec, location: str, properties: Mapping[str, str]) -> None:
    """Require that a table is within the boundary.

    Raises:
        InputError: `OutsideBoundary`, if the boundary of the run does not allow the locations of the table's files.
    """
    if spec.boundary is not None:
        _refuse(outside_table(spec.boundary, location, properties), spec)


def _refuse(outside: Outside | None, spec: RunSpec) -> None:
    if outside is not None:
        raise InputError(
            REASON, f"Dataset {spec.dataset.name}: {outside.message(spec.dataset.namespace)} Nothing was changed."
        )

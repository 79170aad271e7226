"""What keeps a Dataset's runs from starting. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

from lethe.base import names
from lethe.base.errors import InputError
from lethe.contract.settings import ConsolidationMode, Deletes, FileFormat, NativeDeletes
from lethe.files.transforms import check_properties, parse_transforms
from lethe.uri import overlap

from lethe_operator.decide.guards import boundaries, lost_ledger, rollback
from lethe_operator.decide.guards import buffer as buffer_guard
from lethe_operator.decide.guards.buffer import age
from lethe_operator.decide.guards.pod_template import violations
from lethe_operator.decide.guards.table_identity import another_table
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import LostLedger, NoTable, TableView, Unavailable, World
from lethe_operator.settings import Settings, launchers, pod_template_of


@dataclass(frozen=True)
class RunBlocker:
    """No run of the Dataset starts."""

    reason: str
    message: str
    transient: bool  # True: it may pass by itself; False: the user must change something


def blocker(dataset: Dataset, world: World, settings: Settings) -> RunBlocker | None:
    """The first reason that keeps every run of this Dataset from starting; None: there is none."""
    unsupported = unsupported_field(dataset)
    if unsupported:
        return RunBlocker(Reason.NOT_SUPPORTED, unsupported, transient=False)
    boundary = settings.boundaries.of(dataset.meta.namespace)
    outside = boundaries.of_dataset(dataset, boundary)
    if outside:
        return RunBlocker(Reason.OUTSIDE_BOUNDARY, outside, transient=False)
    undefined = _definition(dataset)
    if undefined:
        return RunBlocker(Reason.INVALID_TABLE_DEFINITION, undefined, transient=False)
    forbidden = violations(
        dataset.spec.run_template.pod_template,
        pod_template_of(settings, dataset.meta.namespace),
        settings.allowed_secrets,
    )
    if forbidden:
        text = f"Dataset {dataset.meta.name}: spec.runTemplate.podTemplate.{forbidden[0]}."
        more = f" More fields that are not allowed: {len(forbidden) - 1}." if len(forbidden) > 1 else ""
        return RunBlocker(Reason.POD_TEMPLATE_NOT_ALLOWED, text + more, transient=False)
    unavailable = _launcher(dataset, settings)
    if unavailable is not None:
        return unavailable
    shared = _sharing(dataset, world)
    if shared is not None:
        return shared
    rejected = buffer_guard.rejection(dataset, world, settings)
    if rejected is not None:
        return RunBlocker(*rejected, transient=False)
    inside = buffer_guard.table_in_another(dataset, world)
    if inside is not None:
        return RunBlocker(Reason.TABLE_IN_OTHER_TABLE, inside, transient=False)
    match world.table:
        case LostLedger() as lost:
            return RunBlocker(lost.reason, lost_ledger.stopped(dataset, lost), transient=False)
        case Unavailable(reason, message, transient):
            return RunBlocker(reason, message, transient)
        case NoTable() as table:
            return _another(dataset, world) or _without_table(dataset) or _deletes(dataset, table)
        case TableView() as view:
            outside = boundaries.of_table(dataset, view, boundary)
            if outside:
                return RunBlocker(Reason.OUTSIDE_BOUNDARY, outside, transient=False)
            return _with_table(dataset, view, world) or _deletes(dataset, view)
        case table:
            assert_never(table)


def _another(dataset: Dataset, world: World) -> RunBlocker | None:
    found = another_table(dataset, world.table, world.restatements)
    return RunBlocker(found.reason, found.message, transient=False) if found else None


def _deletes(dataset: Dataset, table: TableView | NoTable) -> RunBlocker | None:
    found = format_mismatch(dataset, table)
    return RunBlocker(Reason.FORMAT_VERSION_MISMATCH, found, transient=False) if found else None


def _launcher(dataset: Dataset, settings: Settings) -> RunBlocker | None:
    if dataset.spec.run_template.launcher in (None, *launchers(settings)):
        return None
    text = (
        f"Dataset {dataset.meta.name}: spec.runTemplate.launcher is {dataset.spec.run_template.launcher}, but the chart's value "
        "sparkOperator.enabled is false. Ask the administrator to install Kubeflow's Spark operator and to set the value, or "
        "remove the field."
    )
    return RunBlocker(Reason.LAUNCHER_NOT_AVAILABLE, text, transient=False)


def _sharing(dataset: Dataset, world: World) -> RunBlocker | None:
    """Only the oldest of the Datasets that share a buffer acts: its retention may delete what the others have not read."""
    uri = dataset.spec.buffer.uri
    others = (*world.neighbours, *buffer_guard.in_same_store(dataset, world, world.elsewhere))
    older = [n for n in others if overlap(n.spec.buffer.uri, uri) and age(n) < age(dataset)]
    if not older:
        return None
    first = min(older, key=age)
    name = first.meta.name if first.meta.namespace == dataset.meta.namespace else first.meta.full_name
    return RunBlocker(
        Reason.BUFFER_SHARED,
        f"Dataset {dataset.meta.name}: spec.buffer.uri {uri} overlaps the buffer {first.spec.buffer.uri} of the older Dataset "
        f"{name}, whose retention could delete batches that this Dataset has not read. Create a Dataset with its own buffer.",
        transient=False,
    )


def other_reader(dataset: Dataset, neighbours: Iterable[Dataset]) -> Dataset | None:
    """The oldest Dataset that reads the same queue; None: it is this one. Two readers would each get only some messages."""
    own = dataset.spec.buffer.events
    same = [n for n in neighbours if own and (e := n.spec.buffer.events) and e.queue_url == own.queue_url]
    first = min((dataset, *same), key=age)
    return None if first is dataset else first


def unsupported_field(dataset: Dataset) -> str | None:
    """A sentence about the first field whose value this version does not support; None: there is none."""
    spec = dataset.spec
    if spec.consolidation.mode is ConsolidationMode.REGISTER and spec.buffer.format is not FileFormat.PARQUET:
        return (
            f"Dataset {dataset.meta.name}: spec.consolidation.mode Register needs spec.buffer.format parquet, found "
            f"{spec.buffer.format}. No run starts. Change one of the two fields."
        )
    return None


def _definition(dataset: Dataset) -> str | None:
    """A sentence about the first invalid field of spec.table.create; None: all are valid. A run checks the schema."""
    create = dataset.spec.table.create
    if create is None:
        return None
    try:
        parse_transforms(create.partition_by)
        check_properties(create.properties)
    except InputError as e:
        return f"Dataset {dataset.meta.name}: {e.message}"
    return None


def _without_table(dataset: Dataset) -> RunBlocker | None:
    spec = dataset.spec
    if spec.table.create is None:
        return RunBlocker(
            Reason.TABLE_NOT_FOUND,
            f"Dataset {dataset.meta.name}: the table {spec.table.name} does not exist in the catalog {spec.table.catalog}. "
            "Create it, or set spec.table.create.",
            transient=True,
        )
    location = spec.table.create.properties.get("location")
    if location and overlap(location, spec.buffer.uri):
        return _overlapping(dataset, location)
    return None


def _with_table(dataset: Dataset, view: TableView, world: World) -> RunBlocker | None:
    name, spec = dataset.meta.name, dataset.spec
    if view.holds_batches:
        return RunBlocker(
            Reason.TABLE_HOLDS_BATCHES,
            f"Dataset {name}: the table {spec.table.name} lists the batches of another table (table property {names.TRACKS}), "
            "and Lethe overwrites it. Create a Dataset for another table.",
            transient=False,
        )
    if view.claim is not None and view.claim != dataset.claim:
        return RunBlocker(
            Reason.TABLE_CLAIMED,
            f"Dataset {name}: the table {spec.table.name} belongs to the Dataset {view.claim} (table property "
            "lethe.dataset). Two Datasets cannot write one table: delete this Dataset, or, if the other one no longer exists, "
            "remove the property.",
            transient=False,
        )
    other = _another(dataset, world)
    if other is not None:
        return other
    if view.unsafe is not None:
        return RunBlocker(Reason.UNSAFE_PROPERTY, f"Dataset {name}: {view.unsafe}", transient=False)
    stopped = rollback.stopped(dataset, view)
    if stopped:
        return RunBlocker(Reason.TABLE_ROLLED_BACK, stopped, transient=False)
    if view.batch_field_id is None:
        return RunBlocker(
            Reason.BATCH_COLUMN_MISSING,
            f"Dataset {name}: the table {spec.table.name} has no column {spec.batch_column} (spec.batchColumn). Add a "
            "string column of that name to the table, or create a Dataset with another spec.batchColumn.",
            transient=False,
        )
    if overlap(view.location, spec.buffer.uri):
        return _overlapping(dataset, view.location)
    if view.claim is None and not view.prepared and not spec.table.adopt:
        return RunBlocker(
            Reason.TABLE_NOT_PREPARED,
            f"Dataset {name}: the table {spec.table.name} was not created by Lethe, and it is not sorted by {spec.batch_column} "
            "with full metrics of that column. Set spec.table.adopt to true; the first run then sets both.",
            transient=False,
        )
    return None


def _overlapping(dataset: Dataset, location: str) -> RunBlocker:
    return RunBlocker(
        Reason.BUFFER_OVERLAPS_TABLE,
        f"Dataset {dataset.meta.name}: spec.buffer.uri {dataset.spec.buffer.uri} overlaps the table's location {location}, so "
        "deleting from one could delete files of the other. Create a Dataset with a buffer outside of the table's location.",
        transient=False,
    )


def format_mismatch(dataset: Dataset, table: TableView | NoTable) -> str | None:
    """Why the table's format version does not support `spec.deletes`, and what to change; None: it does."""
    spec, create = dataset.spec, dataset.spec.table.create
    wanted = native.format_version if (native := spec.deletes.native) is not None else None
    if isinstance(table, TableView):
        found, where = table.format_version, f"the table {spec.table.name} has {table.format_version}"
        # A format version can be raised, but never lowered.
        change = f"Set the table property format-version to {wanted}, which cannot be undone, or set"
    elif create is not None:
        found, where = create.format_version, f"spec.table.create.formatVersion is {create.format_version}"
        change = f"Set that to {wanted}, or set"
    else:
        return None
    if wanted is None or found == wanted:
        return None
    fitting = [kind for kind in NativeDeletes if kind.format_version == found]
    remedy = f"spec.deletes to {', '.join(fitting)}{' or ' if fitting else ''}{Deletes.LEDGER}."
    remedy = f"{change} {remedy}" if found < wanted or isinstance(table, NoTable) else f"Set {remedy}"
    needs = f"spec.deletes {spec.deletes} needs Iceberg format version {wanted}"
    return f"Dataset {dataset.meta.name}: {needs}, and {where}. {remedy}"

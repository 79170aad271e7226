"""What keeps a Dataset's runs from starting. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from lethe.base import names
from lethe.base.errors import InputError
from lethe.files.transforms import check_properties, parse_transforms
from lethe.uri import overlap

from lethe_operator.decide.guards import (
    boundaries,
    lost_ledger,
    rollback,
)
from lethe_operator.decide.guards import (
    buffer as buffer_guard,
)
from lethe_operator.decide.guards import (
    delete_mode as native_deletes,
)
from lethe_operator.decide.guards.buffer import age
from lethe_operator.decide.guards.pod_template import violations
from lethe_operator.decide.guards.table_identity import another_table
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import LostLedger, NoTable, TableView, Unavailable, World
from lethe_operator.settings import Settings, pod_template_of


@dataclass(frozen=True)
class RunBlocker:
    """No run starts. `transient`: it may pass by itself; else somebody has to change something."""

    reason: str
    message: str
    transient: bool


def blocker(dataset: Dataset, world: World, settings: Settings) -> RunBlocker | None:
    """The first thing that keeps every run of this Dataset from starting, None when there is nothing."""
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
        more = f" And {len(forbidden) - 1} more." if len(forbidden) > 1 else ""
        return RunBlocker(Reason.POD_TEMPLATE_NOT_ALLOWED, text + more, transient=False)
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


def _another(dataset: Dataset, world: World) -> RunBlocker | None:
    found = another_table(dataset, world.table, world.restatements)
    return RunBlocker(found.reason, found.message, transient=False) if found else None


def _deletes(dataset: Dataset, table: TableView | NoTable) -> RunBlocker | None:
    found = native_deletes.mismatch(dataset, table)
    return RunBlocker(Reason.FORMAT_VERSION_MISMATCH, found, transient=False) if found else None


def _sharing(dataset: Dataset, world: World) -> RunBlocker | None:
    """Of Datasets that share a buffer the oldest acts: the retention of one would delete what another has yet to read."""
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
        f"{name}, whose retention would delete batches that this one has yet to read. Create a Dataset with a "
        "buffer of its own.",
        transient=False,
    )


def other_reader(dataset: Dataset, neighbours: Iterable[Dataset]) -> Dataset | None:
    """The oldest of the Datasets that read the same queue, unless it is this one. Of two readers each would hear of half."""
    own = dataset.spec.buffer.events
    same = [n for n in neighbours if own and (e := n.spec.buffer.events) and e.queue_url == own.queue_url]
    first = min((dataset, *same), key=age)
    return None if first is dataset else first


def unsupported_field(dataset: Dataset) -> str | None:
    """A sentence about the first field that asks for what this version cannot do."""
    spec = dataset.spec
    if spec.consolidation.mode == "Register" and spec.buffer.format != "parquet":
        return (
            f"Dataset {dataset.meta.name}: spec.consolidation.mode Register needs spec.buffer.format parquet, found "
            f"{spec.buffer.format}. No run is started."
        )
    return None


def _definition(dataset: Dataset) -> str | None:
    """A sentence about the first part of spec.table.create that no table can be made of; its schema is read by the run."""
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
            f"Dataset {dataset.meta.name}: there is no table {spec.table.name} in the catalog {spec.table.catalog}. "
            "Create it, or say in spec.table.create how to make it.",
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
            f"Dataset {name}: the table {spec.table.name} shows the batches of another table (table property {names.TRACKS}), "
            "and what is written to it is thrown away. Create a Dataset for a table of its own.",
            transient=False,
        )
    if view.claim is not None and view.claim != dataset.claim:
        return RunBlocker(
            Reason.TABLE_CLAIMED,
            f"Dataset {name}: the table {spec.table.name} belongs to the Dataset {view.claim} (table property "
            "lethe.dataset). Two Datasets cannot write one table: delete this one, or remove the property when the other "
            "Dataset is gone for good.",
            transient=False,
        )
    other = _another(dataset, world)
    if other is not None:
        return other
    stopped = rollback.stopped(dataset, view)
    if stopped:
        return RunBlocker(Reason.TABLE_ROLLED_BACK, stopped, transient=False)
    if view.batch_field_id is None:
        return RunBlocker(
            Reason.BATCH_COLUMN_MISSING,
            f"Dataset {name}: the table {spec.table.name} has no column {spec.batch_column} (spec.batchColumn). Add a "
            "string column of that name to the table, or create a Dataset that names the right one.",
            transient=False,
        )
    if overlap(view.location, spec.buffer.uri):
        return _overlapping(dataset, view.location)
    if view.claim is None and not view.prepared and not spec.table.adopt:
        return RunBlocker(
            Reason.TABLE_NOT_PREPARED,
            f"Dataset {name}: the table {spec.table.name} was not made by Lethe and is not sorted by {spec.batch_column} "
            "with full metrics of that column. Set spec.table.adopt to true to let the first run set both.",
            transient=False,
        )
    return None


def _overlapping(dataset: Dataset, location: str) -> RunBlocker:
    return RunBlocker(
        Reason.BUFFER_OVERLAPS_TABLE,
        f"Dataset {dataset.meta.name}: spec.buffer.uri {dataset.spec.buffer.uri} and the table's location {location} "
        "contain one another, so that cleaning one would delete from the other. Create a Dataset with another buffer.",
        transient=False,
    )

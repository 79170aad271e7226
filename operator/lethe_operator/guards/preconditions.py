"""What keeps a Dataset's runs from starting. Pure.

- **The buffer** may not be changed if it is local, part of a table, or claimed by another Dataset. That stops every run, and
  nothing in it is moved or deleted. Each run checks again.
- **A replacement or a list** of a Restatement may not be read if it is local or part of a table. The run checks again, and also
  looks for metadata of tables that the operator does not know.
- **A head without a ledger**, although the table had one, needs the user's acceptance. The table then continues with its last
  ledger: erased and reverted batches stay so, no batch is promoted a second time, and rows of such batches in the new files are
  hidden again.
- **Another table** than the one that the operator saw before needs it, too: dropped, created again or renamed. Batches that were
  erased or reverted may still be in the buffer, and another table does not record that and would promote them. Two things
  identify the table. The Dataset's status has its UUID. And a Restatement's status says that it was committed: a ledger never
  forgets a request, so a table without the request is another one. The second counts while the Dataset's status names no table,
  for example after the Dataset was created again.
- **A rollback** by another writer needs it as well: what Lethe promoted, deleted from the buffer and reported since may no
  longer be true.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, assert_never

from lethe.base import names
from lethe.base.errors import InputError, Verdict
from lethe.buffer.digest import BufferDigest
from lethe.contract.kubernetes import ACCEPT_HEAD
from lethe.contract.settings import ConsolidationMode, Deletes, FileFormat
from lethe.contract.status import TableStatus
from lethe.files.transforms import check_properties, parse_transforms
from lethe.guards import claim
from lethe.guards.claim import Around, Contents, Owner
from lethe.ledger.lineage import is_rolled_back
from lethe.uri import overlap

from lethe_operator.conditions import SUCCEEDED
from lethe_operator.guards import permissions
from lethe_operator.guards.permissions import violations
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import LostLedger, NoTable, Observation, TableView, Unavailable
from lethe_operator.resources.restatement import Restatement
from lethe_operator.settings import Settings, launchers, pod_template_of


def rejection(dataset: Dataset, world: Observation, settings: Settings) -> Verdict | None:
    """Why Lethe may not change the buffer; None: no reason is known."""
    buffer, uri = world.buffer, dataset.spec.buffer.uri
    field = f"Dataset {dataset.meta.name}: spec.buffer.uri"
    known = claim.in_table(field, uri, table_places(dataset, world)) or claim.above_warehouse(
        field, uri, warehouses(dataset, world)
    )
    if known is not None:
        return Verdict(Reason.BUFFER_HOLDS_TABLE, f"{known} Nothing in it was moved or deleted.")
    if isinstance(buffer, Unavailable):
        return Verdict(buffer.reason, buffer.message) if buffer.reason in claim.BUFFER_REASONS else None
    if not isinstance(buffer, BufferDigest) or isinstance(world.table, Unavailable):
        return None
    refusal = claim.buffer_rejection(
        uri,
        owner(dataset, world, settings),
        buffer.around or Around(),
        Contents(buffer.unrelated if buffer.around else 0, buffer.unrelated_names, buffer.tables),
        dataset.spec.buffer.adopt,
    )
    return replace(refusal, message=f"Dataset {dataset.meta.name}: {refusal.message}") if refusal else None


def owner(dataset: Dataset, world: Observation, settings: Settings) -> Owner:
    """As whom the Dataset claims its buffer."""
    meta = dataset.meta
    table_uuid = world.table.uuid if isinstance(world.table, TableView) else ""
    return Owner(meta.namespace, meta.name, meta.uid, table_uuid, settings.cluster)


def table_places(dataset: Dataset, world: Observation) -> tuple[str, ...]:
    """The locations of the tables of the other Datasets in the same store, as their statuses show them."""
    own = world.table.uuid if isinstance(world.table, TableView) else ""
    tables = map(_table_of_other, _same_store(dataset, world))
    return tuple(t.location for t in tables if t.location and (t.uuid or "") != own)


def table_in_another(dataset: Dataset, world: Observation) -> str | None:
    """Why Lethe may not change the table: its folders overlap those of an older Dataset's table. None: they do not."""
    places = own_places(dataset, world.table)
    own = world.table.uuid if isinstance(world.table, TableView) else ""
    for other in _same_store(dataset, world):
        table = _table_of_other(other)
        location = table.location
        if not location or (table.uuid or "") == own or age(other) > age(dataset):
            continue
        if inside := next((p for p in places if overlap(p, location)), None):
            return (
                f"Dataset {dataset.meta.name}: the table {dataset.spec.table.name} keeps files in {inside}, which overlaps "
                f"{location}, the location of the table of the older Dataset {other.meta.full_name}. A clean-up of one table "
                "could delete files of the other, so no run starts. Move this table to its own folder."
            )
    return None


def age(dataset: Dataset) -> tuple[str, str]:
    """The sort key of Datasets, oldest first."""
    created = dataset.meta.creation_timestamp
    return (created.isoformat() if created else "", dataset.meta.full_name)


def own_places(dataset: Dataset, table: TableView | NoTable | Unavailable) -> tuple[str, ...]:
    """The folders with the files of the Dataset's table."""
    if isinstance(table, TableView):
        return (table.location, *table.places)
    create = dataset.spec.table.create
    asked = create.properties.get("location", "") if isinstance(table, NoTable) and create else ""
    return (asked,) if asked else ()


def _table(dataset: Dataset) -> TableStatus:
    """The table that the status of a Dataset shows."""
    return dataset.status.table or TableStatus()


def _table_of_other(other: Dataset) -> TableStatus:
    return other.stored.parts("table").table or TableStatus()


def _same_store(dataset: Dataset, world: Observation) -> Iterable[Dataset]:
    return in_same_store(dataset, world, (*world.overlapping_datasets, *world.other_namespaces))


def in_same_store(dataset: Dataset, world: Observation, others: Iterable[Dataset]) -> Iterable[Dataset]:
    """The other Datasets without those whose catalog keeps its files on another S3 server."""
    own = world.catalogs.get(dataset.spec.table.catalog)
    for other in others:
        theirs = world.catalogs.get(other.spec.table.catalog)
        if own is None or theirs is None or own.store == theirs.store:
            yield other


def warehouses(dataset: Dataset, world: Observation) -> tuple[str, ...]:
    """The warehouses of the catalogs in the same store as this Dataset."""
    own = world.catalogs.get(dataset.spec.table.catalog)
    return tuple(c.warehouse for c in world.catalogs.values() if c.warehouse and (own is None or c.store == own.store))


def named_uris(restatement: Restatement) -> dict[str, str]:
    """The URIs that a Restatement names, by field."""
    replacement, rows = restatement.spec.replacement, restatement.spec.rows
    named = {
        "spec.replacement.uri": replacement.uri if replacement is not None else "",
        "spec.batchIdsFrom.uri": restatement.list_uri,
    }
    if rows is not None:
        named |= {f"{field}.valuesFrom.uri": c.values_from.uri for field, c in rows.by_field.items()}
    return {field: uri for field, uri in named.items() if uri}


def misplaced(restatement: Restatement, dataset: Dataset, world: Observation) -> Verdict | None:
    """Why the first URI may not be read; None: no reason is known."""
    return next(_misplaced(restatement, dataset, world), None)


def _misplaced(restatement: Restatement, dataset: Dataset, world: Observation) -> Iterator[Verdict]:
    catalog = dataset.spec.table.catalog
    known = world.catalogs.get(catalog)
    named = named_uris(restatement)
    tables = (*own_places(dataset, world.table), *table_places(dataset, world)) if named else ()
    for field, uri in named.items():
        where = f"Restatement {restatement.meta.name}: {field}"
        local = claim.local(where, uri, catalog, known is None or known.is_local)
        if local is not None:
            yield Verdict(Reason.PLACE_LOCAL, f"{local} Nothing was read.")
        misplacement = claim.in_table(where, uri, tables) or claim.above_warehouse(
            where, uri, warehouses(dataset, world)
        )
        if misplacement is not None:
            yield Verdict(Reason.PLACE_IN_TABLE, f"{misplacement} Nothing was read.")


def lost_ledger_message(dataset: Dataset, lost: LostLedger) -> str:
    """Why no run starts, and what to do."""
    meta = dataset.meta
    if lost.last_ledger is None:
        return (
            f"{lost.message} The operator does not know the last ledger. Name it with a commit: see LedgerLost in "
            "docs/foreign-writers.md."
        )
    if accepts_lost_ledger(dataset, lost):
        return f"{lost.message} The head is accepted: a run attaches the ledger {lost.last_ledger} to it."
    return (
        f"{lost.message} To continue with the ledger {lost.last_ledger}: kubectl annotate datasets.lethe.dev {meta.name} -n "
        f"{meta.namespace} --overwrite {ACCEPT_HEAD}={lost.head_id} (erased and reverted batches stay deleted; promoted "
        "batches are not promoted again, so Replay those whose rows the head does not contain)."
    )


def accepts_lost_ledger(dataset: Dataset, lost: LostLedger) -> bool:
    """Whether the annotation names the head."""
    return dataset.meta.annotations.get(ACCEPT_HEAD) == str(lost.head_id)


UNKNOWN: Final = "unknown"
_NO_TABLE: Final = "none/"


@dataclass(frozen=True)
class AnotherTable(Verdict):
    """The table is not the one that the operator saw before."""

    word: str
    """The value of the annotation lethe.dev/accept-head that accepts the table, and only this table."""


def doubts_restatements(dataset: Dataset, table: TableView | NoTable | Unavailable) -> bool:
    """Whether the operator must check that the table knows the Restatements that have succeeded."""
    match table:
        case TableView():
            return _seen_uuid(dataset) != table.uuid
        case NoTable():
            return True
        case Unavailable():
            return False
        case _:
            assert_never(table)


def another_table(
    dataset: Dataset, table: TableView | NoTable | Unavailable, restatements: Iterable[Restatement] = ()
) -> AnotherTable | None:
    """How the table differs from the one that was seen before.

    None: it does not, or the user accepted it and no Restatement still shows success in another table.

    Args:
        restatements: Of the Dataset, including those that `doubts_restatements` is about.
    """
    seen = _seen_uuid(dataset)
    if isinstance(table, Unavailable) or (isinstance(table, TableView) and seen == table.uuid):
        return None
    stranger = _unknown_to(table, restatements)
    if stranger is None and (seen is None or accepts_other_table(dataset, table)):
        return None
    before = (
        f"table {seen}, which the operator saw before"
        if seen
        else f"the table in which Restatement {stranger} was committed"
    )
    return _dropped(dataset, before) if isinstance(table, NoTable) else _replaced(dataset, table, before)


def accepts_other_table(dataset: Dataset, table: TableView | NoTable | Unavailable) -> bool:
    """Whether the annotation accepts this table, or that no table exists."""
    asked = dataset.meta.annotations.get(ACCEPT_HEAD)
    match table:
        case TableView():
            return asked == table.uuid
        case NoTable():
            before = _table(dataset).accepted_head if _seen_uuid(dataset) is None else None
            return asked is not None and asked in (_word_for_none(dataset), before) and asked.startswith(_NO_TABLE)
        case Unavailable():
            return False
        case _:
            assert_never(table)


def forgets_restatements(dataset: Dataset, table: TableView | NoTable | Unavailable) -> bool:
    """Whether Restatements that have succeeded and that the table does not know count as rolled back.

    A missing table may come back, so its absence must be accepted first.
    """
    if not doubts_restatements(dataset, table):
        return False
    return accepts_other_table(dataset, table) or (isinstance(table, TableView) and _seen_uuid(dataset) is not None)


def _unknown_to(table: TableView | NoTable, restatements: Iterable[Restatement]) -> str | None:
    """The name of a committed Restatement that the table does not know."""
    known = table.ledger.requests if isinstance(table, TableView) else {}
    for r in restatements:
        result = r.status.result
        committed = result is not None and result.snapshot_id is not None and not r.spec.dry_run
        if committed and r.status.is_true(SUCCEEDED) and r.key not in known:
            return r.meta.name
    return None


def _replaced(dataset: Dataset, view: TableView, before: str) -> AnotherTable:
    name = dataset.spec.table.name
    return AnotherTable(
        Reason.TABLE_REPLACED,
        f"Dataset {dataset.meta.name}: {name} is table {view.uuid}, not {before}. The table was dropped and created again, or "
        "renamed. No run starts and nothing is deleted from the buffer, because this table does not record which batches were "
        f"erased or reverted. {_choices(dataset, view.uuid)}",
        view.uuid,
    )


def _dropped(dataset: Dataset, before: str) -> AnotherTable:
    word = _word_for_none(dataset)
    return AnotherTable(
        Reason.TABLE_DROPPED,
        f"Dataset {dataset.meta.name}: {before}, is no longer in catalog {dataset.spec.table.catalog} under the name "
        f"{dataset.spec.table.name}. The table was dropped or renamed. The operator creates no new table, because it would not "
        f"record which batches were erased or reverted. {_choices(dataset, word)}",
        word,
    )


def _choices(dataset: Dataset, word: str) -> str:
    meta = dataset.meta
    return (
        "Either restore that table under this name, or continue without it: kubectl annotate datasets.lethe.dev "
        f"{meta.name} -n {meta.namespace} --overwrite {ACCEPT_HEAD}={word} (all batches in the buffer are then promoted, "
        "including those that were erased or reverted in the other table: remove them from the buffer first; Restatements that "
        "were committed to the other table get RolledBack)."
    )


def _word_for_none(dataset: Dataset) -> str:
    return f"{_NO_TABLE}{_seen_uuid(dataset) or UNKNOWN}"


def _seen_uuid(dataset: Dataset) -> str | None:
    return _table(dataset).uuid


NO_SNAPSHOT: Final = "none"


def rolled_back(dataset: Dataset, view: TableView) -> bool:
    """Whether the head in the status is not an ancestor of the current head. For another table, see `table_identity`."""
    seen = _seen(dataset, view)
    return is_rolled_back(view.ancestry, view.head_id, seen.snapshot_id, seen.sequence_number)


def accepted(dataset: Dataset, view: TableView) -> bool:
    """Whether the annotation names the head, as `<head>` or `<head>/<seen before>`.

    A value counts once: the table may be rolled back to the same snapshot a second time.
    """
    asked, seen = dataset.meta.annotations.get(ACCEPT_HEAD), _seen(dataset, view)
    return asked in _words(view, seen) and asked != seen.accepted_head


def rollback_message(dataset: Dataset, view: TableView) -> str:
    """Why no run starts; "": the table was not rolled back, or the user accepted it."""
    if not rolled_back(dataset, view) or accepted(dataset, view):
        return ""
    meta, seen = dataset.meta, _seen(dataset, view)
    word = next(w for w in _words(view, seen) if w != seen.accepted_head)
    return (
        f"Dataset {meta.name}: the head of {dataset.spec.table.name} is snapshot {head_name(view)}, which does not descend from "
        f"snapshot {seen.snapshot_id}, the last head that the operator saw: the table was rolled back. No run starts, "
        "nothing is deleted from the buffer, and no snapshot is expired. Either bring the table back to that snapshot, or accept "
        f"this head: kubectl annotate datasets.lethe.dev {meta.name} -n {meta.namespace} --overwrite {ACCEPT_HEAD}={word} "
        "(batches that are no longer in the table are then promoted again if the buffer still has them; Restatements that are "
        "no longer in it get RolledBack)."
    )


def table_status(
    dataset: Dataset, view: TableView, seen: TableStatus, another: AnotherTable | None
) -> TableStatus | None:
    """`status.table`. While the table is another one, or a rollback is not accepted, it keeps the last accepted table and head.

    Args:
        seen: The fields of the current head.
        another: How the table differs from the one that was seen before; None: it does not.
    """
    if another is not None or rollback_message(dataset, view):
        return _table(dataset)
    asked = dataset.meta.annotations.get(ACCEPT_HEAD)
    known = asked in (view.uuid, _seen(dataset, view).accepted_head)
    if asked is not None and (known or rolled_back(dataset, view)):
        return seen.model_copy(update={"accepted_head": asked})
    return seen


def head_name(view: TableView) -> str:
    """The head's name in the annotation and in messages."""
    return NO_SNAPSHOT if view.head_id is None else str(view.head_id)


def _words(view: TableView, seen: TableStatus) -> tuple[str, str]:
    """The values that accept the head. The second one is for a repeated rollback to the same head."""
    return head_name(view), f"{head_name(view)}/{seen.snapshot_id}"


def _seen(dataset: Dataset, view: TableView) -> TableStatus:
    seen = _table(dataset)
    return seen if seen.uuid == view.uuid else TableStatus()


def blocker(dataset: Dataset, world: Observation, settings: Settings) -> Verdict | None:
    """The first reason that keeps every run of this Dataset from starting; None: there is none."""
    unsupported = unsupported_field(dataset)
    if unsupported:
        return Verdict(Reason.NOT_SUPPORTED, unsupported)
    boundary = settings.boundaries.of(dataset.meta.namespace)
    outside = permissions.of_dataset(dataset, boundary)
    if outside:
        return outside
    undefined = _definition(dataset)
    if undefined:
        return Verdict(Reason.INVALID_TABLE_DEFINITION, undefined)
    forbidden = violations(
        dataset.spec.run_template.pod_template,
        pod_template_of(settings, dataset.meta.namespace),
        settings.allowed_secrets,
    )
    if forbidden:
        text = f"Dataset {dataset.meta.name}: spec.runTemplate.podTemplate.{forbidden[0]}."
        more = f" More fields that are not allowed: {len(forbidden) - 1}." if len(forbidden) > 1 else ""
        return Verdict(Reason.POD_TEMPLATE_NOT_ALLOWED, text + more)
    unavailable = _launcher(dataset, settings)
    if unavailable is not None:
        return unavailable
    shared = _sharing(dataset, world)
    if shared is not None:
        return shared
    rejected = rejection(dataset, world, settings)
    if rejected is not None:
        return rejected
    inside = table_in_another(dataset, world)
    if inside is not None:
        return Verdict(Reason.TABLE_IN_OTHER_TABLE, inside)
    match world.table:
        case LostLedger() as lost:
            return Verdict(lost.reason, lost_ledger_message(dataset, lost))
        case Unavailable() as unavailable:
            return unavailable
        case NoTable() as table:
            return (
                another_table(dataset, world.table, world.restatements)
                or _without_table(dataset)
                or _deletes(dataset, table)
            )
        case TableView() as view:
            outside = permissions.of_table(dataset, view, boundary)
            if outside:
                return outside
            return _with_table(dataset, view, world) or _deletes(dataset, view)
        case table:
            assert_never(table)


def _deletes(dataset: Dataset, table: TableView | NoTable) -> Verdict | None:
    mismatch = format_mismatch(dataset, table)
    return Verdict(Reason.FORMAT_VERSION_MISMATCH, mismatch) if mismatch else None


def _launcher(dataset: Dataset, settings: Settings) -> Verdict | None:
    if dataset.spec.run_template.launcher in (None, *launchers(settings)):
        return None
    text = (
        f"Dataset {dataset.meta.name}: spec.runTemplate.launcher is {dataset.spec.run_template.launcher}, but the chart's value "
        "sparkOperator.enabled is false. Ask the administrator to install Kubeflow's Spark operator and to set the value, or "
        "remove the field."
    )
    return Verdict(Reason.LAUNCHER_NOT_AVAILABLE, text)


def _sharing(dataset: Dataset, world: Observation) -> Verdict | None:
    """Only the oldest of the Datasets that share a buffer acts: its retention may delete what the others have not read."""
    uri = dataset.spec.buffer.uri
    others = (*world.overlapping_datasets, *in_same_store(dataset, world, world.other_namespaces))
    older = [n for n in others if overlap(n.spec.buffer.uri, uri) and age(n) < age(dataset)]
    if not older:
        return None
    first = min(older, key=age)
    name = first.meta.name if first.meta.namespace == dataset.meta.namespace else first.meta.full_name
    return Verdict(
        Reason.BUFFER_SHARED,
        f"Dataset {dataset.meta.name}: spec.buffer.uri {uri} overlaps the buffer {first.spec.buffer.uri} of the older Dataset "
        f"{name}, whose retention could delete batches that this Dataset has not read. Create a Dataset with its own buffer.",
    )


def other_reader(dataset: Dataset, overlapping_datasets: Iterable[Dataset]) -> Dataset | None:
    """The oldest Dataset that reads the same queue; None: it is this one. Two readers would each get only some messages."""
    own = dataset.spec.buffer.events
    same = [n for n in overlapping_datasets if own and (e := n.spec.buffer.events) and e.queue_url == own.queue_url]
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


def _without_table(dataset: Dataset) -> Verdict | None:
    spec = dataset.spec
    if spec.table.create is None:
        return Verdict(
            Reason.TABLE_NOT_FOUND,
            f"Dataset {dataset.meta.name}: the table {spec.table.name} does not exist in the catalog {spec.table.catalog}. "
            "Create it, or set spec.table.create.",
            transient=True,
        )
    location = spec.table.create.properties.get("location")
    if location and overlap(location, spec.buffer.uri):
        return _overlapping(dataset, location)
    return None


def _with_table(dataset: Dataset, view: TableView, world: Observation) -> Verdict | None:
    name, spec = dataset.meta.name, dataset.spec
    if view.holds_batches:
        return Verdict(
            Reason.TABLE_HOLDS_BATCHES,
            f"Dataset {name}: the table {spec.table.name} lists the batches of another table (table property {names.TRACKS}), "
            "and Lethe overwrites it. Create a Dataset for another table.",
        )
    if view.claim is not None and view.claim != dataset.claim:
        return Verdict(
            Reason.TABLE_CLAIMED,
            f"Dataset {name}: the table {spec.table.name} belongs to the Dataset {view.claim} (table property "
            "lethe.dataset). Two Datasets cannot write one table: delete this Dataset, or, if the other one no longer exists, "
            "remove the property.",
        )
    other = another_table(dataset, world.table, world.restatements)
    if other is not None:
        return other
    if view.unsafe is not None:
        return Verdict(Reason.UNSAFE_PROPERTY, f"Dataset {name}: {view.unsafe}")
    stopped = rollback_message(dataset, view)
    if stopped:
        return Verdict(Reason.TABLE_ROLLED_BACK, stopped)
    if view.batch_field_id is None:
        return Verdict(
            Reason.BATCH_COLUMN_MISSING,
            f"Dataset {name}: the table {spec.table.name} has no column {spec.batch_column} (spec.batchColumn). Add a "
            "string column of that name to the table, or create a Dataset with another spec.batchColumn.",
        )
    if overlap(view.location, spec.buffer.uri):
        return _overlapping(dataset, view.location)
    if view.claim is None and not view.prepared and not spec.table.adopt:
        return Verdict(
            Reason.TABLE_NOT_PREPARED,
            f"Dataset {name}: the table {spec.table.name} was not created by Lethe, and it is not sorted by {spec.batch_column} "
            "with full metrics of that column. Set spec.table.adopt to true; the first run then sets both.",
        )
    return None


def _overlapping(dataset: Dataset, location: str) -> Verdict:
    return Verdict(
        Reason.BUFFER_OVERLAPS_TABLE,
        f"Dataset {dataset.meta.name}: spec.buffer.uri {dataset.spec.buffer.uri} overlaps the table's location {location}, so "
        "deleting from one could delete files of the other. Create a Dataset with a buffer outside of the table's location.",
    )


def format_mismatch(dataset: Dataset, table: TableView | NoTable) -> str | None:
    """Why the table's format version does not support `spec.deletes`, and what to change; None: it does."""
    spec, create = dataset.spec, dataset.spec.table.create
    wanted = native.format_version if (native := spec.deletes.named) is not None else None
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
    remedy = f"spec.deletes to {Deletes.AUTO} or {Deletes.LEDGER}."
    remedy = f"{change} {remedy}" if found < wanted or isinstance(table, NoTable) else f"Set {remedy}"
    needs = f"spec.deletes {spec.deletes} needs Iceberg format version {wanted}"
    return f"Dataset {dataset.meta.name}: {needs}, and {where}. {remedy}"

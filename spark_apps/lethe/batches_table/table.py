"""Finds or creates the table of batches of a table, and updates it from the ledger. I/O, through PyIceberg.

Each commit names the ledger that it shows. The next update compares that ledger with the newest one, and rewrites only the
affected files; if the old ledger is gone, it rewrites the whole table. A commit is a compare-and-set on the head of the table of
batches, and the ledger is read after that head, so a commit never replaces a newer ledger by an older one.
"""

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table import Table

from lethe.base import names
from lethe.base.errors import ConflictError, InputError, LedgerError
from lethe.batches_table import files as tracking_files
from lethe.batches_table.change import Change, plan_change
from lethe.batches_table.upkeep import expire_old
from lethe.buffer.batch_rows import BatchRow, Totals, row_of
from lethe.guards.properties import require_safe_table
from lethe.iceberg import catalogs
from lethe.iceberg.facts import TableFacts, observe
from lethe.ledger.ledger import BatchEntry
from lethe.ledger.parts import get_many
from lethe.ledger_store import store as ledger_store
from lethe.ledger_store.diff import TooDifferent, all_batches, changed_batches

log = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 6
LOST_RACES_ENOUGH: Final = 2  # after so many lost races, another update has shown this ledger
_PROPERTIES: Final = {
    "format-version": "2",
    "write.metadata.metrics.column.batch_id": "full",
    "write.parquet.compression-codec": "zstd",
    # Plan again after a lost race. A retry by PyIceberg would add the same rows to those of the winner.
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
}


@dataclass(frozen=True)
class Shown:
    """What a table of batches shows."""

    table_uuid: str  # of the tracked table
    ledger: str  # URI of the root of the ledger; empty: the empty ledger
    carrier_id: int | None  # the snapshot that carries the ledger; None: the empty ledger
    version: int  # of the ledger
    totals: Totals
    listed: datetime | None = None  # when the buffer was listed; None: it was not

    def as_summary(self) -> dict[str, str]:
        keys = {
            names.TRACKING_LEDGER: self.ledger,
            names.TRACKING_CARRIER: str(self.carrier_id) if self.carrier_id is not None else "",
            names.TRACKING_VERSION: str(self.version),
            **self.totals.as_summary(),
        }
        return keys | ({names.TRACKING_LISTED: self.listed.isoformat()} if self.listed is not None else {})


@dataclass(frozen=True)
class Tracked:
    """The result of an update."""

    name: str  # of the table of batches
    shown: Shown
    rebuilt: bool = False  # the whole table was made from the ledger
    files: int = 0  # written
    snapshot_id: int | None = None  # of the commit; None: the table was current


@dataclass(frozen=True)
class TrackingUpdate:
    """What an update of a table of batches does."""

    create: bool  # create the table if it does not exist
    waiting: Sequence[BatchRow] | None = (
        None  # the batches in the buffer, just listed; None: not listed, keep those shown
    )
    rebuild: bool = False  # rewrite the whole table from the ledger


def name_of(table_name: str) -> str:
    """The name of the table of batches of `namespace.table`."""
    return f"{table_name}{names.BATCHES_SUFFIX}"


def find(catalog: Catalog, table_name: str) -> Table | None:
    """The table of batches of `namespace.table`; None: there is none.

    Raises: InputError (`BatchesTableTaken`), if Lethe did not make the table of that name.
    """
    name = name_of(table_name)
    try:
        table = catalog.load_table(name)
    except NoSuchTableError:
        return None
    if names.TRACKS not in table.properties:
        raise InputError(
            "BatchesTableTaken",
            f"Lethe did not make the table {name} (it lacks the property {names.TRACKS}), so there is no table of the batches of "
            f"{table_name}. Rename one of the two tables, or set spec.batchTracking.enabled: false.",
        )
    return table


def shown(table: Table) -> Shown | None:
    """What a table of batches shows; None: it has no head, or Lethe did not commit its head."""
    head = table.current_snapshot()
    keys: Mapping[str, str] = head.summary.additional_properties if head is not None and head.summary else {}
    if names.TRACKING_LEDGER not in keys:
        return None
    try:
        listed = keys.get(names.TRACKING_LISTED)
        return Shown(
            table_uuid=table.properties.get(names.TRACKS, ""),
            ledger=keys[names.TRACKING_LEDGER],
            carrier_id=int(keys[names.TRACKING_CARRIER]) if keys.get(names.TRACKING_CARRIER) else None,
            version=int(keys[names.TRACKING_VERSION]),
            totals=Totals.of_summary(keys),
            listed=datetime.fromisoformat(listed) if listed else None,
        )
    except (KeyError, ValueError):
        return None


def bring_up_to_date(
    catalog: Catalog,
    table_name: str,
    batch_column: str,
    update: TrackingUpdate,
    step: Callable[[str], None] = lambda _: None,
) -> Tracked | None:
    """Update the table of batches to the current ledger of `namespace.table`. Safe to repeat, and to run concurrently.

    The ledger overrides `update.waiting`.
    Returns: None, if there is no table of batches and `update.create` is False.
    Raises: InputError (BatchesTableTaken, UnsupportedCatalog, UnsafeProperty), LedgerError, ConflictError; what the catalog
        raises.
    """
    if catalogs.is_folder(catalog.properties) and not update.create:
        return None
    if catalogs.is_folder(catalog.properties):
        raise InputError(
            "UnsupportedCatalog",
            f"catalog {catalog.name} is a folder without a catalog service. PyIceberg, which writes the table "
            f"{name_of(table_name)}, cannot commit there. Use `lethe batches`, which reads the ledger.",
        )
    heads: set[int] = set()  # of the table of batches, during these attempts
    for attempt in range(MAX_ATTEMPTS):
        tracking = find(catalog, table_name)
        if tracking is None and not update.create:
            return None
        if tracking is not None:
            require_safe_table(name_of(table_name), tracking.location(), tracking.properties)
        head = tracking.current_snapshot() if tracking is not None else None
        heads |= {head.snapshot_id} if head is not None else set()
        only_ledger = update.waiting is None and not update.rebuild
        if len(heads) > LOST_RACES_ENOUGH and only_ledger and tracking and (seen := shown(tracking)):
            # The writer of the third head loaded the second head, which is newer than the first that this update saw, and
            # read the tracked table after that.
            return Tracked(name_of(table_name), seen)
        # Load the table after the table of batches, so that its ledger is not older than the one shown.
        table = catalog.load_table(table_name)
        facts = observe(table, batch_column, table_name)
        loaded = ledger_store.load(table.io, facts)
        tracking = tracking or _create(catalog, table_name, facts)
        if tracking is None:
            continue
        try:
            return _update(tracking, _Tracking(table, facts, loaded), update, step)
        except CommitFailedException:
            log.info("another writer updated %s in the meantime; trying again", name_of(table_name))
            time.sleep(random.uniform(0, 0.2) * 2**attempt)
    raise ConflictError(
        "BatchesTableMoved",
        f"{name_of(table_name)}: other writers updated it at each attempt. The next run tries again.",
    )


def _create(catalog: Catalog, table_name: str, facts: TableFacts) -> Table | None:
    """None: another writer created it first."""
    try:
        return catalog.create_table(
            name_of(table_name),
            tracking_files.SCHEMA,
            partition_spec=tracking_files.SPEC,
            sort_order=tracking_files.ORDER,
            properties={
                **_PROPERTIES,
                names.TRACKS: facts.uuid,
                "comment": f"The batches of {table_name}, kept by Lethe.",
            },
        )
    except TableAlreadyExistsError:
        return None


@dataclass(frozen=True)
class _Tracking:
    """The tracked table, with the ledger of its head."""

    table: Table
    facts: TableFacts
    loaded: ledger_store.Loaded


def _update(tracking: Table, tracked: _Tracking, update: TrackingUpdate, step: Callable[[str], None]) -> Tracked:
    facts, loaded, waiting = tracked.facts, tracked.loaded, update.waiting
    name = ".".join(tracking.name())
    seen = shown(tracking)
    pointer = loaded.resolution.pointer or ""
    base = None if update.rebuild or seen is None or seen.table_uuid != facts.uuid else seen
    batches = loaded.ledger.batches
    if base is not None and base.ledger == pointer and waiting is None:
        return Tracked(name, base)
    if waiting is not None:
        known = get_many(batches, [r.batch_id for r in waiting])
        waiting = [r for r in waiting if r.batch_id not in known]
    change: Change | None = None
    if base is not None:
        try:
            changed, gone = changed_batches(_ledger_shown(tracked.table, facts, base), batches, row_of)
            change = plan_change(tracking, base.totals, [row_of(e) for e in changed], gone, waiting)
        except (LedgerError, TooDifferent) as e:
            log.info("%s is rebuilt from the ledger: %s", name, e if isinstance(e, LedgerError) else "too many changes")
        if change is not None and not change.totals.agree_with(loaded.ledger.states):
            log.warning("the totals of %s differ from the ledger; it is rebuilt", name)
            change = None
    rebuilt = change is None
    if change is None:
        change = plan_change(tracking, None, (row_of(e) for some in all_batches(batches) for e in some), (), waiting)
    when = datetime.now(UTC) if waiting is not None else seen.listed if seen is not None else None
    showing = Shown(facts.uuid, pointer, loaded.resolution.carrier_id, loaded.ledger.version, change.totals, when)
    if base is not None and base.ledger == pointer and not rebuilt and change.is_empty:
        return Tracked(name, base)
    written = tracking_files.write(tracking, change.contents)
    step("before-tracking")
    try:
        _commit(tracking, facts.uuid, change, written, showing)
    except CommitFailedException:
        _discard(tracking, written)
        raise
    head = tracking.current_snapshot()
    expire_old(tracking)
    return Tracked(name, showing, rebuilt, len(written), head.snapshot_id if head is not None else None)


def _ledger_shown(table: Table, facts: TableFacts, base: Shown) -> Mapping[str, BatchEntry]:
    """Raises: LedgerError, for example if a vacuum deleted the old ledger."""
    if not base.ledger:
        return {}
    return ledger_store.load_root(table.io, facts, base.ledger, base.carrier_id).batches


def _commit(tracking: Table, table_uuid: str, change: Change, written: Sequence[Any], showing: Shown) -> None:
    """Raises: CommitFailedException, if the head is not the one that the change was planned on."""
    with tracking.transaction() as transaction:
        if tracking.properties.get(names.TRACKS) != table_uuid:
            transaction.set_properties({names.TRACKS: table_uuid})
        with transaction.update_snapshot(snapshot_properties=showing.as_summary()).overwrite() as overwrite:
            for file in change.removed:
                overwrite.delete_data_file(file.file)
            for file in written:
                overwrite.append_data_file(file)


def _discard(tracking: Table, written: Sequence[Any]) -> None:
    """Delete the files of a commit that failed."""
    for file in written:
        try:
            tracking.io.delete(file.file_path)
        except Exception as e:
            log.warning("a file of a failed commit was not deleted: %s", type(e).__name__)

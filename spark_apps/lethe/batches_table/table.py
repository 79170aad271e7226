"""The table of batches beside a table: found or made, and brought up to date with the ledger. I/O, through PyIceberg.

Each commit says which ledger it shows. The next one reads what is different between that ledger and the newest one, and
writes anew only the files that this touches; without the old ledger it takes the new one whole. It is a compare-and-set on
the table's head, and the ledger is looked up after the head: whoever wins the race shows a ledger at least as new.
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
from lethe.batches_table.upkeep import keep_short
from lethe.buffer.batch_rows import BatchRow, Totals, row_of
from lethe.iceberg import catalogs
from lethe.iceberg.facts import TableFacts, observe
from lethe.ledger.ledger import BatchEntry
from lethe.ledger.parts import get_many
from lethe.ledger_store import store as ledger_store
from lethe.ledger_store.diff import TooDifferent, all_batches, changed_batches

log = logging.getLogger(__name__)

TRIES: Final = 6
ENOUGH_LOST: Final = 2  # races, after which others show what was to be shown
_PROPERTIES: Final = {
    "format-version": "2",
    "write.metadata.metrics.column.batch_id": "full",
    "write.parquet.compression-codec": "zstd",
    # A lost race is planned anew here. PyIceberg would put the same rows on top of those that won.
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
}


@dataclass(frozen=True)
class Shown:
    """What a table of batches shows: the ledger of this root ("" for none), as carried by that snapshot, of the table with
    this UUID; `listed`: when what waits in the buffer was listed."""

    table_uuid: str
    ledger: str
    carrier_id: int | None
    version: int
    totals: Totals
    listed: datetime | None = None

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
    """How a table of batches was brought up to date. `rebuilt`: all of it was made from the ledger; `files` that were
    written; `snapshot_id` None when nothing was to do."""

    name: str
    shown: Shown
    rebuilt: bool = False
    files: int = 0
    snapshot_id: int | None = None


def name_of(table_name: str) -> str:
    """The name of the table of batches of `namespace.table`."""
    return f"{table_name}{names.BATCHES_SUFFIX}"


def find(catalog: Catalog, table_name: str) -> Table | None:
    """The table of batches of `namespace.table`, None when there is none.

    Raises: InputError (`BatchesTableTaken`), if a table of that name is somebody else's.
    """
    name = name_of(table_name)
    try:
        table = catalog.load_table(name)
    except NoSuchTableError:
        return None
    if names.TRACKS not in table.properties:
        raise InputError(
            "BatchesTableTaken",
            f"there is a table {name}, which Lethe did not make (it lacks the property {names.TRACKS}), so that the batches of "
            f"{table_name} are shown nowhere. Rename one of the two, or set spec.batchTracking.enabled: false.",
        )
    return table


def shown(table: Table) -> Shown | None:
    """What a table of batches shows; None when its head is not of Lethe's making, or there is none."""
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
    *,
    create: bool,
    waiting: Sequence[BatchRow] | None = None,
    anew: bool = False,
    step: Callable[[str], None] = lambda _: None,
) -> Tracked | None:
    """Let the table of batches show the ledger that `namespace.table` has now. Safe to repeat, and beside others.

    Args:
        create: Make it when it is not there; without, None is returned.
        waiting: What waits in the buffer, as just listed; None: nobody looked, and what waited before still does. In both
            cases the ledger knows better.
        anew: Take the ledger whole, whatever the table shows.
    Raises: InputError (BatchesTableTaken, UnsupportedCatalog), LedgerError, ConflictError, what the catalog raises.
    """
    if catalogs.is_folder(catalog.properties) and not create:
        return None
    if catalogs.is_folder(catalog.properties):
        raise InputError(
            "UnsupportedCatalog",
            f"catalog {catalog.name} is a mere folder, in which PyIceberg, which writes the table {name_of(table_name)}, "
            "cannot commit. `lethe batches` reads the ledger instead.",
        )
    heads: set[int] = set()  # that the table of batches had while this tries
    for attempt in range(TRIES):
        tracking = find(catalog, table_name)
        if tracking is None and not create:
            return None
        head = tracking.current_snapshot() if tracking is not None else None
        heads |= {head.snapshot_id} if head is not None else set()
        if len(heads) > ENOUGH_LOST and waiting is None and not anew and tracking and (seen := shown(tracking)):
            # Whoever made the third head had loaded the second, which came after the first was seen, and looked up the
            # tracked table after that.
            return Tracked(name_of(table_name), seen)
        # Looked up after the tracking table, so that the ledger found is no older than the one it shows.
        table = catalog.load_table(table_name)
        facts = observe(table, batch_column, table_name)
        loaded = ledger_store.load(table.io, facts)
        tracking = tracking or _create(catalog, table_name, facts)
        if tracking is None:
            continue
        try:
            return _update(tracking, table, facts, loaded, waiting, anew, step)
        except CommitFailedException:
            log.info("%s was updated by another meanwhile; looking again", name_of(table_name))
            time.sleep(random.uniform(0, 0.2) * 2**attempt)
    raise ConflictError(
        "BatchesTableMoved", f"{name_of(table_name)}: others kept updating it; the next run does it too."
    )


def _create(catalog: Catalog, table_name: str, facts: TableFacts) -> Table | None:
    """None: another was faster."""
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


def _update(
    tracking: Table,
    table: Table,
    facts: TableFacts,
    loaded: ledger_store.Loaded,
    waiting: Sequence[BatchRow] | None,
    anew: bool,
    step: Callable[[str], None],
) -> Tracked:
    name = ".".join(tracking.name())
    seen = shown(tracking)
    pointer = loaded.resolution.pointer or ""
    base = None if anew or seen is None or seen.table_uuid != facts.uuid else seen
    batches = loaded.ledger.batches
    if base is not None and base.ledger == pointer and waiting is None:
        return Tracked(name, base)
    if waiting is not None:
        known = get_many(batches, [r.batch_id for r in waiting])
        waiting = [r for r in waiting if r.batch_id not in known]
    change: Change | None = None
    if base is not None:
        try:
            changed, gone = changed_batches(_ledger_shown(table, facts, base), batches, row_of)
            change = plan_change(tracking, base.totals, [row_of(e) for e in changed], gone, waiting)
        except (LedgerError, TooDifferent) as e:
            log.info("%s is made anew from the ledger: %s", name, e if isinstance(e, LedgerError) else "much changed")
        if change is not None and not change.totals.agree_with(loaded.ledger.states):
            log.warning("%s does not hold what it says; it is made anew from the ledger", name)
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
    keep_short(tracking)
    return Tracked(name, showing, rebuilt, len(written), head.snapshot_id if head is not None else None)


def _ledger_shown(table: Table, facts: TableFacts, base: Shown) -> Mapping[str, BatchEntry]:
    """Raises: LedgerError, if it was removed, as happens to old ones."""
    if not base.ledger:
        return {}
    return ledger_store.load_root(table.io, facts, base.ledger, base.carrier_id).batches


def _commit(tracking: Table, table_uuid: str, change: Change, written: Sequence[Any], showing: Shown) -> None:
    """Raises: CommitFailedException, if the table's head is not the one that the change was planned on."""
    with tracking.transaction() as transaction:
        if tracking.properties.get(names.TRACKS) != table_uuid:
            transaction.set_properties({names.TRACKS: table_uuid})
        with transaction.update_snapshot(snapshot_properties=showing.as_summary()).overwrite() as overwrite:
            for file in change.removed:
                overwrite.delete_data_file(file.file)
            for file in written:
                overwrite.append_data_file(file)


def _discard(tracking: Table, written: Sequence[Any]) -> None:
    """Files of a commit that did not land."""
    for file in written:
        try:
            tracking.io.delete(file.file_path)
        except Exception as e:
            log.warning("a file that was written in vain stays: %s", type(e).__name__)

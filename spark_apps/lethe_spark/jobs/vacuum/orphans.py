"""Removes orphan files, as a step of a vacuum run. I/O; `lethe.vacuum.orphans` decides which files."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from lethe.base import names
from lethe.base.errors import LetheError
from lethe.buffer.batch import ListedObject
from lethe.contract.result import Phase
from lethe.iceberg.locations import reachable
from lethe.iceberg.tenants import other_ledger, other_table, refused
from lethe.storage.object_store import open_store
from lethe.uri import contains
from lethe.vacuum.expiry import KEEPS_FILES, keeps_files
from lethe.vacuum.ledger_files import named_files
from lethe.vacuum.orphans import Folders, Orphans, OrphanScope, plan_orphans, shown

from lethe_spark.commit.table_state import observe_base
from lethe_spark.jvm.removal import remove_files
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext, table_properties

log = logging.getLogger(__name__)
AT_ONCE: Final = 1000  # how many files S3 deletes in one request


@dataclass(frozen=True)
class Swept:
    """The orphan files that were found and removed."""

    found: int = 0  # the number of orphan files
    bytes: int = 0  # their total size
    removed: int = 0  # how many were removed
    listing: tuple[str, ...] = ()  # the first of them, for users
    stopped: bool = False  # the time was up before all were removed
    why: str = ""  # why not all were removed, other than time; empty: no such cause


def remove_orphan_files(
    context: RunContext, table: SparkTable, older_than: timedelta, dry: bool, out_of_time: Callable[[], str]
) -> Swept:
    """Find the orphan files of a table and remove them. Removes nothing if a part of the table's metadata cannot be read, or if
    the table property `gc.enabled` is false.

    Args:
        older_than: The minimum age of files to remove.
        dry: Only find them.
        out_of_time: Returns why no more files may be removed; empty: they may. Called before each thousand.
    Raises: InputError, TableError, LedgerError, TransientError; what reading a damaged manifest raises.
    """
    table.refresh()
    if keeps_files(table.properties):
        log.info("%s: orphan files are not removed: %s", table.full_name, KEEPS_FILES)
        return Swept(why=KEEPS_FILES)
    location = table.location
    properties = table.properties
    folders = Folders.of(location, properties.get("write.data.path"), properties.get("write.metadata.path"))
    context.reporter.phase(Phase.EXPIRING, "listing the table's folders")
    listed = _listed(context, folders)
    ledgers = _list(context, [f"{location}/{names.LEDGER_FOLDER}"])
    context.step("after-listing")
    # Read the table after the listing: its metadata names all files of earlier commits, and later files are not in the listing.
    base = observe_base(context, table)
    needed = reachable(base.iceberg)
    other = other_table(base.iceberg.io, listed, needed, folders, base.facts.uuid) or other_ledger(
        base.iceberg.io, ledgers, named_files(base.facts.snapshots.values()), base.facts.uuid
    )
    if other is not None:
        why = str(refused(table.full_name, location, other))
        log.warning("%s", why)
        return Swept(why=why)
    found = plan_orphans(
        listed, needed, OrphanScope(folders, context.spec.buffer.uri, context.run_id), datetime.now(UTC), older_than
    )
    context.reporter.phase(Phase.EXPIRING, f"{len(found.files)} orphan files of {found.bytes} bytes")
    context.step("before-orphans")
    return _removed(context, table, found, dry, out_of_time)


def _removed(
    context: RunContext, table: SparkTable, found: Orphans, dry: bool, out_of_time: Callable[[], str]
) -> Swept:
    removed, stopped, why = 0, False, ""
    for start in range(0, 0 if dry else len(found.files), AT_ONCE):
        if stopped := bool(out_of_time()):
            break
        try:
            removed += remove_files(table, found.files[start : start + AT_ONCE])
        except LetheError as e:
            why = str(e)
            break
        context.step("between-orphans")
    if removed:
        log.info("%s: %d orphan files of %d were removed", table.full_name, removed, len(found.files))
    return Swept(len(found.files), found.bytes, removed, shown(found, table.location), stopped, why)


def _listed(context: RunContext, folders: Folders) -> list[ListedObject]:
    places = [folder for folder in (folders.data, folders.metadata) if folder is not None]
    if len(places) == 2 and contains(places[0], places[1]):
        places = places[:1]
    elif len(places) == 2 and contains(places[1], places[0]):
        places = places[1:]
    return _list(context, places)


def _list(context: RunContext, folders: Iterable[str]) -> list[ListedObject]:
    return [o for folder in folders for o in open_store(folder, table_properties(context)).list(folder)]

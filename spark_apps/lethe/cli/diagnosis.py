"""What is wrong with a table, from what was seen of it, and what to do. Pure: facts in, findings out."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from lethe.base import names
from lethe.files.bounds import FileBounds
from lethe.ledger.lineage import Snapshot

MANY_SNAPSHOTS: Final = 1000
DEFAULT_METRICS: Final = "truncate(16)"  # Iceberg's, where a table says nothing
NAMED_AT_MOST: Final = 5


class Level(StrEnum):
    ERROR = "error"  # reads refuse, or would be wrong
    WARNING = "warning"  # right, but slower, larger or in danger
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """`code` is a CamelCase word; `what` is true of the table now, `do` what mends it (empty: nothing to do)."""

    level: Level
    code: str
    what: str
    do: str = ""


@dataclass(frozen=True)
class ListedFile:
    """A file in the folder of ledgers, by its name there."""

    name: str
    modified: datetime


@dataclass(frozen=True)
class ExaminedBatches:
    """The table of batches beside it. `taken`: what is wrong when it is somebody else's table, "" otherwise; `current`:
    whether it shows the ledger of the head; `version`: of the ledger that it shows, None when it says nothing."""

    name: str
    taken: str = ""
    current: bool = False
    version: int | None = None
    agrees: bool = True  # its counts with those of the ledger


@dataclass(frozen=True)
class Examined:
    """A table as it was seen.

    Args:
        remembered_field_id: The batch column's field id by table property; None when no property says.
        batch_field_id, column: The batch column found, and its name of today; None when there is none.
        metrics_mode: Of the batch column.
        files: The head's data files; `unsorted` names the paths of those not written in the table's sort order.
        known_bounds: Those of the files' bounds that are ids of batches which the ledger knows.
        lost: Snapshot id -> why its ledger cannot be told.
        unreadable: What is wrong with ledger files that could not be read.
        needed: Names of the ledger files that retained snapshots need; `listed` those that are there.
        batches: The table of its batches, None when there is none.
    """

    table: str
    location: str
    format_version: int
    head_id: int | None
    snapshots: Mapping[int, Snapshot]
    wanted_column: str
    remembered_field_id: int | None
    batch_field_id: int | None
    column: str | None
    sorted_by_batch: bool
    metrics_mode: str
    claim: str | None
    ledger_since: int | None
    files: tuple[FileBounds, ...] = ()
    unsorted: frozenset[str] = frozenset()
    known_bounds: frozenset[str] = frozenset()
    lost: Mapping[int, str] | None = None
    unreadable: tuple[str, ...] = ()
    needed: frozenset[str] = frozenset()
    listed: tuple[ListedFile, ...] = ()
    batches: ExaminedBatches | None = None


def diagnose(seen: Examined, now: datetime, grace: timedelta) -> tuple[Finding, ...]:
    """Findings, the gravest first.

    Args:
        grace: A ledger file that nothing needs counts as orphaned only when it is older: a commit may be under way.
    """
    found = [
        *_format(seen),
        *_batch_column(seen),
        *_ledgers(seen),
        *_ledger_files(seen, now, grace),
        *_location(seen),
        *_layout(seen),
        *_bounds(seen),
        *_ownership(seen),
        *_batches(seen),
    ]
    order = list(Level)
    return tuple(sorted(found, key=lambda f: order.index(f.level)))


def is_healthy(findings: Iterable[Finding]) -> bool:
    return all(f.level is Level.NOTE for f in findings)


def _format(seen: Examined) -> Iterator[Finding]:
    if seen.format_version < 2:
        yield Finding(
            Level.ERROR,
            "FormatVersionTooOld",
            "the table has Iceberg format version 1, which does not number its commits.",
            "Set the table property format-version to 2.",
        )


def _batch_column(seen: Examined) -> Iterator[Finding]:
    remembered = seen.remembered_field_id
    if seen.batch_field_id is None and remembered is not None:
        yield Finding(
            Level.ERROR,
            "BatchColumnDropped",
            f"the batch column (table property {names.BATCH_COLUMN}: field {remembered}) was dropped: tombstones cannot be "
            "matched with rows, and reads refuse.",
            "Make a schema that has it the table's current one again; a new column cannot stand in for it, whatever its name.",
        )
    elif seen.batch_field_id is None:
        yield Finding(
            Level.ERROR,
            "BatchColumnMissing",
            f"the table has no column {seen.wanted_column}: its rows cannot be told apart by batch.",
            f"Add a string column {seen.wanted_column}, or name another one with --batch-column.",
        )
    elif remembered is not None and seen.column != seen.wanted_column:
        yield Finding(
            Level.NOTE,
            "BatchColumnRenamed",
            f"the batch column is called {seen.column} now, not {seen.wanted_column}. Its field id ({remembered}) is what "
            "counts: reads and commits go on.",
        )


def _ledgers(seen: Examined) -> Iterator[Finding]:
    carried = [s for s in seen.snapshots.values() if s.ledger is not None]
    for snapshot_id, why in sorted((seen.lost or {}).items()):
        yield Finding(
            Level.ERROR,
            "LedgerLost",
            f"snapshot {snapshot_id}: {why}",
            "Expire the snapshot if nobody needs it; if it is the head, roll back to one that has a ledger.",
        )
    head = seen.snapshots.get(seen.head_id) if seen.head_id is not None else None
    if not carried:
        if not seen.lost:
            yield Finding(
                Level.NOTE, "NoLedger", "no retained snapshot has a ledger: nothing was ever deleted by Lethe."
            )
    elif head is not None and head.ledger is None:
        above = _bare_above(seen.snapshots, head)
        yield Finding(
            Level.WARNING,
            "BareHead",
            f"the newest {_count(above, 'snapshot was', 'snapshots were')} committed by another writer and carr"
            f"{'ies' if above == 1 else 'y'} no ledger. Reads find it further back, as long as that snapshot is retained.",
            "Let Lethe commit once more (the operator's next run, or any lethe_spark.write or revert); expire no "
            "snapshots before.",
        )
    if len(seen.snapshots) > MANY_SNAPSHOTS:
        yield Finding(
            Level.WARNING,
            "ManySnapshots",
            f"{len(seen.snapshots)} snapshots are retained; each commit writes all of them anew.",
            "Expire some: spec.snapshots of the Dataset, or Iceberg's expire_snapshots while the head has a ledger.",
        )
    else:
        yield Finding(
            Level.NOTE, "Snapshots", f"{_count(len(seen.snapshots), 'snapshot is', 'snapshots are')} retained."
        )


def _ledger_files(seen: Examined, now: datetime, grace: timedelta) -> Iterator[Finding]:
    for problem in seen.unreadable:
        yield Finding(
            Level.ERROR,
            "LedgerUnreadable",
            problem,
            "Restore the file from a backup, or roll back to a snapshot before it. `lethe ledger verify` says what it holds up.",
        )
    there = frozenset(f.name for f in seen.listed)
    if missing := sorted(seen.needed - there):
        yield Finding(
            Level.ERROR,
            "LedgerFileMissing",
            f"{_count(len(missing), 'ledger file is', 'ledger files are')} not there: {_some(missing)}. Reads of the "
            "snapshots that need them refuse.",
            "Restore them from a backup (nothing but Lethe's own vacuum may delete in "
            f"{names.LEDGER_FOLDER}/), or roll back.",
        )
    old = sorted(f.name for f in seen.listed if f.name not in seen.needed and f.modified < now - grace)
    if old and not seen.unreadable:
        yield Finding(
            Level.WARNING,
            "LedgerFileOrphaned",
            f"no retained snapshot needs {_count(len(old), 'file', 'files')} in {names.LEDGER_FOLDER}/, older than "
            f"{grace.total_seconds() / 3600:g} hours: {_some(old)}.",
            "Nothing is wrong with reads. The operator's next vacuum removes them; they come from commits that lost a race.",
        )


def _location(seen: Examined) -> Iterator[Finding]:
    if seen.location.endswith("/"):
        yield Finding(
            Level.WARNING,
            "LocationEndsInSlash",
            f"the table's location ends in a slash ({seen.location}): Iceberg's remove_orphan_files with prefix_listing would "
            f"not see that {names.LEDGER_FOLDER}/ is hidden, and delete every ledger file.",
            "ALTER TABLE … SET LOCATION without the slash: it names the same folder.",
        )


def _layout(seen: Examined) -> Iterator[Finding]:
    if seen.batch_field_id is None:
        return
    prepare = "Set spec.table.adopt of its Dataset, or write once with lethe_spark.write(…, prepare=True)."
    if not seen.sorted_by_batch:
        yield Finding(
            Level.WARNING,
            "NotSorted",
            f"the table's sort order does not begin with {seen.column}: each file holds many batches, and reads and vacuums "
            "look into more files than they need.",
            prepare,
        )
    elif seen.unsorted:
        yield Finding(
            Level.WARNING,
            "UnsortedFiles",
            f"{len(seen.unsorted)} of {len(seen.files)} data files were not written in the table's sort order: "
            f"{_some(sorted(seen.unsorted))}.",
            "Reads stay right. Iceberg's rewrite_data_files with strategy => 'sort' mends it; ask their writers to write in "
            "the table's order.",
        )
    if seen.metrics_mode != "full":
        yield Finding(
            Level.WARNING,
            "MetricsTruncated",
            f"metrics of {seen.column} are {seen.metrics_mode}: bounds cannot tell long batch ids apart.",
            f"{prepare} A file written before keeps its old bounds until it is rewritten.",
        )


def _bounds(seen: Examined) -> Iterator[Finding]:
    if seen.batch_field_id is None:
        return
    total = len(seen.files)
    without = [
        f for f in seen.files if f.records and (f.lower is None or f.upper is None) and f.null_count != f.records
    ]
    if without:
        yield Finding(
            Level.WARNING,
            "BoundsMissing",
            f"{len(without)} of {total} data files have no bounds of {seen.column}: every read that meets a tombstone reads "
            f"them: {_some(sorted(f.path for f in without))}.",
            "Iceberg's rewrite_data_files writes them anew, with bounds, once the metrics mode is full.",
        )
    if cut := [f for f in seen.files if _cut(f, seen.known_bounds)]:
        yield Finding(
            Level.WARNING,
            "BoundsTruncated",
            f"{len(cut)} of {total} data files have bounds of {seen.column} that were cut to 16 characters, so that they "
            f"cannot tell longer batch ids apart: {_some(sorted(f.path for f in cut))}.",
            "Reads stay right. Iceberg's rewrite_data_files writes them anew once the metrics mode is full.",
        )


def _cut(file: FileBounds, known: frozenset[str]) -> bool:
    """Whether a bound looks like the first 16 characters of something longer: so long, and no batch of that name."""
    return any(b is not None and len(b) == 16 and b not in known for b in (file.lower, file.upper))


def _ownership(seen: Examined) -> Iterator[Finding]:
    if seen.claim is None:
        yield Finding(Level.NOTE, "Unclaimed", "no Dataset claims the table: no operator keeps it.")
    else:
        yield Finding(Level.NOTE, "Claimed", f"the table belongs to Dataset {seen.claim}.")
    if seen.ledger_since is None and seen.batch_field_id is not None and any(s.ledger for s in seen.snapshots.values()):
        yield Finding(
            Level.WARNING,
            "LedgerStartUnknown",
            f"table property {names.LEDGER_SINCE} is not set: a snapshot from before the first ledger cannot be told from "
            "one whose ledger is lost once its ancestors expire.",
            "The operator's next run sets it; so does a write with lethe_spark.write(…, prepare=True).",
        )


def _batches(seen: Examined) -> Iterator[Finding]:
    found, track = seen.batches, f"`lethe track {seen.table}`"
    if found is None:
        if seen.claim is not None and any(s.ledger for s in seen.snapshots.values()):
            yield Finding(
                Level.NOTE,
                "NoBatchesTable",
                "no table shows its batches to other engines.",
                f"The next run makes one, unless spec.batchTracking.enabled is false; so does {track}.",
            )
    elif found.taken:
        yield Finding(Level.WARNING, "BatchesTableTaken", found.taken)
    elif found.version is None:
        yield Finding(
            Level.WARNING,
            "BatchesTableForeign",
            f"the newest snapshot of {found.name} is not Lethe's: somebody else wrote to it, or it was never filled.",
            f"The next run makes it anew from the ledger; so does {track}. Nobody else should write to it.",
        )
    elif not found.current:
        yield Finding(
            Level.WARNING,
            "BatchesTableBehind",
            f"{found.name} shows version {found.version} of a ledger that the table's head does not have.",
            f"The next run brings it up to date; so does {track}.",
        )
    elif not found.agrees:
        yield Finding(
            Level.WARNING,
            "BatchesTableWrong",
            f"{found.name} counts other batches than the ledger that it shows.",
            f"`lethe track {seen.table} --rebuild` makes it anew from the ledger.",
        )


def _bare_above(snapshots: Mapping[int, Snapshot], head: Snapshot) -> int:
    above, current = 0, head
    while current.ledger is None:
        above += 1
        if current.parent_id is None or current.parent_id not in snapshots:
            break
        current = snapshots[current.parent_id]
    return above


def _some(values: list[str]) -> str:
    more = len(values) - NAMED_AT_MOST
    return ", ".join(values[:NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")


def _count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"

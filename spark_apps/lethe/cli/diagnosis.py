"""Decides what is wrong with a table, and what to do about it. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from lethe.base import names
from lethe.files.bounds import FileBounds
from lethe.ledger.lineage import Snapshot

MANY_SNAPSHOTS: Final = 1000
DEFAULT_METRICS: Final = "truncate(16)"
"""Iceberg's default metrics mode."""
MAX_NAMED_FILES: Final = 5


class Level(StrEnum):
    """How bad a finding is, the worst level first: `diagnose` sorts its findings in this order."""

    ERROR = "error"
    """Reads fail, or would be wrong."""
    WARNING = "warning"
    """Reads are right; the table is slower or larger than needed, or at risk."""
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """One problem or note."""

    level: Level
    code: str
    """CamelCase."""
    what: str
    """What is true of the table now."""
    do: str = ""
    """What repairs it; empty: nothing to do."""


@dataclass(frozen=True)
class ListedFile:
    """A file in the ledger folder."""

    name: str
    """The name of the file, without the folder."""
    modified: datetime


@dataclass(frozen=True)
class ExaminedBatches:
    """The table of batches of the examined table."""

    name: str
    conflict: str = ""
    """Why a table of this name is not Lethe's; empty: it is Lethe's."""
    current: bool = False
    """Whether it shows the ledger of the head."""
    version: int | None = None
    """The version of the ledger that it shows; None: its head does not say."""
    agrees: bool = True
    """Whether its counts are those of the ledger."""


@dataclass(frozen=True)
class Examined:
    """What was read of a table."""

    table: str
    """Catalog.namespace.table."""
    location: str
    format_version: int
    head_id: int | None
    """The current snapshot; None: the table is empty."""
    snapshots: Mapping[int, Snapshot]
    """The retained snapshots, by id."""
    wanted_column: str
    """The batch column that the user named, or the default."""
    remembered_field_id: int | None
    """The field id of the batch column that a table property names; None: no property names it."""
    batch_field_id: int | None
    """The field id of the batch column in the schema; None: there is no batch column."""
    column: str | None
    """The current name of the batch column; None: there is none."""
    sorted_by_batch: bool
    """Whether the table's sort order begins with the batch column."""
    metrics_mode: str
    """The metrics mode of the batch column."""
    claim: str | None
    """The Dataset that claims the table; None: no Dataset does."""
    ledger_since: int | None
    """The sequence number of the first ledger; None: unknown."""
    files: tuple[FileBounds, ...] = ()
    """The head's data files."""
    unsorted: frozenset[str] = frozenset()
    """Paths of data files not written in the table's sort order."""
    known_bounds: frozenset[str] = frozenset()
    """The bounds of files that are ids of batches in the ledger."""
    lost: Mapping[int, str] | None = None
    """Snapshot id -> why its ledger is unknown."""
    unreadable: tuple[str, ...] = ()
    """What is wrong with unreadable ledger files."""
    needed: frozenset[str] = frozenset()
    """Names of the ledger files that retained snapshots need."""
    listed: tuple[ListedFile, ...] = ()
    """The ledger files that exist."""
    batches: ExaminedBatches | None = None
    """The state of the table of batches; None: there is none."""


def diagnose(seen: Examined, now: datetime, grace: timedelta) -> tuple[Finding, ...]:
    """Return the findings, errors first.

    Args:
        grace: An unneeded ledger file counts as orphaned only if it is older. A younger one may belong to a running commit.
    """
    findings = [
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
    return tuple(sorted(findings, key=lambda f: order.index(f.level)))


def is_healthy(findings: Iterable[Finding]) -> bool:
    """Whether there are only notes. True if there are no findings at all."""
    return all(f.level is Level.NOTE for f in findings)


def _format(seen: Examined) -> Iterator[Finding]:
    if seen.format_version < 2:
        yield Finding(
            Level.ERROR,
            "FormatVersionTooOld",
            "the table has Iceberg format version 1, which has no sequence numbers.",
            "Set the table property format-version to 2.",
        )


def _batch_column(seen: Examined) -> Iterator[Finding]:
    remembered = seen.remembered_field_id
    if seen.batch_field_id is None and remembered is not None:
        yield Finding(
            Level.ERROR,
            "BatchColumnDropped",
            f"the batch column (table property {names.BATCH_COLUMN}: field {remembered}) was dropped. Lethe cannot match "
            "tombstones with rows, so reads fail.",
            "Make a schema with that field the table's current schema again. A new column cannot replace it, whatever its name.",
        )
    elif seen.batch_field_id is None:
        yield Finding(
            Level.ERROR,
            "BatchColumnMissing",
            f"the table has no column {seen.wanted_column}, so Lethe cannot tell which batch a row belongs to.",
            f"Add a string column {seen.wanted_column}, or name another one with --batch-column.",
        )
    elif remembered is not None and seen.column != seen.wanted_column:
        yield Finding(
            Level.NOTE,
            "BatchColumnRenamed",
            f"the batch column is now called {seen.column}, not {seen.wanted_column}. Reads and commits work: they use its field "
            f"id ({remembered}).",
        )


def _ledgers(seen: Examined) -> Iterator[Finding]:
    carried = [s for s in seen.snapshots.values() if s.ledger is not None]
    for snapshot_id, why in sorted((seen.lost or {}).items()):
        yield Finding(
            Level.ERROR,
            "LedgerLost",
            f"snapshot {snapshot_id}: {why}",
            "Expire the snapshot if you do not need it. If it is the head, roll back to a snapshot that has a ledger.",
        )
    head = seen.snapshots.get(seen.head_id) if seen.head_id is not None else None
    if not carried:
        if not seen.lost:
            yield Finding(
                Level.NOTE, "NoLedger", "no retained snapshot has a ledger: Lethe has deleted no rows of this table."
            )
    elif head is not None and head.ledger is None:
        bare = _count_bare(seen.snapshots, head)
        yield Finding(
            Level.WARNING,
            "BareHead",
            f"another writer committed the newest {_count(bare, 'snapshot', 'snapshots')}, without a ledger. Reads use the "
            "ledger of an older snapshot, which must not expire.",
            "Let Lethe commit: wait for the operator's next run, or use lethe_spark.write or revert. Expire no snapshots "
            "before that.",
        )
    if len(seen.snapshots) > MANY_SNAPSHOTS:
        yield Finding(
            Level.WARNING,
            "ManySnapshots",
            f"{len(seen.snapshots)} snapshots are retained. Each commit writes all of them again.",
            "Expire some: set spec.snapshots of the Dataset, or call Iceberg's expire_snapshots while the head has a ledger.",
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
            "Restore the file from a backup, or roll back to an older snapshot. "
            f"`lethe ledger verify {seen.table}` lists the snapshots that need it.",
        )
    there = frozenset(f.name for f in seen.listed)
    if missing := sorted(seen.needed - there):
        yield Finding(
            Level.ERROR,
            "LedgerFileMissing",
            f"{_count(len(missing), 'ledger file is', 'ledger files are')} missing: {_some(missing)}. Reads of the "
            "snapshots that need them fail.",
            "Restore them from a backup, or roll back. Only Lethe's vacuum may delete files in "
            f"{names.LEDGER_FOLDER}/.",
        )
    old = sorted(f.name for f in seen.listed if f.name not in seen.needed and f.modified < now - grace)
    if old and not seen.unreadable:
        yield Finding(
            Level.WARNING,
            "LedgerFileOrphaned",
            f"no retained snapshot needs {_count(len(old), 'file', 'files')} in {names.LEDGER_FOLDER}/, older than "
            f"{grace.total_seconds() / 3600:g} hours: {_some(old)}.",
            "Reads are right. The files come from commits that lost a race. The operator's next vacuum deletes them.",
        )


def _location(seen: Examined) -> Iterator[Finding]:
    if seen.location.endswith("/"):
        yield Finding(
            Level.WARNING,
            "LocationEndsInSlash",
            f"the table's location ends in a slash ({seen.location}). Iceberg's remove_orphan_files with prefix_listing then "
            f"does not recognise {names.LEDGER_FOLDER}/ as a hidden folder, and deletes every ledger file.",
            "Run ALTER TABLE … SET LOCATION without the slash: it names the same folder.",
        )


def _layout(seen: Examined) -> Iterator[Finding]:
    if seen.batch_field_id is None:
        return
    prepare = "Set spec.table.adopt of its Dataset, or write once with lethe_spark.write(…, prepare=True)."
    if not seen.sorted_by_batch:
        yield Finding(
            Level.WARNING,
            "NotSorted",
            f"the table's sort order does not begin with {seen.column}. Each file holds many batches, so reads and vacuums open "
            "more files than necessary.",
            prepare,
        )
    elif seen.unsorted:
        yield Finding(
            Level.WARNING,
            "UnsortedFiles",
            f"{len(seen.unsorted)} of {len(seen.files)} data files were not written in the table's sort order: "
            f"{_some(sorted(seen.unsorted))}.",
            "Reads are right. Run Iceberg's rewrite_data_files with strategy => 'sort', and let the writers of these files use "
            "the table's sort order.",
        )
    if seen.metrics_mode != "full":
        yield Finding(
            Level.WARNING,
            "MetricsTruncated",
            f"the metrics mode of {seen.column} is {seen.metrics_mode}: bounds cannot tell long batch ids apart.",
            f"{prepare} Existing files keep their bounds until they are rewritten.",
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
            f"{len(without)} of {total} data files have no bounds of {seen.column}, so every read of a table with tombstones "
            f"has to filter them: {_some(sorted(f.path for f in without))}.",
            "Set the metrics mode to full. Then run Iceberg's rewrite_data_files, which writes files with bounds.",
        )
    if cut := [f for f in seen.files if _is_cut(f, seen.known_bounds)]:
        yield Finding(
            Level.WARNING,
            "BoundsTruncated",
            f"{len(cut)} of {total} data files have bounds of {seen.column} that were cut to 16 characters, so that they "
            f"cannot tell longer batch ids apart: {_some(sorted(f.path for f in cut))}.",
            "Reads are right. Set the metrics mode to full. Then run Iceberg's rewrite_data_files, which writes full bounds.",
        )


def _is_cut(file: FileBounds, batch_ids: frozenset[str]) -> bool:
    """Whether a bound has 16 characters and is not the id of a known batch: it was probably cut."""
    return any(b is not None and len(b) == 16 and b not in batch_ids for b in (file.lower, file.upper))


def _ownership(seen: Examined) -> Iterator[Finding]:
    if seen.claim is None:
        yield Finding(Level.NOTE, "Unclaimed", "no Dataset claims the table, so no operator keeps it.")
    else:
        yield Finding(Level.NOTE, "Claimed", f"the table belongs to Dataset {seen.claim}.")
    if seen.ledger_since is None and seen.batch_field_id is not None and any(s.ledger for s in seen.snapshots.values()):
        yield Finding(
            Level.WARNING,
            "LedgerStartUnknown",
            f"table property {names.LEDGER_SINCE} is not set. When ancestors of a snapshot expire, Lethe cannot tell whether it "
            "is from before the first ledger or its ledger is lost.",
            "Wait for the operator's next run, or use lethe_spark.write(…, prepare=True): both set the property.",
        )


def _batches(seen: Examined) -> Iterator[Finding]:
    found, track = seen.batches, f"`lethe track {seen.table}`"
    if found is None:
        if seen.claim is not None and any(s.ledger for s in seen.snapshots.values()):
            yield Finding(
                Level.NOTE,
                "NoBatchesTable",
                "there is no table of batches for other engines.",
                f"The operator's next run makes it, unless spec.batchTracking.enabled is false. Or run {track}.",
            )
    elif found.conflict:
        yield Finding(Level.WARNING, "BatchesTableTaken", found.conflict)
    elif found.version is None:
        yield Finding(
            Level.WARNING,
            "BatchesTableForeign",
            f"Lethe did not write the newest snapshot of {found.name}: another writer did, or the table was never filled.",
            f"Stop other writers. The operator's next run rebuilds the table from the ledger. Or run {track}.",
        )
    elif not found.current:
        yield Finding(
            Level.WARNING,
            "BatchesTableBehind",
            f"{found.name} shows version {found.version} of a ledger, which is not the ledger of the table's head.",
            f"The operator's next run updates it. Or run {track}.",
        )
    elif not found.agrees:
        yield Finding(
            Level.WARNING,
            "BatchesTableWrong",
            f"the counts of {found.name} differ from those of the ledger that it shows.",
            f"Run `lethe track {seen.table} --rebuild`, which rebuilds it from the ledger.",
        )


def _count_bare(snapshots: Mapping[int, Snapshot], head: Snapshot) -> int:
    bare, current = 0, head
    while current.ledger is None:
        bare += 1
        if current.parent_id is None or current.parent_id not in snapshots:
            break
        current = snapshots[current.parent_id]
    return bare


def _some(values: list[str]) -> str:
    more = len(values) - MAX_NAMED_FILES
    return ", ".join(values[:MAX_NAMED_FILES]) + (f" and {more} more" if more > 0 else "")


def _count(n: int, singular: str, many: str) -> str:
    return f"{n} {singular if n == 1 else many}"

"""Vacuum: SCAN, PURGE DATA, PURGE METADATA, COMMIT, and the maintenance that `spec.maintenance` enables. I/O.

`lethe.vacuum.plan` decides which files and tombstones to purge, `lethe.vacuum.housekeeping` which snapshots expire, which
manifests are rewritten and which orphans are removed. The commits of the purge stay: a maintenance step that fails is left to the
next run, and the result's message says so.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from lethe.base import names
from lethe.base.errors import LetheError, TransientError
from lethe.base.objects import ListedObject
from lethe.contract.result import ErasureCheckResult, Phase, RetentionOutcome, RunOutcome, VacuumResult
from lethe.contract.run import VacuumSpec
from lethe.decoder.process import NoDecoder
from lethe.iceberg.holds import Holds
from lethe.iceberg.locations import other_ledger, other_table, reachable, refused
from lethe.iceberg.snapshot_files import data_manifests
from lethe.ledger.ledger import Delta
from lethe.search.candidates import Survey, retention_for, traits_of
from lethe.search.candidates import survey as survey_of
from lethe.search.covered import HeldTable
from lethe.storage.object_store import open_store
from lethe.uri import contains
from lethe.vacuum.housekeeping import (
    KEEPS_FILES,
    Folders,
    Orphans,
    OrphanScope,
    keeps_files,
    named_files,
    plan_manifests,
    plan_orphans,
    shown,
)
from lethe.vacuum.plan import KeptFile, out_of_time

from lethe_spark.commit.ledger_commit import Committed, Intent, NothingToCommit, commit_on_ledger, noted_run, safe_text
from lethe_spark.commit.opening import open_table
from lethe_spark.commit.table_state import Base, observe_base
from lethe_spark.jobs.clean_up import expired, finished
from lethe_spark.jobs.erasure import verify
from lethe_spark.jobs.holds import holds_of
from lethe_spark.jobs.lost_partitions import leave_lost_specs
from lethe_spark.jobs.vacuum import compaction
from lethe_spark.jobs.vacuum.compaction import compact_small_files
from lethe_spark.jobs.vacuum.purge import PLANS, Purging, files_kept_changing
from lethe_spark.jvm.commit import RewriteManifests
from lethe_spark.jvm.metadata import remove_files
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import Cancelled, RunContext, table_properties

log = logging.getLogger(__name__)

TARGET: Final = "commit.manifest.target-size-bytes"
TARGET_DEFAULT: Final = 8 * 1024 * 1024
"""Iceberg's default of the target manifest size."""

NO_HOLDS: Final = Holds()
AT_ONCE: Final = 1000
"""How many files S3 deletes in one request."""


def rewrite_manifests(context: RunContext, table: SparkTable) -> Committed[int]:
    """List the data files of the head in fewer or better ordered manifests, if that helps readers.

    Plans again before each attempt to commit, because other commits add manifests.

    Returns:
        The commit; its outcome is the number of replaced manifests.

    Raises:
        ConflictError: The table moved between plan and commit.
        UnknownCommitState: It is unknown whether the commit succeeded.
        TransientError: A dependency is temporarily unavailable.
        LedgerError: A ledger file is unusable.
    """

    def plan(base: Base) -> Intent[int] | NothingToCommit[int]:
        target = int(base.facts.properties.get(TARGET, TARGET_DEFAULT))
        planned = plan_manifests(data_manifests(base.iceberg, base.facts.head_id, base.field_id), target)
        if planned.is_empty:
            return NothingToCommit(0)
        change = RewriteManifests(planned.replaced, planned.manifest_of)
        return Intent(Delta(context.run_id), change, len(planned.replaced))

    return commit_on_ledger(context, table, plan)


@dataclass(frozen=True)
class Swept:
    """The orphan files that were found and removed."""

    found: int = 0
    """The number of orphan files."""
    bytes: int = 0
    """Their total size."""
    removed: int = 0
    """The number of files that were removed."""
    listing: tuple[str, ...] = ()
    """The first of them, for users."""
    stopped: bool = False
    """The time was up before all were removed."""
    why: str = ""
    """Why not all were removed, other than time; empty: no such cause."""


def remove_orphan_files(
    context: RunContext, table: SparkTable, older_than: timedelta, dry: bool, out_of_time: Callable[[], str]
) -> Swept:
    """Find the orphan files of a table and remove them.

    Removes nothing if a part of the table's metadata cannot be read, or if the table property `gc.enabled` is false.

    Args:
        older_than: The minimum age of files to remove.
        dry: Only find them.
        out_of_time: Returns why no more files may be removed; empty: they may. Called before each thousand.

    Raises:
        InputError: The user has to change something.
        TableError: The table is not the one that the request was made for.
        LedgerError: A ledger file is unusable.
        TransientError: A dependency is temporarily unavailable.
        Exception: What reading a damaged manifest raises.
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
    try:
        foreign_owner = other_table(base.iceberg.io, listed, needed, folders, base.facts.uuid) or other_ledger(
            base.iceberg.io, ledgers, named_files(base.facts.snapshots.values()), base.facts.uuid
        )
    except NoDecoder as e:
        raise TransientError("ReadingFailed", f"{e}. Orphan files were not removed.") from e
    if foreign_owner is not None:
        why = str(refused(table.full_name, location, foreign_owner))
        log.warning("%s", why)
        return Swept(why=why)
    orphans = plan_orphans(
        listed, needed, OrphanScope(folders, context.spec.buffer.uri, context.run_id), datetime.now(UTC), older_than
    )
    context.reporter.phase(Phase.EXPIRING, f"{len(orphans.files)} orphan files of {orphans.bytes} bytes")
    context.step("before-orphans")
    return _removed(context, table, orphans, dry, out_of_time)


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


def before_expiry(
    context: RunContext, table: SparkTable, result: VacuumResult, time_is_up: Callable[[], str]
) -> VacuumResult:
    """Carry out the steps that commit. They come before the expiry, so that it can delete the files that they replace.

    Args:
        result: The result of the purge. If it has a snapshot, this stays the run's snapshot.
        time_is_up: Returns why no step may start any more; empty: one may.

    Returns:
        The result with what these steps did.

    Raises:
        Cancelled: The process received SIGTERM.
    """
    spec = _spec(context)
    if spec.maintenance.compact_small_files:
        bytes_left = None if spec.max_bytes is None else max(0, spec.max_bytes - result.bytes_rewritten)
        result = _step(
            "small files were not compacted",
            result,
            time_is_up,
            lambda r: _compact(context, table, bytes_left, r, time_is_up),
        )
    if spec.maintenance.rewrite_manifests:
        result = _step("manifests were not rewritten", result, time_is_up, lambda r: _manifests(context, table, r))
    return result


def _compact(
    context: RunContext, table: SparkTable, max_bytes: int | None, result: VacuumResult, time_is_up: Callable[[], str]
) -> VacuumResult:
    done = compact_small_files(context, table, max_bytes, time_is_up)
    result = _committed(result, done.snapshot_id, small_files_compacted=done.merged)
    if done.stopped:
        result = result.model_copy(update={"stopped": result.stopped or time_is_up()})
    return _noted(result, f"not all small files were compacted: {done.why}") if done.why else result


def _manifests(context: RunContext, table: SparkTable, result: VacuumResult) -> VacuumResult:
    done = rewrite_manifests(context, table)
    return _committed(result, done.snapshot_id, manifests_rewritten=done.outcome)


def planned(
    context: RunContext, table: SparkTable, result: VacuumResult, time_is_up: Callable[[], str]
) -> VacuumResult:
    """The result of a run that only plans, with the orphan files that another run would remove.

    Raises:
        Cancelled: The process received SIGTERM.
    """
    return after_expiry(context, table, result, time_is_up) if _spec(context).plan_only else result


def after_expiry(
    context: RunContext, table: SparkTable, result: VacuumResult, time_is_up: Callable[[], str]
) -> VacuumResult:
    """Remove orphan files, also those that the expiry left behind.

    Returns:
        The result with their number.

    Raises:
        Cancelled: The process received SIGTERM.
    """
    spec = _spec(context)
    if not spec.maintenance.remove_orphan_files:
        return result
    return _step("orphan files were not removed", result, time_is_up, lambda r: _sweep(context, table, r, time_is_up))


def _step(
    what: str, result: VacuumResult, time_is_up: Callable[[], str], act: Callable[[VacuumResult], VacuumResult]
) -> VacuumResult:
    """Carry out one step. If there is no time for it or it fails, the result says so."""
    if why := time_is_up():
        return result.model_copy(update={"stopped": result.stopped or why})
    try:
        return act(result)
    except Cancelled:
        raise
    except Exception as e:
        return _noted(result, f"{what}: {safe_text(e)}")


def _sweep(context: RunContext, table: SparkTable, result: VacuumResult, time_is_up: Callable[[], str]) -> VacuumResult:
    spec = _spec(context)
    older_than = timedelta(seconds=spec.maintenance.orphan_files_older_than_seconds)
    swept = remove_orphan_files(context, table, older_than, spec.plan_only, time_is_up)
    changes = {
        "orphan_files_found": swept.found,
        "orphan_bytes_found": swept.bytes,
        "orphan_files_removed": swept.removed,
        "orphan_files": swept.listing,
        "stopped": result.stopped or (time_is_up() if swept.stopped else ""),
    }
    result = result.model_copy(update=changes)
    return _noted(result, f"not all orphan files were removed: {swept.why}") if swept.why else result


def _spec(context: RunContext) -> VacuumSpec:
    assert context.spec.vacuum is not None
    return context.spec.vacuum


def _noted(result: VacuumResult, why: str) -> VacuumResult:
    log.warning("%s", why)
    return result.model_copy(update={"message": f"{result.message}; {why}" if result.message else why})


def _committed(result: VacuumResult, snapshot_id: int | None, **counts: int) -> VacuumResult:
    if snapshot_id is None or result.snapshot_id is not None:
        return result.model_copy(update=counts)
    return result.model_copy(update={**counts, "outcome": RunOutcome.COMMITTED, "snapshot_id": snapshot_id})


def survey(base: Base, spec: VacuumSpec, holds: Holds = NO_HOLDS) -> Survey | None:
    """Survey the head.

    Args:
        holds: Those that the run knows.

    Returns:
        None, if no tombstone is active, no erasure has rows left to purge, and no row can be too old.
    """
    head = base.head()
    if head is None:
        return None
    now = datetime.now(UTC)
    retention = retention_for(base.iceberg, base.ledger, base.field_id, spec, now, base.facts.name)
    traits = traits_of(base.iceberg, base.field_id)
    held = HeldTable(base.iceberg, head.snapshot_id, base.field_id, holds).count if holds.holds else None
    return survey_of(head, base.ledger, base.field_id, traits, spec, now, retention, held)


def _surveyed(context: RunContext, table: SparkTable) -> Survey | None:
    """Survey the head for the run.

    Raises:
        InputError: `InvalidHold`.
    """
    base = observe_base(context, table)
    return survey(base, _spec(context), holds_of(context, base))


def run(context: RunContext) -> VacuumResult:
    """Purge the rows that are tombstoned now, within the limits of the run.

    A run that only plans changes nothing and returns the plan.

    Raises:
        InputError: The user has to change something.
        ConflictError: `DataMoved`.
        TransientError: A dependency is temporarily unavailable.
    """
    spec = context.spec.vacuum
    assert spec is not None
    time_is_up = _limited(spec)
    context.reporter.phase(Phase.PLANNING)
    table = open_table(context)
    if spec.plan_only:
        context.reporter.phase(Phase.SCAN)
        surveyed = _surveyed(context, table)
        return planned(context, table, _only_planned(context, surveyed), time_is_up)
    with noted_run(context, table, None):
        leave_lost_specs(context, table)
        purged = _purged(context, table, spec, time_is_up)
    if isinstance(purged, NotApproved):
        return planned(context, table, purged.planned, time_is_up)
    result, kept = purged.result, purged.kept
    if spec.expire_snapshots:
        # Purged files are deleted from the storage when the last snapshot that names them expires.
        result = expired(context, table, result, spec.snapshots)
    result = after_expiry(context, table, result, time_is_up)
    return finished(context, table, verify.settled(context, table, result, kept))


def _limited(spec: VacuumSpec) -> Callable[[], str]:
    """Returns a function that says why the time of the run is up; empty: it is not. The time starts now."""
    began = time.monotonic()
    return lambda: out_of_time(spec, timedelta(seconds=time.monotonic() - began), datetime.now(UTC))


def bytes_to_read(context: RunContext) -> int:
    """How many bytes of data files this run reads, by its plan for the current head.

    Raises:
        InputError: The user has to change something.
        TransientError: A dependency is temporarily unavailable.
    """
    spec = context.spec.vacuum
    assert spec is not None
    context.reporter.phase(Phase.PLANNING)
    table = open_table(context)
    surveyed = _surveyed(context, table)
    size = surveyed.planned.bytes if surveyed is not None else 0
    if spec.maintenance.compact_small_files and not spec.plan_only:
        bytes_left = None if spec.max_bytes is None else max(0, spec.max_bytes - size)
        size += compaction.planned_bytes(context, table, bytes_left)
    return size


def run_erasure_check(context: RunContext) -> ErasureCheckResult:
    """Check the open erasures.

    Raises:
        InputError: The user has to change something.
        ConflictError: The table moved between plan and commit.
        TransientError: A dependency is temporarily unavailable.
    """
    context.reporter.phase(Phase.PLANNING)
    table = open_table(context)
    nothing = ErasureCheckResult(
        run_id=context.spec.run_id,
        family=context.spec.family,
        attempt=context.spec.attempt,
        outcome=RunOutcome.NOTHING_TO_DO,
        finished_time=datetime.now(UTC),
    )
    return finished(context, table, verify.run(context, table, nothing))


@dataclass(frozen=True)
class NotApproved:
    """The plan is not the approved one."""

    planned: VacuumResult
    """Says so, with the new plan."""


@dataclass(frozen=True)
class Purged:
    """The rows are purged, as far as limits and holds allow."""

    result: VacuumResult
    kept: tuple[KeptFile, ...]
    """The files that stay because of holds."""


def _purged(
    context: RunContext, table: SparkTable, spec: VacuumSpec, time_is_up: Callable[[], str]
) -> Purged | NotApproved:
    """Purge, then do the maintenance steps that commit."""
    step_bytes = spec.step_bytes
    for _ in range(PLANS):
        context.reporter.phase(Phase.SCAN)
        surveyed = _surveyed(context, table)
        if spec.approved_plan and (surveyed is None or surveyed.planned.digest != spec.approved_plan):
            return NotApproved(_only_planned(context, surveyed))
        purging = Purging(context, table, spec, surveyed, time_is_up, step_bytes) if surveyed is not None else None
        if purging is None or purging.work():
            break
        step_bytes = purging.step_bytes
    else:
        raise files_kept_changing(table, 0)
    result = _result(context, purging).model_copy(update={"retention": _retention(spec, surveyed, purging)})
    if result.retention is not None and result.retention.problem:
        result = _noted(result, result.retention.problem)
    kept = tuple(purging.held.values()) if purging is not None else ()
    return Purged(before_expiry(context, table, result, time_is_up), kept)


def _only_planned(context: RunContext, found: Survey | None) -> VacuumResult:
    """The result of a run that only plans, or whose plan is not the approved one. It changes nothing and expires no snapshots."""
    spec = context.spec
    assert spec.vacuum is not None
    reason = "" if spec.vacuum.plan_only else f"the plan differs from the approved plan {spec.vacuum.approved_plan}"
    return VacuumResult(
        run_id=spec.run_id,
        family=spec.family,
        attempt=spec.attempt,
        outcome=RunOutcome.PLANNED if found is not None and not found.is_empty else RunOutcome.NOTHING_TO_DO,
        message=f"{spec.table.name}: {reason}. Nothing was changed." if reason else "",
        plan=found.planned if found is not None and not found.is_empty else None,
        retention=_retention(spec.vacuum, found),
        finished_time=datetime.now(UTC),
    )


def _retention(spec: VacuumSpec, found: Survey | None, purging: Purging | None = None) -> RetentionOutcome | None:
    """What the run found about rows that are too old.

    Args:
        found: None: the table is empty.
        purging: What was done. None: the run only plans.
    """
    if spec.retention is None or spec.batch_ids:
        return None
    outcome = RetentionOutcome(rule=spec.retention.rule, cutoff=spec.retention.cutoff)
    if found is None:
        return outcome
    if found.retention is None:
        return outcome.model_copy(update={"problem": found.problem, "snapshot_id": found.plan.snapshot_id})
    aged, cutoff, next_cutoff = found.plan.aged, found.retention.cutoff, found.live.next_cutoff
    held = purging.aged_held if purging is not None else frozenset[str]()
    if found.retention.column is not None and any(f.path not in held for f in found.plan.losing_aged_in_part):
        # Rows that stay of these files may be too old from the next day on. Of batches, the ledger says when. Files that holds
        # keep are looked at again when the holds change.
        next_cutoff = cutoff + timedelta(days=1)
    snapshot_id = purging.tally.snapshot_id if purging is not None else None
    changes = {
        "cutoff": cutoff,
        "next_cutoff": next_cutoff,
        "snapshot_id": snapshot_id or found.plan.snapshot_id,
        "files_held": len(held),
        "left": purging.leaves_aged if purging is not None else aged is not None and bool(aged.files),
    }
    return outcome.model_copy(update=changes)


def _result(context: RunContext, purging: Purging | None) -> VacuumResult:
    spec = context.spec
    outcome = VacuumResult(
        run_id=spec.run_id,
        family=spec.family,
        attempt=spec.attempt,
        outcome=RunOutcome.NOTHING_TO_DO,
        finished_time=datetime.now(UTC),
    )
    if purging is None:
        return outcome
    tally = purging.tally
    return outcome.model_copy(
        update={
            "outcome": RunOutcome.COMMITTED if tally.snapshot_id is not None else RunOutcome.NOTHING_TO_DO,
            "message": purging.message,
            "snapshot_id": tally.snapshot_id,
            "files_rewritten": tally.files_rewritten,
            "files_deleted": tally.files_deleted,
            "files_added": tally.files_added,
            "bytes_rewritten": tally.bytes_rewritten,
            "bytes_copied": tally.bytes_copied,
            "tombstones_purged": tally.tombstones,
            "rows_purged": tally.rows,
            "files_left": len(purging.left),
            "bytes_left": sum(f.size for f in purging.left),
            "files_held": len(purging.holding),
            "holds": tuple(sorted(frozenset[str]().union(*purging.holding.values()))),
            "plan": purging.survey.planned,
            "steps": tally.steps,
            "files_in_vain": tally.files_in_vain,
            "purge_seconds": round(tally.seconds, 3),
            "stopped": purging.stopped,
        }
    )

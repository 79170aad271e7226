"""Checks the open erasures. I/O; `lethe.erasure` decides.

It expires snapshots that name files of due erasures, searches the storage for every file that may have held a row, and records
and closes the erasures that nothing blocks any more. Each step is safe to repeat, by this run or the next. Only the ledger says
which erasures are closed: an erasure is closed after its record is written.
"""

import logging
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from lethe.base.errors import ConflictError, TransientError
from lethe.contract.result import ErasureCheckResult, Phase, RunOutcome, VacuumResult
from lethe.contract.run import RunKind, SnapshotLimits
from lethe.decoder.process import NoDecoder
from lethe.erasure.progress import hold_blockers, open_erasures_of
from lethe.erasure.record import holders, losing_ledger, property_blocker, snapshot_blockers, to_expire
from lethe.iceberg.snapshot_files import Manifests, refs_of
from lethe.ledger.ledger import Delta
from lethe.ledger.tombstone import BlockerKind, ErasureBlocker
from lethe.search.object_versions import Storage, VersionsDenied, open_storage
from lethe.uri import place, without_values
from lethe.vacuum.housekeeping import keeps_files
from lethe.vacuum.plan import KeptFile

from lethe_spark.commit.ledger_commit import Intent, commit_on_ledger, safe_text
from lethe_spark.commit.table_state import observe_base
from lethe_spark.jobs.clean_up import anchor_head, expired
from lethe_spark.jobs.erasure.close import CheckedErasures, close, for_erasures, note_purged, verification_of
from lethe_spark.jobs.erasure.metadata import (
    clear_metadata,
    drop_dangling_deletes,
    rewrite_manifests_of_erasures,
)
from lethe_spark.jobs.erasure.strays import (
    block_by_writers,
    end_uploads,
    leftovers,
    list_storage,
    name_buffer,
    name_replacements,
    not_covered,
)
from lethe_spark.jvm.commit import LedgerOnly
from lethe_spark.jvm.metadata import expire
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Run, table_properties

log = logging.getLogger(__name__)
V = TypeVar("V", VacuumResult, ErasureCheckResult)
ROUNDS: Final = 3
"""How often a run checks, if others add snapshots in the meantime."""


def run(context: Run, table: IcebergTable, result: ErasureCheckResult) -> ErasureCheckResult:
    """Carry out a run that only checks erasures. Expires old snapshots first, if the policy enables it.

    Raises:
        Exception: As `settle`.
    """
    spec = context.spec.vacuum
    assert spec is not None
    if spec.expire_snapshots:
        result = expired(context, table, result, spec.snapshots)
    return settle(context, table, result)


def settled(context: Run, table: IcebergTable, result: VacuumResult, kept: Collection[KeptFile] = ()) -> VacuumResult:
    """Check the erasures at the end of a vacuum. Never raises: the vacuum's commits stay, and the next check continues.

    Args:
        kept: The files that the vacuum left because of holds.

    Returns:
        The vacuum's result with the erasures.
    """
    spec = context.spec.vacuum
    if spec is not None and spec.plan_only:
        return result
    try:
        return settle(context, table, result, kept)
    except Exception as e:
        log.warning("the erasures of %s were not checked; a later run tries again: %s", table.full_name, safe_text(e))
        return result


def settle(context: Run, table: IcebergTable, result: V, kept: Collection[KeptFile] | None = None) -> V:
    """Check the erasures and close those that are verified.

    Args:
        kept: The files that the run left because of holds. None: it purged nothing, so it does not know.

    Returns:
        The run's result with the erasures.

    Raises:
        ConflictError: The table moved between plan and commit.
        UnknownCommitState: It is unknown whether the commit succeeded.
        TransientError: `ReadingFailed` among them.
        LedgerError: A ledger file is unusable.
        Exception: What the storage raises.
    """
    try:
        return _settle(context, table, result, kept)
    except NoDecoder as e:
        raise TransientError("ReadingFailed", f"{e}. The erasures were not checked.") from e


def _settle(context: Run, table: IcebergTable, result: V, kept: Collection[KeptFile] | None) -> V:
    ledger = observe_base(context, table).ledger
    count = len(ledger.open_erasures)
    if not count and not len(ledger.purged_files):
        return result
    context.reporter.phase(Phase.EXPIRING, f"checking {count} erasures")
    manifests = Manifests()
    committed: list[int | None] = []
    due: tuple[int, ...] = ()
    for _ in range(ROUNDS):
        anchor_head(context, table)  # the new ledger accounts for rows that another writer has added
        committed.append(drop_dangling_deletes(context, table))
        committed.append(note_purged(context, table, manifests))
        context.step("after-purged-noted")
        committed.append(rewrite_manifests_of_erasures(context, table, manifests))
        context.step("after-manifests-rewritten")
        due += _expire_due(context, table, manifests)
        storage = open_storage(table.location, observe_base(context, table).iceberg.io, table_properties(context))
        seen = _check_snapshots(context, table, manifests)
        if kept is not None:
            seen.holds = hold_blockers(seen.claims.values(), kept, context.spec.holds)
        if seen.free:
            holds = seen.holds
            seen = _check_storage(context, table, manifests, storage)
            seen.holds = holds
            clear_metadata(context, table, seen, storage, _due(context, seen))
        context.step("after-storage-asked")
        verification = verification_of(context, seen, storage)
        outcomes, snapshot_id = close(context, table, seen, verification, due)
        committed.append(snapshot_id)
        if not seen.is_outdated:
            break
    still_open = [o for o in outcomes if o.verified_time is None]
    own = (
        next((i for i in reversed(committed) if i is not None), None)
        if context.spec.kind is RunKind.ERASURE_CHECK
        else None
    )
    return result.model_copy(
        update={
            "erasures": outcomes,
            "erasures_open": len(still_open),
            "snapshots_expired": result.snapshots_expired + len(due),
            **({"snapshot_id": own, "outcome": RunOutcome.COMMITTED} if own is not None else {}),
        }
    )


def _due_by(context: Run) -> datetime:
    """The end of the lead time.

    Snapshots with files that must be deleted by then are expired whatever the limits, so that time is left to verify the
    deletion.
    """
    lead = context.spec.vacuum.evict_by_lead_seconds if context.spec.vacuum is not None else 0
    return datetime.now(UTC) + timedelta(seconds=lead)


def _due(context: Run, seen: CheckedErasures) -> set[str]:
    """The keys of the erasures for which older object versions are deleted too."""
    return {k for k in seen.free if seen.claims[k].erasure.is_due(_due_by(context))}


def _expire_due(context: Run, table: IcebergTable, manifests: Manifests) -> tuple[int, ...]:
    """Expire the snapshots that name files of due erasures.

    Returns:
        Their ids.
    """
    if keeps_files(table.properties):
        return ()
    own = for_erasures(context, "carriers")
    for anchored in (False, True):
        base = observe_base(context, table)
        history = manifests.history(base.iceberg, base.facts, base.field_id)
        due = {e.restatement for e in base.ledger.open_erasures if e.is_purged and e.is_due(_due_by(context))}
        if not due:
            return ()
        held = holders(
            history, base.ledger.purged_files, open_erasures_of(base.ledger, base.facts.snapshots, base.field_id)
        )
        ids = to_expire(history, held, refs_of(base.iceberg, base.facts), due, datetime.now(UTC))
        if not losing_ledger(history, ids, base.ledger.carriers):
            break
        if anchored:
            raise ConflictError(
                "HeadMoved",
                f"{table.full_name}: another writer keeps committing snapshots without a ledger. A later run "
                "tries again.",
            )
        # Every ledger commit names the carriers of all snapshots without their own ledger.
        commit_on_ledger(own, table, lambda _: Intent(Delta(own.run_id), LedgerOnly(), None))
    context.step("before-erasure-expiry")
    try:
        expire(table, ids)
    except ConflictError as e:  # a tag or branch was just created; the check reports it as a blocker
        log.info("%s: %s", table.full_name, e)
        return ()
    context.step("after-erasure-expiry")
    return ids


def _check_snapshots(context: Run, table: IcebergTable, manifests: Manifests) -> CheckedErasures:
    """Check which erasures snapshots, tags and branches block now."""
    base = observe_base(context, table)
    history = manifests.history(base.iceberg, base.facts, base.field_id)
    files = dict(base.ledger.purged_files)
    refs = refs_of(base.iceberg, base.facts)
    claimed = {c.key: c for c in open_erasures_of(base.ledger, base.facts.snapshots, base.field_id)}
    spec = context.spec.vacuum
    limits = spec.snapshots if spec is not None else SnapshotLimits()
    now = datetime.now(UTC)
    blockers = snapshot_blockers(history, holders(history, files, claimed.values()), refs, limits.max_age_seconds, now)
    if keeps_files(base.facts.properties):
        blockers = {k: [property_blocker(), *blockers.get(k, ())] for k in claimed}
    return CheckedErasures(claimed, history, files, tuple(r.name for r in refs), base.facts.head_id, blockers)


def _check_storage(context: Run, table: IcebergTable, manifests: Manifests, storage: Storage) -> CheckedErasures:
    """Check which erasures running writers, snapshots and the storage block, and remove the files of the others.

    Lists the storage before it reads the snapshots, so that no file of a commit in between is missed.
    """
    try:
        listing = list_storage(context, table, storage)
    except VersionsDenied as e:
        seen = _check_snapshots(context, table, manifests)
        _block_unseen(seen, e)
        return seen
    context.step("after-storage-listed")
    seen = _check_snapshots(context, table, manifests)
    block_by_writers(seen, listing)
    free = set(seen.free)
    due = _due(context, seen)
    blockers_by_path = {
        f.path: free.intersection(f.restatements) for f in seen.files.values() if not free.isdisjoint(f.restatements)
    }
    named = {place(path) for path in seen.history.files}
    for path in [path for path in blockers_by_path if place(path) in named]:
        seen.block(
            blockers_by_path.pop(path),
            ErasureBlocker(BlockerKind.OBJECT, without_values(path), None, "a snapshot names it"),
        )
    try:
        blockers_by_path |= leftovers(context, observe_base(context, table), seen, storage, listing)
        uploads = end_uploads(seen, storage, listing)
        paths = storage.find(blockers_by_path)
        kept = {
            path: b for path, r in paths.items() if (b := storage.remove(r, not due.isdisjoint(blockers_by_path[path])))
        }
        there = storage.find(p for p in paths if p not in kept)
    except VersionsDenied as e:
        _block_unseen(seen, e)
        return seen
    kept |= {path: storage.find_blocker(r) for path, r in there.items()}
    for path, blocker in sorted(kept.items()):
        seen.block(blockers_by_path[path], blocker)
    seen.locations = listing.known_locations.locations.roots
    seen.metadata_folders = tuple(
        f for f in listing.known_locations.locations.metadata if storage.cannot_list(f) is None
    )
    seen.not_covered = (
        *not_covered(seen, storage, listing, uploads),
        *name_buffer(context, seen),
        *name_replacements(context, observe_base(context, table), seen),
    )
    return seen


def _block_unseen(seen: CheckedErasures, error: VersionsDenied) -> None:
    why = "it is unknown whether older versions of objects are deleted: grant s3:ListBucketVersions"
    seen.block(seen.free, ErasureBlocker(BlockerKind.OBJECT_VERSION, f"s3://{error.bucket}", None, why))

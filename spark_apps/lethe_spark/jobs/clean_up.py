"""Cleans up at the end of every run. I/O; `lethe.vacuum.housekeeping` decides.

It gives a ledger to a head without one, expires snapshots if there are too many, removes the ledger files of expired snapshots,
and updates the table of batches.
"""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

from lethe import ledger_store
from lethe.base import names
from lethe.base.errors import LedgerError
from lethe.base.names import run_id
from lethe.base.objects import ListedObject
from lethe.buffer.batch_rows import BatchRow
from lethe.contract.result import ErasureCheckResult, Phase, ReanchoringResult, RunOutcome, RunResult, VacuumResult
from lethe.contract.run import SnapshotLimits
from lethe.contract.settings import RunFamily
from lethe.iceberg.locations import other_ledger, refused
from lethe.iceberg.snapshot_files import Manifests
from lethe.ledger.ledger import Delta
from lethe.ledger.root import Root
from lethe.storage.object_store import open_store
from lethe.vacuum.housekeeping import (
    KEEPS_FILES,
    SnapshotTree,
    just_superseded,
    keeps_files,
    named_files,
    needed_roots,
    plan_cleanup,
    plan_expiry,
    too_many,
)

from lethe_spark.commit.ledger_commit import Intent, NothingToCommit, commit_on_ledger, keep_up, safe_text
from lethe_spark.commit.masking import NativeMasker, mask_rest
from lethe_spark.commit.table_state import Base, observe_base
from lethe_spark.jobs.erasure.close import note_purged
from lethe_spark.jobs.erasure.metadata import rewrite_manifests_of_erasures
from lethe_spark.jvm.commit import LedgerOnly
from lethe_spark.jvm.metadata import expire, remove_files
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Run, table_properties

log = logging.getLogger(__name__)

READ_AT_ONCE = 8
R = TypeVar("R", bound=RunResult)
V = TypeVar("V", VacuumResult, ErasureCheckResult)


def reanchor(context: Run, table: IcebergTable) -> int | None:
    """Give a ledger to a head without one.

    Otherwise an expiry could lose the ledger. It is an ordinary ledger commit with an empty delta: it copies the ledger, names no
    `tombstone.vacuum.file`, and restores the tombstones that the other writer's files require (`lethe.files.native_deletes`).

    Returns:
        The id of the new snapshot; None: the head has a ledger, or the table is empty.

    Raises:
        ConflictError: The table moved between plan and commit.
        UnknownCommitState: It is unknown whether the commit succeeded.
        TransientError: A dependency is temporarily unavailable.
        LedgerError: A ledger file is unusable.
    """

    def plan(base: Base) -> Intent[None] | NothingToCommit[None]:
        if not base.loaded.resolution.bare:
            return NothingToCommit(None)
        return Intent(Delta(context.run_id), LedgerOnly(), None)

    return commit_on_ledger(context, table, plan).snapshot_id


def reanchor_and_mask(context: Run, table: IcebergTable, masker: NativeMasker) -> int | None:
    """Give a ledger to a head without one, and native deletes to tombstones without them.

    Returns:
        The id of the last new snapshot; None: the head needs neither.

    Raises:
        TooMuchToSearch: The masker searches no more than it may.
        Exception: As `reanchor`.
    """
    anchor = reanchor(context, table)
    masked = mask_rest(context, table, masker) if masker.native is not None and table.head_id is not None else None
    return masked if masked is not None else anchor


def anchored(context: Run, snapshot_id: int | None) -> ReanchoringResult:
    """The result of a re-anchoring run. Pure, except that it reads the clock.

    Args:
        snapshot_id: Of the last new snapshot. None: there is none.
    """
    spec = context.spec
    return ReanchoringResult(
        run_id=spec.run_id,
        family=spec.family,
        attempt=spec.attempt,
        outcome=RunOutcome.COMMITTED if snapshot_id is not None else RunOutcome.NOTHING_TO_DO,
        snapshot_id=snapshot_id,
        finished_time=datetime.now(UTC),
    )


def beside(context: Run, head_id: int | None) -> Run:
    """The context for re-anchoring a head at the end of another run.

    It has its own run id, for this head: otherwise the commit would count as the run's, and a refused run would be found in the
    history as done.
    """
    spec = context.spec
    own = run_id(spec.dataset.uid, RunFamily.CONSOLIDATION, [f"head\n{head_id}"])
    return replace(context, spec=spec.model_copy(update={"run_id": own, "family": RunFamily.CONSOLIDATION}))


@dataclass(frozen=True)
class CleanedUp:
    """What was cleaned up."""

    anchored: int | None = None
    """The snapshot that gave the head a ledger; None: none was needed."""
    expired: int = 0
    """The number of expired snapshots."""
    removed: int = 0
    """The number of removed ledger files."""


def finished(context: Run, table: IcebergTable, result: R, waiting: Sequence[BatchRow] | None = None) -> R:
    """Clean up at the end of a run. Never raises: the run's commits stay, and the next run cleans up again.

    Args:
        waiting: The batches that still wait in the buffer; None: the run did not list it.

    Returns:
        The run's result with what was cleaned up.
    """
    done = CleanedUp()
    try:
        done = anchor_and_expire(context, table, committed=result.snapshot_id is not None)
    except Exception as e:
        log.warning("the clean-up of %s failed; the next run tries again: %s", table.full_name, safe_text(e))
    tracks_batches = context.spec.batch_tracking
    return result.model_copy(
        update={
            "snapshots_expired": result.snapshots_expired + done.expired,
            "ledger_files_removed": result.ledger_files_removed + done.removed,
            "not_tracked": keep_up(context, table, create=True, waiting=waiting) if tracks_batches else "",
        }
    )


def anchor_and_expire(context: Run, table: IcebergTable, committed: bool) -> CleanedUp:
    """Give a ledger to a head without one, if this run has committed nothing, and expire snapshots if there are too many.

    Raises:
        ConflictError: The table moved between plan and commit.
        TransientError: A dependency is temporarily unavailable.
        UnknownCommitState: It is unknown whether the commit succeeded.
        LedgerError: A ledger file is unusable.
    """
    limits = context.spec.snapshots or SnapshotLimits()
    table.refresh()
    long = too_many(table.snapshot_count, limits)
    if committed and not long:
        return CleanedUp()  # the run's commit gave the head a ledger
    anchored = anchor_head(context, table)
    if not long:
        return CleanedUp(anchored)
    expired = expire_down(context, table, limits, by_age=False)
    return CleanedUp(anchored, expired, clean_up(context, table) if expired else 0)


def anchor_head(context: Run, table: IcebergTable) -> int | None:
    """Give a ledger to a head without one.

    Returns:
        The id of the new snapshot; None: the head has one.

    Raises:
        Exception: As `reanchor`.
    """
    base = observe_base(context, table)
    return reanchor(beside(context, base.facts.head_id), table) if base.loaded.resolution.bare else None


def expire_down(context: Run, table: IcebergTable, limits: SnapshotLimits, by_age: bool) -> int:
    """Expire the snapshots that the limits do not keep, and delete their files.

    Before that, a head without a ledger gets one, and while an erasure is open, the ledger lists the files that may hold its
    rows.

    Args:
        by_age: Whether snapshots also expire because of their age.

    Returns:
        The number of expired snapshots.
    """
    if keeps_files(table.properties):
        log.info("%s: no snapshot expires: %s", table.full_name, KEEPS_FILES)
        return 0
    context.reporter.phase(Phase.EXPIRING)
    anchor_head(context, table)
    if observe_base(context, table).ledger.open_erasures:
        manifests = Manifests()
        note_purged(context, table, manifests)
        # Before the expiry, so that it also deletes the replaced manifests.
        rewrite_manifests_of_erasures(context, table, manifests)
    base = observe_base(context, table)
    facts = base.facts
    tree = SnapshotTree(facts.snapshots, facts.head_id, facts.refs, base.ledger.carriers)
    ids = plan_expiry(tree, limits, datetime.now(UTC), by_age=by_age)
    return expire(table, ids) if ids else 0


def expired(context: Run, table: IcebergTable, result: V, limits: SnapshotLimits) -> V:
    """Expire the snapshots that the limits do not keep, also because of their age, and remove their ledger files.

    Returns:
        The run's result with what was removed.
    """
    began = time.monotonic()
    count = expire_down(context, table, limits, by_age=True)
    removed = clean_up(context, table)
    said = f"no snapshot expires: {KEEPS_FILES}." if keeps_files(table.properties) else ""
    changes = {
        "message": "; ".join(filter(None, (result.message, said))),
        "snapshots_expired": count,
        "ledger_files_removed": removed,
        "expiry_seconds": round(time.monotonic() - began, 3),
    }
    return result.model_copy(update=changes)


def clean_up(context: Run, table: IcebergTable) -> int:
    """Remove the ledger files that no snapshot needs.

    If a part of the history cannot be read, nothing is removed, because a repair may need the files.

    Returns:
        Their number. Never raises: the next clean-up finds them again.
    """
    try:
        return _clean_up(context, table)
    except Exception as e:
        log.warning("%s: no ledger file was removed: %s", table.full_name, safe_text(e))
        return 0


def _clean_up(context: Run, table: IcebergTable) -> int:
    listed = _listed(context, observe_base(context, table))
    # Read the table after the listing: its metadata names all files that were published before, and later files are too young.
    base = observe_base(context, table)
    now = datetime.now(UTC)
    needed = named_files(base.facts.snapshots.values()) | _needed(base)
    needed |= _names(_roots(base, just_superseded(listed, now), must=False))
    plan = plan_cleanup(listed, needed, now)
    if not plan.roots and not plan.others:
        return 0
    foreign_ledger = other_ledger(base.iceberg.io, listed, needed, base.facts.uuid, plan.roots)
    if foreign_ledger is not None:
        raise refused(base.facts.name, base.facts.location, foreign_ledger)
    context.step("before-cleanup")
    removed = remove_files(table, plan.roots)
    context.step("between-cleanups")
    return removed + remove_files(table, plan.others)


def _listed(context: Run, base: Base) -> list[ListedObject]:
    location = base.facts.location.rstrip("/")
    store = open_store(location, table_properties(context))
    folders = (names.LEDGER_FOLDER, names.RUNS_FOLDER)
    return [o for folder in folders for o in store.list(f"{location}/{folder}")]


def _needed(base: Base) -> frozenset[str]:
    """The names of the ledger files of retained snapshots.

    Raises:
        LedgerError: One of the roots cannot be read.
    """
    facts = base.facts
    own = {s.ledger: s.id for s in facts.snapshots.values() if s.ledger is not None}
    roots = _roots(base, own, must=True)
    listing = [own[uri] for uri, root in roots.items() if root is not None and root.parts.get("carriers")]
    carriers = [c for i in listing for c in ledger_store.load(base.iceberg.io, facts, i).ledger.carriers]
    others = needed_roots(facts.snapshots, carriers, facts.name, facts.ledger_since) - own.keys()
    return _names(roots) | _names(_roots(base, others, must=True))


def _roots(base: Base, uris: Iterable[str], must: bool) -> dict[str, Root | None]:
    """Read roots, by URI.

    Args:
        must: False: a root that cannot be read is None.

    Raises:
        LedgerError: A root cannot be read and `must` is true.
    """

    def read(uri: str) -> tuple[str, Root | None]:
        try:
            return uri, ledger_store.read_root(base.iceberg.io, base.facts, uri)
        except LedgerError:
            if must:
                raise
            return uri, None  # it was never finished or is already removed, so no reader uses it

    with ThreadPoolExecutor(max_workers=READ_AT_ONCE) as pool:
        return dict(pool.map(read, uris))


def _names(roots: Mapping[str, Root | None]) -> frozenset[str]:
    """The names of roots and of all their parts."""
    own = frozenset(uri.rpartition("/")[2] for uri in roots)
    return own.union(*(root.files for root in roots.values() if root is not None))

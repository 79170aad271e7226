"""What every run does at its end: a head without a ledger is re-anchored, a history that is too long cut, what the snapshots
that went had of ledger files is removed, and the table of batches brought up to date.

I/O; which snapshots go is decided in `lethe.vacuum.expiry`, which files in `lethe.vacuum.ledger_files`.
"""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from lethe.base import names
from lethe.base.errors import LedgerError
from lethe.buffer.batch import ListedObject
from lethe.buffer.batch_rows import BatchRow
from lethe.contract.result import ErasureCheckResult, Phase, RunResult, VacuumResult
from lethe.contract.run import SnapshotLimits
from lethe.iceberg.history import Manifests
from lethe.iceberg.tenants import other_ledger
from lethe.ledger.root import Root
from lethe.ledger_store import store as ledger_store
from lethe.storage.object_store import open_store
from lethe.vacuum.expiry import SnapshotTree, plan_expiry, too_many
from lethe.vacuum.ledger_files import just_superseded, named_files, needed_roots, plan_cleanup

from lethe_spark.commit.table_state import Base, observe_base
from lethe_spark.commit.tracking import keep_up, safe_text
from lethe_spark.jobs.erasure.metadata import rewrite_telling_manifests
from lethe_spark.jobs.finish.purged import note_purged
from lethe_spark.jobs.finish.reanchor import beside, reanchor
from lethe_spark.jvm.removal import expire, remove_files
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Run, table_properties

log = logging.getLogger(__name__)
READ_AT_ONCE = 8
R = TypeVar("R", bound=RunResult)
V = TypeVar("V", VacuumResult, ErasureCheckResult)


@dataclass(frozen=True)
class Tidied:
    """`anchored`: the snapshot that gave the head a ledger; `expired` snapshots, `removed` files of ledgers."""

    anchored: int | None = None
    expired: int = 0
    removed: int = 0


def finished(context: Run, table: IcebergTable, result: R, waiting: Sequence[BatchRow] | None = None) -> R:
    """The result of a run whose own work is done, after tidying up. Never raises: what was committed stays committed,
    and the next run tidies up as well.

    Args:
        waiting: What the run has left in the buffer; None when it did not look.
    """
    tidied = Tidied()
    try:
        tidied = tidy(context, table, committed=result.snapshot_id is not None)
    except Exception as e:
        log.warning("tidying up %s is left to the next run: %s", table.full_name, safe_text(e))
    wanted = context.spec.batch_tracking
    return result.model_copy(
        update={
            "snapshots_expired": result.snapshots_expired + tidied.expired,
            "ledger_files_removed": result.ledger_files_removed + tidied.removed,
            "not_tracked": keep_up(context, table, create=True, waiting=waiting) if wanted else "",
        }
    )


def tidy(context: Run, table: IcebergTable, committed: bool) -> Tidied:
    """Re-anchor a bare head if this run has committed nothing, and cut a history that has grown too long.

    Raises: ConflictError, TransientError, UnknownCommitState, LedgerError.
    """
    limits = context.spec.snapshots or SnapshotLimits()
    table.refresh()
    long = too_many(table.snapshot_count, limits)
    if committed and not long:
        return Tidied()  # its commit has stamped the head
    anchored = anchor_head(context, table)
    if not long:
        return Tidied(anchored)
    expired = expire_down(context, table, limits, by_age=False)
    return Tidied(anchored, expired, clean_up(context, table) if expired else 0)


def anchor_head(context: Run, table: IcebergTable) -> int | None:
    """Give a bare head a ledger. Returns: the snapshot that carries it; None: the head had one. Raises: as `reanchor`."""
    base = observe_base(context, table)
    return reanchor(beside(context, base.facts.head_id), table) if base.loaded.resolution.bare else None


def expire_down(context: Run, table: IcebergTable, limits: SnapshotLimits, by_age: bool) -> int:
    """Expire what the limits allow to go, with its files. A bare head is re-anchored first, and what was in the files is noted as
    long as an erasure is open. Returns: how many went."""
    context.reporter.phase(Phase.EXPIRING)
    anchor_head(context, table)
    if observe_base(context, table).ledger.open_erasures:
        manifests = Manifests()
        note_purged(context, table, manifests)
        # Before the expiry, so that it lets go of the manifests that these replace.
        rewrite_telling_manifests(context, table, manifests)
    base = observe_base(context, table)
    facts = base.facts
    tree = SnapshotTree(facts.snapshots, facts.head_id, facts.refs, base.ledger.carriers)
    ids = plan_expiry(tree, limits, datetime.now(UTC), by_age=by_age)
    return expire(table, ids) if ids else 0


def expired(context: Run, table: IcebergTable, result: V, limits: SnapshotLimits) -> V:
    """The result of a run that was asked to expire what the limits let go, by their age as well, after it has."""
    began = time.monotonic()
    count = expire_down(context, table, limits, by_age=True)
    removed = clean_up(context, table)
    changes = {
        "snapshots_expired": count,
        "ledger_files_removed": removed,
        "expiry_seconds": round(time.monotonic() - began, 3),
    }
    return result.model_copy(update=changes)


def clean_up(context: Run, table: IcebergTable) -> int:
    """Remove the ledger files that nobody needs. Returns: how many. Never raises: the next clean-up finds them as well.

    A table of whose history a part cannot be read keeps everything: what nobody can read, somebody may have to mend.
    """
    try:
        return _clean_up(context, table)
    except Exception as e:
        log.warning("%s: no ledger file is removed: %s", table.full_name, safe_text(e))
        return 0


def _clean_up(context: Run, table: IcebergTable) -> int:
    listed = _listed(context, observe_base(context, table))
    # Looked at after the listing: what was published before it is seen, what came later is young.
    base = observe_base(context, table)
    now = datetime.now(UTC)
    needed = named_files(base.facts.snapshots.values()) | _needed(base)
    needed |= _names(_roots(base, just_superseded(listed, now), must=False))
    plan = plan_cleanup(listed, needed, now)
    if (found := other_ledger(base.iceberg.io, listed, needed, plan.roots, base.facts.uuid)) is not None:
        raise LedgerError(
            "FolderHoldsTable",
            f"{found} is a ledger of another table, which shares this one's folder: nothing is removed.",
        )
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
    """The names of the files that retained snapshots lead to. Raises: LedgerError, if one of them cannot be read."""
    facts = base.facts
    own = {s.ledger: s.id for s in facts.snapshots.values() if s.ledger is not None}
    roots = _roots(base, own, must=True)
    listing = [own[uri] for uri, root in roots.items() if root is not None and root.parts.get("carriers")]
    carriers = [c for i in listing for c in ledger_store.load(base.iceberg.io, facts, i).ledger.carriers]
    others = needed_roots(facts.snapshots, carriers, facts.name, facts.ledger_since) - own.keys()
    return _names(roots) | _names(_roots(base, others, must=True))


def _roots(base: Base, uris: Iterable[str], must: bool) -> dict[str, Root | None]:
    """Roots by their URIs. Raises: LedgerError, if one that `must` be read cannot be."""

    def read(uri: str) -> tuple[str, Root | None]:
        try:
            return uri, ledger_store.read_root(base.iceberg.io, base.facts, uri)
        except LedgerError:
            if must:
                raise
            return uri, None  # never finished, or removed by somebody else: no reader can be at it

    with ThreadPoolExecutor(max_workers=READ_AT_ONCE) as pool:
        return dict(pool.map(read, uris))


def _names(roots: Mapping[str, Root | None]) -> frozenset[str]:
    """The names of roots and of all their parts."""
    own = frozenset(uri.rpartition("/")[2] for uri in roots)
    return own.union(*(root.files for root in roots.values() if root is not None))

"""One way to change a table: plan on its newest ledger, write the next ledger, compare-and-set, plan anew on a lost race.

I/O. Every commit, of a run or of a user's own Spark job, goes through `commit_on_ledger`.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

from lethe.base import names
from lethe.base.errors import ConflictError, UnknownCommitState
from lethe.contract.result import Phase
from lethe.ledger.ledger import Delta
from lethe.ledger.lineage import needed_carriers
from lethe.ledger.summary import summary
from lethe.ledger.tombstone import Tombstone
from lethe.ledger_store import store as ledger_store

from lethe_spark.commit.table_state import Base, observe_base
from lethe_spark.jvm.backoff import ATTEMPTS, wait_before
from lethe_spark.jvm.commit import Change, commit
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Committer

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Intent(Generic[T]):
    """What a plan wants committed.

    Args:
        vacuumed: The tombstones applied to the files that it removes, or masks by deletion vectors; None: none is.
        publishes: The id under which the files were staged.
        staged: The snapshot that keeps these files: without it they are gone, and nothing may be committed.
        deletes: The kind of native deletes that it brings or takes back for the sake of tombstones; "": none.
        masks_everything: Whether it masks every tombstone that is active then.
        unfinished: Whether the run has more to commit after this.
    """

    delta: Delta
    change: Change
    outcome: T
    vacuumed: Collection[Tombstone] | None = None
    publishes: str | None = None
    staged: int | None = None
    deletes: str = ""
    masks_everything: bool = False
    unfinished: bool = False


@dataclass(frozen=True)
class NothingToCommit(Generic[T]):
    """The ledger already says what was wanted, or nothing is left to do."""

    outcome: T


@dataclass(frozen=True)
class Committed(Generic[T]):
    outcome: T
    snapshot_id: int | None  # None: nothing was committed


@dataclass
class Attempts:
    """`in_doubt`: of one attempt nobody knows whether it landed, or may land yet. Its files must not be deleted."""

    in_doubt: bool = False


def commit_on_ledger(
    context: Committer,
    table: IcebergTable,
    plan: Callable[[Base], Intent[T] | NothingToCommit[T]],
    attempts: Attempts | None = None,
    seen: Base | None = None,
) -> Committed[T]:
    """Commit what `plan` wants on the newest ledger; `plan` is asked again whenever the table moved before the commit.

    The plan itself looks first whether its run is in the ledger already: that makes it exactly-once, also after a
    commit of which nobody knows whether it landed.

    Args:
        seen: What the caller has looked at already; not read again if the table has not moved since.
    Raises: ConflictError after 12 lost races; UnknownCommitState if the table cannot even be read afterwards.
    """
    context.reporter.phase(Phase.COMMITTING)
    for attempt in range(1, ATTEMPTS + 1):
        base = observe_base(context, table, seen)
        wanted = plan(base)
        if isinstance(wanted, NothingToCommit):
            return Committed(wanted.outcome, None)
        try:
            return Committed(wanted.outcome, _try_once(context, table, base, wanted))
        except ConflictError as e:
            if attempt == ATTEMPTS:
                raise
            log.info("commit %d of %d lost its race and is planned anew: %s", attempt, ATTEMPTS, e.reason)
        except UnknownCommitState as e:
            if attempts is not None:
                attempts.in_doubt = True
            if attempt == ATTEMPTS:
                raise
            log.warning("commit %d of %d: %s; looking in the ledger", attempt, ATTEMPTS, e.reason)
        wait_before(attempt + 1)
    raise AssertionError("unreachable")


def _try_once(context: Committer, table: IcebergTable, base: Base, wanted: Intent[T]) -> int:
    delta = base.rearmed(wanted.delta)
    carriers = needed_carriers(base.facts.snapshots, base.loaded.carriers)
    written = ledger_store.write(base.iceberg.io, base.facts, base.loaded, delta, carriers, wanted.vacuumed)
    keys = summary(written, context.run_id, context.run_kind)
    keys[names.FOREIGN_FILES] = "true" if base.has_foreign_files else "false"
    if wanted.deletes:
        keys[names.DELETES] = wanted.deletes
    masked = wanted.masks_everything or base.is_masked
    if masked and written.total and all(t.is_masked for t in delta.add_tombstones):
        keys[names.MASKED] = "true"
    if wanted.publishes is not None:
        keys[names.PUBLISHED_WAP_ID] = wanted.publishes  # Iceberg then refuses to cherry-pick the staged snapshot again
    if wanted.unfinished:
        keys[names.UNFINISHED] = "true"
    context.step("before-commit")
    snapshot_id = commit(table, wanted.change, keys, base.expectation, base.facts.beginning, wanted.staged)
    context.step("after-commit")
    return snapshot_id

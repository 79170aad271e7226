"""Change a table: plan on its newest ledger, write the next ledger, compare-and-set; plan again after a lost race.

I/O. Each commit, of a run or of a user's Spark job, goes through `commit_on_ledger`.
"""

import itertools
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from lethe import tracing
from lethe.base import names
from lethe.base.errors import ConflictError, UnknownCommitState
from lethe.contract.result import Phase
from lethe.contract.settings import NativeDeletes
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

# A run does not give up before this, in seconds, while other writers change the table. Beside a writer that commits every second,
# most attempts fail, and twelve of them take only seconds.
MIN_SECONDS: Final = 120.0

T = TypeVar("T")


@dataclass(frozen=True)
class Intent(Generic[T]):
    """What a plan wants to commit."""

    # The change of the ledger.
    delta: Delta
    # The change of the table's files.
    change: Change
    # Returned to the caller after the commit.
    outcome: T
    # The tombstones that were applied to the files it removes, or masks by deletion vectors. None: it removes and masks none.
    vacuumed: Collection[Tombstone] | None = None
    # The id under which the files were staged. None: they were not.
    publishes: str | None = None
    # The snapshot that keeps the staged files. If it expired, the files are deleted, and nothing may be committed.
    staged: int | None = None
    # The kind of native deletes that it adds or removes for tombstones. None: no native deletes.
    native: NativeDeletes | None = None
    # Whether it masks every active tombstone.
    masks_everything: bool = False
    # Whether the run makes further commits.
    unfinished: bool = False


@dataclass(frozen=True)
class NothingToCommit(Generic[T]):
    """The ledger contains the change already, or there is nothing to change."""

    outcome: T


@dataclass(frozen=True)
class Committed(Generic[T]):
    """The outcome of a plan."""

    outcome: T
    # The snapshot of the commit. None: nothing was committed.
    snapshot_id: int | None


@dataclass
class Attempts:
    """What is known of the attempts to commit."""

    # Whether the answer to an attempt was lost: it may have succeeded, or may succeed later. Its files must not be deleted.
    in_doubt: bool = False


def commit_on_ledger(
    context: Committer,
    table: IcebergTable,
    plan: Callable[[Base], Intent[T] | NothingToCommit[T]],
    attempts: Attempts | None = None,
    seen: Base | None = None,
) -> Committed[T]:
    """Commit what `plan` wants on the newest ledger. Call `plan` again whenever another commit came first.

    Each plan first checks whether the ledger contains its run. So the change is made exactly once, also if the answer to a
    commit was lost.

    Args:
        attempts: Records whether an answer was lost.
        seen: A state that the caller has read. It is used if the table has not changed since.
    Raises: ConflictError, after 12 attempts, and if other writers changed the table before each of them, not before two
        minutes; UnknownCommitState, if the answer to the last attempt was lost; the errors of `plan` and of reading the table.
    """
    context.reporter.phase(Phase.COMMITTING)
    began = time.monotonic()
    for attempt in itertools.count(1):
        base = observe_base(context, table, seen)
        wanted = plan(base)
        if isinstance(wanted, NothingToCommit):
            return Committed(wanted.outcome, None)
        try:
            return Committed(wanted.outcome, _try_once(context, table, base, wanted))
        except ConflictError as e:
            # A catalog may refuse a commit for ever; a table that moved is another writer's success.
            moved = e.reason in ("LedgerMoved", "DataMoved")
            if attempt >= ATTEMPTS and not (moved and time.monotonic() - began < MIN_SECONDS):
                raise
            log.info("attempt %d to commit lost its race and is planned again: %s", attempt, e.reason)
        except UnknownCommitState as e:
            if attempts is not None:
                attempts.in_doubt = True
            if attempt >= ATTEMPTS:
                raise
            log.warning("attempt %d to commit: %s; checking the ledger", attempt, e.reason)
        wait_before(attempt + 1)
    raise AssertionError("unreachable")


def _try_once(context: Committer, table: IcebergTable, base: Base, wanted: Intent[T]) -> int:
    delta = base.rearmed(wanted.delta)
    carriers = needed_carriers(base.facts.snapshots, base.loaded.carriers)
    written = ledger_store.write(base.iceberg.io, base.facts, base.loaded, delta, carriers, wanted.vacuumed)
    keys = summary(written, context.run_id, context.run_kind)
    keys[names.FOREIGN_FILES] = "true" if base.has_foreign_files else "false"
    if wanted.native is not None:
        keys[names.DELETES] = wanted.native.value
    masked = wanted.masks_everything or base.is_masked
    if masked and written.total and all(t.is_masked for t in delta.add_tombstones):
        keys[names.MASKED] = "true"
    if wanted.publishes is not None:
        keys[names.PUBLISHED_WAP_ID] = wanted.publishes  # Iceberg then refuses to cherry-pick the staged snapshot again
    if wanted.unfinished:
        keys[names.UNFINISHED] = "true"
    context.step("before-commit")
    with tracing.span("commit", {"lethe.table": table.full_name, "lethe.change": type(wanted.change).__name__}):
        snapshot_id = commit(table, wanted.change, keys, base.expectation, base.facts.beginning, wanted.staged)
        tracing.describe({"lethe.snapshot.id": snapshot_id})
    context.step("after-commit")
    return snapshot_id

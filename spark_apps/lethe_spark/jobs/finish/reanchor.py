"""Re-anchoring: gives a ledger to a head that another writer committed without one, before an expiry can lose the ledger. I/O.

An ordinary ledger commit with an empty delta: it copies the ledger, names no `tombstone.vacuum.file`, and restores the tombstones
that the other writer's files require (`lethe.files.rearm`).
"""

from dataclasses import replace
from datetime import UTC, datetime

from lethe.base.ids import run_id
from lethe.contract.kind import RunFamily
from lethe.contract.result import ReanchoringResult, RunOutcome
from lethe.ledger.ledger import Delta

from lethe_spark.commit.ledger_commit import Intent, NothingToCommit, commit_on_ledger
from lethe_spark.commit.table_state import Base
from lethe_spark.jvm.commit import LedgerOnly
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Run


def reanchor(context: Run, table: IcebergTable) -> int | None:
    """Give a ledger to a head without one.

    Returns: the id of the new snapshot; None: the head has a ledger, or the table is empty.
    Raises: ConflictError, UnknownCommitState, TransientError, LedgerError.
    """

    def plan(base: Base) -> Intent[None] | NothingToCommit[None]:
        if not base.loaded.resolution.bare:
            return NothingToCommit(None)
        return Intent(Delta(context.run_id), LedgerOnly(), None)

    return commit_on_ledger(context, table, plan).snapshot_id


def anchored(context: Run, snapshot_id: int | None) -> ReanchoringResult:
    """The result of a re-anchoring run. Pure, except that it reads the clock.

    Args:
        snapshot_id: As `reanchor` returns it.
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
    """The context for re-anchoring a head at the end of another run. It has its own run id, for this head: otherwise the commit
    would count as the run's, and a refused run would be found in the history as done."""
    spec = context.spec
    own = run_id(spec.dataset.uid, RunFamily.CONSOLIDATION, [f"head\n{head_id}"])
    return replace(context, spec=spec.model_copy(update={"run_id": own, "family": RunFamily.CONSOLIDATION}))

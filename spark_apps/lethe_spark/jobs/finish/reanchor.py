"""Re-anchoring: a head that another writer left without a ledger gets one of its own, before an expiry could lose it.

I/O. A ledger commit like any other, with nothing to change: it copies what the ledger holds, names no vacuum's file, and
arms what the other writer's files make necessary.
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
    """Stamp a bare head. Returns: the new snapshot's id, None when the head has a ledger of its own or there is no head.

    Raises: ConflictError, UnknownCommitState, TransientError, LedgerError.
    """

    def plan(base: Base) -> Intent[None] | NothingToCommit[None]:
        if not base.loaded.resolution.bare:
            return NothingToCommit(None)
        return Intent(Delta(context.run_id), LedgerOnly(), None)

    return commit_on_ledger(context, table, plan).snapshot_id


def anchored(context: Run, snapshot_id: int | None) -> ReanchoringResult:
    """The result of a run that does nothing else. Pure but for the time.

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
    """The context for stamping a head beside a run's own work. Its commit must not pass for the run's: who looks for the
    run in the history would take that for done which was refused. The name is that of a run for this head alone."""
    spec = context.spec
    own = run_id(spec.dataset.uid, RunFamily.CONSOLIDATION, [f"head\n{head_id}"])
    return replace(context, spec=spec.model_copy(update={"run_id": own, "family": RunFamily.CONSOLIDATION}))

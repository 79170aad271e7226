"""Lists in the ledger the files that may hold rows of open erasures, before the snapshots that name these files expire. I/O.

After the expiry no metadata would name these files. The list is a separate commit on the current head. If the run crashes before
it, nothing is lost, because the snapshots are still there.
"""

from dataclasses import replace
from datetime import UTC, datetime

from lethe.base.ids import run_id
from lethe.contract.kind import RunFamily
from lethe.erasure.progress import mark, open_erasures_of
from lethe.iceberg.history import Manifests
from lethe.ledger.ledger import Delta

from lethe_spark.commit.ledger_commit import Intent, NothingToCommit, commit_on_ledger
from lethe_spark.commit.table_state import Base
from lethe_spark.jvm.commit import LedgerOnly
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Run


def note_purged(context: Run, table: IcebergTable, manifests: Manifests) -> int | None:
    """Record in the ledger which erasures have no rows in the head any more, and which files of older snapshots may hold some.

    Returns: the id of the new snapshot; None: nothing changed.
    Raises: ConflictError, UnknownCommitState, TransientError, LedgerError.
    """
    own = for_erasures(context, "note")

    def plan(base: Base) -> Intent[None] | NothingToCommit[None]:
        claimed = open_erasures_of(base.ledger, base.facts.snapshots, base.field_id)
        if not claimed:
            return NothingToCommit(None)
        history = manifests.history(base.iceberg, base.facts, base.field_id)
        marked = mark(claimed, history, base.ledger.purged_files, datetime.now(UTC))
        if marked.is_empty:
            return NothingToCommit(None)
        delta = Delta(
            own.run_id,
            set_erasures=marked.erasures,
            set_purged_files=marked.files,
            forget_purged_files=marked.clean,
        )
        return Intent(delta, LedgerOnly(), None)

    return commit_on_ledger(own, table, plan).snapshot_id


def for_erasures(context: Run, step: str) -> Run:
    """The context for an additional commit of a run, with its own run id: it must not count as the run's own commit."""
    spec = context.spec
    own = run_id(spec.dataset.uid, RunFamily.VACUUM, [f"erasures\n{step}\n{spec.run_id}\n{spec.attempt}"])
    return replace(context, spec=spec.model_copy(update={"run_id": own, "family": RunFamily.VACUUM}))

"""Rewrites manifests, as a step of a vacuum run. I/O; `lethe.vacuum.manifests` decides which."""

from typing import Final

from lethe.iceberg.snapshot_files import data_manifests
from lethe.ledger.ledger import Delta
from lethe.vacuum.manifests import plan_manifests

from lethe_spark.commit.ledger_commit import Committed, Intent, NothingToCommit, commit_on_ledger
from lethe_spark.commit.table_state import Base
from lethe_spark.jvm.commit import RewriteManifests
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext

TARGET: Final = "commit.manifest.target-size-bytes"
TARGET_DEFAULT: Final = 8 * 1024 * 1024  # Iceberg's default


def rewrite_manifests(context: RunContext, table: SparkTable) -> Committed[int]:
    """List the data files of the head in fewer or better ordered manifests, if that helps readers. Plans again before each
    attempt to commit, because other commits add manifests.

    Returns: the commit; its outcome is the number of replaced manifests.
    Raises: ConflictError, UnknownCommitState, TransientError, LedgerError.
    """

    def plan(base: Base) -> Intent[int] | NothingToCommit[int]:
        target = int(base.facts.properties.get(TARGET, TARGET_DEFAULT))
        found = plan_manifests(data_manifests(base.iceberg, base.facts.head_id, base.field_id), target)
        if found.is_empty:
            return NothingToCommit(0)
        change = RewriteManifests(found.replaced, found.manifest_of)
        return Intent(Delta(context.run_id), change, len(found.replaced))

    return commit_on_ledger(context, table, plan)

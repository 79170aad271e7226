"""Promotes batches, each exactly once: whatever writes or registers their files, in a Job or in the committer. I/O.

`lethe.buffer.promotion` decides which batches may be promoted. Each attempt continues earlier attempts of its run: batches that
are in the ledger are done; files that an earlier attempt staged are published; only other batches are written, or registered.
This module needs no Spark session.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from lethe.base import names
from lethe.base.errors import LetheError
from lethe.buffer.batch_rows import BatchRow
from lethe.buffer.promotion import JudgedBatch, Publish, WrittenBatch, WrittenFiles, plan_promotion, plan_publication
from lethe.contract.refusal import Refusal
from lethe.contract.result import LISTED_AT_MOST, ConsolidationResult, RefusedBatch, RunOutcome
from lethe.ledger.ledger import BufferedObject
from lethe.ledger.lineage import is_published
from pyiceberg.io import FileIO

from lethe_spark.commit.ledger_commit import Attempts, Intent, NothingToCommit, commit_on_ledger
from lethe_spark.commit.table_state import Base, observe_base
from lethe_spark.commit.writing import noted_run
from lethe_spark.jobs.consolidation.gather import WrittenBatches
from lethe_spark.jobs.consolidation.refuse import set_aside
from lethe_spark.jobs.consolidation.register import is_outdated
from lethe_spark.jvm.commit import LedgerOnly, find_staged
from lethe_spark.jvm.removal import expire
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Run

log = logging.getLogger(__name__)
# How often a run writes its batches, if other runs promote or revert some of them before it commits.
WRITES: Final = 4
# Writes or registers these batches, as planned on a state of the table, and commits nothing.
Write: TypeAlias = Callable[[Base, Iterable[str]], WrittenBatches]


def promote(
    context: Run, table: IcebergTable, wanted: tuple[str, ...], write: Write
) -> tuple[ConsolidationResult, tuple[BatchRow, ...] | None]:
    """Promote the batches of a run.

    Returns: the result, and the batches that still wait in the buffer; None: it was not listed.
    Raises: as `commit_on_ledger`, and the errors of `write`.
    """
    with noted_run(context, table, wanted):
        return _promoted(context, table, wanted, write)


def _promoted(
    context: Run, table: IcebergTable, wanted: tuple[str, ...], write: Write
) -> tuple[ConsolidationResult, tuple[BatchRow, ...] | None]:
    staged: WrittenBatches | None = _staged(context, table)
    waiting: tuple[BatchRow, ...] | None = None
    for _ in range(WRITES):
        base = observe_base(context, table)
        promotion = plan_promotion(base.ledger, wanted)
        if not promotion.promote:
            return _nothing(context, len(promotion.withheld)), waiting
        if staged is not None and not staged.covers(promotion.promote) and not _is_published(base, staged):
            log.info(
                "some batches that the earlier attempt did not write may be promoted now; all batches are written again"
            )
            _drop(table, staged, Attempts())
            staged = None
        written = staged or write(base, promotion.promote)
        if written.is_lost:
            log.info(
                "some batches were promoted or deleted while they were written; the other batches are written again"
            )
            staged = None
            continue
        staged, waiting, attempts = None, written.waiting, Attempts()
        done = commit_on_ledger(context, table, lambda base, w=written: _publish(context, base, w), attempts)  # type: ignore[misc]
        if done.outcome is not None:
            set_aside(context, table, done.outcome.refused, done.outcome.left)
            message = _missing(done.outcome.missing)
            return _result(context, done.outcome, done.snapshot_id, len(promotion.withheld), message), waiting
        log.info(
            "some batches in the written files were promoted or deleted in the meantime; the other batches are "
            "written again"
        )
        _drop(table, written, attempts)
    return _result(
        context, WrittenBatches((), {}, {}), None, 0, "other writers promoted its batches in each attempt"
    ), waiting


def _drop(table: IcebergTable, written: WrittenBatches, attempts: Attempts) -> None:
    """Remove staged files that must not be published. They may contain rows of an erased batch."""
    if written.staged is None or attempts.in_doubt:
        return
    try:
        expire(table, [written.staged])
    except LetheError as e:  # the ordinary expiry removes it later; until then its files may contain erased rows
        log.warning("the staged snapshot %d was not removed: %s", written.staged, e)


def _publish(
    context: Run, base: Base, written: WrittenBatches
) -> Intent[WrittenBatches | None] | NothingToCommit[WrittenBatches | None]:
    published = _is_published(base, written)
    if written.staged is not None and written.staged not in base.facts.snapshots and not published:
        return NothingToCommit(None)  # the staged snapshot was expired together with its files
    if written.registers is not None and is_outdated(base, written):
        return NothingToCommit(None)
    partitions = base.partitions_of(written.files, written.batches, written.partitions)
    files = WrittenFiles(written.batches, partitions, published)
    planned = plan_publication(base.ledger, files, written.refused, context.spec.run_id, datetime.now(UTC))
    if not isinstance(planned, Publish):
        return NothingToCommit(None)
    if planned.delta.is_empty:
        return NothingToCommit(written)
    if not written.files or published:
        return Intent(planned.delta, LedgerOnly(), written)
    staged_as = context.spec.run_id if written.staged is not None else None
    return Intent(planned.delta, written.change, written, publishes=staged_as, staged=written.staged)


def _is_published(base: Base, written: WrittenBatches) -> bool:
    """Whether another tool made the staged files part of the table."""
    return written.staged is not None and is_published(base.facts.snapshots, base.facts.head_id, written.staged)


def _missing(missing: Mapping[str, str]) -> str:
    """The message about missing batches: one part for each cause, with the first ids."""
    parts = []
    for why in dict.fromkeys(missing.values()):
        ids = [i for i, w in missing.items() if w == why]
        parts.append(
            f"{len(ids)} batches {why}: " + ", ".join(repr(i) for i in ids[:5]) + (", …" if len(ids) > 5 else "")
        )
    return "; ".join(parts[:LISTED_AT_MOST])


def _staged(context: Run, table: IcebergTable) -> WrittenBatches | None:
    """The files that an earlier attempt of this run staged; None: there are none."""
    found = find_staged(table, context.spec.run_id)
    if found is None or names.STAGE not in found.summary:
        return None
    io: FileIO = observe_base(context, table).iceberg.io
    with io.new_input(found.summary[names.STAGE]).open() as stream:
        document = json.loads(stream.read())

    def objects(entry: dict[str, list[list[Any]]]) -> tuple[BufferedObject, ...]:
        return tuple(BufferedObject(*fields) for fields in entry["objects"])

    batches = {b["id"]: WrittenBatch(b["id"], b["rows"], b["bytes"], objects(b)) for b in document["batches"]}
    refused = {r["id"]: JudgedBatch(Refusal(r["reason"], r["message"]), objects(r)) for r in document["refused"]}
    log.info("found %d batches staged by an earlier attempt", len(batches))
    return WrittenBatches(found.files, batches, refused, found.snapshot_id, document["missing"])


def _nothing(context: Run, withheld: int) -> ConsolidationResult:
    spec = context.spec
    return ConsolidationResult(
        run_id=spec.run_id,
        family=spec.family,
        attempt=spec.attempt,
        outcome=RunOutcome.ALREADY_COMMITTED,
        message="every batch of this run is already in the table, or was deleted before it was promoted",
        batches_withheld=withheld,
        finished_time=datetime.now(UTC),
    )


def _result(
    context: Run, written: WrittenBatches, snapshot_id: int | None, withheld: int, message: str = ""
) -> ConsolidationResult:
    spec = context.spec
    return ConsolidationResult(
        run_id=spec.run_id,
        family=spec.family,
        attempt=spec.attempt,
        outcome=RunOutcome.COMMITTED if snapshot_id is not None else RunOutcome.NOTHING_TO_DO,
        message=message,
        snapshot_id=snapshot_id,
        batches_promoted=len(written.batches) if snapshot_id is not None else 0,
        batches_withheld=withheld,
        refused_count=len(written.refused),
        refused=tuple(RefusedBatch.of(i, found.refusal) for i, found in written.refused.items())[:LISTED_AT_MOST],
        rows_added=sum(f.records for f in written.files),
        files_added=len(written.files),
        bytes_added=sum(f.bytes for f in written.files),
        finished_time=datetime.now(UTC),
    )

"""Consolidation in a Spark session: writes buffered batches as few sorted files, or registers them. I/O.

`lethe_spark.jobs.consolidation.promote` publishes what is written or registered.
"""

import uuid
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import assert_never

from lethe.base import names
from lethe.base.errors import ConflictError
from lethe.buffer.promotion import JudgedBatch, StageNote, WrittenBatch, is_approved, plan_promotion
from lethe.contract.checks import CheckSpec
from lethe.contract.result import ConsolidationResult, Phase, ReanchoringResult
from lethe.contract.settings import ConsolidationMode
from lethe.ingest.buffer_files import check_some_were_read, why_unread
from lethe.ingest.checks import Screening, wanted_row_counts
from lethe.ledger_chunks import latest_rows

from lethe_spark.commit.ledger_commit import Attempts, discard, noted_run
from lethe_spark.commit.masking import NativeMasker, native_kind
from lethe_spark.commit.opening import open_table
from lethe_spark.commit.table_state import Base, observe_base
from lethe_spark.ingest import BatchSource, read_footers, write_into
from lethe_spark.jobs.clean_up import anchored, finished, reanchor_and_mask
from lethe_spark.jobs.consolidation.gather import GatheredBatches, WrittenBatches, claim_buffer, gather
from lethe_spark.jobs.consolidation.promote import Write, promote, register
from lethe_spark.jobs.lost_partitions import leave_lost_specs, unmasked_ids
from lethe_spark.jvm.commit import stage
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext
from lethe_spark.sql.searching import search_few_here


def run(context: RunContext) -> ConsolidationResult:
    """Promote the batches that `run.json` names.

    Raises:
        InputError: The user has to change something.
        TransientError: A dependency is temporarily unavailable.
        ConflictError: The table moved between plan and commit.
    """
    spec = context.spec.consolidation
    assert spec is not None
    context.reporter.phase(Phase.PLANNING)
    table = open_table(context)
    claim_buffer(context, table)
    write: Write
    match spec.mode:
        case ConsolidationMode.REGISTER:
            write = partial(register, context, table, partial(read_footers, context.spark))
        case ConsolidationMode.REWRITE:
            write = partial(_write, context, table)
        case _:
            assert_never(spec.mode)
    return finished(context, table, *promote(context, table, spec.batch_ids, write))


def run_reanchoring(context: RunContext) -> ReanchoringResult:
    """Give a ledger and native deletes to a head that another writer committed, and expire snapshots if there are too many.

    Raises:
        InputError: The user has to change something.
        TransientError: A dependency is temporarily unavailable.
        ConflictError: The table moved between plan and commit.
    """
    context.reporter.phase(Phase.PLANNING)
    table = open_table(context)
    spec = context.spec.consolidation
    assert spec is not None
    native = native_kind(table, spec.deletes)
    if native is not None:
        with noted_run(context, table, None):  # it may write rows of the table
            leave_lost_specs(context, table, unmasked_ids(context, table, ()))
    search = partial(search_few_here, context.spark.sparkContext, spec.search_limits)
    masker = NativeMasker(context, table, native, search)
    return finished(context, table, anchored(context, reanchor_and_mask(context, table, masker)))


def _write(context: RunContext, table: SparkTable, base: Base, batch_ids: Iterable[str]) -> WrittenBatches:
    """Read the batches from the buffer, write sorted files, and stage them so that they survive a crash."""
    spec = context.spec
    assert spec.consolidation is not None
    gathered = gather(context, base, batch_ids)
    found = gathered.batches
    missing = dict(gathered.missing)
    sources = [BatchSource(b.id, b.data_objects, b.folder) for b in found.values()]
    size = sum(b.bytes for b in found.values())
    context.reporter.phase(Phase.WRITING, f"{len(found)} batches, {size} bytes")
    done = write_into(
        context,
        table,
        sources,
        base.batch_column,
        spec.consolidation.target_file_size_bytes,
        screening=_screening(spec.consolidation.checks, base, gathered),
    )
    check_some_were_read(done.unread, len(sources))
    context.reporter.rows(done.rows, size)
    files = done.files
    batches = {
        i: WrittenBatch(i, rows, found[i].bytes, found[i].data_objects) for i, rows in done.rows_per_batch.items()
    }
    missing |= {u.batch_id: why_unread(u) for u in done.unread}
    judged = [(r, False) for r in done.refused] + [(r, True) for r in done.held]
    refused = {r.batch_id: JudgedBatch(r.verdict, found[r.batch_id].data_objects, held) for r, held in judged}
    context.step("after-write")
    written = WrittenBatches(
        files,
        batches,
        {**refused, **gathered.unusable},
        missing=missing,
        left=tuple(gathered.found.left),
        waiting=gathered.found.waiting_but(batches, refused),
        partitions=done.partitions,
        references=gathered.references,
    )
    if not files:
        return written
    if plan_promotion(observe_base(context, table).ledger, batches).promote != tuple(batches):
        # A file contains rows of several batches, and rows of a reverted or erased batch must not be staged.
        discard(table, files, Attempts())
        return replace(written, files=(), batches={}, is_lost=True)
    context.reporter.phase(Phase.STAGING)
    try:
        return replace(written, staged=_stage(context, table, base, written))
    except ConflictError:
        discard(table, files, Attempts())
        raise


def _screening(checks: tuple[CheckSpec, ...], base: Base, gathered: GatheredBatches) -> Screening:
    """How the run checks the batches that it has found."""
    entries = gathered.found.entries
    approved = frozenset(i for i, batch in gathered.batches.items() if is_approved(batch, entries.get(i)))
    count = wanted_row_counts(checks)
    return Screening(checks, approved, latest_rows(base.ledger.batches, count) if count else ())


def _stage(context: RunContext, table: SparkTable, base: Base, written: WrittenBatches) -> int:
    """Stage the files, with a document that describes their batches.

    Returns:
        The id of the staged snapshot.
    """
    folder = f"{base.facts.location.rstrip('/')}/{names.RUNS_FOLDER}"
    uri = f"{folder}/{context.spec.run_id}-stage-{uuid.uuid4().hex[:8]}.json"
    note = StageNote(written.batches, written.refused, written.missing, written.references)
    with base.iceberg.io.new_output(uri).create(overwrite=True) as stream:
        stream.write(note.to_json())
    staged = stage(table, written.files, context.spec.run_id, {names.STAGE: uri, names.RUN_ID: context.spec.run_id})
    context.step("after-stage")
    return staged

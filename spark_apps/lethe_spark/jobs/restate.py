"""Restatement: Revert, Replay and Undo. A replay's new data and its tombstones land in one snapshot.

I/O; what a request means on a ledger is decided in `lethe.plan.restatement`.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from lethe import names
from lethe.buffer import open_store
from lethe.errors import ConflictError, InputError, LedgerError, TableError
from lethe.ledger.ledger import BufferedObject
from lethe.ledger.parts import get_many
from lethe.plan.batches import is_data
from lethe.plan.bounds import IdIndex
from lethe.plan.places import overlap
from lethe.plan.restatement import AlreadyDone, ReplacementRows, check_request, plan_restatement
from lethe.run import Phase, RequestResult, RestatementRequest, RunResult

from lethe_spark.base import Base, observe_base, open_table
from lethe_spark.context import RunContext
from lethe_spark.evolving import write_into
from lethe_spark.frames import named, semi_join
from lethe_spark.ingest import BatchSource
from lethe_spark.jobs.tidying import finished
from lethe_spark.jvm.commit import Append, LedgerOnly
from lethe_spark.jvm.rewrite import DataFile, scan_files
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.ledger_commit import Attempts, Committed, Intent, NothingToCommit, commit_on_ledger
from lethe_spark.unpublished import discard

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WrittenReplacement:
    files: tuple[DataFile, ...]
    rows: ReplacementRows


def run(context: RunContext) -> RunResult:
    """Carry out each request of `run.json`, one commit each. One that is refused does not hold back the others."""
    spec = context.spec
    assert spec.restatement is not None
    context.reporter.phase(Phase.PLANNING)
    table = open_table(context)
    results: list[RequestResult] = []
    snapshot_id: int | None = None
    for request in spec.restatement.requests:
        try:
            done = _restate(context, table, request)
            snapshot_id = done.snapshot_id or snapshot_id
            results.append(
                done.outcome.model_copy(update={"snapshot_id": done.snapshot_id or done.outcome.snapshot_id})
            )
        except (LedgerError, TableError):
            raise  # not this request's fault: nothing can be said of any until the ledger is mended, the table accepted
        except InputError as e:
            log.info("%s is refused: %s", request.name, e.reason)
            results.append(
                RequestResult(key=request.key, name=request.name, succeeded=False, reason=e.reason, message=e.message)
            )
    refused = [r for r in results if not r.succeeded]
    result = RunResult(
        run_id=spec.run_id,
        kind=spec.kind,
        attempt=spec.attempt,
        outcome="Committed" if snapshot_id else "Failed" if refused else "AlreadyCommitted",
        reason=refused[0].reason if refused and not snapshot_id else "",
        message=refused[0].message if refused and not snapshot_id else "",
        snapshot_id=snapshot_id,
        rows_added=sum(r.rows_added for r in results),
        requests=tuple(results),
        finished_time=datetime.now(UTC),
    )
    return finished(context, table, result)


def _restate(context: RunContext, table: IcebergTable, request: RestatementRequest) -> Committed[RequestResult]:
    check_request(request)
    # Asked once before any data is written: a request that is done or refused must not cost a write.
    base = observe_base(context, table)
    in_files = _in_files(context, table, base, request)
    first = _plan(context, base, request, in_files, None)
    if isinstance(first, NothingToCommit):
        return Committed(first.outcome, None)
    written = _write_replacement(context, table, request, base.batch_column) if request.replacement else None
    attempts = Attempts()
    try:
        done = commit_on_ledger(
            context, table, lambda newest: _plan(context, newest, request, in_files, written), attempts, base
        )
    except (InputError, ConflictError):
        discard(table, written.files if written else (), attempts)
        raise
    if written is not None and (done.snapshot_id is None or not done.outcome.rows_added):
        discard(table, written.files, attempts)
    return done


def _plan(
    context: RunContext,
    base: Base,
    request: RestatementRequest,
    in_files: Collection[str],
    written: WrittenReplacement | None,
) -> Intent[RequestResult] | NothingToCommit[RequestResult]:
    rows = None
    if written is not None and request.replacement is not None:
        new = request.replacement.batch_id
        rows = replace(written.rows, partitions=base.partitions_of(written.files, [new])[new])
    planned = plan_restatement(
        base.ledger, request, in_files, base.field_id, context.spec.run_id, datetime.now(UTC), rows
    )
    if isinstance(planned, AlreadyDone):
        return NothingToCommit(planned.result)
    adds = written is not None and planned.add_replacement and written.files
    return Intent(planned.delta, Append(written.files) if written and adds else LedgerOnly(), planned.result)


def _in_files(context: RunContext, table: IcebergTable, base: Base, request: RestatementRequest) -> frozenset[str]:
    """Ids that the ledger never heard of, yet of which there are rows: from before the ledger, or by other writers.

    Only for the report of unknown ids; their tombstones are set either way. Files whose bounds allow one are read, in
    that one column: bounds alone would call every id known that sorts between two others.
    """
    done = request.key in base.ledger.requests
    known = get_many(base.ledger.batches, request.batch_ids)
    strangers = [] if done else [i for i in request.batch_ids if i not in known]
    index = IdIndex(strangers)
    paths = [f.path for f in base.files() if index.might_hold(f)] if strangers else []
    if not paths or base.facts.head_id is None:
        return frozenset()
    context.reporter.phase(Phase.SCAN, f"{len(strangers)} unknown batch ids in {len(paths)} files")
    column = named(base.batch_column)
    with scan_files(table, paths, base.facts.head_id) as scanned:
        found = semi_join(scanned.frame.select(column), base.batch_column, strangers).distinct().collect()
    return frozenset(str(r[0]) for r in found)


def _write_replacement(
    context: RunContext, table: IcebergTable, request: RestatementRequest, batch_column: str
) -> WrittenReplacement:
    """Read and write the replacement's rows. Raises: InputError (ReplacementInBuffer, ReplacementIncomplete, …)."""
    spec = context.spec
    assert request.replacement is not None
    where = f"Restatement {request.name}: spec.replacement.uri {request.replacement.uri}"
    if overlap(spec.buffer.uri, request.replacement.uri):
        raise InputError(
            "ReplacementInBuffer",
            f"{where} lies in the buffer {spec.buffer.uri}, so consolidation would load it a second time. Put it elsewhere.",
        )
    context.reporter.phase(Phase.READING, "the replacement")
    listed = list(open_store(request.replacement.uri, context.catalog_properties).list(request.replacement.uri))
    if f"{request.replacement.uri.rstrip('/')}/{names.SUCCESS_MARKER}" not in {o.key for o in listed}:
        raise InputError(
            "ReplacementIncomplete",
            f"{where} has no {names.SUCCESS_MARKER}: write the data files first and {names.SUCCESS_MARKER} last, then "
            "create the Restatement under a new name.",
        )
    objects = tuple(BufferedObject(o.key, o.size, o.etag) for o in listed if is_data(o.key, request.replacement.uri))
    source = BatchSource(request.replacement.batch_id, objects)
    context.reporter.phase(Phase.WRITING, "the replacement")
    done = write_into(context, table, [source], batch_column)
    if done.refused:
        raise InputError(done.refused[0].reason, f"{where}: {done.refused[0].message}")
    context.reporter.rows(done.rows, sum(o.size for o in objects))
    context.step("after-write")
    return WrittenReplacement(done.files, ReplacementRows(done.rows, sum(o.size for o in objects)))

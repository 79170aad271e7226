"""Finds, checks and writes the replacements of a group of Replays together. I/O.

Invariant: no row of an unusable replacement is written, and it stops only its own request.
"""

from collections.abc import Iterable, Sequence

from lethe.base.errors import InputError, LedgerError, TableError
from lethe.contract.result import Phase, RequestResult
from lethe.contract.run import RestatementRequest
from lethe.restatement.group import set_aside
from lethe.restatement.plan import ReplacementRows

from lethe_spark.commit import replacement_files
from lethe_spark.commit.group_commit import Replacements
from lethe_spark.commit.replacement_files import not_now, refused
from lethe_spark.commit.table_state import Base
from lethe_spark.ingest.evolving import write_into
from lethe_spark.ingest.ingest import BatchSource
from lethe_spark.jobs.restatement.changes import keyed_of, unusable_keys
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext


def write_replacements(
    context: RunContext, table: SparkTable, requests: Sequence[RestatementRequest], base: Base
) -> Replacements:
    """Read the replacements of these requests and write their rows as data files. Commits nothing.

    Args:
        requests: Their replacements have distinct batch ids.
    Raises: as `write_into`; TransientError, if the store does not answer.
    """
    context.reporter.phase(Phase.READING, f"{len(requests)} replacements")
    aside = unusable_keys(requests, base)
    found = find_replacements(context, [r for r in requests if r.key not in aside])
    aside |= {r.key: result for r, result in found if isinstance(result, RequestResult)}
    sources = [(r, source) for r, source in found if isinstance(source, BatchSource)]
    context.step("after-list")
    if not sources:
        return Replacements(aside=aside)
    bytes_of = {s.id: sum(o.size for o in s.objects) for _, s in sources}
    context.reporter.phase(Phase.WRITING, f"{len(sources)} replacements, {sum(bytes_of.values())} bytes")
    try:
        done = write_into(context, table, [s for _, s in sources], base.batch_column, keyed=keyed_of(requests))
    except (LedgerError, TableError):
        raise
    except InputError as e:  # the table accepts none of the rows; requests that write no rows go on
        return Replacements(aside=aside | {r.key: set_aside(r, e) for r, _ in sources})
    context.reporter.rows(done.rows, sum(bytes_of.values()))
    asked = {s.id: r for r, s in sources}
    for bad in done.refused:
        aside[asked[bad.batch_id].key] = refused(asked[bad.batch_id], bad.reason, bad.message)
    for bad in done.unread:
        aside[asked[bad.batch_id].key] = not_now(asked[bad.batch_id], bad.reason, bad.message)
    context.step("after-write")
    rows = {asked[i].key: ReplacementRows(n, bytes_of[i]) for i, n in done.rows_per_batch.items()}
    keys = {asked[i].key: table_ for i, table_ in done.keys.items()}
    return Replacements(done.files, rows, aside, keys)


def find_replacements(
    context: RunContext, requests: Iterable[RestatementRequest]
) -> list[tuple[RestatementRequest, BatchSource | RequestResult]]:
    """Find the replacements of Replays. Returns: each request with its replacement, or with its result if that cannot be used."""
    spec = context.spec
    found = replacement_files.find_replacements(
        requests, spec.table.catalog, context.catalog_properties, spec.buffer.uri
    )
    return [(r, f if isinstance(f, RequestResult) else BatchSource(_new_batch(r), f, _folder(r))) for r, f in found]


def _folder(request: RestatementRequest) -> str:
    assert request.replacement is not None
    return request.replacement.uri


def _new_batch(request: RestatementRequest) -> str:
    assert request.replacement is not None
    return request.replacement.batch_id

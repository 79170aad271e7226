"""Restatement: carries out a group of requests in one snapshot, with the data of Replays and the deletes of Erases. I/O.

A dry run only reports what each request would do. No row of an unusable replacement is written, and it stops only its own
request. Native deletes are of the kind in `spec.deletes`; `lethe.files.native_deletes` decides.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from lethe.base.errors import InputError, LedgerError, TableError, TransientError, Verdict
from lethe.contract.result import Phase, RequestResult, RestatementGroupResult, RunOutcome
from lethe.contract.run import RestatementRequest
from lethe.contract.settings import NativeDeletes
from lethe.files.bounds import IdIndex
from lethe.ledger.ledger import Ledger
from lethe.ledger_chunks import delivered
from lethe.restatement.group import plan_dry_run, set_aside
from lethe.restatement.plan import PlanScope, ReplacementRows
from lethe.restatement.selection import Deliveries, references_of
from lethe.restatement.unknown import unknown_ids_of
from lethe.search.candidates import candidates
from lethe.search.positions import Wanted

from lethe_spark.commit import replacement_files
from lethe_spark.commit.group_commit import (
    GroupCommit,
    Replacements,
    look_for,
    result_of,
    waiting_of,
)
from lethe_spark.commit.ledger_commit import noted_run
from lethe_spark.commit.masking import NativeMasker, mask_rest, native_kind
from lethe_spark.commit.opening import open_table
from lethe_spark.commit.replacement_files import not_usable, with_ids
from lethe_spark.commit.table_state import Base, observe_base
from lethe_spark.ingest import BatchSource, write_into
from lethe_spark.jobs.clean_up import finished
from lethe_spark.jobs.consolidation.gather import buffered_ids, waiting_deliveries
from lethe_spark.jobs.lost_partitions import ANY, leave_lost_specs, unmasked_ids
from lethe_spark.jobs.restatement.erase import (
    RowEraser,
    keyed_of,
    request_key_of,
    search_key,
    unusable_columns,
    wanted_by,
)
from lethe_spark.jobs.restatement.lookup import Lookups
from lethe_spark.jobs.restatement.values import ValueLists
from lethe_spark.jvm.scan_tasks import scan_files
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext
from lethe_spark.sql.searching import named, search_few_here, semi_join

log = logging.getLogger(__name__)


def write_replacements(
    context: RunContext, table: SparkTable, requests: Sequence[RestatementRequest], base: Base
) -> Replacements:
    """Read the replacements of these requests and write their rows as data files. Commits nothing.

    Args:
        requests: Their replacements have distinct batch ids.

    Raises:
        Exception: As `write_into`.
        TransientError: The store does not answer.
    """
    context.reporter.phase(Phase.READING, f"{len(requests)} replacements")
    aside = unusable_columns(requests, base)
    replacements = find_replacements(context, [r for r in requests if r.key not in aside])
    aside |= {r.key: result for r, result in replacements if isinstance(result, RequestResult)}
    sources = [(r, source) for r, source in replacements if isinstance(source, BatchSource)]
    context.step("after-list")
    if not sources:
        return Replacements(aside=aside)
    bytes_of = {s.id: sum(o.size for o in s.objects) for _, s in sources}
    context.reporter.phase(Phase.WRITING, f"{len(sources)} replacements, {sum(bytes_of.values())} bytes")
    try:
        keyed = keyed_of([r for r, _ in sources], base)
        done = write_into(context, table, [s for _, s in sources], base.batch_column, keyed=keyed)
    except (LedgerError, TableError):
        raise
    except InputError as e:  # the table accepts none of the rows; requests that write no rows go on
        return Replacements(aside=aside | {r.key: set_aside(r, e.verdict) for r, _ in sources})
    context.reporter.rows(done.rows, sum(bytes_of.values()))
    asked = {s.id: r for r, s in sources}
    for bad in done.refused:
        aside[asked[bad.batch_id].key] = not_usable(asked[bad.batch_id], bad.verdict)
    for bad in done.unread:
        not_now = Verdict(bad.reason, f"{bad.message}.", transient=True)
        aside[asked[bad.batch_id].key] = not_usable(asked[bad.batch_id], not_now)
    context.step("after-write")
    rows = {asked[i].key: ReplacementRows(n, bytes_of[i]) for i, n in done.rows_per_batch.items()}
    keys = {asked[i].key: table_ for i, table_ in done.keys.items()}
    return Replacements(done.files, rows, aside, keys)


def find_replacements(
    context: RunContext, requests: Iterable[RestatementRequest]
) -> list[tuple[RestatementRequest, BatchSource | RequestResult]]:
    """Find the replacements of Replays.

    Returns:
        Each request with its replacement, or with its result if that cannot be used.
    """
    spec = context.spec
    replacements = replacement_files.find_replacements(
        requests, spec.table.catalog, context.catalog_properties, spec.buffer.uri
    )
    return [
        (r, f if isinstance(f, RequestResult) else BatchSource(_new_batch(r), f, _folder(r))) for r, f in replacements
    ]


def _folder(request: RestatementRequest) -> str:
    assert request.replacement is not None
    return request.replacement.uri


def _new_batch(request: RestatementRequest) -> str:
    assert request.replacement is not None
    return request.replacement.batch_id


def run(context: RunContext) -> RestatementGroupResult:
    """Carry out the requests of `run.json` in one commit. A refused request does not affect the others.

    Raises:
        InputError: The user has to change something.
        ConflictError: The table moved between plan and commit.
        TransientError: Also if none of the requests can be carried out now.
    """
    spec = context.spec
    assert spec.restatement is not None
    context.reporter.phase(Phase.PLANNING)
    requests = tuple({r.key: r for r in spec.restatement.requests}.values())
    if spec.restatement.dry_run:
        return _planned(context, requests)
    table = open_table(context)
    native = native_kind(table, spec.restatement.deletes)
    lists = ValueLists(context.catalog_properties, table.location)
    requests, aside = lists.with_digests(requests)
    requests, no_ids = with_ids(requests, context.catalog_properties, table.location)
    aside |= no_ids

    def write(adding: Sequence[RestatementRequest], base: Base) -> Replacements:
        return write_replacements(context, table, adding, base)

    def find(unknown_ids: Sequence[str], base: Base) -> frozenset[str]:
        return _in_files(context, table, base, unknown_ids)

    if native is not None or any(r.undoes or r.searches for r in requests):
        searches = (
            any(r.searches for r in requests) and table.format_version >= NativeDeletes.DELETION_VECTORS.format_version
        )
        ids = unmasked_ids(context, table, [i for r in requests for i in r.batch_ids]) if native is not None else ()
        is_any = searches or (native is not None and any(r.reference for r in requests))
        with noted_run(context, table, None):
            leave_lost_specs(context, table, ANY if is_any else ids)
    search = partial(search_few_here, context.spark.sparkContext, spec.restatement.search_limits)
    masker = NativeMasker(context, table, native, search)
    eraser, listed = RowEraser(context, table, Lookups(context, lists)), spec.restatement.listed_snapshot_id
    list_ids, find_waiting = partial(_list_ids, context), partial(_find_waiting, context)
    group = GroupCommit(context, table, requests, write, find, list_ids, find_waiting, eraser, masker, aside, listed)
    if any(r.searches for r in requests):
        with noted_run(context, table, None):
            done = group.carry_out()
    elif brought := [r.replacement.batch_id for r in requests if r.replacement is not None]:
        with noted_run(context, table, brought):
            done = group.carry_out()
    else:
        done = group.carry_out()
    if masker.native is not None:
        mask_rest(context, table, masker)
    return finished(context, table, result_of(spec, requests, done))


def _planned(context: RunContext, requests: Sequence[RestatementRequest]) -> RestatementGroupResult:
    """The result of a dry run: what each request would do on its own. Changes nothing."""
    table = open_table(context, prepare=False)
    base = observe_base(context, table)
    requests, aside = with_ids(requests, context.catalog_properties, table.location)
    unknown_ids = unknown_ids_of(base.ledger, requests)
    in_files = _in_files(context, table, base, unknown_ids) if unknown_ids else frozenset()
    absent, unlisted = look_for(base.ledger, requests, in_files, partial(_list_ids, context))
    aside |= unlisted
    waiting, unread = waiting_of(base.ledger, requests, partial(_find_waiting, context))
    aside |= unread
    base = observe_base(context, table, base)  # it knows the batches that were promoted before the buffer was listed
    aside |= unusable_columns([r for r in requests if r.key not in aside], base)
    replays = [r for r in requests if r.replacement is not None and r.key not in aside]
    aside |= {r.key: found for r, found in find_replacements(context, replays) if isinstance(found, RequestResult)}
    lookups = Lookups(context, ValueLists(context.catalog_properties, table.location))
    searches: dict[str, tuple[Wanted, ...]] = {}
    for r in requests:
        if r.rows is not None and r.key not in aside:
            try:
                searches[r.key] = wanted_by(r, base, lookups)
            except (InputError, TransientError) as e:
                aside[r.key] = set_aside(r, e.verdict)
    wanted = {search_key(key, n): search for key, several in searches.items() for n, search in enumerate(several)}
    held = candidates(base.iceberg, base.facts.head_id, wanted)
    searched = {key: [c for c in held if key in map(request_key_of, c.keys)] for key in searches}
    files, spec = base.files(), context.spec
    deliveries = Deliveries(delivered(base.ledger.batches, references_of(requests)), waiting)
    scope = PlanScope(spec.run_id, datetime.now(UTC), base.field_id, in_files, absent, deliveries)
    return RestatementGroupResult(
        run_id=spec.run_id,
        family=spec.family,
        attempt=spec.attempt,
        outcome=RunOutcome.PLANNED,
        finished_time=scope.now,
        requests=tuple(
            aside.get(r.key) or plan_dry_run(base.ledger, r, files, scope, searched.get(r.key)) for r in requests
        ),
    )


def _in_files(context: RunContext, table: SparkTable, base: Base, unknown_ids: Sequence[str]) -> frozenset[str]:
    """The ids that have rows in the head.

    Reads the batch column of each file whose bounds include one of the ids, because bounds also include ids that the file does
    not contain.
    """
    index = IdIndex(unknown_ids)
    paths = [f.path for f in base.files() if index.might_hold(f)]
    if not paths or base.facts.head_id is None:
        return frozenset()
    context.reporter.phase(Phase.SCAN, f"{len(unknown_ids)} unknown batch ids in {len(paths)} files")
    column = named(base.batch_column)
    with scan_files(table, paths, base.facts.head_id) as scanned:
        rows = semi_join(scanned.frame.select(column), base.batch_column, unknown_ids).distinct().collect()
    return frozenset(str(r[0]) for r in rows)


def _list_ids(context: RunContext) -> frozenset[str] | Verdict:
    """The ids of the batches in the buffer, or why it cannot be listed."""
    try:
        return buffered_ids(context)
    except (InputError, TransientError) as e:  # with another buffer the request may be right
        return replace(e.verdict, transient=True)


def _find_waiting(context: RunContext, ledger: Ledger, references: Collection[str]) -> dict[str, set[str]] | Verdict:
    """The batches of these runs in the buffer, or why it cannot be read."""
    try:
        return waiting_deliveries(context, ledger, references)
    except (InputError, TransientError) as e:  # with another buffer the request may be right
        return replace(e.verdict, transient=True)

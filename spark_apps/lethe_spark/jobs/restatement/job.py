"""Restatement: carries out a group of requests in one snapshot, including the new data of Replays and the deletes of Erases. A
dry run only reports what each request would do. I/O."""

from collections.abc import Sequence
from datetime import UTC, datetime

from lethe.base.errors import InputError, TransientError
from lethe.contract.result import Phase, RequestResult, RestatementGroupResult, RunOutcome
from lethe.contract.run import RestatementRequest
from lethe.contract.settings import NativeDeletes
from lethe.files.bounds import IdIndex
from lethe.restatement.dry_run import plan_dry_run
from lethe.restatement.group import set_aside
from lethe.restatement.plan import PlanScope
from lethe.search.candidates import candidates
from lethe.search.positions import Wanted

from lethe_spark.commit.group_commit import GroupCommit, Replacements, result_of, unknown_ids_of
from lethe_spark.commit.id_lists import with_ids
from lethe_spark.commit.opening import open_table
from lethe_spark.commit.table_state import Base, observe_base
from lethe_spark.commit.writing import noted_run
from lethe_spark.jobs.finish.clean_up import finished
from lethe_spark.jobs.lost_partitions import ANY, leave_lost_specs, unmasked_ids
from lethe_spark.jobs.restatement.erase import RowEraser, wanted_by
from lethe_spark.jobs.restatement.mask import SparkMasker, mask_rest, require_format
from lethe_spark.jobs.restatement.replacements import find_replacements, write_replacements
from lethe_spark.jvm.rewrite import scan_files
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext
from lethe_spark.run.value_digests import with_digests
from lethe_spark.sql.frames import named, semi_join


def run(context: RunContext) -> RestatementGroupResult:
    """Carry out the requests of `run.json` in one commit. A refused request does not affect the others.

    Raises: InputError, ConflictError; TransientError, also if none of the requests can be carried out now.
    """
    spec = context.spec
    assert spec.restatement is not None
    context.reporter.phase(Phase.PLANNING)
    requests = tuple({r.key: r for r in spec.restatement.requests}.values())
    if spec.restatement.dry_run:
        return _planned(context, requests)
    table = open_table(context)
    native = spec.restatement.deletes.native
    require_format(table, native)
    requests, aside = with_ids(with_digests(requests), context.catalog_properties, table.location)

    def write(adding: Sequence[RestatementRequest], base: Base) -> Replacements:
        return write_replacements(context, table, adding, base)

    def find(unknown_ids: Sequence[str], base: Base) -> frozenset[str]:
        return _in_files(context, table, base, unknown_ids)

    if native is not None or any(r.undoes or r.searches for r in requests):
        searches = (
            any(r.searches for r in requests) and table.format_version >= NativeDeletes.DELETION_VECTORS.format_version
        )
        ids = unmasked_ids(context, table, [i for r in requests for i in r.batch_ids]) if native is not None else ()
        with noted_run(context, table, None):
            leave_lost_specs(context, table, ANY if searches else ids)
    masker = SparkMasker(context, table, native)
    eraser, listed = RowEraser(context, table), spec.restatement.listed_snapshot_id
    group = GroupCommit(context, table, requests, write, find, eraser, masker, aside, listed)
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
    replays = [r for r in requests if r.replacement is not None and r.key not in aside]
    aside |= {r.key: found for r, found in find_replacements(context, replays) if isinstance(found, RequestResult)}
    wanted: dict[str, Wanted] = {}
    for r in requests:
        if r.rows is not None and r.key not in aside:
            try:
                wanted[r.key] = wanted_by(r, base)
            except (InputError, TransientError) as e:
                aside[r.key] = set_aside(r, e, again=isinstance(e, TransientError))
    held = candidates(base.iceberg, base.facts.head_id, wanted)
    searched = {key: [c for c in held if key in c.keys] for key in wanted}
    unknown_ids = unknown_ids_of(base.ledger, requests)
    in_files = _in_files(context, table, base, unknown_ids) if unknown_ids else frozenset()
    files, spec = base.files(), context.spec
    scope = PlanScope(spec.run_id, datetime.now(UTC), base.field_id, in_files)
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
    """The ids that have rows in the head. Reads the batch column of each file whose bounds include one of the ids, because
    bounds also include ids that the file does not contain."""
    index = IdIndex(unknown_ids)
    paths = [f.path for f in base.files() if index.might_hold(f)]
    if not paths or base.facts.head_id is None:
        return frozenset()
    context.reporter.phase(Phase.SCAN, f"{len(unknown_ids)} unknown batch ids in {len(paths)} files")
    column = named(base.batch_column)
    with scan_files(table, paths, base.facts.head_id) as scanned:
        found = semi_join(scanned.frame.select(column), base.batch_column, unknown_ids).distinct().collect()
    return frozenset(str(r[0]) for r in found)

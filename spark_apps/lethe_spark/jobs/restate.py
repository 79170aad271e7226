"""Restatement: the requests of a group, all in one snapshot, with the new data of its Replays and without what it erases. I/O."""

from collections.abc import Sequence

from lethe.plan.bounds import IdIndex
from lethe.run import Phase, RestatementRequest, RunResult

from lethe_spark.base import Base
from lethe_spark.context import RunContext
from lethe_spark.frames import named, semi_join
from lethe_spark.group_commit import GroupCommit, Replacements, result_of
from lethe_spark.jobs.erasing import RowEraser
from lethe_spark.jobs.replacements import write_replacements
from lethe_spark.jobs.tidying import finished
from lethe_spark.jvm.rewrite import scan_files
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.opening import open_table


def run(context: RunContext) -> RunResult:
    """Carry out the requests of `run.json` in one commit. One that is refused does not hold back the others.

    Raises: InputError, ConflictError; TransientError, also if none of the requests can be carried out just now.
    """
    spec = context.spec
    assert spec.restatement is not None
    context.reporter.phase(Phase.PLANNING)
    table = open_table(context)
    requests = tuple({r.key: r for r in spec.restatement.requests}.values())

    def write(adding: Sequence[RestatementRequest], base: Base) -> Replacements:
        return write_replacements(context, table, adding, base.batch_column)

    def find(strangers: Sequence[str], base: Base) -> frozenset[str]:
        return _in_files(context, table, base, strangers)

    done = GroupCommit(context, table, requests, write, find, RowEraser(context, table)).carry_out()
    return finished(context, table, result_of(spec, requests, done))


def _in_files(context: RunContext, table: SparkTable, base: Base, strangers: Sequence[str]) -> frozenset[str]:
    """Those of the ids of which there are rows in the head. Files whose bounds allow one are read, in that one column:
    bounds alone would call every id known that sorts between two others."""
    index = IdIndex(strangers)
    paths = [f.path for f in base.files() if index.might_hold(f)]
    if not paths or base.facts.head_id is None:
        return frozenset()
    context.reporter.phase(Phase.SCAN, f"{len(strangers)} unknown batch ids in {len(paths)} files")
    column = named(base.batch_column)
    with scan_files(table, paths, base.facts.head_id) as scanned:
        found = semi_join(scanned.frame.select(column), base.batch_column, strangers).distinct().collect()
    return frozenset(str(r[0]) for r in found)

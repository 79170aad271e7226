"""Measure reads without Spark: `lethe.scan` of a ledger, and PyIceberg and DuckDB of native deletes. Each read is a process.

Native deletes are those that Spark's DELETE writes: the other engines apply these, and know nothing of a ledger. The queries are
all rows, the number of rows, and the rows of one batch.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from pyspark.sql import functions as F  # noqa: N812

from bench import rivals
from bench.lake import Lake, files_of
from bench.machine import ROOT
from bench.reading_scales import ReadingScale
from bench.rivals import Rival
from bench.scales import BATCH_COLUMN, Size
from bench.tables import base
from bench.timing import Case, Sample, in_turns, seconds_of
from tests.support.environments import python_of

SCAN, PYICEBERG, DUCKDB, SPARK = "lethe.scan", "PyIceberg", "DuckDB", "Spark"
ALL, COUNT, BATCH = "all", "count", "batch"
# The kinds of tables that each engine reads. `Spark` counts and filters here; its reads of all rows have a part of their own.
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    SCAN: (rivals.PLAIN, rivals.LEDGER),
    PYICEBERG: (rivals.PLAIN, rivals.POSITION_DELETES, rivals.DELETION_VECTORS),
    DUCKDB: (rivals.PLAIN, rivals.POSITION_DELETES, rivals.DELETION_VECTORS),
    SPARK: (rivals.PLAIN, rivals.LEDGER, rivals.DELETION_VECTORS),
}
WITHIN_SECONDS: Final = 600


def measure(lake: Lake, scale: ReadingScale) -> dict[str, Any]:
    """All engines, kinds of deletes and queries in turns. A read that finds other rows than it should is a failure."""
    size, name = scale.table, base(lake, scale.table, ordered=True)
    source = lake.load(name)
    assert source is not None
    files = files_of(source)
    doomed = size.spread(scale.goal_level)
    subjects: dict[str, Rival] = {rivals.PLAIN: rivals.Untouched(lake, name)}
    metadata = {rivals.PLAIN: source.metadata_location}
    for kind in (rivals.LEDGER, rivals.POSITION_DELETES, rivals.DELETION_VECTORS):
        subject = rivals.a_clone(lake, name, kind, size)
        subject.delete(doomed)
        assert isinstance(subject, rivals.Ledger | rivals.SparkSql)
        subject.table.refresh()
        subjects[kind], metadata[kind] = subject, subject.table.metadata_location
    # A batch beside a deleted one, so its file has deletes.
    kept = size.batch_id(next(i for i in range(size.all_batches) if i not in set(doomed)))
    peaks: dict[tuple[str, str, str], int] = {}

    def act(engine: str, kind: str, query: str, _: int) -> Sample:
        taken = 0 if kind == rivals.PLAIN else len(doomed)
        if engine == SPARK:
            seconds, rows = _by_spark(subjects[kind], query, kept)
        else:
            found = _in_a_process(engine, metadata[kind], query, kept)
            seconds, rows = found["seconds"], found["rows"]
            peaks[engine, kind, query] = max(found["peak_bytes"], peaks.get((engine, kind, query), 0))
        if rows != (expected := _expected(size, taken, query)):
            raise RuntimeError(f"{rows} rows, expected {expected}")
        return Sample(seconds)

    results = in_turns(
        Case({"engine": engine, "kind": kind, "query": query}, partial(act, engine, kind, query), scale.engine_rounds)
        for query in (ALL, COUNT, BATCH)
        for engine, kinds in KINDS.items()
        for kind in kinds
        if (engine, query) != (SPARK, ALL)
    )
    for r in results:
        if (peak := peaks.get((r["engine"], r["kind"], r["query"]))) is not None:
            r["peak_bytes"] = peak
    table = {"rows": size.all_rows, "batches": size.all_batches, "files": len(files), "sorted": True}
    return {"table": {**table, "bytes": sum(f.bytes for f in files)}, "deleted": len(doomed), "results": results}


def _expected(size: Size, taken: int, query: str) -> int:
    return size.rows if query == BATCH else (size.all_batches - taken) * size.rows


def _by_spark(subject: Rival, query: str, batch: str) -> tuple[float, int]:
    """Returns: seconds, rows."""
    rows: list[int] = []

    def read() -> None:
        frame = subject.read()
        rows.append(len(frame.where(F.col(BATCH_COLUMN) == batch).collect()) if query == BATCH else frame.count())

    return seconds_of(read), rows[0]


def _in_a_process(engine: str, metadata: str, query: str, batch: str) -> dict[str, Any]:
    """What `bench.one_read` prints. Raises: RuntimeError, if it fails."""
    python = python_of("engines") if engine == DUCKDB else sys.executable
    command = [python, "-m", "bench.one_read", engine, metadata, query, batch]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=WITHIN_SECONDS)
    if done.returncode:
        raise RuntimeError(
            done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found

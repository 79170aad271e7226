"""Measure consolidation: small files an hour, growth, registering, and one commit per batch for comparison. I/O.

python -m bench.consolidation [--scale tiny|small|full] [--only PART,…] [--out docs/benchmarks]
"""

import json
import shutil
import statistics
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from lethe.base import names
from lethe.base.names import batch_folder
from lethe.contract.checks import CheckSpec
from lethe.contract.run import BufferRef, ConsolidationMode, ConsolidationSpec, CreateTable, RunKind, RunSpec, TableRef
from lethe.contract.settings import RunFamily
from lethe.iceberg import catalogs
from lethe.ledger.ledger import BatchState, Delta
from lethe_spark.commit.ledger_commit import Intent, commit_on_ledger
from lethe_spark.jobs.clean_up import anchor_and_expire
from lethe_spark.jobs.consolidation import job as consolidate
from lethe_spark.jvm.commit import Append
from lethe_spark.jvm.data_files import DataFile
from lethe_spark.jvm.gateway import jvm
from lethe_spark.jvm.scan_tasks import write_uncommitted
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext
from pyspark.sql import functions as F  # noqa: N812

from bench import producer
from bench.lake import (
    BUCKET,
    CATALOG,
    DATASET,
    METRICS,
    Lake,
    ancestors_of,
    entry,
    our_properties,
    refill,
    total_records,
)
from bench.processes import Measured, carry_out, consolidation
from bench.report import MIB, SECONDS, Cell, Goal, Part, Result, View, goal, ratio, results_of
from bench.runner import Suite, program, sizes
from bench.timing import failure, say, seconds_of
from tests.support.servers import s3 as servers


@dataclass(frozen=True)
class ConsolidationScale:
    """The sizes that determine how long the benchmark takes."""

    name: str
    # Small files in the buffer, consolidated by one run after the other.
    files: int
    # Small files that one run consolidates.
    per_run: int
    # Small files of single runs, to measure growth.
    growth: Sequence[int]
    # Batches that each rival commits one by one.
    sample: int
    # Commits of one batch each, one after the other.
    commits: int
    # Commits that are evaluated together.
    window: int
    # Files that are registered in one commit.
    register_files: int
    # Number of such commits.
    register_rounds: int
    # Memory of the driver, as Spark takes it.
    driver_memory: str = "1g"


SCALES = sizes(
    ConsolidationScale,
    files=(40, 10_000, 100_000),
    per_run=(20, 5_000, 50_000),
    growth=((10, 20), (1_000, 10_000), (1_000, 10_000, 20_000, 100_000)),
    sample=(3, 50, 200),
    commits=(30, 1_000, 10_000),
    window=(10, 200, 1_000),
    register_files=(20, 2_000, 10_000),
    register_rounds=(2, 2, 4),
    driver_memory=("768m", "1g", "1g"),
)


def sustained(lake: Lake, scale: ConsolidationScale) -> dict[str, Any]:
    """Consolidate a buffer of small files, by one run after the other, each in its own process."""
    made = refill(lake.home / "buffer", scale.files)
    return _one_after_the_other(lake, scale, _Place(f"file://{lake.home}/buffer"), "run.sustained", made)


def on_s3(lake: Lake, scale: ConsolidationScale) -> dict[str, Any]:
    """The same with buffer and table on an S3 server, which runs on the same cores."""
    with servers.running() as s3:
        placed = lake.on_s3(s3)
        made = refill(s3.folder / BUCKET / "buffer", scale.files)
        place = _Place(f"s3://{BUCKET}/buffer", placed.catalog)
        return _one_after_the_other(placed, scale, place, "run.on_s3", made)


def growth(lake: Lake, scale: ConsolidationScale) -> dict[str, Any]:
    """Single runs of more and more files, each into a new table."""
    results = []
    for count in scale.growth:
        made = refill(lake.home / "buffer", count)
        ids = [producer.batch_id(n) for n in range(count)]
        table, place = f"run.growth_{count}", _Place(f"file://{lake.home}/buffer")
        measured = _measured(lake, scale, place, table, ids)
        if "error" not in measured:
            _checked(place, table, [measured], made.rows)
        results.append(measured)
    return {"results": results}


CHECKS: Final = tuple(
    CheckSpec.model_validate(check)
    for check in (
        {"name": "key", "unique": ["flight", "tailnum", "origin", "dest", "dep_time", "arr_time", "sched_dep_time"]},
        {"name": "whole", "notNull": ["day", "flight", "carrier"]},
        {"name": "delay", "range": {"column": "dep_delay", "min": -60, "max": 3000}},
        {"name": "tail", "pattern": {"column": "tailnum", "matches": "^N[0-9]+$"}},
        {"name": "rows", "rowCount": {"min": 1, "ofLast": 10, "atLeastPercent": 1, "atMostPercent": 100_000}},
    )
)
CHECKED_ROUNDS: Final = 3


def checks(lake: Lake, scale: ConsolidationScale) -> dict[str, Any]:
    """The same small files without and with five checks, in turns, each time into a new table."""
    made = refill(lake.home / "buffer", scale.per_run)
    ids, place = [producer.batch_id(n) for n in range(scale.per_run)], _Place(f"file://{lake.home}/buffer")
    results: list[dict[str, Any]] = []
    for round_, with_checks in product(range(CHECKED_ROUNDS), (False, True)):
        table = f"run.checks_{round_}_{len(results) % 2}"
        measured = _measured(lake, scale, place, table, ids, CHECKS if with_checks else ())
        if "error" not in measured:
            _checked(place, table, [measured], made.rows)
        results.append({"checks": len(CHECKS) if with_checks else 0, **measured})
    return {"results": results}


@dataclass(frozen=True)
class _Place:
    """Where a buffer and a table are."""

    # URI of the buffer.
    buffer: str
    catalog: str = CATALOG


def _one_after_the_other(
    lake: Lake, scale: ConsolidationScale, place: _Place, table: str, made: producer.Produced
) -> dict[str, Any]:
    results = []
    for first in range(0, scale.files, scale.per_run):
        ids = [producer.batch_id(n) for n in range(first, min(first + scale.per_run, scale.files))]
        results.append(_measured(lake, scale, place, table, ids))
    return {"files": made.batches, "rows": made.rows, "bytes": made.bytes, **_checked(place, table, results, made.rows)}


def _measured(
    lake: Lake,
    scale: ConsolidationScale,
    place: _Place,
    table: str,
    ids: Sequence[str],
    checks: tuple[CheckSpec, ...] = (),
) -> dict[str, Any]:
    try:
        spec = consolidation(place.buffer, table, ids, catalog=place.catalog)
        assert spec.consolidation is not None
        spec = spec.model_copy(update={"consolidation": spec.consolidation.model_copy(update={"checks": checks})})
        done = carry_out(lake.home, spec, scale.driver_memory)
    except RuntimeError as e:
        say(f"  {len(ids):,} files: FAILED, {failure(e)}")
        return {"files": len(ids), "error": str(e)}
    say(f"  {len(ids):,} files: {done.seconds:.1f} s, {dict(done.stages)}, {done.peak_bytes / 2**20:,.0f} MiB")
    return {"files": len(ids), "per_hour": round(len(ids) / done.seconds * 3600), **_plain(done)}


def _plain(done: Measured) -> dict[str, Any]:
    wanted = {k: v for k, v in asdict(done).items() if k != "result"}
    return wanted | {
        "output_files": done.result.files_added,
        "output_bytes": done.result.bytes_added,
        "rows": done.result.rows_added,
    }


def _checked(place: _Place, table: str, results: list[dict[str, Any]], rows: int) -> dict[str, Any]:
    """Every row is there once, or the figures are worth nothing."""
    if any("error" in r for r in results):
        return {"results": results}
    made = catalogs.load(place.catalog).load_table(table)
    if (found := total_records(made)) != rows:
        raise RuntimeError(f"{table} has {found} rows, {rows} were produced")
    return {
        "results": results,
        "commits": sum(1 for _ in ancestors_of(made)),
        "seconds": round(sum(r["seconds"] for r in results), 1),
        "per_hour": round(sum(r["files"] for r in results) / sum(r["seconds"] for r in results) * 3600),
    }


SPARK: Final = "Spark, one commit per batch"
PYICEBERG: Final = "PyIceberg, one commit per batch"


def one_by_one(lake: Lake, scale: ConsolidationScale) -> dict[str, Any]:
    """Both in turns, batch by batch, in a warm session. Reports the rates of all, of the first and of the last fifth."""
    buffer = lake.home / "buffer"
    refill(buffer, scale.sample + 1)
    files = [_file(buffer, n) for n in range(scale.sample + 1)]
    acts = {SPARK: _by_spark(lake), PYICEBERG: _by_pyiceberg(lake)}
    seconds: dict[str, list[float]] = {name: [] for name in acts}
    errors: dict[str, str] = {}
    for n, file in enumerate(files):
        for name, act in acts.items():
            if name in errors:
                continue
            since = time.perf_counter()
            try:
                act(producer.batch_id(n), file)
            except Exception as e:
                errors[name] = failure(e)
                say(f"  {name}: FAILED, {errors[name]}")
                continue
            if n:  # the first one is the warm-up
                seconds[name].append(time.perf_counter() - since)
        if n and n % max(1, scale.sample // 4) == 0:
            say("  " + ", ".join(f"{name}: {_rate(s):.0f} a minute" for name, s in seconds.items()))
    return {"batches": scale.sample, "results": [_result(name, seconds[name], errors.get(name)) for name in acts]}


def _result(kind: str, seconds: list[float], error: str | None) -> dict[str, Any]:
    if error is not None:
        return {"kind": kind, "error": error}
    fifth = max(1, len(seconds) // 5)
    return {
        "kind": kind,
        "per_minute": round(_rate(seconds), 1),
        "per_minute_first": round(_rate(seconds[:fifth]), 1),
        "per_minute_last": round(_rate(seconds[-fifth:]), 1),
        "all": [round(s, 4) for s in seconds],
    }


def _rate(seconds: list[float]) -> float:
    return 60 * len(seconds) / sum(seconds) if seconds else 0.0


def _file(buffer: Path, number: int) -> Path:
    return buffer / batch_folder(producer.BATCH_COLUMN, producer.batch_id(number)) / "part-0.parquet"


def _table(lake: Lake, name: str) -> SparkTable:
    wanted = CreateTable(table_schema=producer.SCHEMA, partition_by=(producer.PARTITION,))
    return SparkTable.create(lake.spark, CATALOG, name, wanted, {})


def _by_spark(lake: Lake) -> Callable[[str, Path], None]:
    table = _table(lake, "run.by_spark")

    def append(batch_id: str, file: Path) -> None:
        frame = lake.spark.read.parquet(str(file)).withColumn(producer.BATCH_COLUMN, F.lit(batch_id))
        frame.writeTo(table.full_name).append()

    return append


def _by_pyiceberg(lake: Lake) -> Callable[[str, Path], None]:
    name = _table(lake, "run.by_pyiceberg").name
    table = catalogs.load(CATALOG).load_table(name)

    def append(batch_id: str, file: Path) -> None:
        rows = pq.ParquetFile(file).read()
        ids = pa.repeat(pa.scalar(batch_id, pa.string()), rows.num_rows)
        table.append(rows.append_column(producer.BATCH_COLUMN, ids))

    return append


TABLE = "run.registered"
REGISTERED_PARTITIONS = 60
REGISTERED_ROWS = 100
REGISTERED_SCHEMA = "v bigint, w double, note string, day int, batch_id string"
STEPS = ("after-list", "after-read", "before-commit", "after-commit")


@dataclass(frozen=True)
class Timed(RunContext):
    """A context that notes when its steps were reached."""

    at: dict[str, float] = field(default_factory=dict)

    def step(self, name: str) -> None:
        self.at[name] = time.monotonic()
        super().step(name)


def put(buffer: Path, batch_ids: Sequence[str]) -> None:
    """A batch of one small file for each id."""
    for n, batch_id in enumerate(batch_ids):
        folder = buffer / batch_folder("batch_id", batch_id)
        folder.mkdir(parents=True)
        rows = {
            "v": pa.array(range(n, n + REGISTERED_ROWS)),
            "w": pa.array([n / 7] * REGISTERED_ROWS),
            "note": pa.array([f"note {n}"] * REGISTERED_ROWS),
            "day": pa.array([n % REGISTERED_PARTITIONS] * REGISTERED_ROWS, pa.int32()),
            "batch_id": pa.array([batch_id] * REGISTERED_ROWS),
        }
        pq.write_table(pa.table(rows), folder / "part-0.parquet")
        (folder / names.SUCCESS_MARKER).touch()


def register(lake: Lake, buffer: str, batch_ids: Sequence[str]) -> dict[str, float]:
    """One run. `buffer`: its URI. Returns: seconds by stage."""
    spec = RunSpec(
        family=RunFamily.CONSOLIDATION,
        run_id=uuid.uuid4().hex,
        dataset=DATASET,
        table=TableRef(
            catalog=lake.catalog, name=TABLE, create=CreateTable(table_schema=REGISTERED_SCHEMA, partition_by=("day",))
        ),
        batch_column="batch_id",
        buffer=BufferRef(uri=buffer),
        consolidation=ConsolidationSpec(mode=ConsolidationMode.REGISTER, batch_ids=tuple(batch_ids)),
    )
    with lake.carrying_out(spec, Timed) as context:
        began = time.monotonic()
        result = consolidate.run(context)
    ended = time.monotonic()
    if result.files_added != len(batch_ids):
        raise RuntimeError(f"{result.files_added} of {len(batch_ids)} files were registered")
    reached = [began, *(context.at[s] for s in STEPS), ended]
    stages = ("prepare and list", "read footers", "hand over and plan", "commit", "tidy up")
    found = {s: round(b - a, 2) for s, a, b in zip(stages, reached, reached[1:], strict=False)}
    return found | {"all": round(ended - began, 2)}


def register_local_files(lake: Lake, scale: ConsolidationScale) -> dict[str, Any]:
    """Rounds of as many files each, into one table."""
    return _rounds(lake, scale, f"file://{lake.home}", lake.home)


def register_on_s3(lake: Lake, scale: ConsolidationScale) -> dict[str, Any]:
    """The same with buffer and table on an S3 server, which runs on the same cores."""
    with servers.running() as s3:
        return _rounds(lake.on_s3(s3), scale, f"s3://{BUCKET}", s3.folder / BUCKET)


def _rounds(lake: Lake, scale: ConsolidationScale, root: str, folder: Path) -> dict[str, Any]:
    """`root`: the URI of `folder`."""
    buffer = folder / "registered"
    shutil.rmtree(buffer, ignore_errors=True)
    results = []
    for number in range(scale.register_rounds):
        batch_ids = [f"round-{number}.{n:0>8}" for n in range(scale.register_files)]
        put(buffer, batch_ids)
        seconds = register(lake, f"{root}/registered", batch_ids)
        location = catalogs.load(lake.catalog).load_table(TABLE).location()
        metadata = folder / location.removeprefix(root).lstrip("/")
        results.append(
            {
                "files": len(batch_ids),
                "stages": seconds,
                "per_minute": round(len(batch_ids) / seconds["all"] * 60),
                "metadata_bytes": sum(p.stat().st_size for p in metadata.rglob("*") if p.is_file()),
            }
        )
        say(f"  {len(batch_ids):,} files registered: {seconds}")
    return {"results": results}


T = TypeVar("T")
# How fast the machine is while a window lasts, by work that is always the same: an hour is long, and others use it as well.
YARDSTICK: Final = json.dumps([{"id": n, "name": f"row {n}", "values": [n] * 5} for n in range(4_000)])
COMMITS_PER_YARDSTICK: Final = 5


def many_commits(lake: Lake, scale: ConsolidationScale) -> dict[str, Any]:
    """Each commit adds a data file and a batch through the product's commit path, and tidies up as every run does."""
    wanted = CreateTable(table_schema=producer.SCHEMA, partition_by=(producer.PARTITION,))
    table = SparkTable.create(lake.spark, CATALOG, "run.commits", wanted, METRICS | our_properties())
    table.ensure_layout(producer.BATCH_COLUMN)
    file = _a_file(lake, table)

    def add(context: RunContext, number: int, copy: DataFile) -> None:
        id = producer.batch_id(number)
        delta = Delta(context.run_id, set_batches=(entry(id, BatchState.PROMOTED, file.records),))
        commit_on_ledger(context, table, lambda _: Intent(delta, Append((copy,)), None))

    return in_windows(lake, table, scale.commits, scale.window, lambda n: _named(lake, table, file, n), add)


def in_windows(
    lake: Lake,
    table: SparkTable,
    commits: int,
    window: int,
    prepare: Callable[[int], T],
    commit: Callable[[RunContext, int, T], None],
) -> dict[str, Any]:
    """Commit so often, and tidy up after each; `prepare` is not timed. `pace_seconds` of a window: of the yardstick."""
    took: list[float] = []
    tidying: list[float] = []
    paces: list[float] = []
    results: list[dict[str, Any]] = []
    for n in range(commits):
        prepared = prepare(n)
        with lake.context(RunKind.CONSOLIDATION, table.name) as context:
            since = time.perf_counter()
            commit(context, n, prepared)
            between = time.perf_counter()
            anchor_and_expire(context, table, committed=True)
            tidying.append(time.perf_counter() - between)
            took.append(between - since)
        if n % COMMITS_PER_YARDSTICK == 0:
            paces.append(seconds_of(lambda: json.dumps(json.loads(YARDSTICK))))
        if (n + 1) % window == 0:
            results.append({**_window(table, took, tidying, n + 1, window), "pace_seconds": statistics.median(paces)})
            paces.clear()
            say(f"  {n + 1:,} commits: {results[-1]['seconds']['median']:.3f} s each")
    return {"window": window, "results": results}


def _window(table: SparkTable, commits: list[float], tidying: list[float], count: int, size: int) -> dict[str, Any]:
    last = [round(s, 4) for s in commits[-size:]]
    metadata = Path("/" + table.metadata_location.removeprefix("file:").lstrip("/"))
    document = json.loads(metadata.read_text())
    return {
        "commits": count,
        "seconds": {"min": min(last), "median": statistics.median(last), "max": max(last)},
        "tidying_seconds": round(sum(tidying[-size:]), 1),
        "metadata_bytes": metadata.stat().st_size,
        "snapshots": len(document["snapshots"]),
    }


def _a_file(lake: Lake, table: SparkTable) -> DataFile:
    rows = producer.rows_of(0).append_column(producer.BATCH_COLUMN, [["x"] * producer.rows_of(0).num_rows])
    return write_uncommitted(table, lake.spark.createDataFrame(rows.to_pandas(), producer.SCHEMA), "bench")[0]


def _named(lake: Lake, table: SparkTable, file: DataFile, number: int) -> DataFile:
    """The same file under another name. It is never read."""
    builder = jvm(lake.spark).org.apache.iceberg.DataFiles.builder(table.java.spec()).copy(file.java)
    return DataFile.of(builder.withPath(file.path.replace(".parquet", f"-{number}.parquet")).build())


RATES: Final = {"sustained": (5_000_000, ""), "s3": (3_000_000, " on an S3 server")}
REGISTERED_A_MINUTE: Final = {"register": (100_000, ""), "register-s3": (60_000, " on an S3 server")}
# What is called "not growing": the least that two windows of equal commits differ by on a machine that does other things.
GROWTH: Final = 1.25
CHECKS_COST: Final = 1.1
RUN_CELLS: Final = (
    SECONDS,
    Cell("CPU seconds", "cpu_seconds"),
    Cell("peak MiB", "peak_bytes", MIB),
    Cell("files an hour", "per_hour"),
)
WINDOW_CELLS: Final = (SECONDS, Cell("snapshots", "snapshots"))


def goals(parts: Mapping[str, Part]) -> list[Goal]:
    """Rates of files, and commits that do not become slower."""
    found = []
    for name, (limit, where) in RATES.items():
        if name in parts:
            text = f"at least this many small files an hour{where}, over {parts[name]['files']:,} of them"
            found.append(goal(text, parts[name].get("per_hour"), limit, at_least=True))
    for name, (limit, where) in REGISTERED_A_MINUTE.items():
        if name in parts:
            rates = [r["per_minute"] for r in results_of(parts, name) if "per_minute" in r]
            text = f"at least this many files registered a minute{where}, the median of all commits"
            found.append(goal(text, round(statistics.median(rates)) if rates else None, limit, at_least=True))
    if "checks" in parts:
        text = "five checks : none, the median seconds of consolidations of the same files in turns, at most"
        found.append(goal(text, _cost_of_checks(results_of(parts, "checks")), CHECKS_COST))
    if "commits" in parts:
        found.append(growth_goal("commits", parts["commits"]))
    return found


def _cost_of_checks(results: Sequence[Result]) -> float | None:
    seconds = {n: [r["seconds"] for r in results if r["checks"] == n and "error" not in r] for n in (0, len(CHECKS))}
    return ratio(*(statistics.median(s) if s else None for s in (seconds[len(CHECKS)], seconds[0])))


def growth_goal(what: str, part: Part) -> Goal:
    """The goal that commits do not become slower with their number."""
    text = f"the last {part['window']:,} of {part['results'][-1]['commits']:,} {what} : the first, at most"
    return goal(text, slowed(part), GROWTH)


def slowed(part: Part) -> float | None:
    """The median of the last window of commits by that of the first, each by the machine's pace in it where that is known."""
    first, last = (
        r["seconds"]["median"] / r.get("pace_seconds", 1.0) for r in (part["results"][0], part["results"][-1])
    )
    return ratio(last, first)


SUITE = Suite(
    name="consolidation",
    purpose=(__doc__ or "").splitlines()[0],
    parts={
        "sustained": sustained,
        "s3": on_s3,
        "growth": growth,
        "checks": checks,
        "register": register_local_files,
        "register-s3": register_on_s3,
        "rivals": one_by_one,
        "commits": many_commits,
    },
    scales=SCALES,
    goals=goals,
    views=(
        View("Runs", ("sustained", "s3", "growth"), ("files",), cells=RUN_CELLS),
        View("With and without checks", ("checks",), ("files", "checks"), cells=RUN_CELLS),
        View(
            "Registered as they are",
            ("register", "register-s3"),
            ("files",),
            cells=(Cell("files a minute", "per_minute"),),
        ),
        View(
            "One commit per batch",
            ("rivals",),
            ("kind",),
            cells=(
                Cell("batches a minute", "per_minute"),
                Cell("the first fifth", "per_minute_first"),
                Cell("the last fifth", "per_minute_last"),
            ),
        ),
        View("Commit after commit", ("commits",), ("commits",), cells=WINDOW_CELLS, plot="commits", ends=True),
    ),
)

if __name__ == "__main__":
    program(SUITE)

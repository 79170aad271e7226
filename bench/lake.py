"""The catalog, the session and the tables of a benchmark, on SQLite and local files. I/O.

The rows of a table are written once, as Parquet files of a base table. Each measured table is a clone whose metadata names the
same files. No data file is ever deleted.
"""

import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
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
from lethe_spark.jobs.restatement import job as restate
from lethe_spark.jvm.commit import Append, Change
from lethe_spark.jvm.data_files import DataFile
from lethe_spark.jvm.gateway import each_of
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext
from lethe_spark.run.progress import Reporter
from pyspark.sql import SparkSession

from bench.scales import BATCH_COLUMN, PARTITION, SCHEMA, Size
from tests.support.servers import s3 as servers

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
        reporter = Reporter(spec, ignore)
        try:
            yield RunContext(spec, reporter, catalogs.properties(self.catalog), spark=self.spark)
        finally:
            reporter.close(Phase.SUCCEEDED)


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
    """Carry out the restatement of a context. Raises: RuntimeError, if it does not succeed."""
    result = restate.run(context)
    if result.outcome != "Committed":
        raise RuntimeError(f"the revert ended as {result.outcome}: {result.reason} {result.message}")

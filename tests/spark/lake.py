"""A small lake on SQLite and local files for tests: its catalog file, buffers with batches in them, tables with rows."""

import itertools
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from lethe.base import names
from lethe.base.ids import batch_folder
from lethe.contract.result import Phase, Progress
from lethe.contract.run import BufferRef, CreateTable, RunKind, RunSpec, TableRef
from lethe.files.bounds import FileBounds
from lethe.iceberg import catalogs
from lethe.iceberg.facts import data_files
from lethe.ledger.ledger import Delta
from lethe_spark.commit.ledger_commit import Intent, commit_on_ledger
from lethe_spark.ingest.ingest import BatchSource
from lethe_spark.jvm.commit import Append, Change, LedgerOnly
from lethe_spark.jvm.data_files import DataFile
from lethe_spark.jvm.rewrite import write_uncommitted
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext
from lethe_spark.run.progress import Reporter
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from tests.buffers import batches_in
from tests.builders import a_run, a_tombstone

CATALOG = "lite"
SCHEMA = "v bigint, day int, batch_id string"
ROWS = pa.schema([("v", pa.int64()), ("day", pa.int32())])  # what producers write: the folder says which batch it is


@dataclass(frozen=True)
class Lake:
    """A catalog called `lite`, a warehouse and room for buffers, all under one folder."""

    home: Path

    @classmethod
    def make(cls, home: Path) -> "Lake":
        """Write the catalog's configuration; PyIceberg insists on block style."""
        home.mkdir(parents=True, exist_ok=True)
        (home / ".pyiceberg.yaml").write_text(
            f"catalog:\n  {CATALOG}:\n    type: sql\n    uri: sqlite:///{home}/catalog.db\n    warehouse: file://{home}/warehouse\n"
        )
        return cls(home)

    def add_catalog(self, name: str, **properties: str) -> None:
        """One more catalog in the configuration."""
        file = self.home / ".pyiceberg.yaml"
        document = yaml.safe_load(file.read_text())
        document["catalog"][name] = properties
        file.write_text(yaml.safe_dump(document))

    @property
    def environment(self) -> dict[str, str]:
        return {"PYICEBERG_HOME": str(self.home)}

    @property
    def catalog(self) -> Catalog:
        return catalogs.load(CATALOG)

    @contextmanager
    def locked_catalog(self) -> Iterator[None]:
        """A catalog whose database takes no writes; reads still work."""
        connection = sqlite3.connect(self.home / "catalog.db")
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield
        finally:
            connection.rollback()
            connection.close()

    def buffer(self, name: str) -> "BufferFolder":
        return BufferFolder(self.home / "buffers" / name)


@dataclass(frozen=True)
class BufferFolder:
    """A buffer on the file system, and its producer."""

    path: Path

    @property
    def uri(self) -> str:
        return f"file://{self.path}"

    def put(self, batch_id: str, rows: Iterable[Mapping[str, Any]] | pa.Table | None = None, files: int = 1) -> Path:
        """Promote a batch into the buffer: its rows spread over `files` files, then `_SUCCESS`."""
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows or [{"v": 1, "day": 1}]), ROWS)
        folder = self.path / batch_folder("batch_id", batch_id)
        folder.mkdir(parents=True)
        size = -(-table.num_rows // files)
        for n in range(files):
            pq.write_table(table.slice(n * size, size), folder / f"part-{n}.parquet")
        (folder / names.SUCCESS_MARKER).touch()
        return folder

    def sources(self) -> list[BatchSource]:
        """What a consolidation would read, listed as it lists."""
        return [BatchSource(b.id, b.data_objects) for b in batches_in(self.uri)]


@dataclass
class Recorder:
    """A sink for progress that remembers."""

    seen: list[Progress] = field(default_factory=list)

    def __call__(self, progress: Progress) -> None:
        self.seen.append(progress)


_NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class Flights:
    """One table of its own for one test, and what tests do to it."""

    spark: SparkSession
    lake: Lake
    name: str
    table: SparkTable

    @classmethod
    def make(
        cls, spark: SparkSession, lake: Lake, partition_by: Sequence[str] = ("day",), schema: str = SCHEMA
    ) -> "Flights":
        name = f"air.flights_{next(_NUMBERS)}"
        create = CreateTable(schema=schema, partition_by=tuple(partition_by))
        table = SparkTable.create(spark, CATALOG, name, create, {names.CLAIM: "air/flights"})
        table.ensure_layout("batch_id")
        return cls(spark, lake, name, table)

    @property
    def full_name(self) -> str:
        return f"{CATALOG}.{self.name}"

    def handle(self) -> SparkTable:
        """A second handle, as another process would have."""
        found = SparkTable.load(self.spark, CATALOG, self.name)
        assert found is not None
        return found

    def written(self, *batches: str, rows: int = 10, run_id: str = "run-1") -> tuple[DataFile, ...]:
        """Uncommitted files with `rows` rows of each batch, on two days."""
        values = [(i, 1 + i % 2, b) for b in batches for i in range(rows)]
        return write_uncommitted(self.table, self.spark.createDataFrame(values, SCHEMA), run_id)

    def append_as_a_stranger(self, *batches: str, rows: int = 10) -> None:
        """A foreign writer: PyIceberg, which knows nothing of ledgers."""
        values = [{"v": i, "day": 1, "batch_id": b} for b in batches for i in range(rows)]
        schema = pa.schema([("v", pa.int64()), ("day", pa.int32()), ("batch_id", pa.string())])
        self.lake.catalog.load_table(self.name).append(pa.Table.from_pylist(values, schema=schema))

    def rows(self) -> int:
        """As anybody but Lethe counts them."""
        return self.spark.table(self.full_name).count()

    def rows_per_batch(self) -> dict[str, int]:
        """As anybody but Lethe counts them, by PyIceberg."""
        scanned = self.lake.catalog.load_table(self.name).scan(selected_fields=("batch_id",)).to_arrow()
        return dict(Counter(scanned["batch_id"].to_pylist()))

    def written_files(self, snapshot_id: int) -> list[FileBounds]:
        """The live data files of a snapshot, as PyIceberg reads them from the manifests."""
        field_id = self.table.field_id("batch_id")
        assert field_id is not None
        return data_files(self.lake.catalog.load_table(self.name), snapshot_id, field_id)

    def ledger_files(self) -> list[Path]:
        return sorted(
            Path("/" + self.table.location.removeprefix("file:").lstrip("/")).glob(f"{names.LEDGER_FOLDER}/*")
        )

    def operation(self) -> str:
        """What Iceberg calls the newest commit."""
        head = self.lake.catalog.load_table(self.name).current_snapshot()
        assert head is not None
        assert head.summary is not None
        return head.summary.operation.value

    def run(self, kind: RunKind = RunKind.CONSOLIDATION, **changes: Any) -> RunSpec:
        wanted: dict[str, Any] = {
            "table": TableRef(catalog=CATALOG, name=self.name),
            "buffer": BufferRef(uri=self.lake.buffer(self.name).uri),
        }
        return a_run(kind, **{**wanted, **changes})

    def run_of(self, *batch_ids: str, **changes: Any) -> RunSpec:
        """A consolidation of these batches of the table's own buffer."""
        return self.run(batch_ids=batch_ids, **changes)

    @contextmanager
    def context(self, **changes: Any) -> Iterator[RunContext]:
        """A run's context, in this process."""
        spec = self.run(**changes)
        reporter = Reporter(spec, Recorder())
        try:
            yield RunContext(spec, reporter, catalogs.properties(CATALOG), spark=self.spark)
        finally:
            reporter.close(Phase.SUCCEEDED)

    def commit(self, *tombstoned: str, files: Sequence[DataFile] = (), run_id: str = "run-1") -> int:
        """One ledger commit as the jobs make it: tombstones for some batches, and data files."""
        field_id = self.table.field_id("batch_id")
        assert field_id is not None
        tombstones = tuple(a_tombstone(i, namespace=field_id, added_on=datetime.now(UTC)) for i in tombstoned)
        change: Change = Append(tuple(files)) if files else LedgerOnly()
        with self.context(run_id=run_id) as context:
            done = commit_on_ledger(
                context, self.table, lambda _: Intent(Delta(run_id, add_tombstones=tombstones), change, None)
            )
        assert done.snapshot_id is not None
        return done.snapshot_id

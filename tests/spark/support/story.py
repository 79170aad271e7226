"""A Dataset from its first batch on, with all its runs in this process, and a reader of its table without Lethe's code."""

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote

import fastavro
import lethe
import lethe_spark
import pyarrow as pa
import pyarrow.parquet as pq
from lethe import ledger_store
from lethe.base.names import batch_folder, run_id
from lethe.contract.result import Phase, RequestResult, RunResult
from lethe.contract.run import (
    BufferRef,
    CreateTable,
    DatasetRef,
    Replacement,
    RestatementRequest,
    RunKind,
    RunSpec,
    SnapshotLimits,
    TableRef,
)
from lethe.contract.settings import Deletes, UnknownBatches
from lethe.iceberg import catalogs
from lethe.iceberg.facts import data_files, observe
from lethe.ledger.ledger import Ledger
from lethe_spark.apps.app import job_of
from lethe_spark.run.progress import Reporter
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyspark.sql import SparkSession

from tests.support.builders import a_request, a_run
from tests.support.documents import dataset_spec, resource
from tests.support.lake import CATALOG, ROWS, SCHEMA, BufferFolder, Lake, Recorder
from tests.support.servers.stores import Place
from tests.support.steps import SteppedContext

Row = tuple[str | None, int, int]  # batch id, v, day
ALL_GONE = SnapshotLimits(max_age_seconds=0, min_to_keep=1, max_count=1)
_NUMBERS = itertools.count(1)
_ROWS_OF_SNAPSHOTS: dict[int, Counter[Row]] = {}
S = TypeVar("S", bound="Story")


@dataclass(frozen=True)
class Story:
    """One Dataset: its buffer, its table, the jobs that work on it, all in this process."""

    spark: SparkSession
    lake: Lake
    name: str
    partition_by: tuple[str, ...] = ("day",)
    catalog: str = CATALOG
    format_version: int = 2
    deletes: Deletes = Deletes.LEDGER
    """As `spec.deletes`: of all restatements that do not say otherwise."""

    @classmethod
    def begin(
        cls,
        spark: SparkSession,
        lake: Lake,
        partition_by: tuple[str, ...] = ("day",),
        catalog: str = CATALOG,
        format_version: int | None = None,
        **more: Any,
    ) -> Self:
        """A Dataset with a name of its own and no table yet.

        Args:
            format_version: By default the one that the mode of deletes needs.
            more: Further fields: `deletes`, and those of a subclass.
        """
        version = format_version or format_version_of(more.get("deletes", cls.deletes))
        return cls(spark, lake, f"air.story_{next(_NUMBERS)}", partition_by, catalog, version, **more)

    def filled(self, *groups: str) -> Self:
        """Put batches, of one letter each, and consolidate each group by itself; by default A, B and D together."""
        for group in groups or ("ABD",):
            self.put(*group)
            self.consolidate(*group)
        return self

    # --- what producers and users do ------------------------------------------------------------------------------

    @property
    def buffer(self) -> BufferFolder:
        return self.lake.buffer(self.name)

    def put(self, *batch_ids: str, rows: int = 4, files: int = 1) -> None:
        """Batches with rows of their own on two days. Put again, a batch is another one under the same id."""
        for batch_id in batch_ids:
            shutil.rmtree(self.folder(batch_id), ignore_errors=True)
            self.buffer.put(batch_id, pa.Table.from_pylist(some_rows(batch_id, rows), ROWS), files)

    def folder(self, batch_id: str) -> Path:
        return self.buffer.path / f"batch_id={quote(batch_id, safe='')}"

    def put_file(self, batch_id: str, content: bytes) -> None:
        """A complete batch of one file with this content, whatever it is."""
        self.put(batch_id)
        (self.folder(batch_id) / "part-0.parquet").write_bytes(content)

    def replacement(self, batch_id: str, rows: int = 3) -> Replacement:
        """A folder with a replacement, outside the buffer."""
        folder = BufferFolder(self.lake.home / "restated" / self.name).put(
            batch_id, pa.Table.from_pylist(some_rows(batch_id, rows), ROWS)
        )
        return Replacement(batch_id=batch_id, uri=f"file://{folder}")

    def append_as_foreign_writer(self, *batch_ids: str | None, start: int = 500, day: int = 1) -> int:
        """A foreign writer: one row of each batch, by PyIceberg, which knows nothing of ledgers. Its snapshot's id."""
        rows = [{"v": start + n, "day": day, "batch_id": b} for n, b in enumerate(batch_ids)]
        schema = pa.schema([("v", pa.int64()), ("day", pa.int32()), ("batch_id", pa.string())])
        table = self.table()
        table.append(pa.Table.from_pylist(rows, schema=schema))
        head = table.current_snapshot()
        assert head is not None
        return head.snapshot_id

    def sql(self, text: str) -> None:
        """Another engine's statement. `{t}` is the table's whole name, `{catalog}` and `{name}` are its parts."""
        whole = ".".join(f"`{part}`" for part in self.full_name.split("."))
        self.spark.sql(text.format(t=whole, catalog=self.catalog, name=self.name)).collect()

    def compact(self) -> None:
        """Another engine's compaction: every row in another file."""
        self.sql(
            "CALL {catalog}.system.rewrite_data_files(table => '{name}', "
            "options => map('rewrite-all', 'true', 'remove-dangling-deletes', 'true'))"
        )

    def tag(self, name: str = "audit", snapshot_id: int | None = None) -> int:
        """Tag a snapshot, by default the head. Returns its id."""
        tagged = snapshot_id or self.head().snapshot_id
        self.table().manage_snapshots().create_tag(tagged, name).commit()
        return tagged

    def untag(self, name: str = "audit") -> None:
        self.table().manage_snapshots().remove_tag(name).commit()

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """By Spark: PyIceberg changes no table of format version 3."""
        wanted = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        self.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({wanted})")

    def unset_properties(self, *names: str) -> None:
        unwanted = ", ".join(f"'{name}'" for name in names)
        self.sql(f"ALTER TABLE {{t}} UNSET TBLPROPERTIES ({unwanted})")

    def seen_as(self, kind: type[S], **changes: Any) -> S:
        """The Dataset of this story, as a story of another kind."""
        return kind(**{f.name: getattr(self, f.name) for f in fields(Story)} | changes)

    # --- runs -----------------------------------------------------------------------------------------------------

    def spec(self, kind: RunKind, keys: Iterable[str], **changes: Any) -> RunSpec:
        create = CreateTable(table_schema=SCHEMA, partition_by=self.partition_by, format_version=self.format_version)
        wanted: dict[str, Any] = {
            "run_id": run_id(self.name, kind.family, keys),
            "dataset": DatasetRef(namespace="air", name=self.name, uid=self.name),
            "table": TableRef(catalog=self.catalog, name=self.name, create=create),
            "buffer": BufferRef(uri=self.buffer.uri),
        }
        return a_run(kind, **{**wanted, **changes})

    def consolidation(self, *batch_ids: str, **changes: Any) -> RunSpec:
        return self.spec(RunKind.CONSOLIDATION, batch_ids, batch_ids=batch_ids, **changes)

    def restatement(self, *requests: RestatementRequest, deletes: Deletes | None = None, **changes: Any) -> RunSpec:
        run = self.spec(RunKind.RESTATEMENT, [r.key for r in requests], requests=requests, **changes)
        assert run.restatement is not None
        restatement = run.restatement.model_copy(update={"deletes": Deletes(deletes or self.deletes)})
        return run.model_copy(update={"restatement": restatement})

    def vacuuming(
        self, limits: SnapshotLimits | None = None, key: str = "1", max_bytes: int | None = None, **changes: Any
    ) -> RunSpec:
        spec = self.spec(RunKind.VACUUM, [key], limits=limits, **changes)
        assert spec.vacuum is not None
        return spec.model_copy(update={"vacuum": spec.vacuum.model_copy(update={"max_bytes": max_bytes})})

    def run(self, spec: RunSpec, **at: Callable[[], object]) -> RunResult:
        """Carry a run out. `at`: what happens at a step of it, `before_commit=…`."""
        return self.carry_out(self.context(spec, **at))

    def carry_out(self, context: SteppedContext) -> RunResult:
        """As `run`, with a context whose steps the test checks afterwards."""
        try:
            return job_of(context.spec.kind)(context)
        finally:
            context.reporter.close(Phase.SUCCEEDED)
            assert not context.at, f"steps that were never reached: {set(context.at)}; there were {context.steps}"

    def context(self, spec: RunSpec, **at: Callable[[], object]) -> SteppedContext:
        hooks = {name.replace("_", "-"): happening for name, happening in at.items()}
        reporter = Reporter(spec, Recorder())
        return SteppedContext(spec, reporter, catalogs.properties(self.catalog), spark=self.spark, at=hooks)

    def consolidate(self, *batch_ids: str, **at: Callable[[], object]) -> RunResult:
        return self.run(self.consolidation(*batch_ids), **at)

    def restate_all(self, *requests: RestatementRequest, **at: Callable[[], object]) -> Any:
        """Carry a group out by one run."""
        return self.run(self.restatement(*requests), **at)

    def restate(self, request: RestatementRequest, **at: Callable[[], object]) -> RequestResult:
        (result,) = self.restate_all(request, **at).requests
        return result

    def revert(
        self,
        *batch_ids: str,
        name: str = "revert",
        unknown: str = "Refuse",
        before_look: Callable[[], object] | None = None,
        **changes: Any,
    ) -> RequestResult:
        """Revert batches. `before_look`: what happens before the run looks for unknown ones in the buffer."""
        request = a_request(name, batch_ids=batch_ids, unknown_batches=UnknownBatches(unknown), **changes)
        return self.restate(request, **({"before_look": before_look} if before_look is not None else {}))

    def replay(self, *batch_ids: str, by: str, name: str = "replay", rows: int = 3, **changes: Any) -> RequestResult:
        return self.restate(self.a_replay(*batch_ids, by=by, name=name, rows=rows, **changes))

    def a_replay(
        self, *batch_ids: str, by: str, name: str = "replay", rows: int = 3, **changes: Any
    ) -> RestatementRequest:
        replacement = self.replacement(by, rows)
        return a_request(name, "Replay", batch_ids=batch_ids, replacement=replacement, **changes)

    def undo(self, of: str = "revert", name: str = "undo", **at: Callable[[], object]) -> RequestResult:
        """Take the restatement of this name back."""
        return self.restate(an_undo(of, name), **at)

    def vacuum(
        self,
        limits: SnapshotLimits | None = None,
        key: str = "1",
        max_bytes: int | None = None,
        **at: Callable[[], object],
    ) -> RunResult:
        return self.run(self.vacuuming(limits, key, max_bytes), **at)

    def vacuuming_so(self, key: str = "1", **asked: Any) -> RunSpec:
        """A vacuum with these fields of its spec."""
        spec = self.vacuuming(key=key)
        assert spec.vacuum is not None
        return spec.model_copy(update={"vacuum": spec.vacuum.model_copy(update=asked)})

    # --- the operator's view --------------------------------------------------------------------------------------

    def dataset_resource(self, **spec: Any) -> dict[str, Any]:
        """The custom resource of this Dataset, as the API server stores it."""
        wanted = {"table": {"catalog": self.catalog, "name": self.name}, "buffer": {"uri": self.buffer.uri}, **spec}
        identity = {"namespace": "air", "uid": self.name, "generation": 1}
        return resource("Dataset", self.name, dataset_spec(**wanted), **identity)

    # --- what there is --------------------------------------------------------------------------------------------

    @property
    def full_name(self) -> str:
        return f"{self.catalog}.{self.name}"

    def table(self) -> Table:
        return catalogs.load(self.catalog).load_table(self.name)

    def snapshots(self) -> list[Snapshot]:
        """The head and its ancestors, newest first."""
        table = self.table()
        found: list[Snapshot] = []
        current = table.current_snapshot()
        while current is not None:
            found.append(current)
            parent = current.parent_snapshot_id
            current = table.snapshot_by_id(parent) if parent is not None else None
        return found

    def head(self) -> Snapshot:
        return self.snapshots()[0]

    def keys(self, snapshot: Snapshot | None = None) -> dict[str, str]:
        summary = (snapshot or self.head()).summary
        assert summary is not None
        return dict(summary.additional_properties)

    def operation(self) -> str:
        summary = self.head().summary
        assert summary is not None
        return summary.operation.value

    def ledger(self) -> Ledger:
        table = self.table()
        return ledger_store.load(table.io, observe(table, "batch_id")).ledger

    def states(self) -> dict[str, str]:
        return {i: str(b.state) for i, b in self.ledger().batches.items()}

    def files(self) -> dict[str, list[str | None]]:
        """The live data files by path, each with the batch ids in it in the order of its rows."""
        table = self.table()
        found = data_files(table, self.head().snapshot_id, table.schema().find_field("batch_id").field_id)
        return {f.path: _batch_ids(local(f.path)) for f in found}

    def in_files(self) -> Counter[str | None]:
        """The rows of each batch that the live data files hold, deleted or not."""
        return Counter(b for batches in self.files().values() for b in batches)

    def tombstones(self) -> set[str]:
        """The ids of the active tombstones, by the file that the head's summary names."""
        return {t["id"] for t in avro(self.keys()["tombstone.file"])}

    def purged_by_head(self) -> set[str]:
        """What the head's vacuum says that it applied."""
        return {t["id"] for t in avro(self.keys()["tombstone.vacuum.file"])}

    def counts(self) -> dict[str, str]:
        """The counts of tombstones in the head's summary: added, deleted, total, vacuum."""
        return {k.split(".")[2]: v for k, v in self.keys().items() if k.startswith("tombstone.metrics.")}

    def rows_at(self, snapshot_id: int | None = None) -> Counter[Row]:
        """The rows of a snapshot by this test's own reading: PyIceberg's scan, and the tombstone file named by the
        nearest ancestor, read with an Avro library. A snapshot never changes, so each is read once."""
        table = self.table()
        chosen = table.snapshot_by_id(snapshot_id) if snapshot_id is not None else table.current_snapshot()
        if chosen is None:
            return Counter()
        if chosen.snapshot_id not in _ROWS_OF_SNAPSHOTS:
            _ROWS_OF_SNAPSHOTS[chosen.snapshot_id] = self._rows_of(table, chosen)
        return Counter(_ROWS_OF_SNAPSHOTS[chosen.snapshot_id])

    def _rows_of(self, table: Table, chosen: Snapshot) -> Counter[Row]:
        deleted: set[str] = set()
        at: Snapshot | None = chosen
        while at is not None:
            if file := self.keys(at).get("tombstone.file"):
                deleted = {t["id"] for t in avro(file)}
                break
            at = table.snapshot_by_id(at.parent_snapshot_id) if at.parent_snapshot_id is not None else None
        rows = table.scan(snapshot_id=chosen.snapshot_id).to_arrow().to_pylist()
        return Counter((r["batch_id"], r["v"], r["day"]) for r in rows if r["batch_id"] not in deleted)

    def check_reads(self, wanted: Counter[Row] | None = None) -> None:
        """Readers without Spark find the rows: at the head, at each retained snapshot, at its time.

        That Spark finds the same rows in tables of every shape is what tests/spark/sdk/test_increments.py shows.
        """
        snapshots = self.snapshots()
        rows = {s.snapshot_id: self.rows_at(s.snapshot_id) for s in snapshots}
        head = snapshots[0].snapshot_id
        if wanted is not None:
            assert rows[head] == wanted
        assert of_arrow(lethe.scan(self.full_name).to_arrow()) == rows[head]
        assert of_arrow(lethe.scan(self.full_name, as_of=_just_after(snapshots[0])).to_arrow()) == rows[head]
        for i in rows.keys() - {head}:
            assert of_arrow(lethe.scan(self.full_name, snapshot_id=i).to_arrow()) == rows[i]

    def check_reads_by_spark(self) -> None:
        """Spark, too: at the head, at its time, at each retained snapshot."""
        snapshots = self.snapshots()
        assert of_spark(lethe_spark.read(self.spark, self.full_name)) == self.rows_at()
        assert of_spark(lethe_spark.read(self.spark, self.full_name, as_of=_just_after(snapshots[0]))) == self.rows_at()
        for i in (s.snapshot_id for s in snapshots):
            assert of_spark(lethe_spark.read(self.spark, self.full_name, snapshot_id=i)) == self.rows_at(i)

    def check_storage(self) -> None:
        """Every data file below the table is one of its live ones, and nothing else is there."""
        assert self.data_folder() == {local(p) for p in self.files()}

    def ledger_files(self) -> dict[str, Path]:
        """All files of ledgers by name, needed or not."""
        return {p.name: p for p in Path(local(self.table().location()), "_tombstones").iterdir()}

    def data_folder(self) -> set[str]:
        """All Parquet files below the table, also those that no snapshot names."""
        root = Path(local(self.table().location()))
        return {str(p) for p in root.rglob("*.parquet")}


def _batch_ids(path: str) -> list[str | None]:
    """The batch ids in a data file, in the order of its rows."""
    found: list[str | None] = pq.read_table(path, columns=["batch_id"], partitioning=None)["batch_id"].to_pylist()
    return found


def format_version_of(deletes: str) -> int:
    """The format version of tables with such deletes. With `Ledger`, which any version has, that of most tests."""
    native = Deletes(deletes).named
    return native.format_version if native is not None else 2


def _just_after(snapshot: Snapshot) -> datetime:
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC) + timedelta(milliseconds=1)


def rehearsal(spec: RunSpec) -> RunSpec:
    """The same run, as a dry run."""
    assert spec.restatement is not None
    return spec.model_copy(update={"restatement": spec.restatement.model_copy(update={"dry_run": True})})


def an_undo(of: str = "revert", name: str = "undo", **changes: Any) -> RestatementRequest:
    """Take the restatement of this name back."""
    return a_request(name, "Undo", batch_ids=(), undoes=f"ns/{of}/0", **changes)


def some_rows(batch_id: str, rows: int) -> list[dict[str, int]]:
    """Rows that differ from those of other batches, on days 1 and 2."""
    start = sum(batch_id.encode()) * 1000
    return [{"v": start + n, "day": 1 + n % 2} for n in range(rows)]


def of_batches(*batch_ids: str, rows: int = 4) -> Counter[Row]:
    """The rows that `put` wrote for these batches."""
    return Counter((b, r["v"], r["day"]) for b in batch_ids for r in some_rows(b, rows))


def of_arrow(table: pa.Table) -> Counter[Row]:
    return Counter((r["batch_id"], r["v"], r["day"]) for r in table.to_pylist())


def of_spark(frame: Any) -> Counter[Row]:
    return Counter((r["batch_id"], r["v"], r["day"]) for r in frame.collect())


def avro(uri: str) -> list[dict[str, Any]]:
    """The active tombstones that a summary's key leads to: of one file, or of the chunks that a root lists."""
    if uri.endswith(".json"):
        folder = uri.rpartition("/")[0]
        active: dict[tuple[int, str], dict[str, Any]] = {}
        for chunk in json.loads(Path(local(uri)).read_text())["parts"]["tombstones"]:
            for t in avro(f"{folder}/{chunk['file']}"):
                if chunk.get("removes"):
                    active.pop((t["namespace"], t["id"]), None)
                else:
                    active[(t["namespace"], t["id"])] = t
        return list(active.values())
    with open(local(uri), "rb") as stream:
        return list(fastavro.reader(stream))


def local(uri: str) -> str:
    return "/" + uri.removeprefix("file:").lstrip("/") if uri.startswith("file:") else uri


def results_by_name(result: Any) -> dict[str, RequestResult]:
    """The results of the requests of a run, in the namespace `ns`, by name."""
    return {r.name.removeprefix("ns/"): r for r in result.requests}


def reasons(result: RunResult) -> dict[str, str]:
    """The reasons in the results of the requests of a run, by name. An empty one says that the request succeeded."""
    return {name: r.reason for name, r in results_by_name(result).items()}


def put_on(place: Place, folder: str, batch_id: str, rows: int = 4) -> str:
    """Write a batch into a folder of the store. Return its URI."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(some_rows(batch_id, rows), ROWS), sink)
    uri = place.at(f"{folder}/{batch_folder('batch_id', batch_id)}")
    place.store.put(f"{uri}/part-0.parquet", sink.getvalue().to_pybytes())
    place.store.put(f"{uri}/_SUCCESS", b"")
    return uri

"""The Dataset of the model test: writes the input files of its runs, and creates the runs' specs. I/O."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from lethe.base import names
from lethe.contract.run import (
    BufferRef,
    ConsolidationSpec,
    CreateTable,
    Maintenance,
    RestatementRequest,
    RunKind,
    RunSpec,
    SnapshotLimits,
    TableRef,
    VacuumSpec,
)
from lethe.contract.settings import Deletes
from pyspark.sql import SparkSession

from tests.model.acts import (
    Append,
    Change,
    EraseRows,
    Group,
    Job,
    Redact,
    Register,
    Replay,
    Request,
    Setup,
    Vacuum,
    request_name,
)
from tests.model.requests import request_of
from tests.model.rows import COLUMNS, WRITTEN, Rows, as_arrow, changes_table
from tests.spark.support.story import Story
from tests.support.lake import BufferFolder, Lake

ORPHANS_OLDER_THAN = 86_400  # seconds; `World.let_time_pass` makes all files older than this


@dataclass(frozen=True)
class Dataset(Story):
    """One Dataset. Its rows have marks."""

    setup: Setup = field(default_factory=Setup)

    @classmethod
    def prepared(cls, spark: SparkSession, lake: Lake, setup: Setup) -> "Dataset":
        name = Story.begin(spark, lake).name
        made = cls(spark, lake, name, format_version=setup.format_version, setup=setup)
        made.buffer.path.mkdir(parents=True, exist_ok=True)
        made.registered.path.mkdir(parents=True, exist_ok=True)
        return made

    @property
    def registered(self) -> BufferFolder:
        """The buffer of runs in mode Register."""
        return self.lake.buffer(f"{self.name}-registered")

    def spec(self, kind: RunKind, keys: Iterable[str], **changes: Any) -> RunSpec:
        create = CreateTable(schema=COLUMNS, partition_by=self.partition_by, format_version=self.format_version)
        table = TableRef(catalog=self.catalog, name=self.name, create=create)
        return super().spec(kind, keys, **{"table": table, "schema_evolution": "AddColumns", **changes})

    def spec_of(self, job: Job) -> RunSpec:
        """The spec of an act's run. Also writes the input files of the run."""
        match job:
            case Append(ids):
                for i in ids:
                    if not self.folder(i).exists():
                        self.buffer.put(i, as_arrow(self.setup.rows_of(i), WRITTEN))
                return self.consolidation(*ids)
            case Register(ids):
                return self._registration(ids)
            case Group(requests):
                return self._restatement(*(self.request(r) for r in dict.fromkeys(requests)))
            case Vacuum():
                return self._vacuum(job)
            case _:
                return self._restatement(self.request(job))

    def _registration(self, ids: tuple[str, ...]) -> RunSpec:
        """Each row has a file of its own, so that the files fit any partitioning."""
        for i in ids:
            folder = self.registered.path / f"batch_id={i}"
            folder.mkdir(exist_ok=True)
            for n, row in enumerate(sorted(self.setup.rows_of(i), key=str)):
                # An expiry deletes a registered file with the last snapshot that references it; this then writes it again.
                if not (file := folder / f"part-{n}.parquet").exists():
                    pq.write_table(as_arrow(Rows({row: 1})), file)
            (folder / names.SUCCESS_MARKER).touch()
        wanted = ConsolidationSpec(mode="Register", batch_ids=ids)
        run = self.spec(RunKind.CONSOLIDATION, ["register", *ids], buffer=BufferRef(uri=self.registered.uri))
        return run.model_copy(update={"consolidation": wanted})

    def _restatement(self, *requests: RestatementRequest) -> RunSpec:
        return self.restatement(*requests, deletes=Deletes(self.setup.deletes))

    def _vacuum(self, job: Vacuum) -> RunSpec:
        limits = SnapshotLimits(max_age_seconds=0, min_to_keep=job.keep or 1, max_count=job.keep or 1)
        care = Maintenance(
            compact_small_files="compact" in job.care,
            rewrite_manifests="manifests" in job.care,
            remove_orphan_files="orphans" in job.care,
            orphan_files_older_than_seconds=ORPHANS_OLDER_THAN,
        )
        vacuum = VacuumSpec(
            policy="air/nightly",
            expire_snapshots=job.keep is not None,
            snapshots=limits,
            max_bytes=job.max_bytes,
            maintenance=care,
        )
        return self.spec(RunKind.VACUUM, [repr(job)], vacuum=vacuum)

    def request(self, act: Request) -> RestatementRequest:
        return request_of(act, self._input_of)

    def _input_of(self, act: Request) -> str:
        """Write what a request reads, unless it was written before. Returns: its file, or its URI."""
        match act:
            case EraseRows(marks) | Redact(marks):
                file = self.lake.home / "values" / self.name / request_name(act)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text("".join(f"{m}\n" for m in marks))
                return str(file)
            case Replay(_, by):
                return self._batch("restated", by, as_arrow(self.setup.replacement_of(by), WRITTEN))
            case Change(changes, by):
                return self._batch(f"changed/{request_name(act)}", by, changes_table(by, changes))
            case _:
                raise AssertionError(act)

    def _batch(self, folder: str, by: str, rows: pa.Table) -> str:
        buffer = BufferFolder(self.lake.home / folder / self.name)
        batch = buffer.path / f"batch_id={by}"
        if not batch.exists():
            buffer.put(by, rows)
        return f"file://{batch}"

"""A Dataset in Register mode, and its producer: what the tests of registered files share."""

import shutil
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from lethe.base import names
from lethe.buffer.digest import BufferDigest, digest
from lethe.contract.result import RunResult
from lethe.contract.run import ConsolidationSpec, CreateTable, RunSpec, TableRef
from lethe.ingest.shared_folders import open_buffer
from lethe.ledger.ledger import get_many

from tests.spark.support.story import Story, local, some_rows
from tests.support.builders import NOW
from tests.support.lake import SCHEMA


@dataclass(frozen=True)
class Registering(Story):
    """A Dataset in Register mode, and its producer, who writes a file for each day."""

    def put(self, *batch_ids: str, rows: int = 4, files: int = 2) -> None:
        assert files == 2
        for batch_id in batch_ids:
            folder = self.folder(batch_id)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for day in (1, 2):
                pq.write_table(a_file(batch_id, day, rows), folder / f"day-{day}.parquet")
            (folder / names.SUCCESS_MARKER).touch()

    def put_table(self, batch_id: str, rows: pa.Table, **options: Any) -> None:
        """A batch of one file with these rows."""
        self.put(batch_id)
        (self.folder(batch_id) / "day-2.parquet").unlink()
        pq.write_table(rows, self.folder(batch_id) / "day-1.parquet", **options)

    def registration(self, *batch_ids: str, **changes: Any) -> RunSpec:
        spec = ConsolidationSpec(mode="Register", batch_ids=batch_ids)
        return self.consolidation(*batch_ids, **changes).model_copy(update={"consolidation": spec})

    def register(self, *batch_ids: str, **at: Any) -> RunResult:
        return self.run(self.registration(*batch_ids), **at)

    def of_version(self, spec: RunSpec, version: int) -> RunSpec:
        create = CreateTable(schema=SCHEMA, partition_by=self.partition_by, format_version=version)
        return spec.model_copy(update={"table": TableRef(catalog=self.catalog, name=self.name, create=create)})

    def paths(self) -> dict[str, int]:
        """How often each place is among the live data files."""
        return dict(Counter(local(t.file.file_path) for t in self.table().scan().plan_files()))

    def places(self, *batch_ids: str) -> dict[str, int]:
        """What `paths` says when exactly the files of these batches are registered, once each."""
        return {str(p): 1 for b in batch_ids for p in self.folder(b).glob("*.parquet")}

    def digest(self, retention_seconds: int = 0) -> BufferDigest:
        """The buffer as the operator sees it."""
        ledger = self.ledger()
        folders = open_buffer(self.buffer.uri, "batch_id", {}).folders(lambda: None)
        return digest(folders, lambda ids: get_many(ledger.batches, ids), 100, retention_seconds, NOW)


def a_file(batch_id: str, day: int, rows: int = 4) -> pa.Table:
    """The rows of one day of a batch, with its id in them."""
    chosen = [{**r, "batch_id": batch_id} for r in some_rows(batch_id, rows) if r["day"] == day]
    return pa.Table.from_pylist(chosen, schema())


def schema() -> pa.Schema:
    return pa.schema([("v", pa.int64()), ("day", pa.int32()), ("batch_id", pa.string())])

"""A small lake on SQLite and local files: its catalog file, and buffers with batches in them. Uses no Spark session."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from lethe.base import names
from lethe.base.names import batch_folder
from lethe.contract.result import Progress
from lethe.iceberg import catalogs
from lethe_spark.ingest import BatchSource
from pyiceberg.catalog import Catalog

from tests.support.buffers import batches_in

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
        return [BatchSource(b.id, b.data_objects, b.folder) for b in batches_in(self.uri)]


@dataclass
class Recorder:
    """A sink for progress that remembers."""

    seen: list[Progress] = field(default_factory=list)

    def __call__(self, progress: Progress) -> None:
        self.seen.append(progress)

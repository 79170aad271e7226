"""The demo's files and table on this machine. I/O: files, a catalog."""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

import lethe
import pandas as pd
import yaml
from lethe.base.errors import InputError
from pyiceberg.catalog import Catalog, load_catalog

from lethe_local.demo.flights import BATCH_COLUMN, Batch
from lethe_local.folder import CATALOG, Folder

TABLE: Final = "air.flights"
MANIFESTS: Final = Path(__file__).with_name("yaml")
_MARK: Final = "lethe-demo"  # a file that shows that the folder is the demo's own


@dataclass(frozen=True)
class DemoLake:
    """A folder of `lethe local` with a buffer and the manifests beside the state."""

    folder: Folder

    @property
    def buffer(self) -> Path:
        return self.folder.path / "lake/buffer/flights"

    @property
    def restated(self) -> Path:
        return self.folder.path / "lake/restated"

    @property
    def manifests(self) -> Path:
        return self.folder.path / "yaml"

    def claim(self) -> None:
        """Make the folder empty for the demo. Raises: InputError (`FolderNotEmpty`, `FolderNotWritable`)."""
        path = self.folder.path
        try:
            if path.is_dir() and any(path.iterdir()) and not (path / _MARK).exists():
                raise InputError(
                    "FolderNotEmpty",
                    f"{path} has files that are not of an earlier demo. Name an empty or a new folder with --dir.",
                )
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            (path / _MARK).touch()
            with self.folder.locked():
                for one in path.iterdir():
                    if one.name not in (_MARK, "lock"):
                        shutil.rmtree(one) if one.is_dir() else one.unlink()
        except OSError as e:
            raise InputError("FolderNotWritable", f"{path}: {e.strerror}. Name another folder with --dir.") from None
        self._write_manifests()

    def _write_manifests(self) -> None:
        """The manifests name the catalog and the bucket of a cluster. Here both are folders."""
        self.manifests.mkdir()
        for source in sorted(MANIFESTS.glob("*.yaml")):
            text = source.read_text().replace("catalog: main", f"catalog: {CATALOG}")
            (self.manifests / source.name).write_text(text.replace("s3://lake/", f"file://{self.folder.path}/lake/"))

    def put_batches(self, batches: Iterable[Batch]) -> Iterator[int]:
        """Write batches into the buffer. Yields the number of complete batches."""
        for done, batch in enumerate(batches, start=1):
            self.put_batch(self.buffer / f"{BATCH_COLUMN}={quote(batch.id, safe='')}", batch)
            yield done

    def put_batch(self, folder: Path, batch: Batch) -> None:
        """A batch is complete when its folder has _SUCCESS, so that is written last."""
        folder.mkdir(parents=True)
        (folder / "part-0.parquet").write_bytes(batch.parquet)
        (folder / "_SUCCESS").touch()

    @cached_property
    def catalog(self) -> Catalog:
        properties = yaml.safe_load(self.folder.catalogs.read_text())["catalog"][CATALOG]
        return load_catalog(CATALOG, **properties)

    def count(self) -> int:
        """The number of rows that a reader sees."""
        return lethe.scan(TABLE, catalog=self.catalog).count()

    def rows(self) -> pd.DataFrame:
        """The batch and the delay of each row that a reader sees."""
        columns = [BATCH_COLUMN, "arr_delay"]
        frame: pd.DataFrame = lethe.scan(TABLE, columns=columns, catalog=self.catalog).to_arrow().to_pandas()
        return frame

    def tombstones(self) -> int:
        """The number of active tombstones in the summary of the current snapshot."""
        head = self.catalog.load_table(TABLE).current_snapshot()
        summary = head.summary if head is not None else None
        return int(summary["tombstone.metrics.total.count"] or 0) if summary is not None else 0

    def data_files(self) -> dict[Path, int]:
        """The data files of the current snapshot and their row counts, read with PyIceberg."""
        files = self.catalog.load_table(TABLE).inspect.files()
        paths = [_path(uri) for uri in files["file_path"].to_pylist()]
        return dict(zip(paths, files["record_count"].to_pylist(), strict=True))


def _path(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path)) if uri.startswith("file:") else Path(uri)

"""A table, its Dataset and a buffer on local files, into which the tests of the gateway upload."""

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe_gateway.problems import Kind, Problem
from lethe_gateway.settings import UploadSettings
from lethe_gateway.uploads.buffers import Buffer, Buffers
from lethe_gateway.uploads.manifest import FileEntry, FileState, UploadView, upload_id
from lethe_gateway.uploads.store import Uploads
from lethe_operator.resources.boundaries import Boundaries
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from tests.support import gateway_lake

ID = "2026/03/03"
UPLOAD = upload_id(ID)


def parquet(*values: Any, column: str = "v", kind: pa.DataType | None = None) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({column: pa.array(values, kind or pa.int64())}), out)
    return out.getvalue()


GOOD = {"part-0.parquet": parquet(1, 2), "day-1/part-1.parquet": parquet(3)}


def entries(files: dict[str, bytes] = GOOD, hashed: bool = True) -> list[FileEntry]:
    return [
        FileEntry(path=p, size=len(c), sha256=hashlib.sha256(c).hexdigest() if hashed else "") for p, c in files.items()
    ]


@dataclass
class Site:
    """A table, its Dataset, and a buffer."""

    catalog: Catalog
    table: Table
    uri: str
    boundaries: Boundaries = field(default_factory=Boundaries)
    settings: UploadSettings = field(default_factory=UploadSettings)
    spec: dict[str, Any] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.uploads = Uploads(self.settings)

    @property
    def folder(self) -> Path:
        return Path(self.uri.removeprefix("file://"))

    def resource(self) -> dict[str, Any]:
        found = gateway_lake.dataset(**{"buffer": {"uri": self.uri}, **self.spec})
        found["metadata"] |= {"namespace": "default", "uid": "u-1", "generation": 1}
        return {**found, "status": self.status}

    def buffer(self) -> Buffer:
        """As a request sees it that has nothing remembered."""
        return Buffers(self.boundaries).open(self.resource())

    def open(self, files: Sequence[FileEntry] | None = None) -> tuple[UploadView, bool]:
        return self.uploads.open(self.buffer(), ID, files or entries())

    def send(self, files: dict[str, bytes] = GOOD) -> None:
        for index, content in enumerate(files.values()):
            self.uploads.put(self.buffer(), UPLOAD, index, content)

    def complete(self) -> UploadView:
        return self.uploads.complete(self.buffer(), UPLOAD)

    def files(self) -> list[str]:
        return sorted(p.relative_to(self.folder).as_posix() for p in self.folder.rglob("*") if p.is_file())


def problem(kind: Kind, work: Callable[[], object]) -> Problem:
    """What is raised, which must be of this kind."""
    with pytest.raises(Problem) as raised:
        work()
    assert raised.value.kind is kind, raised.value.detail
    return raised.value


def states(view: UploadView) -> list[FileState]:
    return [f.state for f in view.files]

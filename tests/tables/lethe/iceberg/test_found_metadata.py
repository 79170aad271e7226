"""Metadata files beside a table, which anyone may have written: what is needed of them is read, and none ends its reader."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from lethe.decoder.limits import Limits
from lethe.decoder.objects import UnreadableObject
from lethe.iceberg import found_metadata
from lethe.iceberg.found_metadata import documents_of, manifests_in
from pyiceberg.io.pyarrow import PyArrowFileIO

from tests.support.poison import many_lists, rows_of_no_bytes

METADATA: dict[str, Any] = {
    "table-uuid": "u",
    "last-sequence-number": 4,
    "last-updated-ms": 5,
    "properties": {"a": "b"},
    "metadata-log": [{"metadata-file": "m", "timestamp-ms": 1}],
    "statistics": [{"statistics-path": "s", "blob-metadata": []}],
    "snapshots": [
        {"sequence-number": 3, "manifest-list": "l", "summary": {"operation": "append", "partitions.day=1": "x"}},
        {"sequence-number": 2},
    ],
}
NEEDED = {
    "table-uuid": "u",
    "last-sequence-number": 4,
    "last-updated-ms": 5,
    "metadata-log": [{"metadata-file": "m"}],
    "statistics": [{"statistics-path": "s"}],
    "partition-statistics": [],
    "snapshots": [
        {"sequence-number": 3, "manifest-list": "l", "summary": {"partitions.day=1": ""}},
        {"sequence-number": 2, "summary": {}},
    ],
}


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_metadata, "limits_here", lambda: Limits(memory_bytes=96 * 1024**2))


def manifest_list(*paths: str) -> bytes:
    out = io.BytesIO()
    schema = {"type": "record", "name": "m", "fields": [{"name": "manifest_path", "type": "string"}]}
    fastavro.writer(out, schema, [{"manifest_path": p} for p in paths])
    return out.getvalue()


def written(folder: Path, files: dict[str, bytes]) -> list[str]:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [f"file://{folder}/{name}" for name in files]


def test_what_is_needed_of_metadata_files_is_read_whatever_lies_beside_them(tmp_path: Path) -> None:
    text = json.dumps(METADATA).encode()
    files = {
        "plain": text,
        "bomb": gzip.compress(many_lists(), 1),
        "compressed": gzip.compress(text),
        "list": b"[1]",
        "damaged": b"{",
        "odd": b'{"snapshots": 1}',
    }
    paths = written(tmp_path, files)

    found = documents_of(PyArrowFileIO(), [*paths, f"file://{tmp_path}/none"])

    by_name = {path.rpartition("/")[2]: document for path, document in found.items()}
    costly = by_name.pop("bomb")
    assert isinstance(costly, UnreadableObject)
    assert "memory" in costly.why
    assert by_name == {
        **dict.fromkeys(("plain", "compressed"), NEEDED),
        **dict.fromkeys(("list", "damaged", "odd")),
        "none": UnreadableObject(),
    }


def test_manifests_are_found_in_the_lists_that_can_be_read(tmp_path: Path) -> None:
    files = {
        "one": manifest_list("a", "b"),
        "bomb": rows_of_no_bytes(names=("manifest_path",)),
        "damaged": b"Obj\x01",
        "other": manifest_list("c"),
    }

    assert manifests_in(PyArrowFileIO(), written(tmp_path, files)) == {"a", "b", "c"}

"""Metadata files beside a table, which anyone may have written: what is needed of them is read, and none ends its reader."""

import gzip
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pytest
from lethe.base.objects import ListedObject
from lethe.decoder.limits import Limits
from lethe.decoder.objects import UnreadableObject
from lethe.iceberg import metadata_file
from lethe.iceberg.locations import locations_of, other_ledger, other_table
from lethe.iceberg.metadata_file import documents_of, manifests_in
from lethe.vacuum.housekeeping import Folders
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from tests.support.poison import many_lists, rows_of_no_bytes

METADATA: dict[str, Any] = {
    "table-uuid": "u",
    "last-sequence-number": 4,
    "last-updated-ms": 5,
    "location": "here",
    "properties": {"a": "b", "write.data.path": "there"},
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
    "location": "here",
    "properties": {"write.data.path": "there"},
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
    monkeypatch.setattr(metadata_file, "limits_here", lambda: Limits(memory_bytes=96 * 1024**2))


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

    found = documents_of(PyArrowFileIO(), [*paths, f"file://{tmp_path}/none", "gopher://nowhere/unknown"])

    by_name = {path.rpartition("/")[2]: document for path, document in found.items()}
    costly = by_name.pop("bomb")
    assert isinstance(costly, UnreadableObject)
    assert "memory" in costly.why
    assert by_name == {
        **dict.fromkeys(("plain", "compressed"), NEEDED),
        **dict.fromkeys(("list", "damaged", "odd")),
        "none": UnreadableObject(),
        "unknown": UnreadableObject(),
    }


def test_manifests_are_found_in_the_lists_that_can_be_read(tmp_path: Path) -> None:
    files = {
        "one": manifest_list("a", "b"),
        "bomb": rows_of_no_bytes(names=("manifest_path",)),
        "damaged": b"Obj\x01",
        "other": manifest_list("c"),
    }

    assert manifests_in(PyArrowFileIO(), [*written(tmp_path, files), "gopher://x"]) == {"a", "b", "c"}


MINE, OTHER = "u", "v"


def listed(paths: list[str]) -> list[ListedObject]:
    return [ListedObject(path, 1, "", datetime(2026, 1, n + 1, tzinfo=UTC)) for n, path in enumerate(paths)]


def document(uuid: str) -> bytes:
    return json.dumps({**METADATA, "table-uuid": uuid}).encode()


BOMB = gzip.compress(many_lists(), 1)


@pytest.mark.parametrize(
    ("content", "of_table", "of_ledger"),
    [
        (document(MINE), False, False),
        (document(OTHER), True, True),
        (gzip.compress(document(OTHER)), True, True),
        (b"{", True, False),
        (b"[" * 100_000, True, False),
        (BOMB, True, True),
        (None, False, False),
    ],
    ids=["own", "other", "compressed", "damaged", "nested", "bomb", "gone"],
)
def test_files_of_other_tables_are_found_whatever_they_contain(
    tmp_path: Path, content: bytes | None, of_table: bool, of_ledger: bool
) -> None:
    """A file that ends whatever reads it may be of another table. It does not end the run."""
    files = {"1.metadata.json": document(MINE), "2.metadata.json": content, "3-root.json": content}
    written(tmp_path, {name: c for name, c in files.items() if c is not None})
    found = listed([f"file://{tmp_path}/{name}" for name in files])
    io = PyArrowFileIO()

    metadata = other_table(io, found, (), Folders(None, None), MINE)
    ledger = other_ledger(io, found, (), MINE)

    assert metadata == (f"file://{tmp_path}/2.metadata.json" if of_table else None)
    assert ledger == (f"file://{tmp_path}/3-root.json" if of_ledger else None)


def test_earlier_metadata_that_ends_its_reader_is_named_and_the_locations_in_the_rest_are_known(
    tmp_path: Path, table: Table
) -> None:
    elsewhere = f"file://{tmp_path}/elsewhere"
    for path in (elsewhere, f"{elsewhere}/more"):
        with table.transaction() as change:
            change.set_properties({"write.data.path": path})
    with table.transaction() as change:
        change.remove_properties("write.data.path")
    first, second, third = (entry.metadata_file for entry in table.metadata.metadata_log[-3:])
    Path(first.removeprefix("file://")).write_bytes(BOMB)
    Path(third.removeprefix("file://")).write_bytes(b"{")

    known = locations_of(table)

    assert {first, third} <= set(known.unread)
    assert elsewhere in known.locations.data
    assert second not in known.unread

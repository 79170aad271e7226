"""Which objects of a storage are listed, and that each of them can be read and deleted."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from lethe.ledger.format import ERASURES
from lethe.ledger.tombstone import BlockerKind, Erasure, ErasureBlocker
from lethe.search.object_versions import S3Objects, open_storage
from lethe.uri import without_values
from pyiceberg.io.pyarrow import PyArrowFileIO

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Bucket:
    """A client of S3 for one bucket, with the objects and the unfinished uploads of these keys."""

    keys: tuple[str, ...]

    def get_paginator(self, operation: str) -> "Bucket":
        assert operation in ("list_object_versions", "list_multipart_uploads")
        return self

    def paginate(self, **asked: str) -> Iterator[Mapping[str, Any]]:
        found = [k for k in self.keys if k.startswith(asked["Prefix"])]
        yield {
            "Versions": [{"Key": k, "ETag": "e", "LastModified": NOON} for k in found],
            "Uploads": [{"Key": k, "UploadId": "u", "Initiated": NOON} for k in found],
        }


@pytest.mark.parametrize(
    ("folder", "names"),
    [
        ("s3://b", ["data/f", "database/f"]),
        ("s3://b/", ["data/f", "database/f"]),
        ("s3://b/data", ["data/f"]),
        ("s3://b/data/", ["data/f"]),
    ],
)
def test_all_objects_and_uploads_below_a_folder_are_listed_also_of_a_whole_bucket(
    folder: str, names: list[str]
) -> None:
    objects = S3Objects({}, Bucket(("data/f", "database/f")))

    paths = [f"s3://b/{name}" for name in names]
    assert [path for path, _ in objects.list_below(folder)] == paths
    assert [upload.path for upload in objects.uploads(folder)[0]] == paths


def test_a_local_file_whose_name_is_not_utf_8_is_listed_read_named_and_deleted(tmp_path: Path) -> None:
    """Otherwise no erasure of the table would ever be verified."""
    file = os.fsencode(tmp_path) + b"/day=1/\xff.parquet"
    (tmp_path / "day=1").mkdir()
    Path(os.fsdecode(file)).write_bytes(b"rows")
    storage = open_storage(f"file://{tmp_path}", PyArrowFileIO(), {})

    ((path, _),) = storage.list_below(f"file://{tmp_path}")
    stream = storage.open(path)
    assert stream is not None
    with stream:
        assert stream.read() == b"rows"
    named = without_values(path)
    blocker = ErasureBlocker(BlockerKind.OBJECT, named, None)
    content = ERASURES.encode([Erasure("ns/a/0", 2, None, blockers=(blocker,), blockers_count=1)]).content
    remain = storage.find([path])[path]
    kept = storage.remove(remain, every_version=True)

    assert named == f"file://{tmp_path}/day=*/\\udcff.parquet"
    assert ERASURES.decode(content)[0].blockers == (blocker,)
    assert (kept, storage.find([path]), os.path.lexists(file)) == (None, {}, False)

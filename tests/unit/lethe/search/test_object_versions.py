"""Which objects of a storage are listed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from lethe.search.object_versions import S3Objects

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

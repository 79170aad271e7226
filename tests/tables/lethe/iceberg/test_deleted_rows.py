"""How many rows of a data file are deleted, by the entries of delete manifests."""

from pathlib import Path
from typing import Any

import fastavro
from lethe.iceberg.native_deletes import DELETED, deleted_rows
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestContent, ManifestFile

POSITIONS, EQUALITY = 1, 2
SCHEMA = {
    "type": "record",
    "name": "manifest_entry",
    "fields": [
        {"name": "status", "type": "int"},
        {
            "name": "data_file",
            "type": {
                "type": "record",
                "name": "file",
                "fields": [
                    {"name": "content", "type": "int"},
                    {"name": "record_count", "type": "long"},
                    {"name": "referenced_data_file", "type": ["null", "string"]},
                ],
            },
        },
    ],
}


def an_entry(rows: int, path: str | None, content: int = POSITIONS, status: int = 1) -> dict[str, Any]:
    return {
        "status": status,
        "data_file": {"content": content, "record_count": rows, "referenced_data_file": path},
    }


def test_deletes_of_one_file_add_up_and_others_are_counted_apart(tmp_path: Path) -> None:
    entries = [
        an_entry(3, "s3://b/a.parquet"),
        an_entry(4, "s3://b/a.parquet"),
        an_entry(9, "s3://b/b.parquet"),
        an_entry(50, "s3://b/b.parquet", status=DELETED),
        an_entry(5, None),
        an_entry(2, None, EQUALITY),
    ]
    file = tmp_path / "m.avro"
    with file.open("wb") as stream:
        fastavro.writer(stream, SCHEMA, entries, metadata={"partition-spec": "[]"})
    manifests = [
        ManifestFile.from_args(manifest_path=str(file), content=ManifestContent.DELETES, partition_spec_id=0),
        ManifestFile.from_args(manifest_path="s3://not/read", content=ManifestContent.DATA, partition_spec_id=0),
    ]

    found = deleted_rows(PyArrowFileIO(), manifests)

    assert found.of_file == {"s3://b/a.parquet": 7, "s3://b/b.parquet": 9}
    assert found.of_several == 7

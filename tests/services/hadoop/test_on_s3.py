"""Versions of a table in an object store: a real S3 server, several writers, and a store that cannot do it. No Spark."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lethe.base.errors import ConflictError, InputError, TransientError, UnknownCommitState
from lethe.hadoop import FolderCatalog, MetadataFolder
from lethe.storage import remote_store
from lethe.storage.object_store import FolderListing, open_folder
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField

from tests.support.servers.s3 import S3, running


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    with running() as started:
        started.bucket("lake")
        yield started


@pytest.fixture
def folder(server: S3, request: pytest.FixtureRequest) -> FolderListing:
    node: Any = request.node
    return open_folder(f"s3://lake/wh/air/{node.name}/metadata", server.properties())


def document(*entries: str) -> str:
    properties = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "3"}
    return json.dumps({"table-uuid": "u", "location": "s3://lake/t", "properties": properties, "entries": entries})


def test_an_object_is_made_once_and_whole(folder: FolderListing) -> None:
    assert [folder.create("v1.metadata.json", b"1"), folder.create("v1.metadata.json", b"2")] == [True, False]
    assert (folder.read("v1.metadata.json"), folder.read("v2.metadata.json")) == (b"1", None)
    assert folder.names("v") == ["v1.metadata.json"]

    folder.replace("version-hint.text", b"1")
    folder.delete("v1.metadata.json")

    assert folder.names("") == ["version-hint.text"]  # nor is anything left of trying whether the store can do it


def test_racing_writers_lose_no_commit_and_make_none_twice(folder: FolderListing, server: S3) -> None:
    MetadataFolder(folder).commit(None, document())

    def append(writer: int) -> None:
        mine = MetadataFolder(open_folder(folder.uri, server.properties()))
        for n in range(5):
            entry = f"{writer}.{n}"
            while True:
                base = mine.current()
                assert base is not None
                if entry in base.document["entries"]:
                    break
                try:
                    mine.commit(base, document(*base.document["entries"], entry))
                except (ConflictError, UnknownCommitState):
                    continue

    writers = [threading.Thread(target=append, args=(n,)) for n in range(3)]
    for w in writers:
        w.start()
    for w in writers:
        w.join(60)

    found = MetadataFolder(folder).current()
    assert found is not None
    assert sorted(found.document["entries"]) == sorted(f"{w}.{n}" for w in range(3) for n in range(5))
    assert found.number == 16
    assert sorted(folder.names("v")) == sorted(
        [f"v{n}.metadata.json" for n in (13, 14, 15, 16)] + ["version-hint.text"]
    )


def test_a_table_in_a_bucket_is_found_and_read_by_its_folder(server: S3) -> None:
    warehouse = "s3://lake/wh"
    catalog = FolderCatalog("lake", type="hadoop", warehouse=warehouse, **server.properties())
    columns = Schema(NestedField(1, "v", LongType(), required=False))
    made = new_table_metadata(
        columns, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, f"{warehouse}/air/flights", {"format-version": "2"}
    )
    with pytest.raises(NoSuchTableError):
        catalog.load_table("air.flights")

    catalog.metadata_folder(("air", "flights")).commit(None, made.model_dump_json(by_alias=True))

    found = catalog.load_table("air.flights")
    assert found.metadata_location == f"{warehouse}/air/flights/metadata/v1.metadata.json"
    assert found.scan().to_arrow().column_names == ["v"]


def test_a_store_that_overwrites_in_spite_of_the_condition_is_refused(
    folder: FolderListing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some take no notice of a header that they do not know."""

    def put(store: remote_store.RemoteStore, uri: str, content: bytes) -> bool:
        store.put(uri, content)
        return True

    monkeypatch.setattr(remote_store, "_KEEPS_CONDITIONS", set())
    monkeypatch.setattr(remote_store.RemoteStore, "put_if_absent", put)

    with pytest.raises(InputError, match="the store overwrites an object") as refused:
        MetadataFolder(folder).commit(None, document())

    assert (refused.value.reason, folder.names("")) == ("UnsupportedStorage", [])


def test_a_store_that_denies_access_is_not_a_lost_commit(server: S3, tmp_path: Path) -> None:
    wrong_credentials = {**server.properties(), "s3.secret-access-key": "wrong"}

    with pytest.raises(TransientError, match="Nothing was committed"):
        open_folder(f"s3://lake/wh/{tmp_path.name}", wrong_credentials).create("v1.metadata.json", b"1")

"""Whose a buffer is by its claim, and that of any number of Datasets that claim it at once, one gets it."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from lethe.base import names
from lethe.guards.claim import Claim, Holder, Owner, document, holder_of, parse, rejected
from lethe.ingest.shared_folders import Adopted, read_claim, tables_around, take_claim
from lethe.storage.object_store import FolderListing

from tests.support.builders import NOW

OWNER = Owner("air", "flights", "uid-1", "table-1", "cluster-1")


@pytest.mark.parametrize(
    ("changes", "holder"),
    [
        ({}, Holder.OURS),
        ({"uid": "uid-2"}, Holder.TAKEN_OVER),  # created again under GitOps
        ({"uid": "uid-2", "cluster": "cluster-2"}, Holder.OTHERS),  # the same manifests in another cluster
        ({"uid": "uid-2", "table_uuid": "table-2"}, Holder.OTHERS),
        ({"uid": "uid-2", "table_uuid": ""}, Holder.OTHERS),
        ({"uid": "uid-2", "namespace": "sea"}, Holder.OTHERS),
        ({"uid": "uid-2", "name": "trains"}, Holder.OTHERS),
        ({"table_uuid": "table-2"}, Holder.TAKEN_OVER),  # the Dataset has accepted another table
        ({"table_uuid": ""}, Holder.OURS),  # there is no table yet
        ({"cluster": "cluster-2"}, Holder.TAKEN_OVER),  # the authority of the cluster was renewed
    ],
)
def test_a_claim_is_its_datasets_and_of_the_one_that_follows_it(changes: dict[str, str], holder: Holder) -> None:
    assert holder is holder_of(Claim(OWNER), replace(OWNER, **changes))


def test_where_the_cluster_is_not_known_nothing_is_taken_over() -> None:
    unknown = replace(OWNER, cluster="")

    assert Holder.OTHERS is holder_of(Claim(unknown), replace(unknown, uid="uid-2"))


def test_a_claim_names_its_owner_and_the_adopted_objects() -> None:
    content = document(OWNER, "File", tuple(f"n{i}" for i in range(2000)), 2000, NOW)

    said = json.loads(content)
    assert (parse(content).owner, said["layout"]) == (OWNER, "File")
    assert (said["adopted"]["count"], len(said["adopted"]["first"])) == (2000, 1000)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[1]",
        b"\xff\xfe",
        b'{"apiVersion": "lethe.dev/claim/v2", "dataset": {"namespace": "a", "name": "b", "uid": "c"}, "table": {"uuid": "d"}}',
        b'{"apiVersion": "lethe.dev/claim/v1", "dataset": {"namespace": "a", "name": "b", "uid": 7}, "table": {"uuid": "d"}}',
        b'{"apiVersion": "lethe.dev/claim/v1", "dataset": {"namespace": "a", "name": "b", "uid": ""}, "table": {"uuid": "d"}}',
    ],
)
def test_what_cannot_be_read_as_a_claim_is_somebodys(content: bytes) -> None:
    """Never nobody's: a newer version may have written it."""
    assert Holder.OTHERS is holder_of(parse(content), OWNER)
    assert "cannot read" in rejected(parse(content), "s3://lake/buffer")


A, B = (Owner("ns", name, f"uid-{name}", f"table-{name}", "cluster") for name in ("a", "b"))


def test_of_two_that_find_no_claim_one_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have looked and found none before either writes."""
    both_looked = threading.Barrier(2, timeout=20)
    create = FolderListing.create

    def at_once(folder: FolderListing, name: str, content: bytes) -> bool:
        both_looked.wait()
        return create(folder, name, content)

    monkeypatch.setattr(FolderListing, "create", at_once)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda owner: take_claim(f"file://{tmp_path}", {}, owner, "Directory"), (A, B))

    assert first == second
    assert first in (Claim(A), Claim(B))
    assert first == read_claim(f"file://{tmp_path}", {})


def test_a_dataset_created_again_takes_over_its_claim_and_no_other(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}"
    again = Owner(A.namespace, A.name, "uid-later", A.table_uuid, A.cluster)
    take_claim(uri, {}, A, "Directory", Adopted(1, ("notes.txt",)))

    assert Claim(A) == take_claim(uri, {}, B, "Directory")
    assert Claim(again) == take_claim(uri, {}, again, "Directory")
    assert Claim(again) == read_claim(uri, {})


def test_a_table_in_a_mere_folder_is_seen_by_its_hint_among_many_manifests(tmp_path: Path) -> None:
    metadata = tmp_path / "t/metadata"
    metadata.mkdir(parents=True)
    for n in range(30):
        (metadata / f"anything-{n}").touch()
    assert tables_around(f"file://{tmp_path}/t/data", {}) == ()

    (metadata / "version-hint.text").touch()

    assert (f"file://{tmp_path}/t",) == tables_around(f"file://{tmp_path}/t/data", {})
    assert names.CLAIM_FILE.startswith("_")  # hidden from listings of batches

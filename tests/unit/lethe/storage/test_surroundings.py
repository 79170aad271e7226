"""Claims in a local folder: of any number of Datasets that try at once, one gets the buffer."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lethe.base import names
from lethe.guards.claim import Claim, Owner
from lethe.storage.object_store import FolderListing
from lethe.storage.surroundings import Adopted, read_claim, tables_around, take_claim

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


def test_a_buffer_without_a_claim_has_none(tmp_path: Path) -> None:
    assert None is read_claim(f"file://{tmp_path}/not-there", {})


def test_a_table_in_a_mere_folder_is_seen_by_its_hint_among_many_manifests(tmp_path: Path) -> None:
    metadata = tmp_path / "t/metadata"
    metadata.mkdir(parents=True)
    for n in range(30):
        (metadata / f"anything-{n}").touch()
    assert tables_around(f"file://{tmp_path}/t/data", {}) == ()

    (metadata / "version-hint.text").touch()

    assert (f"file://{tmp_path}/t",) == tables_around(f"file://{tmp_path}/t/data", {})
    assert names.CLAIM_FILE.startswith("_")  # hidden from listings of batches

"""The guards of buffers on a real S3 server: tables around a URI, claims, and files of a table that were moved."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from lethe.guards.claim import Claim, Owner
from lethe.ingest.shared_folders import read_claim, tables_around, take_claim
from lethe.storage.object_store import FolderListing

from tests.support.servers.s3 import S3, bucket_with_a_table

A, B = (Owner("ns", name, f"uid-{name}", f"table-{name}", "cluster") for name in ("a", "b"))


@pytest.fixture
def bucket(s3: S3) -> str:
    return bucket_with_a_table(s3)


@pytest.mark.parametrize(
    "place",
    [
        "s3://{b}/warehouse/sales/orders",
        "s3://{b}/warehouse/sales/orders/",
        "s3a://{b}/warehouse/sales/orders/data",
        "s3n://{b}/warehouse/sales/orders/metadata/",
        "s3://{b}//warehouse//sales/orders/data",
        "s3://{b}/warehouse/sales/other/../orders/data",
        "s3://{b}/warehouse/sales%2Forders/data",
        "s3://{b}/warehouse/sales/orders/data#x",
    ],
)
def test_a_table_on_s3_is_seen_from_inside_in_every_spelling(s3: S3, bucket: str, place: str) -> None:
    assert tables_around(place.format(b=bucket), s3.properties())
    assert tables_around(f"s3://{bucket}/buffer/flights", s3.properties()) == ()


def test_of_two_datasets_that_race_for_a_buffer_on_s3_one_gets_it(
    s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have looked and found no claim before either writes."""
    uri, both_looked = f"s3://{bucket}/buffer", threading.Barrier(2, timeout=20)
    create = FolderListing.create

    def at_once(folder: FolderListing, name: str, content: bytes) -> bool:
        both_looked.wait()
        return create(folder, name, content)

    monkeypatch.setattr(FolderListing, "create", at_once)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda owner: take_claim(uri, s3.properties(), owner, "Directory"), (A, B))

    assert first == second == read_claim(uri, s3.properties())
    assert first in (Claim(A), Claim(B))

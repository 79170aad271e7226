"""Files that are written once, on a real S3 server, with an object lock and without. No Spark."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from botocore.exceptions import ClientError
from lethe.base.errors import InputError
from lethe.base.objects import LockMode, Retention
from lethe.storage.object_store import read, write_once
from pyiceberg.io.pyarrow import PyArrowFileIO

from tests.support.servers.s3 import S3, running

IO = PyArrowFileIO()


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with running() as started:
        started.client.create_bucket(Bucket="plain")
        started.client.create_bucket(Bucket="locked", ObjectLockEnabledForBucket=True)
        yield started


def test_an_object_is_written_once(s3: S3) -> None:
    uri = "s3://plain/t/_erasures/r.json"
    write_once(uri, b"1", IO, s3.properties())
    write_once(uri, b"1", IO, s3.properties())

    with pytest.raises(InputError) as refused:
        write_once(uri, b"2", IO, s3.properties())

    content = s3.client.get_object(Bucket="plain", Key="t/_erasures/r.json")["Body"].read()
    assert (refused.value.reason, content) == ("RecordTaken", b"1")
    assert (read(uri, IO, s3.properties()), read(f"{uri}.sig", IO, s3.properties())) == (b"1", None)


@pytest.mark.parametrize("mode", LockMode)
def test_with_retention_no_version_can_be_deleted_before_its_time(s3: S3, mode: LockMode) -> None:
    key = f"t/_erasures/{mode}.json"
    for _ in range(2):  # an attempt whose answer was lost is made again
        write_once(f"s3://locked/{key}", b"1", IO, s3.properties(), Retention(mode, 30))

    kept = s3.client.get_object_retention(Bucket="locked", Key=key)["Retention"]
    version = s3.client.head_object(Bucket="locked", Key=key)["VersionId"]
    with pytest.raises(ClientError, match=r"AccessDenied|locked"):
        s3.client.delete_object(Bucket="locked", Key=key, VersionId=version)
    with pytest.raises(InputError):
        write_once(f"s3://locked/{key}", b"2", IO, s3.properties(), Retention(mode, 30))

    assert kept["Mode"] == mode
    assert abs(kept["RetainUntilDate"] - datetime.now(UTC) - timedelta(days=30)) < timedelta(minutes=1)
    assert s3.client.get_object(Bucket="locked", Key=key, VersionId=version)["Body"].read() == b"1"


def test_a_bucket_without_object_lock_is_refused_each_time(s3: S3) -> None:
    """This server writes the object and then refuses: the next attempt must not take that for success."""
    for _ in range(2):
        with pytest.raises(InputError, match="object lock") as refused:
            write_once("s3://plain/t/_erasures/kept.json", b"1", IO, s3.properties(), Retention(LockMode.COMPLIANCE, 1))
        assert refused.value.reason == "RecordNotRetained"

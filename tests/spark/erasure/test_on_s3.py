"""Erasures of tables in buckets, on a real S3 server: with versions, with locks, and with neither."""

import hashlib
import itertools
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from lethe.contract.result import RunResult
from lethe.ledger.tombstone import BlockerKind
from lethe_spark.apps.session import make_session
from pyspark.sql import SparkSession

from tests.spark.support.erasures import DUE, blockers, check_erasures, check_evidence, the_erasure, the_outcome
from tests.spark.support.story import Story
from tests.support.builders import a_request
from tests.support.lake import Lake
from tests.support.servers.s3 import S3

_NUMBERS = itertools.count(1)


@pytest.fixture
def make(spark: SparkSession, lake: Lake, s3: S3, tmp_path: Path) -> Callable[..., Story]:
    """Batches A and B are in a table in a bucket of its own."""

    def begin(versions: bool = False, locks: bool = False) -> Story:
        name = f"s3erase{next(_NUMBERS)}"
        s3.client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=locks)
        if versions:
            s3.client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        home = {"uri": f"sqlite:///{tmp_path}/{name}.db", "warehouse": f"s3://{name}/wh"}
        lake.add_catalog(name, type="sql", **home, **s3.properties(), **{"s3.path-style-access": "true"})
        make_session(name)
        story = Story.begin(spark, lake, ("day",), name)
        return story.filled("AB")

    return begin


def erase(story: Story, seconds: int | None = DUE) -> None:
    assert story.restate(a_request("erase", "Erase", batch_ids=("A",), evict_by_seconds=seconds)).succeeded


def data_files(story: Story) -> list[str]:
    table = story.table()
    return [str(f.file.file_path) for f in table.scan().plan_files()]


def versions(s3: S3, paths: list[str]) -> list[str]:
    """What the bucket still has of objects, delete markers included."""
    bucket, _, _ = paths[0].removeprefix("s3://").partition("/")
    keys = {p.removeprefix(f"s3://{bucket}/") for p in paths}
    found = s3.client.list_object_versions(Bucket=bucket)
    return [o["Key"] for kind in ("Versions", "DeleteMarkers") for o in found.get(kind, ()) if o["Key"] in keys]


def check_record(s3: S3, result: RunResult) -> dict[str, Any]:
    outcome = the_outcome(result)
    assert outcome.verified_time is not None, outcome.blocked_by
    bucket, _, key = outcome.record.removeprefix("s3://").partition("/")
    content = s3.client.get_object(Bucket=bucket, Key=key)["Body"].read()
    assert hashlib.sha256(content).hexdigest() == outcome.record_sha256
    return dict(json.loads(content))


@pytest.mark.long
def test_files_of_a_bucket_are_asked_for_one_by_one_in_all_versions(s3: S3, make: Callable[..., Story]) -> None:
    story = make()
    before = data_files(story)
    erase(story)

    result = story.vacuum()

    record = check_record(s3, result)
    assert sorted(f["path"] for f in record["files"]) == sorted(
        p.replace("day=1", "day=*").replace("day=2", "day=*") for p in before
    )
    assert record["verified"]["all-versions"] is True
    assert record["verified"]["storage-calls"]["ListObjectVersions"] >= len(before)
    assert versions(s3, before) == []
    assert [f["content"] for f in record["files"]] == ["data"] * len(before)
    check_evidence(story, "ns/erase")


@pytest.mark.long
def test_an_object_lock_holds_a_due_erasure_until_it_is_over(s3: S3, make: Callable[..., Story]) -> None:
    """And a legal hold until somebody lifts it."""
    story = make(locks=True)
    before = data_files(story)
    until = (datetime.now(UTC) + timedelta(days=2)).replace(microsecond=0)
    locked, kept = (p.removeprefix(f"s3://{story.catalog}/") for p in before)
    lock = {"Mode": "GOVERNANCE", "RetainUntilDate": until}
    s3.client.put_object_retention(Bucket=story.catalog, Key=locked, Retention=lock)
    hold(s3, story.catalog, kept, "ON")
    erase(story)

    held = story.vacuum()
    both = {b.kind: b.until for b in the_erasure(story).blockers}
    hold(s3, story.catalog, kept, "OFF")
    less = check_erasures(story)
    over(s3, story.catalog, locked)
    free = check_erasures(story)

    assert (the_outcome(held).blocked_by_count, both) == (
        2,
        {BlockerKind.OBJECT_LOCK: until, BlockerKind.LEGAL_HOLD: None},
    )
    assert [b.split(" on ")[0] for b in blockers(less)] == ["object lock"]
    assert the_outcome(less).blocked_by[0].endswith(f"until {until:%Y-%m-%dT%H:%M:%SZ}")
    check_record(s3, free)
    assert versions(s3, before) == []


def hold(s3: S3, bucket: str, key: str, status: str) -> None:
    version = version_of(s3, bucket, key)
    s3.client.put_object_legal_hold(Bucket=bucket, Key=key, VersionId=version, LegalHold={"Status": status})


def version_of(s3: S3, bucket: str, key: str) -> str:
    """Of an object that has one, deleted or not."""
    found = s3.client.list_object_versions(Bucket=bucket, Prefix=key)["Versions"]
    (version,) = (str(o["VersionId"]) for o in found if o["Key"] == key)
    return version


def over(s3: S3, bucket: str, key: str) -> None:
    """The retention ends: its owner may shorten one in governance mode."""
    version = version_of(s3, bucket, key)
    s3.client.put_object_retention(
        Bucket=bucket,
        Key=key,
        VersionId=version,
        BypassGovernanceRetention=True,
        Retention={"Mode": "GOVERNANCE", "RetainUntilDate": datetime.now(UTC) + timedelta(seconds=1)},
    )
    deadline = time.monotonic() + 30
    while datetime.now(UTC) <= retained_until(s3, bucket, key, version):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def retained_until(s3: S3, bucket: str, key: str, version: str) -> datetime:
    found = s3.client.get_object_retention(Bucket=bucket, Key=key, VersionId=version)
    return found["Retention"]["RetainUntilDate"].astimezone(UTC)


@pytest.mark.long
def test_an_unfinished_upload_in_the_tables_folder_holds_an_erasure_until_it_is_gone(
    s3: S3, make: Callable[..., Story]
) -> None:
    """Of whose rows its parts are, nobody can see."""
    story = make()
    bucket, _, prefix = story.table().location().removeprefix("s3://").partition("/")
    key = f"{prefix}/data/day=1/00000-killed.parquet"
    begun = s3.client.create_multipart_upload(Bucket=bucket, Key=key)
    erase(story)

    held = story.vacuum()
    (blocker,) = the_erasure(story).blockers
    s3.client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=begun["UploadId"])
    free = check_erasures(story)

    assert held.erasures_open == 1
    assert (blocker.name.endswith("/day=*/00000-killed.parquet"), "unfinished upload" in blocker.why) == (True, True)
    assert blocker.until is not None
    check_record(s3, free)

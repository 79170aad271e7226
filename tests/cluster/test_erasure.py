"""Bytes that must be gone, of two tables under one policy that vacuums one at a time: purged, held by a tag, let go, verified.

What the storage holds is listed from outside, without Lethe's code.
"""

import hashlib
import json
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, pairwise
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tests.cluster.install import SYSTEM
from tests.cluster.kube import Object, condition
from tests.cluster.story import RUN_SECONDS, ClusterStory

pytestmark = pytest.mark.cluster

SOON = 60
TAG = "audit-2024"
# Due at once: less than the policy's evictByLeadSeconds, a day.
AN_HOUR = 3600


@dataclass
class Tables:
    """`tagged` has a tag on a snapshot of its first days; `holding` are the data files that held rows of batch `a`."""

    tagged: ClusterStory
    plain: ClusterStory
    holding: dict[str, set[str]] = field(default_factory=dict)

    @property
    def both(self) -> tuple[ClusterStory, ClusterStory]:
        return self.tagged, self.plain


@pytest.fixture(scope="module")
def tables(stories: Callable[[str], ClusterStory]) -> Tables:
    """Batch `a` of both is hidden from readers, and no vacuum purges it."""
    tables = Tables(stories("tagged"), stories("plain"))
    for story in tables.both:
        for batch in ("a", "b"):
            story.put_batch(batch)
        story.apply(story.a_dataset(snapshots={"maxAgeSeconds": 86_400, "minToKeep": 5}))
    for story in tables.both:
        story.wait_for_status(batches_promoted=2)
        tables.holding[story.name] = story.lake.data_files(story.table)
    loaded = tables.tagged.lake.catalog.load_table(tables.tagged.table)
    loaded.manage_snapshots().create_tag(tables.tagged.lake.head(tables.tagged.table).snapshot_id, TAG).commit()
    for story in tables.both:
        story.apply(story.a_restatement("erase", "Erase", batchIds=["a"], evictBySeconds=AN_HOUR))
    for story in tables.both:
        story.wait_for_success("erase")
        story.forget("a")
    return tables


def wait_for_erased(story: ClusterStory, status: str, reason: str, within_seconds: float = RUN_SECONDS) -> Object:
    return story.cluster.wait_for_condition(
        story.restatement("erase"), "Erased", status=status, reason=reason, within_seconds=within_seconds
    )


def vacuums(story: ClusterStory) -> list[tuple[datetime, datetime]]:
    """When the Jobs that purge began and ended, in whole seconds."""
    jobs = story.cluster.list("jobs", f"lethe.dev/dataset={story.name},lethe.dev/kind=Vacuum")
    return [
        (datetime.fromisoformat(job["status"]["startTime"]), ended(job))
        for job in jobs
        if job["metadata"]["annotations"]["lethe.dev/for-uid"] != "erasures"
    ]


def ended(job: Object) -> datetime:
    """An attempt that failed, for whatever reason, is followed by another: that takes a place as well."""
    over = condition(job, "Complete") or condition(job, "Failed")
    return datetime.fromisoformat(over["lastTransitionTime"])


def in_storage(story: ClusterStory) -> set[str]:
    return story.lake.keys(story.lake.catalog.load_table(story.table).location())


def test_rows_that_only_readers_no_longer_see_are_not_erased(tables: Tables) -> None:
    for story in tables.both:
        body = wait_for_erased(story, "False", "RowsInTable", within_seconds=SOON)

        assert "dueTime" in body["status"]["erasure"]
        assert story.lake.rows(story.table) == story.expected
        assert tables.holding[story.name] <= in_storage(story)


def test_of_two_datasets_that_are_due_at_once_one_waits_for_the_other(tables: Tables) -> None:
    """Both are vacuumed in the end, and at no moment are both at it."""
    policy = tables.tagged.a_policy(
        datasetSelector={
            "matchExpressions": [{"key": "story", "operator": "In", "values": [s.name for s in tables.both]}]
        },
        triggers={},
        limits={"concurrentRuns": 1},
    )
    tables.tagged.apply(policy)

    for story in tables.both:
        story.wait_for_status(tombstones_active=0)
        story.wait_for_decision("Later")

    of_each = [vacuums(story) for story in tables.both]
    assert all(of_each)
    assert all(one[1] <= following[0] for one, following in pairwise(sorted(chain(*of_each))))
    names = {s.name for s in tables.both}
    waited = {
        e["involvedObject"]["name"]: e["message"]
        for e in tables.plain.cluster.list("events")
        if e["reason"] == "WaitsForOtherVacuums" and e["involvedObject"]["name"] in names
    }
    (waiting,) = waited
    (other_name,) = names - {waiting}
    assert f"Waiting for the running vacuum of Dataset {other_name}: VacuumPolicy" in waited[waiting]


def test_purged_rows_are_erased_once_storage_was_seen_to_have_none_of_them(tables: Tables) -> None:
    """However many snapshots the Dataset keeps: those that hold the rows go, and with them the files."""
    story = tables.plain

    body = wait_for_erased(story, "True", "Erased")

    assert not tables.holding[story.name] & in_storage(story)
    check_record(story, body["status"]["erasure"], tables.holding[story.name])


def test_a_tag_holds_what_it_names_and_is_named(tables: Tables) -> None:
    story = tables.tagged

    body = wait_for_erased(story, "False", "ErasureBlocked")

    assert any(TAG in held for held in body["status"]["erasure"]["blockedBy"])
    assert TAG in condition(body, "Erased")["message"]
    assert "record" not in body["status"]["erasure"]
    assert tables.holding[story.name] <= in_storage(story)
    assert story.lake.plain_rows(story.table) == story.expected


def test_it_is_erased_by_itself_when_the_tag_is_gone(tables: Tables) -> None:
    story = tables.tagged
    story.lake.catalog.load_table(story.table).manage_snapshots().remove_tag(TAG).commit()

    body = wait_for_erased(story, "True", "Erased")

    assert "blockedBy" not in body["status"]["erasure"]
    assert not tables.holding[story.name] & in_storage(story)
    check_record(story, body["status"]["erasure"], tables.holding[story.name])
    assert story.lake.rows(story.table) == story.expected


def check_record(story: ClusterStory, erasure: dict[str, Any], files: set[str]) -> None:
    """It lies beside the table, is what its digest says, and tells of these files."""
    content = story.lake.get(erasure["record"])
    record = json.loads(content)
    assert hashlib.sha256(content).hexdigest() == erasure["recordSha256"]
    assert record["table"]["name"] == story.table
    assert record["files-count"] == len(files)
    assert story.lake.catalog.load_table(story.table).location() in erasure["record"]
    check_signature(story, erasure)


def check_signature(story: ClusterStory, erasure: dict[str, Any]) -> None:
    """It is of this record, and by the key that lies beside the operator."""
    secret = story.cluster.in_namespace(SYSTEM).get("secret/lethe-signing-key")
    assert secret is not None
    key = load_pem_private_key(b64decode(secret["data"]["key.pem"]), None)
    assert isinstance(key, Ed25519PrivateKey)
    file = json.loads(story.lake.get(f"{erasure['record']}.sig"))
    statement = json.dumps(file["statement"], sort_keys=True, separators=(",", ":"))
    key.public_key().verify(b64decode(file["signature"]), f"{statement}\n".encode())
    assert file["statement"]["record-sha256"] == erasure["recordSha256"]
    assert erasure["signature"] == f"{file['key-id']}:{file['signature']}"

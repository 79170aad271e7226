"""Bytes that must be gone: purged, held by a tag, let go, verified.

What the storage holds is listed from outside, without Lethe's code.
"""

import hashlib
import json
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tests.cluster.install import SYSTEM
from tests.cluster.kube import Object, condition
from tests.cluster.story import RUN_SECONDS, WARM, ClusterStory

pytestmark = pytest.mark.cluster

SOON = 60
TAG = "audit-2024"
# Due at once: less than the policy's evictByLeadSeconds, a day.
AN_HOUR = 3600


@dataclass(frozen=True)
class Erasing:
    """A table whose batch `a` is hidden from readers, and which no policy vacuums yet."""

    story: ClusterStory
    # The data files that hold rows of batch `a`.
    holding: frozenset[str]


def erasing(*stories: ClusterStory, tag: str = "") -> list[Erasing]:
    """Promote two batches and erase one of them, in each table at the same time. `tag`: a tag on the first snapshot, if any."""
    for story in stories:
        for batch in ("a", "b"):
            story.put_batch(batch)
        story.apply(story.a_dataset(runTemplate=WARM, snapshots={"maxAgeSeconds": 86_400, "minToKeep": 5}))
    made = []
    for story in stories:
        story.wait_for_status(batches_promoted=2)
        made.append(Erasing(story, frozenset(story.lake.data_files(story.table))))
        if tag:
            head = story.lake.head(story.table).snapshot_id
            story.lake.catalog.load_table(story.table).manage_snapshots().create_tag(head, tag).commit()
    for story in stories:
        story.apply(story.a_restatement("erase", "Erase", batchIds=["a"], evictBySeconds=AN_HOUR))
    for story in stories:
        story.wait_for_success("erase")
        story.forget("a")
    return made


@pytest.fixture(scope="module")
def tagged(stories: Callable[[str], ClusterStory]) -> Erasing:
    """A tag holds the snapshot with the rows."""
    (tagged,) = erasing(stories("tagged"), tag=TAG)
    return tagged


def wait_for_erased(story: ClusterStory, status: str, reason: str, within_seconds: float = RUN_SECONDS) -> Object:
    return story.cluster.wait_for_condition(
        story.restatement("erase"), "Erased", status=status, reason=reason, within_seconds=within_seconds
    )


def in_storage(story: ClusterStory) -> set[str]:
    return story.lake.keys(story.lake.catalog.load_table(story.table).location())


def test_rows_that_only_readers_no_longer_see_are_not_erased(tagged: Erasing) -> None:
    story = tagged.story

    body = wait_for_erased(story, "False", "RowsInTable", within_seconds=SOON)

    assert "dueTime" in body["status"]["erasure"]
    assert story.lake.rows(story.table) == story.expected
    assert tagged.holding <= in_storage(story)


def test_a_tag_holds_what_it_names_and_is_named(tagged: Erasing) -> None:
    """The rows are purged, because they are due, and a snapshot that the tag keeps still has them."""
    story = tagged.story
    story.apply(story.a_policy(triggers={}))
    story.wait_for_status(tombstones_active=0)

    body = wait_for_erased(story, "False", "ErasureBlocked")

    assert any(TAG in held for held in body["status"]["erasure"]["blockedBy"])
    assert TAG in condition(body, "Erased")["message"]
    assert "record" not in body["status"]["erasure"]
    assert tagged.holding <= in_storage(story)
    assert story.lake.plain_rows(story.table) == story.expected


def test_it_is_erased_by_itself_when_the_tag_is_gone(tagged: Erasing) -> None:
    """However many snapshots the Dataset keeps: those that hold the rows go, and with them the files."""
    story = tagged.story
    story.lake.catalog.load_table(story.table).manage_snapshots().remove_tag(TAG).commit()

    body = wait_for_erased(story, "True", "Erased")

    assert "blockedBy" not in body["status"]["erasure"]
    assert not tagged.holding & in_storage(story)
    check_record(story, body["status"]["erasure"], tagged.holding)
    assert story.lake.rows(story.table) == story.expected


def check_record(story: ClusterStory, erasure: dict[str, Any], files: frozenset[str]) -> None:
    """It lies beside the table, is what its digest says, and tells of these files and their native deletes."""
    content = story.lake.get(erasure["record"])
    record = json.loads(content)
    assert hashlib.sha256(content).hexdigest() == erasure["recordSha256"]
    assert record["table"]["name"] == story.table
    assert record["files-count"] == 2 * len(files)
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

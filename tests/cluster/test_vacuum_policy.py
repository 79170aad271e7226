"""When rows are purged, on a real cluster: planned, approved, in the window; at once and only of some batches."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.cluster.kube import Object, condition
from tests.cluster.story import WARM, ClusterStory

pytestmark = pytest.mark.cluster

SOON = 60
ALWAYS_OPEN = {"schedule": "* * * * *", "durationSeconds": 3600}


@pytest.fixture(scope="module")
def story(stories: Callable[[str], ClusterStory]) -> ClusterStory:
    return with_two_batches_reverted(stories("approval"))


def with_two_batches_reverted(story: ClusterStory) -> ClusterStory:
    """Three batches in one file, two of them reverted with an evictBy a month away, and no policy that purges."""
    for batch in ("a", "b", "c"):
        story.put_batch(batch)
    story.apply(story.a_dataset(runTemplate=WARM))
    story.wait_for_status(batches_promoted=3)
    story.apply(story.a_restatement("take-back", batchIds=["a", "b"], evictBySeconds=30 * 86_400))
    story.wait_for_success("take-back")
    story.forget("a")
    story.forget("b")
    return story


@pytest.fixture(scope="module")
def opens() -> datetime:
    """When a window opens that is closed now, and for the next half day."""
    return datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(hours=12)


def a_policy(story: ClusterStory, window: dict[str, Any]) -> Object:
    return story.a_policy(triggers={"activeTombstones": 1}, approval="Manual", window=window)


def test_without_a_policy_an_evict_by_stalls_the_dataset(story: ClusterStory) -> None:
    body = story.cluster.wait_for_condition(story.dataset, "Stalled", reason="NoVacuumPolicy", within_seconds=SOON)

    assert condition(body, "EvictionOnTime")["reason"] == "NoVacuumPolicy"
    assert body["status"]["tombstones"]["rows"] == 200


def test_a_due_vacuum_is_planned_and_purges_nothing(story: ClusterStory, opens: datetime) -> None:
    """The window does not hold up a plan."""
    before = story.lake.data_files(story.table)
    story.apply(a_policy(story, {"schedule": f"{opens:%-M %-H} * * *", "durationSeconds": 3600}))

    told = story.wait_for_decision("NeedsApproval")

    assert story.lake.data_files(story.table) == before
    assert f"lethe.dev/approve={told['plan']['digest']}" in told["message"]
    assert told["plan"]["tombstones"] == 2
    story.cluster.wait_for_condition(story.dataset, "EvictionOnTime", reason="OnTime", within_seconds=SOON)


def test_an_approved_vacuum_waits_for_the_window_and_shows_until_when(story: ClusterStory, opens: datetime) -> None:
    then, jobs = f"{opens:%Y-%m-%dT%H:%M:%SZ}", story.jobs()
    story.annotate(approve=story.wait_for_decision("NeedsApproval")["plan"]["digest"])

    told = story.wait_for_decision("Due", "WindowClosed", within_seconds=SOON)

    assert told["nextTime"] == then
    assert f"The window opens at {then}." in told["message"]
    assert story.jobs() == jobs
    policy = story.cluster.wait_for(
        f"vacuumpolicies.lethe.dev/{story.name}",
        lambda b: [d["reason"] for d in b.get("status", {}).get("datasets", ())] == ["WindowClosed"],
        within_seconds=SOON,
        why="the policy's entry of its Dataset",
    )
    assert policy["status"]["nextWindowTime"] == then
    assert policy["status"]["datasets"][0]["nextTime"] == then


def test_the_approved_plan_is_carried_out_once_the_window_is_open(story: ClusterStory) -> None:
    story.apply(a_policy(story, ALWAYS_OPEN))

    story.wait_for_status(tombstones_active=0)
    told = story.wait_for_decision("Later")

    assert story.lake.rows(story.table) == story.expected
    assert story.lake.plain_rows(story.table) == story.expected
    assert "plan" not in told
    assert told["lastRun"]["message"].startswith("2 tombstones purged, 1 files rewritten")

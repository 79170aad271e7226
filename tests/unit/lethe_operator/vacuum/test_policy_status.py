"""What a VacuumPolicy says of itself, and what its limits and its maintenance say to a run."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from lethe.contract.run import Maintenance
from lethe.contract.status import VacuumPolicyStatus
from lethe.kube import DATASETS, EVENTS, VACUUM_POLICIES
from lethe_operator.cluster.queue import Key
from lethe_operator.resources.vacuum_policy import parse_vacuum_policy
from lethe_operator.vacuum import status as vacuum_status

from tests.support.builders import NOW
from tests.support.fake_cluster import FakeCluster, an_operator
from tests.support.resources import a_dataset_body, a_policy, condition, message
from tests.support.statuses import document
from tests.unit.lethe_operator.vacuuming import VacuumStory

NIGHTLY = {"schedule": "0 1 * * *", "timeZone": "Europe/Berlin", "durationSeconds": 14_400}


def own(status: Any = None, **spec: Any) -> dict[str, Any]:
    policy = a_policy(status=status, **spec)
    return dict(document(vacuum_status.own(policy, policy.status, NOW)))


def test_the_condition_says_when_a_vacuum_is_due() -> None:
    triggers = {
        "activeTombstones": 4,
        "tombstonedRowsPercent": 10,
        "oldestTombstoneAgeSeconds": 3600,
        "evictByLeadSeconds": 60,
    }

    said = message(own(triggers=triggers, approval="Manual"), "Ready")

    assert said == (
        "A vacuum is due at 4 active tombstones, when 10% of the rows are hidden, when a tombstone is 3600 s old, "
        "60 s before an evictBy, or earlier if previous vacuums took longer. It starts after its plan is approved."
    )


def test_a_policy_with_nothing_but_the_defaults_watches_over_evict_by() -> None:
    status = own(triggers={})

    assert condition(status, "Ready") == ("True", "InForce")
    assert "86400 s before an evictBy" in message(status, "Ready")


def test_the_status_shows_when_the_window_opens_next() -> None:
    assert own(window=NIGHTLY)["nextWindowTime"] == "2026-03-02T00:00:00Z"
    assert "nextWindowTime" not in own()


@pytest.mark.parametrize(
    ("window", "reason", "said"),
    [
        ({"schedule": "0 0 31 2 *"}, "WindowNeverOpens", "a day that does not exist"),
        ({"schedule": "0 25 * * *"}, "InvalidWindow", "its hour is invalid"),
        ({"timeZone": "Berlin"}, "InvalidWindow", "'Berlin' is not an IANA time zone. Set one such as Europe/Berlin"),
    ],
)
def test_a_window_that_never_opens_stalls_the_policy(window: dict[str, str], reason: str, said: str) -> None:
    status = own(window={**NIGHTLY, **window})

    assert (condition(status, "Ready"), condition(status, "Stalled")) == (("False", reason), ("True", reason))
    assert said in message(status, "Ready")
    assert "nextWindowTime" not in status


def test_a_window_that_was_removed_leaves_no_time() -> None:
    old = own(window=NIGHTLY)

    assert "nextWindowTime" not in own(old)


def test_the_operator_looks_at_it_again_when_the_window_opens(reconciler: Any) -> None:
    """Else the next opening would be one that has passed."""
    cluster, reconcile = reconciler
    spec = {"datasetSelector": {}, "triggers": {}, "window": NIGHTLY}
    cluster.create(
        VACUUM_POLICIES, "ns", {"metadata": {"namespace": "ns", "name": "air", "generation": 1}, "spec": spec}
    )
    cluster.create(DATASETS, "ns", a_dataset_body())

    again = reconcile(Key("VacuumPolicy", "ns", "air"))

    assert again.time == NOW.replace(day=2, hour=0)
    status = cluster.get(VACUUM_POLICIES, "ns", "air")["status"]
    assert (status["nextWindowTime"], status["datasetsCount"]) == ("2026-03-02T00:00:00Z", 1)
    assert {e["reason"] for e in cluster.list(EVENTS, "ns")} == {"InForce"}


@pytest.fixture
def reconciler() -> Any:
    cluster = FakeCluster()
    return cluster, an_operator(cluster, clock=lambda: NOW)


# --- what a run is told --------------------------------------------------------------------------------------------------


def test_limits_and_maintenance_reach_the_run() -> None:
    policy = a_policy(
        limits={"maxBytesPerRun": "100Gi", "maxRunSeconds": 7200},
        expireSnapshots=False,
        maintenance={
            "rewriteManifests": True,
            "removeOrphanFiles": {"olderThanSeconds": 86_400},
            "compactSmallFiles": True,
        },
    )

    spec = VacuumStory((policy,)).start()

    assert (spec.max_bytes, spec.max_seconds, spec.expire_snapshots) == (100 * 1024**3, 7200, False)
    assert spec.maintenance == Maintenance(
        rewrite_manifests=True,
        remove_orphan_files=True,
        orphan_files_older_than_seconds=86_400,
        compact_small_files=True,
    )
    assert spec.target_file_size_bytes == 512 * 1024**2


def test_without_a_word_of_it_nothing_but_purging_and_expiry_is_done() -> None:
    spec = VacuumStory((a_policy(),)).start()

    assert (spec.maintenance, spec.expire_snapshots, spec.max_bytes, spec.stop_by) == (Maintenance(), True, None, None)


@pytest.mark.parametrize(("limit", "told"), [(None, 17_280), (3600, 3600), (604_800, 17_280)])
def test_a_run_begins_no_step_so_late_that_kubernetes_would_stop_it(limit: int | None, told: int) -> None:
    """Four fifths of the six hours after which its Job is stopped."""
    limits = {} if limit is None else {"maxRunSeconds": limit}

    assert VacuumStory((a_policy(limits=limits),)).start().max_seconds == told


def test_a_run_in_the_window_gets_the_time_when_it_closes() -> None:
    story = VacuumStory((a_policy(window=NIGHTLY),), now=NOW.replace(hour=1))

    assert story.start().stop_by == NOW.replace(hour=4)


def test_a_retry_gets_the_time_when_the_current_window_closes() -> None:
    """That of the night before has long closed."""
    story = VacuumStory((a_policy(window=NIGHTLY),), now=NOW.replace(hour=3, minute=59))
    story.start()
    story.fail()
    story.wait(hours=1)
    outside = story.decide().launch, story.told
    story.now = NOW.replace(day=2, hour=1)

    spec = story.start()

    assert outside == (None, ("Due", "WindowClosed"))
    assert (spec.stop_by, story.launched[-1].attempt) == (NOW.replace(day=2, hour=4), 2)


def test_a_retry_follows_the_current_policy() -> None:
    """Also if it is another one that decides by now."""
    story = VacuumStory((a_policy(limits={"maxBytesPerRun": "100Gi"}),))
    story.start()
    story.fail()
    story.wait(minutes=5)
    story.policies = (a_policy("sea", limits={"maxBytesPerRun": "1Gi"}, expireSnapshots=False),)

    spec = story.start()

    assert (spec.max_bytes, spec.expire_snapshots, spec.policy) == (1024**3, False, "ns/sea")
    assert len({r.run_id for r in story.launched}) == 1
    assert spec.target_file_size_bytes == 512 * 1024**2


def test_a_retry_under_no_policy_is_not_started() -> None:
    story = VacuumStory((a_policy(),))
    story.start()
    story.fail()
    story.wait(minutes=5)
    story.policies = ()

    assert story.decide().launch is None


def test_a_due_vacuum_shows_when_the_window_opens_and_is_decided_again_then() -> None:
    story = VacuumStory((a_policy(window=NIGHTLY),))

    verdict = story.decide()

    assert (verdict.launch, verdict.look_again) == (None, NOW + timedelta(hours=12))
    assert (story.told, story.status["vacuum"]["nextTime"]) == (("Due", "WindowClosed"), "2026-03-02T00:00:00Z")
    assert verdict.entries["air"]["nextTime"] == "2026-03-02T00:00:00Z"
    assert story.message == "4 active tombstones, the limit is 4. The window opens at 2026-03-02T00:00:00Z."
    assert "WindowClosed" in {e.verdict.reason for e in story.events()}


# --- what is shown -------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs/vacuum.md").read_text()
SHOWN = {
    **{path.name: path.read_text() for path in sorted((ROOT / "examples/flights").glob("vacuumpolicy*.yaml"))},
    "docs/vacuum.md": PAGE.partition("```yaml\n")[2].partition("```")[0],
}


@pytest.mark.parametrize("text", SHOWN.values(), ids=SHOWN)
def test_a_policy_that_is_shown_is_in_force(text: str) -> None:
    policy = parse_vacuum_policy(yaml.safe_load(text))

    assert condition(vacuum_status.own(policy, VacuumPolicyStatus(), NOW), "Ready") == ("True", "InForce")
    assert policy.spec.triggers.active_tombstones

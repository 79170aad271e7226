"""What changes metadata alone is carried out without a pod of its own: by the committer of the namespace."""

from collections.abc import Callable

import pytest

from tests.cluster.kube import Cluster
from tests.cluster.lake import a_table_of, rows_of
from tests.cluster.story import WARM, ClusterStory

pytestmark = pytest.mark.cluster

COMMITTER = "deployment/lethe-committer"
PODS = "app.kubernetes.io/component=committer"
LEASE = "leases.coordination.k8s.io/lethe-committer"
BATCHES = 60


@pytest.fixture(scope="module")
def story(stories: Callable[[str], ClusterStory]) -> ClusterStory:
    """A Dataset whose batches are promoted: one run has claimed and prepared its table."""
    story = stories("quick")
    for number in range(BATCHES):
        story.put_batch(f"b{number}", rows=3, day=1 + number % 3, first_id=10 * number)
    story.apply(story.a_dataset(runTemplate=WARM, snapshots={"maxAgeSeconds": 86400, "minToKeep": 5}))
    story.wait_for_status(batches_promoted=BATCHES)
    return story


@pytest.fixture
def there(cluster: Cluster) -> Cluster:
    """The committer says that it can do its work."""
    cluster.run("rollout", "status", COMMITTER, "--timeout=180s", within_seconds=190)
    cluster.wait_for(LEASE, lambda lease: bool(lease.get("spec", {}).get("holderIdentity")), within_seconds=60)
    return cluster


def reverts(story: ClusterStory, *numbers: int) -> None:
    story.apply(*(story.a_restatement(f"b{n}", batchIds=[f"b{n}"]) for n in numbers))
    for n in numbers:
        story.forget(f"b{n}")


def test_the_images_archive_of_classes_fits_on_a_node(there: Cluster) -> None:
    """Were the jars in another order than in the image's build, Java would silently do without it."""
    maps = there.run("exec", COMMITTER, "--", "sh", "-c", "cat /proc/[0-9]*/maps")

    assert "/jars/classes.jsa" in maps


def test_a_revert_and_its_undo_need_no_job(there: Cluster, story: ClusterStory) -> None:
    before = story.jobs()
    reverts(story, 0)
    revert = story.wait_for_success("b0")
    assert story.lake.rows(story.table) == story.expected

    story.apply(story.a_restatement("undo", "Undo", undoes={"name": f"{story.name}-b0"}))
    undo = story.wait_for_success("undo")

    assert revert["status"]["result"]["rowsDeleted"] == undo["status"]["result"]["rowsRestored"] == 3
    assert story.jobs() == before
    story.expected += rows_of("b0", a_table_of(3))
    assert story.lake.rows(story.table) == story.expected
    # The Dataset's status follows the Restatements': a run may be shown in an earlier phase for a moment.
    there.wait_for(
        story.dataset,
        lambda d: [r["phase"] for r in d["status"]["runs"] if r["kind"] == "Restatement"] == ["Succeeded"] * 2,
        within_seconds=60,
    )


def test_the_committer_is_killed_among_many_and_each_is_carried_out_once(there: Cluster, story: ClusterStory) -> None:
    """Its current entry stays in the mailbox; the next committer finds in the ledger what was committed."""
    numbers = range(1, 41)
    reverts(story, *numbers)
    there.run("delete", "pod", "-l", PODS, "--grace-period=0", "--force", "--wait=false")

    results = [story.wait_for_success(f"b{n}")["status"]["result"] for n in numbers]

    assert story.lake.rows(story.table) == story.expected
    assert [r["rowsDeleted"] for r in results] == [3] * len(numbers)
    assert len({t["id"] for t in story.lake.tombstones(story.table)}) == len(numbers)


def test_it_may_write_only_its_own_mailbox(there: Cluster) -> None:
    def may(verb: str, what: str) -> bool:
        return there.may("lethe-committer", verb, what)

    assert may("patch", "configmap/lethe-committer")
    assert not any(may(v, w) for v, w in (("get", "secrets"), ("create", "pods"), ("patch", "configmap/other")))

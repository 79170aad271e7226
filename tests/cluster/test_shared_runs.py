"""Datasets of one namespace that share a driver, on a real cluster."""

from collections.abc import Callable, Iterator

import pytest

from tests.cluster.install import change
from tests.cluster.kube import Cluster, Object, condition
from tests.cluster.lake import CATALOG
from tests.cluster.story import RUN_SECONDS, ClusterStory

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def sharing(cluster: Cluster) -> Iterator[Cluster]:
    """Long enough a window that two Datasets of two applies are both due within it."""
    change(cluster, "sharedRuns.enabled=true", "sharedRuns.gatherSeconds=20")
    yield cluster
    change(cluster, "sharedRuns.enabled=false", "sharedRuns.gatherSeconds=5")


@pytest.mark.long
def test_two_datasets_share_a_job_of_which_one_fails_and_the_other_is_promoted(
    sharing: Cluster, stories: Callable[[str], ClusterStory]
) -> None:
    """Each shows the end of its own part; the Job is deleted with the last of them."""
    good, bad = stories("shares"), stories("fails")
    for story in (good, bad):
        story.put_batch("a", rows=50)
    odd = {"catalog": CATALOG, "name": bad.table, "create": {"schema": "id BIGINT, value NO_SUCH_TYPE"}}
    bad.apply(bad.a_dataset(table=odd))
    good.apply(good.a_dataset())

    failed = sharing.wait_for_condition(
        bad.dataset, "Stalled", reason="InvalidTableDefinition", within_seconds=RUN_SECONDS
    )
    good.wait_for_status(batches_promoted=1)
    promoted = sharing.wait_for(good.dataset, has_succeeded, within_seconds=RUN_SECONDS, why="the run's end")

    assert "spec.table.create" in condition(failed, "Ready")["message"]
    assert good.lake.rows(good.table) == good.expected
    assert len(good.lake.run_ids(good.table)) == 1
    (run,) = promoted["status"]["runs"]
    sharing.wait_for(
        bad.dataset,
        lambda b: [(r["name"], r["phase"]) for r in b["status"]["runs"]] == [(run["name"], "Failed")],
        within_seconds=60,
        why="the run's end for the other Dataset",
    )
    job = sharing.get(f"jobs/{run['name']}")
    assert job is not None
    assert job["metadata"]["labels"]["lethe.dev/shared"] == "true"

    sharing.delete(bad.dataset)
    sharing.wait_for(
        f"jobs/{run['name']}",
        lambda b: [o["name"] for o in b["metadata"]["ownerReferences"]] == [good.name],
        within_seconds=120,
        why="only the other Dataset owns the Job",
    )
    sharing.delete(good.dataset)
    sharing.run("wait", "--for=delete", f"jobs/{run['name']}", "--timeout=120s", within_seconds=130)


def has_succeeded(dataset: Object) -> bool:
    return any(run["phase"] == "Succeeded" for run in dataset["status"]["runs"])

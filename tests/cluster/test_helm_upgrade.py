"""An upgrade of the previous version's chart, a rollback and another upgrade, each during a run: none is lost or repeated.

Chart, operator and runs are those of each version. A gate before S3 holds each run until Helm has ended.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.install import CHART, RELEASE, SYSTEM, helm, install, install_chart, values_of
from tests.cluster.kube import Cluster, Object
from tests.cluster.lake import GATED, ClusterLake, connect
from tests.cluster.previous import images, unpack
from tests.cluster.servers import gate as gates
from tests.cluster.servers.gate import Gate
from tests.cluster.story import RUN_SECONDS, ClusterStory, a_name

pytestmark = [pytest.mark.cluster, pytest.mark.long]


@pytest.fixture
def gate(cluster: Cluster, lake: ClusterLake) -> Iterator[Gate]:
    with gates.running(cluster, lake.services) as gate:
        yield gate


@pytest.fixture
def story(cluster: Cluster, lake: ClusterLake, gate: Gate) -> Iterator[ClusterStory]:
    """A Dataset whose runs reach S3 through the gate, in a cluster with the chart of the previous version."""
    story = ClusterStory(cluster, connect(lake.services, GATED), a_name("upgraded"), GATED)
    yield story
    gate.release()
    install(cluster, lake.services)
    story.clean()


def definitions(cluster: Cluster) -> dict[str, str]:
    """UIDs of the definitions: a definition that was deleted and created again has lost its resources."""
    found = cluster.list("customresourcedefinitions")
    return {d["metadata"]["name"]: d["metadata"]["uid"] for d in found if d["spec"]["group"] == "lethe.dev"}


def hold_a_run(story: ClusterStory, gate: Gate, batch: str) -> None:
    """Write a batch, and wait until its run holds a data file."""
    gate.hold(f"/{story.table.split('.')[1]}/data/")
    story.put_batch(batch, rows=50)
    gate.wait_until(bool, RUN_SECONDS, "a data file")


def image_of_run(story: ClusterStory, job: str) -> str:
    body = story.cluster.get(f"job/{job}")
    assert body is not None
    return str(body["spec"]["template"]["spec"]["containers"][0]["image"])


def events(story: ClusterStory, reason: str) -> list[Object]:
    found = story.cluster.list("events.events.k8s.io")
    return [e for e in found if e["reason"] == reason and e["regarding"]["name"] == story.name]


def test_runs_survive_an_upgrade_of_the_chart_a_rollback_and_another_upgrade(
    cluster: Cluster, lake: ClusterLake, story: ClusterStory, gate: Gate, tmp_path: Path
) -> None:
    older = images()
    chart, values = unpack(tmp_path) / "helm/lethe", values_of(lake.services)
    before = definitions(cluster)
    assert helm(cluster, "uninstall", RELEASE, "-n", SYSTEM, "--wait").returncode == 0
    install_chart(cluster, chart, {**values, "image": older})
    story.apply(story.a_dataset(snapshots={"maxAgeSeconds": 3600, "minToKeep": 10}))

    # The run of the old version ends after the upgrade.
    hold_a_run(story, gate, "a")
    (first,) = story.jobs()
    install_chart(cluster, CHART, values)
    gate.release()
    story.wait_for_status(batches_promoted=1)
    assert image_of_run(story, first) == older["spark"]

    # The run of the new version ends after the rollback.
    hold_a_run(story, gate, "b")
    (second,) = set(story.jobs()) - {first}
    back = helm(cluster, "rollback", RELEASE, "1", "-n", SYSTEM, "--wait", "--timeout", "3m", "--force-conflicts")
    assert back.returncode == 0, back.stderr
    gate.release()
    story.wait_for_status(batches_promoted=2)
    assert image_of_run(story, second) == values["image"]["spark"]

    # And one more of the old version after the second upgrade.
    hold_a_run(story, gate, "c")
    (third,) = set(story.jobs()) - {first, second}
    install_chart(cluster, CHART, values)
    gate.release()
    story.wait_for_status(batches_promoted=3)

    def ended(body: Object) -> bool:
        return len(body["status"]["runs"]) == 3 and all("finishTime" in run for run in body["status"]["runs"])

    body = cluster.wait_for(story.dataset, ended, within_seconds=60, why="the end of three runs")
    assert {(r["name"], r["attempt"], r["phase"]) for r in body["status"]["runs"]} == {
        (name, 1, "Succeeded") for name in (first, second, third)
    }
    assert set(story.jobs()) == {first, second, third}
    assert len(set(story.lake.run_ids(story.table))) == len(story.lake.run_ids(story.table)) == 3
    assert story.lake.rows(story.table) == story.expected
    assert definitions(cluster) == before
    skews = events(story, "VersionSkew")
    assert skews
    assert all(values["image"]["spark"] in e["note"] for e in skews), "the message names the image of new runs"

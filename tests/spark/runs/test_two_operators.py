"""Two operators on one Dataset, by mistake: what both of them start, on one real table."""

import pytest
from lethe.contract.result import RunResult
from lethe.contract.run import RunSpec, parse_run
from lethe.kube import CONFIG_MAPS, DATASETS, JOBS
from lethe_operator.cluster.queue import Key
from lethe_operator.reconcile import Reconciler
from lethe_operator.resources.common import RUN_KEY
from pyspark.sql import SparkSession

from tests.spark.support.built_once import built_once
from tests.spark.support.story import Story, of_batches
from tests.support.fake_cluster import Client, FakeCluster, an_operator
from tests.support.lake import Lake


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batch A is in the table; E and F wait in the buffer."""
    story = Story.begin(spark, lake)
    story.put("A", "E", "F")
    story.consolidate("A")
    return story


def server_of(story: Story) -> FakeCluster:
    """An API server with the story's Dataset."""
    return FakeCluster((DATASETS, story.dataset_resource(consolidation={"minBatches": 1})))


def operator(client: Client) -> Reconciler:
    """As another process has it: nothing is shared but the server."""
    return an_operator(client)


def runs_of(server: FakeCluster) -> list[RunSpec]:
    found = server.list(CONFIG_MAPS, "air")
    return [parse_run(v) for m in found for k, v in m["data"].items() if k.endswith(RUN_KEY)]


def batches_of(run: RunSpec) -> set[str]:
    assert run.consolidation is not None
    return set(run.consolidation.batch_ids)


def test_the_runs_of_two_operators_over_some_of_the_same_batches_promote_each_batch_once(
    story: Story,
) -> None:
    """The second one acts after the first has looked and before it has acted, and finds one batch more. Then the run of one
    commits before the run of the other does."""
    key, server = Key("Dataset", "air", story.name), server_of(story)
    looking = Client(server)
    second = operator(Client(server))

    def interfere() -> None:
        story.put("G")
        second(key)

    # The first thing it writes; until then it has only looked.
    dry = Client(server_of(story))
    operator(dry)(key)
    looking.before = {next(n for n, r in enumerate(dry.requests) if r == "patch Dataset"): interfere}
    operator(looking)(key)
    runs = runs_of(server)
    assert len(server.list(JOBS, "air")) == 2
    assert sorted(map(len, map(batches_of, runs))) == [2, 3]

    ended: list[RunResult] = []
    first, last = runs
    ended.append(story.run(last, before_commit=lambda: ended.append(story.run(first))))

    assert sum(e.batches_promoted for e in ended) == 3
    assert story.states() == dict.fromkeys("AEFG", "promoted")
    story.check_reads(of_batches("A", "E", "F", "G"))
    later = Client(server)
    operator(later)(key)
    assert "create Job" not in later.requests

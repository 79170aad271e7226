"""What users get wrong: always a condition that names the field or the thing, nothing lost, the rest goes on."""

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.cluster.install import scale_operator
from tests.cluster.kube import Cluster, condition
from tests.cluster.story import A_JOB, RUN_SECONDS, ClusterStory

pytestmark = pytest.mark.cluster

SOON = 60


@pytest.fixture(scope="module")
def begin(stories: Callable[[str], ClusterStory]) -> Callable[[str], ClusterStory]:
    return stories


# By name: the fields of the Dataset, the condition, its reason, and what the message names.
NAMED: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "catalog": ({"table": {"catalog": "nowhere", "name": "tests.any"}}, "Stalled", "UnknownCatalog", "nowhere"),
    "bucket": (
        {"buffer": {"uri": "s3://no-such-bucket/buffer"}},
        "Ready",
        "StorageUnavailable",
        "s3://no-such-bucket/buffer",
    ),
    # Otherwise a user who may write a Dataset could read any Secret of the namespace.
    "secret": (
        {
            "runTemplate": {
                "podTemplate": {"spec": {"volumes": [{"name": "x", "secret": {"secretName": "lethe-catalogs"}}]}}
            }
        },
        "Stalled",
        "PodTemplateNotAllowed",
        "lethe-catalogs",
    ),
}


@pytest.mark.parametrize("what", NAMED)
def test_what_a_dataset_may_not_have_or_what_is_not_there_is_named(
    cluster: Cluster, begin: Callable[[str], ClusterStory], what: str
) -> None:
    spec, kind, reason, name = NAMED[what]
    story = begin(f"bad-{what}")
    story.apply(story.a_dataset(**spec))

    status = "False" if kind == "Ready" else "True"
    body = cluster.wait_for_condition(story.dataset, kind, status=status, reason=reason, within_seconds=SOON)

    assert name in condition(body, "Ready")["message"]
    assert condition(body, "Ready")["status"] == "False"


def test_a_dataset_that_is_not_there_is_waited_for(cluster: Cluster, begin: Callable[[str], ClusterStory]) -> None:
    """It may come with the next apply; until then the Restatement says what it misses."""
    story = begin("bad-ref")
    story.apply(story.a_restatement("early", batchIds=["a"]))

    body = cluster.wait_for_condition(
        story.restatement("early"), "Ready", status="False", reason="DatasetNotFound", within_seconds=SOON
    )

    assert story.name in condition(body, "Ready")["message"]


def test_a_table_without_the_batch_column_is_not_written(
    cluster: Cluster, begin: Callable[[str], ClusterStory]
) -> None:
    story = begin("bad-column")
    story.lake.catalog.create_namespace_if_not_exists("tests")
    story.lake.catalog.create_table(story.table, pa.schema([("id", pa.int64())]))
    story.put_batch("a")
    story.apply(story.a_dataset())

    body = cluster.wait_for_condition(story.dataset, "Stalled", reason="BatchColumnMissing", within_seconds=SOON)

    assert "batch_id" in condition(body, "Ready")["message"]
    assert story.lake.catalog.load_table(story.table).current_snapshot() is None


# The others spell the place of a table in other ways.
ONE_OF_EACH_KIND = ("data", "theirs", "unrelated", "local")
SPELLINGS = ("metadata", "parent", "dots", "percent")


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(ONE_OF_EACH_KIND, id="one of each kind"),
        pytest.param(SPELLINGS, marks=pytest.mark.long, id="spellings"),
    ],
)
def test_a_buffer_that_is_not_the_datasets_own_is_rejected_and_stays_as_it_is(
    cluster: Cluster, begin: Callable[[str], ClusterStory], kinds: tuple[str, ...]
) -> None:
    """Nothing is read as batches, moved or deleted, whatever the layout and however the place is spelled."""
    other = begin("bad-neighbour")
    other.lake.catalog.create_namespace_if_not_exists("tests")
    home, bucket = f"s3://lake/tests/{other.name}/tables", "lake"
    inside = f"tests/{other.name}/tables"
    schema = pa.schema([("id", pa.int64()), ("batch_id", pa.string())])
    tables = [
        other.lake.catalog.create_table(f"{other.table}_{n}", schema, location=f"{home}/{n}/table") for n in range(5)
    ]
    for table in tables:
        table.append(pa.table({"id": pa.array([1], pa.int64()), "batch_id": ["a"]}))
    other.put_batch("b")
    other.apply(other.a_dataset(consolidation={"suspend": True}))
    unrelated = f"{other.restated}/unrelated"
    other.lake.put(f"{unrelated}/a-letter.txt", b"Dear Ann")
    before = other.lake.keys(f"s3://lake/tests/{other.name}")
    wrong = {
        "metadata": ("BufferHoldsTable", {"uri": f"{home}/0/table/metadata", "layout": "File", "format": "avro"}),
        "data": ("BufferHoldsTable", {"uri": f"s3a://{bucket}//{inside}/1/table/data/", "retentionSeconds": 0}),
        "parent": ("BufferHoldsTable", {"uri": f"{home}/2"}),
        "dots": ("BufferHoldsTable", {"uri": f"s3://{bucket}/tests/x/../../{inside}/3/table"}),
        "percent": ("BufferHoldsTable", {"uri": f"s3://{bucket}/{inside}/4/%74able/data"}),
        "theirs": ("BufferShared", {"uri": f"{other.buffer}/"}),
        "unrelated": ("BufferHoldsOtherObjects", {"uri": unrelated}),
        "local": ("BufferLocal", {"uri": "file:///etc", "layout": "File", "format": "csv"}),
    }
    stories = {kind: begin(f"bad-{kind}") for kind in kinds}
    for name, story in stories.items():
        story.apply(story.a_dataset(buffer=wrong[name][1]))

    for name, story in stories.items():
        body = cluster.wait_for_condition(story.dataset, "Stalled", reason=wrong[name][0], within_seconds=SOON)
        assert "Dear Ann" not in json.dumps(body["status"])
        assert not story.jobs()

    assert before == other.lake.keys(f"s3://lake/tests/{other.name}")
    for table in tables:
        assert other.lake.catalog.load_table(table.name()).scan().to_arrow().num_rows == 1
        other.lake.catalog.drop_table(table.name())


@pytest.fixture(scope="module")
def with_impossible_deletes(begin: Callable[[str], ClusterStory]) -> ClusterStory:
    """A Dataset that wants deletion vectors of a table that is to have format version 2, and a Restatement of it."""
    story = begin("bad-deletes")
    story.put_batch("a")
    story.apply(story.a_dataset(deletes="DeletionVectors"), story.a_restatement("early", batchIds=["b"]))
    return story


def test_deletes_that_the_table_cannot_have_stop_everything(
    cluster: Cluster, with_impossible_deletes: ClusterStory
) -> None:
    """Nothing is promoted into a table whose deletes could not be written."""
    story = with_impossible_deletes

    stalled = [
        cluster.wait_for_condition(ref, "Stalled", reason="FormatVersionMismatch", within_seconds=SOON)
        for ref in (story.dataset, story.restatement("early"))
    ]

    for body in stalled:
        assert "spec.table.create.formatVersion is 2. Set that to 3" in condition(body, "Ready")["message"]
    assert story.jobs() == []


@pytest.mark.long
def test_everything_goes_on_once_the_deletes_are_changed(
    cluster: Cluster, with_impossible_deletes: ClusterStory
) -> None:
    story = with_impossible_deletes
    cluster.wait_for_condition(story.dataset, "Stalled", reason="FormatVersionMismatch", within_seconds=SOON)

    cluster.patch(story.dataset, {"spec": {"deletes": "PositionDeletes"}})

    story.wait_for_status(batches_promoted=1)
    story.wait_for_success("early")


def test_a_window_that_cannot_be_stalls_its_policy_by_name_until_it_is_changed(
    cluster: Cluster, begin: Callable[[str], ClusterStory]
) -> None:
    """Also a time zone is only known if the operator's image knows it."""
    story = begin("bad-window")
    ref = f"vacuumpolicies.lethe.dev/{story.name}"
    refused = {
        "WindowNeverOpens": {"schedule": "0 1 31 2 *", "timeZone": "Europe/Berlin"},
        "InvalidWindow": {"schedule": "0 1 * * *", "timeZone": "Europe/Atlantis"},
    }
    named = {"WindowNeverOpens": "spec.window.schedule '0 1 31 2 *'", "InvalidWindow": "spec.window.timeZone"}
    for reason, window in refused.items():
        policy = story.a_policy(triggers={"activeTombstones": 1}, window={**window, "durationSeconds": 3600})
        story.apply(policy)
        body = cluster.wait_for_condition(ref, "Stalled", reason=reason, within_seconds=SOON)

        assert named[reason] in condition(body, "Ready")["message"]
        assert "nextWindowTime" not in body["status"]

    cluster.patch(ref, {"spec": {"window": {"timeZone": "Europe/Berlin"}}})
    body = cluster.wait_for_condition(ref, "Ready", reason="InForce", within_seconds=SOON)
    assert body["status"]["nextWindowTime"].endswith(("T23:00:00Z", "T00:00:00Z"))  # in summer and winter


def test_a_driver_over_its_memory_limit_is_reported(cluster: Cluster, begin: Callable[[str], ClusterStory]) -> None:
    """With the reason that Kubernetes gives, and the field to change."""
    story = begin("bad-memory")
    story.put_batch("a")
    # Far too little: at nearly enough a driver may crawl, dropping its own pages, instead of being killed.
    story.apply(story.a_dataset(runTemplate={"driver": {**A_JOB["driver"], "memory": "150Mi"}}))

    body = cluster.wait_for_condition(
        story.dataset, "Ready", status="False", reason="OOMKilled", within_seconds=RUN_SECONDS
    )

    assert any(run.get("reason") == "OOMKilled" for run in body["status"]["runs"])


def test_deleting_never_waits_for_the_operator(cluster: Cluster, begin: Callable[[str], ClusterStory]) -> None:
    """No finalizers: with the operator away each kind of resource goes at once."""
    story = begin("gone")
    story.apply(
        story.a_dataset(consolidation={"suspend": True}),
        story.a_restatement("waiting", batchIds=["a"]),
        story.a_policy(triggers={"activeTombstones": 1}),
    )
    cluster.wait_for_condition(story.dataset, "Ready", within_seconds=SOON)
    scale_operator(cluster, 0)
    try:
        for ref in (story.restatement("waiting"), f"vacuumpolicies.lethe.dev/{story.name}", story.dataset):
            cluster.delete(ref, within_seconds=10)
            assert cluster.get(ref) is None
    finally:
        scale_operator(cluster, 1)

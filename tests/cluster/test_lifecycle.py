"""How Restatements wait and end, as whoever applies them sees it: kubectl, conditions, and the table beside them."""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.kube import Cluster, Refused, condition
from tests.cluster.lake import Rows, summary
from tests.cluster.story import RUN_SECONDS, WARM, ClusterStory

pytestmark = pytest.mark.cluster

PAGE = Path(__file__).parents[2] / "docs/gitops.md"
SOON = 60
KEPT = {"maxAgeSeconds": 86400, "minToKeep": 5}
# Of rows whose ids stand nowhere by chance, one of which somebody wants gone.
FIRST_ID = 9_100_400_000
ERASED = FIRST_ID + 1


@pytest.fixture(scope="module")
def story(stories: Callable[[str], ClusterStory]) -> ClusterStory:
    """A Dataset whose four batches are promoted: one run has made and claimed its table."""
    story = stories("ends")
    for number, batch in enumerate(["a", "b", "c", "people"]):
        story.put_batch(batch, rows=10, day=1 + number, first_id=FIRST_ID if batch == "people" else 100 * number)
    story.apply(story.a_dataset(runTemplate=WARM, snapshots=KEPT))
    story.wait_for_status(batches_promoted=4)
    return story


# --- the four ends --------------------------------------------------------------------------------------------------

# What docs/gitops.md says of each line, the Restatement of this test that it is for, and its conditions by the page's table:
# Succeeded, Ready, Stalled.
ENDS = {
    "it succeeded": ("done", ("True", "True", "False")),
    "it failed, or a person has to act": ("failed", ("False", "False", "True")),
    "it was cancelled": ("cancelled", ("False", "True", "False")),
    "it is suspended": ("suspended", ("Unknown", "False", "False")),
}


def lines_of_the_page() -> dict[str, str]:
    """What `kubectl wait` is to wait for, by what the page says of it."""
    line = re.compile(r"^kubectl wait restatement/fix-delays (--for=\S+) --timeout=15m +# (.+)$", re.MULTILINE)
    return {said: shlex.split(flag)[0] for flag, said in line.findall(PAGE.read_text())}


def test_each_line_of_the_page_returns_when_its_end_has_come_and_for_no_other_end(
    cluster: Cluster, story: ClusterStory
) -> None:
    """A revert that is carried out, a replay that cannot be, one that its author cancelled, one that is suspended."""
    lines = lines_of_the_page()
    inside = {"batchId": "b2", "uri": f"{story.buffer}/batch_id=b2/"}
    story.apply(
        story.a_restatement("done", batchIds=["a"]),
        story.a_restatement("failed", "Replay", batchIds=["b"], replacement=inside),
        story.a_restatement("cancelled", batchIds=["b"], suspend=True),
        story.a_restatement("suspended", batchIds=["b"], suspend=True),
    )
    story.forget("a")
    cluster.run("wait", f"restatement/{story.name}-cancelled", lines["it is suspended"], f"--timeout={SOON}s")
    cluster.patch(story.restatement("cancelled"), {"spec": {"cancel": True}})

    for said, (name, _) in ENDS.items():
        cluster.run("wait", f"restatement/{story.name}-{name}", lines[said], f"--timeout={SOON}s")

    for said, (name, wanted) in ENDS.items():
        assert [other for other in lines if holds(cluster, story, name, lines[other])] == [said]
        assert holds(cluster, story, name, "--for=condition=Reconciling=False") == (name != "suspended")
        body = cluster.get(story.restatement(name)) or {}
        assert tuple(condition(body, c)["status"] for c in ("Succeeded", "Ready", "Stalled")) == wanted
        assert body["status"]["observedGeneration"] == body["metadata"]["generation"]
    failed = condition(cluster.get(story.restatement("failed")) or {}, "Succeeded")
    assert failed["reason"] == "ReplacementInBuffer"
    assert "spec.replacement.uri" in failed["message"]
    assert story.lake.rows(story.table) == story.expected


def holds(cluster: Cluster, story: ClusterStory, name: str, flag: str) -> bool:
    """Whether kubectl would return at once."""
    try:
        cluster.run("wait", f"restatement/{story.name}-{name}", flag, "--timeout=0")
    except Refused:
        return False
    return True


def test_what_is_not_committed_in_its_time_fails_and_is_not_carried_out_later(
    cluster: Cluster, story: ClusterStory
) -> None:
    """Suspended until its deadline passed, it is no longer wanted, even if it is resumed."""
    head = story.lake.head(story.table).snapshot_id
    story.apply(story.a_restatement("late", batchIds=["b"], suspend=True, deadlineSeconds=3))

    cluster.wait_for_condition(story.restatement("late"), "Stalled", reason="DeadlineExceeded", within_seconds=SOON)
    cluster.patch(story.restatement("late"), {"spec": {"suspend": False}})
    body = cluster.wait_for_condition(
        story.restatement("late"), "Succeeded", status="False", reason="DeadlineExceeded", within_seconds=SOON
    )

    assert "Nothing was changed" in condition(body, "Succeeded")["message"]
    assert story.lake.head(story.table).snapshot_id == head


# --- with Spark -----------------------------------------------------------------------------------------------------


@pytest.fixture
def secret(cluster: Cluster, story: ClusterStory) -> Iterator[str]:
    """The name of a Secret that the chart's value erase.allowedSecrets allows. It is not there yet."""
    name = f"erase-{story.name}"
    yield name
    cluster.delete(f"secret/{name}")


def test_an_erase_waits_for_its_secret_and_shows_its_values_nowhere(
    cluster: Cluster, story: ClusterStory, secret: str
) -> None:
    """The Secret may come later than what names it, as with any apply of several files."""
    rows = {"column": "id", "valuesFrom": {"secretKeyRef": {"name": secret, "key": "ids"}}}
    story.apply(story.a_restatement("erase", "Erase", rows=rows))

    body = cluster.wait_for_condition(
        story.restatement("erase"), "Ready", status="False", reason="SecretNotFound", within_seconds=RUN_SECONDS
    )
    said = condition(body, "Ready")["message"]
    cluster.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret}, "stringData": {"ids": f"{ERASED}\n"}}
    )
    done = story.wait_for_success("erase")

    assert "spec.rows.valuesFrom" in said
    assert secret in said
    story.expected -= Rows({("people", ERASED): 1})
    assert done["status"]["result"]["rowsErased"] == 1
    assert story.lake.rows(story.table) == story.expected
    assert summary(story.lake.head(story.table))["lethe.run-kind"] == "Restatement"
    told = [*cluster.list("restatements.lethe.dev"), *cluster.list("datasets.lethe.dev"), *cluster.list("events")]
    told += [*cluster.list("configmaps"), *cluster.list("jobs"), *cluster.list("pods")]
    assert str(ERASED) not in json.dumps(told)


# --- without the Dataset --------------------------------------------------------------------------------------------


def test_restatements_outlive_their_dataset_and_are_carried_out_once_when_it_comes_back(
    cluster: Cluster, story: ClusterStory
) -> None:
    """The Dataset is deleted while one waits and another is done; then it is created again, with another UID, on the same
    table."""
    story.annotate(paused="true")
    cluster.wait_for_condition(story.dataset, "Paused", within_seconds=SOON)
    story.apply(story.a_restatement("waits", batchIds=["c"]))
    cluster.wait_for_condition(
        story.restatement("waits"), "Ready", status="False", reason="Paused", within_seconds=SOON
    )
    first = (cluster.get(story.restatement("done")) or {})["status"]["result"]

    cluster.delete(story.dataset)
    orphan = cluster.wait_for_condition(
        story.restatement("waits"), "Ready", status="False", reason="DatasetNotFound", within_seconds=SOON
    )
    story.apply(story.a_dataset(runTemplate=WARM, snapshots=KEPT))
    story.wait_for_success("waits")

    assert story.name in condition(orphan, "Ready")["message"]
    story.forget("c")
    assert story.lake.rows(story.table) == story.expected
    assert (cluster.get(story.restatement("done")) or {})["status"]["result"] == first
    runs = [summary(s)["lethe.run-kind"] for s in story.lake.history(story.table)]
    assert runs == ["Restatement", "Restatement", "Restatement", "Consolidation"]  # waits, erase, done

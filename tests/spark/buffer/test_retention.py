"""Retention on what real runs recorded: what was promoted goes, as it was promoted, and nothing that is not in the table."""

import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from lethe.base import names
from lethe.base.objects import BufferedObject
from lethe.ingest.shared_folders import BufferClaims
from lethe.kube import DATASETS
from lethe_operator.carry_out import Sweeps
from lethe_operator.cluster.queue import Key
from pyspark.sql import SparkSession

from tests.spark.support.story import Story, of_batches
from tests.support.clock import wait_until
from tests.support.fake_cluster import FakeCluster, an_operator
from tests.support.lake import Lake


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Story:
    return Story.begin(spark, lake)


def a_cluster(story: Story, layout: str = "Directory") -> FakeCluster:
    """With a Dataset that keeps nothing in the buffer after its promotion."""
    buffer = {"uri": story.buffer.uri, "layout": layout, "retentionSeconds": 0}
    return FakeCluster((DATASETS, story.dataset_resource(buffer=buffer, consolidation={"suspend": True})))


def reconcile(story: Story, layout: str = "Directory") -> list[str]:
    """Let an operator act. The objects that it reports."""
    server = a_cluster(story, layout)
    an_operator(server)(Key("Dataset", "air", story.name))
    reported = server.get(DATASETS, "air", story.name)["status"]["buffer"].get("invalidFolders", ())
    return sorted(i["folder"].rpartition(f"{story.name}/")[2] for i in reported)


def there(story: Story) -> set[str]:
    """Without the claim."""
    return _names(story.buffer.path, story.buffer.path.rglob("*")) - {names.CLAIM_FILE}


def _names(root: Path, paths: Iterable[Path]) -> set[str]:
    return {str(p.relative_to(root)) for p in paths if p.is_file()}


def test_no_reconcile_waits_for_the_deletion_of_what_was_promoted(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.put("A")
    story.consolidate("A")
    delete, gate = BufferClaims.delete, threading.Event()

    def slow(buffer: BufferClaims, objects: Iterable[BufferedObject]) -> int:
        assert gate.wait(30)
        return delete(buffer, objects)

    monkeypatch.setattr(BufferClaims, "delete", slow)
    operator = an_operator(a_cluster(story), sweeps=Sweeps())

    for _ in range(2):
        operator(Key("Dataset", "air", story.name))
    assert operator.sweeps.under_way == 1
    assert there(story) == {"batch_id=A/part-0.parquet", "batch_id=A/_SUCCESS"}

    gate.set()
    wait_until(lambda: operator.sweeps.under_way == 0, 30)
    assert there(story) == set()


def test_only_objects_that_are_in_the_table_are_deleted(story: Story) -> None:
    """A was added to, C written over, since they were promoted; D waits, and E has no `_SUCCESS` yet."""
    story.put("A", "B", "C", "D", "E")
    (story.folder("E") / "_SUCCESS").unlink()
    story.consolidate("A", "B", "C")
    (story.folder("A") / "late.parquet").write_bytes(b"rows that nobody promoted")
    (story.folder("C") / "part-0.parquet").write_bytes(b"other rows than were promoted")

    reported = reconcile(story)

    kept = {"batch_id=A/late.parquet", "batch_id=C/part-0.parquet"}
    assert set(reported) == kept
    waiting = {"batch_id=D/part-0.parquet", "batch_id=D/_SUCCESS", "batch_id=E/part-0.parquet"}
    assert there(story) == {*kept, *waiting, "batch_id=A/_SUCCESS", "batch_id=C/_SUCCESS"}
    story.check_reads(of_batches("A", "B", "C"))
    story.consolidate("A", "C", "D")  # what is left of A and C is no batch again
    story.check_reads(of_batches("A", "B", "C", "D"))

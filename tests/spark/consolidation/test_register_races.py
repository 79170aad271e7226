"""Registered files beside others who write, refuse, revert and roll back, and runs that die: each file is there once, and none is
deleted that a snapshot needs.
"""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from lethe.base.errors import TransientError
from lethe.base.objects import file_etag
from lethe.storage.local_store import LocalStore
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.registering import Registering, a_file, begin
from tests.spark.support.story import ALL_GONE, local, of_batches
from tests.support.lake import Lake
from tests.support.steps import Killed, die


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Registering:
    return begin(spark, lake)


def add_as_foreign_writer(story: Registering, *files: Path) -> None:
    """Another writer, which adds files of the buffer to the table itself."""
    story.table().add_files([f"file://{f}" for f in files])


@pytest.mark.parametrize("when", some(["before", "meanwhile"], "meanwhile"))
def test_a_file_that_another_writer_has_added_is_not_added_again(story: Registering, when: str) -> None:
    story.put("0", "A")
    story.register("0")
    file = story.folder("A") / "day-1.parquet"

    if when == "before":
        add_as_foreign_writer(story, file)
        result = story.register("A")
    else:
        result = story.register("A", before_commit=lambda: add_as_foreign_writer(story, file))

    assert (result.batches_promoted, result.files_added) == (1, 1)
    assert story.paths() == story.places("0", "A")
    assert story.ledger().batches["A"].rows == 4
    story.check_reads(of_batches("0", "A"))


def test_a_batch_that_cannot_be_registered_stays_if_another_writer_has_added_its_files(story: Registering) -> None:
    """A refused batch is moved away; these objects are the table's."""
    story.put("0", "A")
    story.register("0")
    add_as_foreign_writer(story, story.folder("A") / "day-1.parquet")
    (story.folder("A") / "day-2.parquet").write_bytes(b"no Parquet")

    result = story.register("A")

    assert (result.refused_count, "another writer has already added some of their files" in result.message) == (0, True)
    assert len(story.places("A")) == 2


@pytest.mark.parametrize("step", some(["after-list", "after-read", "before-commit", "after-commit"], "after-commit"))
def test_a_run_that_died_is_finished_by_its_repetition_and_every_file_is_there_once(
    story: Registering, step: str
) -> None:
    story.put("A", "B")
    run = story.registration("A", "B")
    with pytest.raises(Killed):
        story.run(run, **{step.replace("-", "_"): die})

    result = story.run(run)

    assert result.outcome == ("AlreadyCommitted" if step == "after-commit" else "Committed")
    assert story.paths() == story.places("A", "B")
    story.check_reads(of_batches("A", "B"))


def test_of_two_runs_with_the_same_batches_the_second_adds_only_the_rest(story: Registering) -> None:
    """And deletes nothing of what it lost: those files are the table's."""
    story.put("A", "B", "C")

    result = story.register("A", "B", before_commit=lambda: story.register("B", "C"))

    assert (result.batches_promoted, result.files_added) == (1, 2)
    assert story.paths() == story.places("A", "B", "C")
    story.check_reads(of_batches("A", "B", "C"))


def test_a_batch_reverted_meanwhile_is_not_registered(story: Registering) -> None:
    story.put("0", "A", "B")
    story.register("0")

    story.register("A", "B", before_commit=lambda: story.revert("A"))

    assert story.paths() == story.places("0", "B")
    story.check_reads(of_batches("0", "B"))


@pytest.mark.long
def test_a_rewrite_that_died_staged_is_published_whatever_the_mode_is_by_then(story: Registering) -> None:
    """Its files are Lethe's own: the objects of the buffer are copies, and go when their time has come."""
    story.put("A")
    rewrite = story.consolidation("A")
    with pytest.raises(Killed):
        story.run(rewrite, after_stage=die)

    story.run(story.registration("A"))

    assert (story.ledger().batches["A"].registered, bool(story.data_folder())) == (False, True)
    story.check_reads(of_batches("A"))


@pytest.mark.long
def test_a_batch_that_another_run_refused_meanwhile_is_not_registered(story: Registering) -> None:
    """That run is about to move its objects away."""
    story.put("A")

    def refuse() -> None:
        with pytest.raises(Killed):
            story.register("A", after_commit=die)  # before it moves anything

    def widen() -> None:
        story.spark.sql(f"ALTER TABLE {story.full_name} DROP COLUMN day")
        refuse()
        story.spark.sql(f"ALTER TABLE {story.full_name} ADD COLUMN day INT")

    story = begin(story.spark, story.lake, ())
    story.put("0", "A")
    story.register("0")

    result = story.register("A", before_commit=widen)

    assert (result.batches_promoted, story.states()["A"]) == (0, "refused")
    assert story.paths() == story.places("0")


def test_a_file_that_changed_after_the_listing_waits(story: Registering) -> None:
    story.put("A")
    file = story.folder("A") / "day-1.parquet"

    def change() -> None:
        pq.write_table(a_file("A", 1, rows=40), file)

    with pytest.raises(TransientError) as raised:
        story.register("A", after_list=change)
    assert (raised.value.reason, story.states()) == ("ObjectChanged", {})

    story.register("A")
    stat = file.stat()
    recorded = {local(o.key): o.etag for o in story.ledger().batches["A"].objects}
    assert recorded[str(file)] == file_etag(stat.st_size, stat.st_mtime_ns)


@pytest.mark.long
def test_a_store_that_fails_is_named_and_nothing_is_judged(story: Registering, monkeypatch: pytest.MonkeyPatch) -> None:
    story.put("A")

    def fail(*_: object) -> bytes:
        raise OSError("the disk is gone")

    monkeypatch.setattr(LocalStore, "read_unchanged", fail)
    with pytest.raises(TransientError) as raised:
        story.register("A")

    assert (raised.value.reason, story.states()) == ("BufferAway", {})
    assert "day-1.parquet: OSError the disk is gone. Nothing was changed." in raised.value.message


def test_a_file_registered_again_after_a_rollback_outlives_the_snapshots_that_had_it_first(story: Registering) -> None:
    """Two snapshots of two lineages added one path: the expiry of the one must not delete it from the other."""
    story.put("0", "A")
    story.register("0")
    back = story.head().snapshot_id
    story.register("A")
    story.spark.sql(f"CALL {story.catalog}.system.rollback_to_snapshot('{story.name}', {back})").collect()
    again = story.registration("A").model_copy(update={"run_id": "f" * 32})
    assert story.run(again).outcome == "Committed"

    story.vacuum(limits=ALL_GONE)

    assert len(story.table().metadata.snapshots) == 1
    assert story.paths() == story.places("0", "A")
    story.check_reads(of_batches("0", "A"))

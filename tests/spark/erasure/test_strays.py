"""An erasure is not verified while a file of its rows lies anywhere that the table's files ever lay, named or not."""

import gzip
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.spark.parameters import some, tuples
from tests.spark.support.erases import Names, name_of, row
from tests.spark.support.erasures import (
    DUE,
    a_data_file,
    check_closed,
    check_erasures,
    erase,
    leave,
    the_erasure,
    the_record,
    three_batches,
)
from tests.spark.support.story import Story, local
from tests.support.lake import Lake
from tests.support.poison import encrypted, many_lists
from tests.support.steps import Killed, die

RUN = "0" * 32


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Story:
    return three_batches(spark, lake)


def data(story: Story) -> Path:
    return Path(local(story.table().location()), "data")


def set_data_path(story: Story, path: Path | None) -> None:
    with story.table().transaction() as change:
        if path is None:
            change.remove_properties("write.data.path")
        else:
            change.set_properties({"write.data.path": f"file://{path}"})


def what_holds(story: Story) -> list[str]:
    return [Path(b.name).name for b in the_erasure(story).blockers]


def age(story: Story, hours: int = 25) -> None:
    """Let the notes of runs, and the files that no snapshot names, be so old."""
    then = time.time() - hours * 3600
    root = Path(local(story.table().location()))
    for path in (*root.glob("_runs/*-writing.json"), *root.parent.glob("elsewhere/**/*.parquet")):
        os.utime(path, (then, then))


@pytest.mark.parametrize("inside", some([True, False], False), ids=["below-the-table", "elsewhere"])
def test_what_a_run_left_is_found_although_the_table_writes_to_another_folder_by_now(
    story: Story, inside: bool
) -> None:
    location = Path(local(story.table().location()))
    before = location / "older" if inside else location.parent / "elsewhere"
    set_data_path(story, before)
    story.put("X")
    with pytest.raises(Killed):
        story.consolidate("X", after_write=die)
    (lost, *_) = sorted(before.rglob("*.parquet"))
    set_data_path(story, None)
    erase(story, "X")

    held = story.vacuum()
    then = time.time() - 25 * 3600
    for path in (*before.rglob("*.parquet"), *location.glob("_runs/*-writing.json")):
        os.utime(path, (then, then))
    free = check_erasures(story)

    assert held.erasures_open == 1
    check_closed(story, free)
    assert not lost.exists()


def test_a_note_of_a_run_that_died_holds_the_erasures_of_its_batches_for_a_day(story: Story) -> None:
    """It may be alive, somewhere, and write on."""
    story.put("X", "Y")
    with pytest.raises(Killed):
        story.consolidate("X", "Y", after_list=die)
    erase(story, "X")
    erase(story, "A", name="other")

    story.vacuum()
    (held,) = story.ledger().open_erasures
    age(story)
    free = check_erasures(story)

    assert (held.restatement, [b.kind for b in held.blockers]) == ("ns/erase/0", ["Run"])
    assert held.look_again is not None
    check_closed(story, free)


def test_the_end_of_an_attempt_does_not_hide_another_one_that_may_still_write(story: Story) -> None:
    """The first one is on a node that is cut off. Only the knowledge that it has ended removes its note."""
    story.put("X", "Y")
    with pytest.raises(Killed):
        story.consolidate("X", "Y", after_list=die)
    second = story.consolidation("X", "Y").model_copy(update={"attempt": 2})
    assert story.run(second).batches_promoted == 2
    erase(story, "X")

    story.vacuum()
    (held,) = the_erasure(story).blockers
    story.run(second.model_copy(update={"attempt": 3, "ended_attempts": (2,)}))
    still = check_erasures(story)
    story.run(second.model_copy(update={"attempt": 4, "ended_attempts": (1, 2)}))
    free = check_erasures(story)

    assert (held.kind, held.why) == ("Run", "attempt 1 may write such rows")
    assert still.erasures_open == 1
    check_closed(story, free)


@pytest.mark.long
def test_a_run_that_ended_leaves_no_note(story: Story) -> None:
    story.put("X")
    story.consolidate("X")
    story.replay("X", by="Z")
    story.vacuum()

    assert not list(Path(local(story.table().location())).glob("_runs/*-writing.json"))


def test_a_file_that_a_run_from_before_the_purge_wrote_after_it_is_found_by_its_footer(story: Story) -> None:
    erase(story, "A")

    def write_late() -> None:
        leave(data(story) / RUN / "day=1" / "late.parquet", 0, a_data_file(story, "A", "B"))
        leave(data(story) / RUN / "day=1" / "other.parquet", 0, a_data_file(story, "B", "D"))

    story.vacuum(after_purged_noted=write_late)
    held = what_holds(story)
    leave(data(story) / RUN / "day=1" / "late.parquet", 25, a_data_file(story, "A", "B"))
    free = check_erasures(story)

    assert held == ["late.parquet"]
    check_closed(story, free)
    assert not (data(story) / RUN / "day=1" / "late.parquet").exists()
    assert (data(story) / RUN / "day=1" / "other.parquet").exists()


@pytest.mark.parametrize(
    ("hours", "known", "gone"),
    tuples(
        [(1, True, False), (30, True, False), (80, True, True), (80, False, False)],
        (80, True, True),
    ),
)
def test_a_file_that_a_compaction_of_another_engine_left_holds_it_until_it_can_be_removed(
    story: Story, hours: int, known: bool, gone: bool
) -> None:
    content = a_data_file(story, "A", "B") if known else b"not whole"
    lost = leave(data(story) / "day=1" / "00000-killed.parquet", hours, content)
    erase(story, "A")

    result = story.vacuum()

    assert lost.exists() is not gone
    if gone:
        check_closed(story, result)
    else:
        (blocker,) = the_erasure(story).blockers
        assert (blocker.name.endswith("/day=*/00000-killed.parquet"), "no snapshot names it" in blocker.why) == (
            True,
            True,
        )
        assert (blocker.until is None) == (not known)


@pytest.mark.long
def test_another_table_in_a_shared_folder_keeps_its_files_and_the_record_says_they_were_not_checked(
    story: Story, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    set_data_path(story, shared)
    others = leave(shared / RUN / "day=1" / "other.parquet", 99, a_data_file(story, "A"))
    erase(story, "A")

    result = story.vacuum()

    check_closed(story, result)
    assert others.exists()
    (reported,) = (n for n in the_record(result)["not-covered"] if "shared" in n)
    assert f"file://{shared}" in reported


def test_the_record_lists_what_was_checked_and_what_was_not(story: Story) -> None:
    erase(story, "A")

    record = the_record(story.vacuum())

    assert [Path(local(uri)) for uri in record["verified"]["locations"]] == [Path(local(story.table().location()))]
    assert "older versions of objects, because the storage cannot list them" in record["not-covered"]
    assert any(n.startswith("writers other than Lethe") for n in record["not-covered"])


def test_what_ends_its_reader_neither_ends_a_check_nor_holds_the_erasure_and_the_record_names_it(story: Story) -> None:
    rows = pa.Table.from_pylist([{"v": 1, "day": 1, "batch_id": "A"}], schema=story.table().schema().as_arrow())
    crash = leave(data(story) / "crash.parquet", 25, encrypted(rows, plaintext_footer=True))
    bomb = leave(data(story) / "bomb", 25, many_lists())
    lost = leave(data(story) / "lost.parquet", 80, a_data_file(story, "A"))
    erase(story, "A")

    result = story.vacuum()

    named = [n for n in the_record(result)["not-covered"] if "no snapshot names it" in n]
    assert sorted(Path(n.partition(": ")[0]).name for n in named) == ["bomb", "crash.parquet"]
    assert (crash.exists(), bomb.exists(), lost.exists()) == (True, True, False)


def test_a_metadata_file_that_ends_its_reader_does_not_end_a_check(story: Story) -> None:
    """It may be that of another table, so files beside it are only named. As the metadata of no table it is removed."""
    location = Path(local(story.table().location()))
    bomb = leave(location / "metadata" / "00000-bomb.metadata.json.gz", 25, gzip.compress(many_lists(), 1))
    lost = leave(data(story) / "lost.parquet", 80, a_data_file(story, "A"))
    erase(story, "A")

    record = the_record(story.vacuum())

    assert any("lost.parquet: other tables may use this folder" in n for n in record["not-covered"])
    assert (bomb.exists(), lost.exists()) == (False, True)


def test_objects_of_a_replacement_folder_with_rows_of_the_erasure_are_named(story: Story) -> None:
    story.replay("A", by="R")
    named: list[list[str]] = []

    for batch in ("D", "R"):
        erase(story, batch, name=f"erase-{batch.lower()}")
        record = the_record(story.vacuum(key=batch))
        named.append([n for n in record["not-covered"] if n.endswith(": an object of a replacement folder")])

    assert named[0] == []
    (of_r,) = named[1]
    assert "/restated/" in of_r


@pytest.mark.parametrize("hours", some([1, 25], 1))
def test_of_records_a_file_that_no_snapshot_names_holds_the_erasure_whatever_it_holds(
    spark: SparkSession, lake: Lake, hours: int
) -> None:
    people = Names.of(Story.begin(spark, lake)).filled()
    lost = leave(data(people) / RUN / "lost.parquet", hours, a_data_file(people, "Z"))
    people.restate(people.an_erase(name_of(row("A", 1)[1]), evict_by_seconds=DUE))

    result = check_erasures(people)

    assert lost.exists() is (hours == 1)
    assert result.erasures_open == (1 if hours == 1 else 0)

"""An erasure is verified once nothing holds a file that may have held its rows, and until then it says what does.

Tags, branches, snapshots and runs that may still publish hold it; so do writers that may bring its rows back, and files that lie
anywhere that the table's files ever lay, named or not.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copy2, copytree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.contract.result import RunResult
from lethe.contract.settings import Deletes
from pyspark.sql import SparkSession

from tests.spark.parameters import MODES, pairs, some, tuples
from tests.spark.support.built_once import built_once
from tests.spark.support.erases import Names, but, files_with, name_of, row
from tests.spark.support.erasures import (
    DUE,
    a_data_file,
    blockers,
    check_closed,
    check_erasures,
    erase,
    leave,
    names_of,
    next_attempt,
    the_erasure,
    the_outcome,
    the_record,
)
from tests.spark.support.story import ALL_GONE, Story, format_version_of, local, of_batches
from tests.support.lake import Lake
from tests.support.poison import encrypted, many_lists
from tests.support.steps import Killed, die

RUN = "0" * 32


# --- the whole way ---------------------------------------------------------------------------------------------------


def test_a_due_erase_is_verified_by_the_vacuum_that_purges_it_whatever_the_retention(story: Story) -> None:
    """Its snapshots would be kept for five days."""
    before = set(story.files())
    erase(story, "A")

    result = story.vacuum()

    check_closed(story, result)
    record = the_record(result)
    assert names_of(f["path"] for f in record["files"]) == names_of(before)
    assert (record["restatement"]["key"], record["restatement"]["batches"]) == ("ns/erase/0", 1)
    assert record["purge"]["snapshot-id"] == result.snapshot_id == the_outcome(result).vacuum_snapshot_id
    assert record["files-bytes"] == sum(f["bytes"] for f in record["files"]) > 0
    assert (record["verified"]["run"], record["verified"]["all-versions"]) == (result.run_id, False)
    assert record["verified"]["storage-calls"]["exists"] >= len(before)
    # Promoted, staged and erased; purged and noted: their manifests tell what the files held.
    assert result.snapshots_expired == 5
    story.check_reads(of_batches("B", "D"))


def test_a_revert_and_a_replay_with_a_deadline_are_verified_as_well(story: Story) -> None:
    story.revert("A", evict_by_seconds=DUE)
    story.replay("B", by="B2", evict_by_seconds=DUE)

    result = story.vacuum()

    assert {o.restatement: o.verified_time is not None for o in result.erasures} == {
        "ns/revert/0": True,
        "ns/replay/0": True,
    }
    story.check_reads(of_batches("D") + of_batches("B2", rows=3))


@pytest.fixture(params=some([2, 3], 3), ids=["v2", "v3"])
@built_once
def people(request: pytest.FixtureRequest, spark: SparkSession, lake: Lake) -> Names:
    return Names.begin(spark, lake, ("name",), format_version=request.param).filled()


def test_an_erase_by_records_is_verified_and_no_value_remains_anywhere(people: Names) -> None:
    """The table is partitioned by the name, so that the paths of its files hold it. On version 2 the rows leave with the Erase
    itself, on version 3 with the vacuum."""
    gone = row("A", 1)
    files = set(people.files())
    assert people.restate(people.an_erase(name_of(gone[1]), evict_by_seconds=DUE)).succeeded
    erased = people.head().snapshot_id

    result = people.vacuum()

    check_closed(people, result)
    by = the_outcome(result).vacuum_snapshot_id
    assert by == (erased if people.format_version == 2 else result.snapshot_id)
    record = the_record(result)
    assert record["restatement"]["named-by"] == "records"
    assert names_of(f["path"] for f in record["files"] if f["content"] == "data") <= names_of(files)
    vectors = [f["path"] for f in record["files"] if f["content"] == "deletes"]
    assert [Path(p).suffix for p in vectors] == ([".puffin"] if people.format_version == 3 else [])
    content = Path(local(the_outcome(result).record)).read_text()
    assert "passenger" not in content
    assert "/name=*/" in content
    assert files_with(Path(local(the_outcome(result).record)).parent, name_of(gone[1])) == []
    people.check_reads(but(gone))


# --- what happens in between -----------------------------------------------------------------------------------------


STEPS = [
    "after_commit",
    "after_purged_noted",
    "before_erasure_expiry",
    "after_erasure_expiry",
    "after_storage_asked",
    "after_record",
]


@pytest.mark.parametrize("step", some(STEPS, "after_commit"))
def test_a_vacuum_killed_at_any_step_is_made_up_for_by_its_next_attempt(story: Story, step: str) -> None:
    before = set(story.files())
    erase(story, "A")
    with pytest.raises(Killed):
        story.vacuum(**{step: die})

    result = story.run(next_attempt(story.vacuuming()))

    check_closed(story, result)
    assert names_of(f["path"] for f in the_record(result)["files"]) == names_of(before)
    story.check_reads(of_batches("B", "D"))


def test_files_that_an_expiry_did_not_delete_are_deleted(story: Story, tmp_path: Path) -> None:
    """Iceberg drops snapshots first and deletes their files afterwards: a run that ends in between leaves all of them."""
    erase(story, "A")
    location = Path(local(story.table().location()))
    gone: list[Path] = []

    def keep() -> None:
        copytree(location, tmp_path / "kept")

    def restore() -> None:
        for kept in (p for p in (tmp_path / "kept").rglob("*") if p.is_file()):
            file = location / kept.relative_to(tmp_path / "kept")
            if not file.exists():
                gone.append(file)
                copy2(kept, file)

    result = story.vacuum(before_erasure_expiry=keep, after_erasure_expiry=restore)

    check_closed(story, result)
    assert {f.parent.name for f in gone} >= {"metadata"}
    assert any(f.name.startswith("snap-") for f in gone)
    assert [f for f in gone if f.exists()] == []


# --- snapshots, tags and branches that hold its files ----------------------------------------------------------------


def test_a_tag_holds_a_due_erasure_and_is_named_until_it_is_dropped(story: Story) -> None:
    tagged = story.tag()
    erase(story, "A")

    held = story.vacuum()
    later = check_erasures(story)
    rows = story.rows_at(tagged)
    story.untag()
    free = check_erasures(story)

    assert (blockers(held), the_outcome(held).blocked_by_count) == (["tag audit"], 1)
    assert (later.outcome, blockers(later)) == ("NothingToDo", ["tag audit"])
    assert rows == of_batches("A", "B", "D")
    check_closed(story, free)
    assert free.snapshots_expired == 1
    story.check_reads(of_batches("B", "D"))


def test_a_branch_holds_it_and_so_does_what_the_branch_copied(story: Story) -> None:
    """A compaction on the branch wrote the rows again, after the table's own were purged."""
    story.sql("ALTER TABLE {t} CREATE BRANCH dev")
    erase(story, "A")
    held = story.vacuum()
    story.spark.sql(f"INSERT OVERWRITE {story.full_name}.branch_dev SELECT * FROM {story.full_name}.branch_dev")
    copied = check_erasures(story)
    kept = {Path(f.path).name for f in story.ledger().purged_files.values()}
    story.sql("ALTER TABLE {t} DROP BRANCH dev")

    free = check_erasures(story)

    assert (blockers(held), blockers(copied)) == (["branch dev"], ["branch dev"])
    check_closed(story, free)
    assert names_of(f["path"] for f in the_record(free)["files"]) == kept
    assert len(kept) == 4  # two, and their copies


@pytest.mark.long
def test_a_tag_on_files_that_a_compaction_replaced_before_the_erase_holds_it(story: Story) -> None:
    """They never were the files of the vacuum."""
    story.tag()
    before = set(story.files())
    story.compact()
    assert before.isdisjoint(story.files())
    erase(story, "A")

    held = story.vacuum()

    assert blockers(held) == ["tag audit"]
    assert names_of(before) < {Path(f.path).name for f in story.ledger().purged_files.values()}


@pytest.mark.parametrize(("value", "mode"), pairs(["false", "no"], MODES, ("no", Deletes.LEDGER)))
def test_no_erasure_is_verified_while_a_property_forbids_to_delete_files(story: Story, value: str, mode: str) -> None:
    """Iceberg reads any value but `true` as false. The vacuum says why no snapshot expires, and goes on."""
    version = format_version_of(mode)
    story.set_properties({"format-version": str(version)})
    story = replace(story, deletes=Deletes(mode), format_version=version)
    erase(story, "A")
    story.set_properties({"gc.enabled": value})
    before = story.data_folder()

    vacuumed = story.vacuum(ALL_GONE)
    checked = check_erasures(story)
    held = the_erasure(story).blockers[0]
    kept = before <= story.data_folder()
    story.unset_properties("gc.enabled")
    free = check_erasures(story)

    assert "the table property gc.enabled is not true" in vacuumed.message
    assert (vacuumed.erasures_open, checked.erasures_open, kept) == (1, 1, True)
    assert str(held) == "the table property gc.enabled (it must be true to erase anything. Set it to true, or unset it)"
    check_closed(story, free)


# --- writers that may bring its rows back ----------------------------------------------------------------------------


def holding(story: Story, batch: str) -> list[str]:
    """Every data file below the table with a row of the batch, whether or not a snapshot names it."""
    root = Path(local(story.table().location()))
    files = [p for p in root.rglob("*.parquet") if "batch_id" in pq.read_schema(p).names]
    return [p.name for p in files if batch in pq.read_table(p, partitioning=None)["batch_id"].to_pylist()]


def retained_holding(story: Story, batch: str) -> list[int]:
    """Retained snapshots, of whatever ref, that name a data file with rows of the batch."""
    table, names = story.table(), set(holding(story, batch))
    found = []
    for snapshot in table.metadata.snapshots:
        entries = (e for m in snapshot.manifests(table.io) for e in m.fetch_manifest_entry(table.io))
        if any(e.data_file.file_path.rpartition("/")[2] in names for e in entries):
            found.append(snapshot.snapshot_id)
    return found


def test_a_branch_made_after_the_purge_that_copies_the_batch_from_a_tag_holds_the_erasure(story: Story) -> None:
    story.tag()
    erase(story, "A")
    held = story.vacuum()
    story.sql("ALTER TABLE {t} CREATE BRANCH copy")
    rows = f"SELECT * FROM {story.full_name} VERSION AS OF 'audit' WHERE batch_id = 'A'"
    story.spark.sql(f"INSERT INTO {story.full_name}.branch_copy {rows}")
    story.untag()

    copied = check_erasures(story)
    story.sql("ALTER TABLE {t} DROP BRANCH copy")
    free = check_erasures(story)

    assert (blockers(held), blockers(copied)) == (["tag audit"], ["branch copy"])
    check_closed(story, free)
    assert (holding(story, "A"), retained_holding(story, "A")) == ([], [])
    story.check_reads(of_batches("B", "D"))


def test_a_copy_that_is_made_while_the_storage_is_asked_is_seen_before_the_erasure_is_closed(story: Story) -> None:
    erase(story, "A")

    def copy() -> None:
        story.sql("ALTER TABLE {t} CREATE BRANCH copy")
        story.spark.sql(f"INSERT INTO {story.full_name}.branch_copy VALUES (CAST(1 AS BIGINT), 1, 'A')")

    held = story.vacuum(after_storage_asked=copy)

    assert blockers(held) == ["branch copy"]


@pytest.mark.long
def test_the_check_reopens_an_erasure_if_another_writer_restores_its_rows(story: Story) -> None:
    """Nothing of Lethe's has committed since, so that no ledger knows of them yet."""
    story.tag()
    erase(story, "A")
    story.vacuum()
    rows = f"SELECT * FROM {story.full_name} VERSION AS OF 'audit' WHERE batch_id = 'A'"
    story.spark.sql(f"INSERT INTO {story.full_name} {rows}")
    story.untag()

    reopened = check_erasures(story)
    purged = story.vacuum(key="2")

    assert reopened.erasures_open == 1
    check_closed(story, purged)
    assert holding(story, "A") == []
    story.check_reads(of_batches("B", "D"))


@pytest.mark.parametrize("step", some(["after_list", "after_write", "after_stage", "before_commit"], "before_commit"))
def test_a_batch_that_is_erased_while_a_run_writes_it_is_gone_when_the_erasure_is_verified(
    story: Story, step: str
) -> None:
    """The run has listed it, written it or staged it before; what it holds is thrown away, and the other batch goes in."""
    story.put("X", "Y")
    looks: list[RunResult] = []

    def erased() -> None:
        erase(story, "X")
        looks.append(story.vacuum())

    at: dict[str, Callable[[], object]] = {step: erased}
    story.consolidate("X", "Y", **at)
    free = check_erasures(story)

    assert looks[0].erasures_open == 1
    check_closed(story, free)
    assert (holding(story, "X"), retained_holding(story, "X")) == ([], [])
    story.check_reads(of_batches("A", "B", "D", "Y"))


# --- files that no snapshot names ------------------------------------------------------------------------------------


def data(story: Story) -> Path:
    return Path(local(story.table().location()), "data")


def set_data_path(story: Story, path: Path | None) -> None:
    if path is None:
        story.unset_properties("write.data.path")
    else:
        story.set_properties({"write.data.path": f"file://{path}"})


def what_holds(story: Story) -> list[str]:
    return [Path(b.name).name for b in the_erasure(story).blockers]


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


@pytest.mark.parametrize(("hours", "gone"), tuples([(30, True), (1, False)], (30, True)))
def test_files_of_runs_that_came_to_nothing_go_once_no_run_can_commit_them(
    story: Story, hours: int, gone: bool
) -> None:
    """Files of other writers that cannot hold the rows are no concern."""
    data = Path(local(story.table().location()), "data")
    lost, others = data / ("0" * 32) / "day=1" / "lost.parquet", data / "somebodys" / "own.parquet"
    leave(lost, hours)
    leave(others, hours, a_data_file(story, "B", "D"))
    erase(story, "A")

    result = story.vacuum()

    assert (lost.exists(), others.exists()) == (not gone, True)
    if gone:
        check_closed(story, result)
        assert the_record(result)["verified"]["leftovers-removed"] == 1
    else:
        (blocker,) = the_erasure(story).blockers
        assert (blocker.kind, blocker.name.endswith("/day=*/lost.parquet")) == ("Object", True)
        assert blocker.until is not None


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


def test_the_record_lists_what_was_checked_and_what_was_not(story: Story) -> None:
    erase(story, "A")

    record = the_record(story.vacuum())

    assert [Path(local(uri)) for uri in record["verified"]["locations"]] == [Path(local(story.table().location()))]
    assert "older versions of objects, because the storage cannot list them" in record["not-covered"]
    assert any(n.startswith("writers other than Lethe") for n in record["not-covered"])
    assert not list(
        Path(local(story.table().location())).glob("_runs/*-writing.json")
    )  # runs that ended leave no notes


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

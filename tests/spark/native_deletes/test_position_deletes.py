"""Position deletes of Lethe beside those of other writers, on format version 2."""

import json
import subprocess
from collections import Counter
from pathlib import Path

import fastavro
import lethe
import pyarrow.parquet as pq
import pytest
from lethe.base import names
from lethe.contract.settings import Deletes
from lethe_spark.jobs.vacuum.compaction import compact_small_files
from lethe_spark.jobs.vacuum.job import rewrite_manifests
from lethe_spark.jvm.data_files import tasks_by_path, write_deletes
from pyiceberg.io import load_file_io
from pyiceberg.manifest import ManifestContent
from pyroaring import FrozenBitMap64
from pyspark.sql import SparkSession

from tests.spark.support.built_once import built_once
from tests.spark.support.maintenance import maintaining, table_of
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import Row, local, of_arrow, of_batches
from tests.support.builders import a_request
from tests.support.environments import python_of
from tests.support.lake import Lake

POSITIONS = "PositionDeletes"
ROOT = Path(__file__).parents[3]
PATH, POSITION = 2147483546, 2147483545  # field ids of Iceberg's specification


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Native:
    return Native.begin(spark, lake, deletes=POSITIONS).filled()


def merge_on_read(story: Native, granularity: str = "file") -> None:
    """Let another writer's DELETE write position deletes, one file for each data file or for each partition."""
    properties = f"'write.delete.mode'='merge-on-read', 'write.delete.granularity'='{granularity}'"
    story.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({properties})")


def first_row(batch: str) -> Row:
    return next(iter(of_batches(batch)))


def test_a_delete_file_names_its_only_data_file_exactly(story: Native) -> None:
    """By its own field, and by exact bounds for readers that know only these. It contains no values of the rows."""
    story.revert("A")

    table = story.table()
    manifests = [m for m in story.head().manifests(table.io) if m.content is ManifestContent.DELETES]
    for manifest in manifests:
        with table.io.new_input(manifest.manifest_path).open() as stream:
            files = [entry["data_file"] for entry in fastavro.reader(stream)]
        for file in files:
            bounds = [{b["key"]: b["value"] for b in file[which]} for which in ("lower_bounds", "upper_bounds")]
            assert [b[PATH].decode() for b in bounds] == [file["referenced_data_file"]] * 2
            assert {key for b in bounds for key in b} == {PATH, POSITION}
    assert story.files_of_deletes() == {p for p, ids in story.files().items() if "A" in ids}


@pytest.mark.long
def test_duckdb_reads_the_rows_that_are_left(story: Native) -> None:
    story.revert("A", "E")

    read = [python_of("engines"), "-m", "bench.one_read", "DuckDB", story.table().metadata_location, "all"]
    done = subprocess.run(read, cwd=ROOT, capture_output=True, text=True, check=True)

    assert json.loads(done.stdout)["rows"] == of_batches("B", "D").total()


def test_deletes_of_another_writer_stay_beside_those_of_lethe(story: Native) -> None:
    """The Undo takes out of Lethe's file. The other one stays as it was."""
    merge_on_read(story)
    gone = first_row("B")
    story.sql(f"DELETE FROM {{t}} WHERE v = {gone[1]}")
    (theirs,) = (path for _, path, _ in story.deletes_now())

    story.revert("A")

    left = of_batches("B", "D", "E") - Counter([gone])
    assert (story.plain(), story.rows_at()) == (left, left)
    assert len(story.deletes_now()) == 3
    assert story.undo().succeeded
    assert [path for _, path, _ in story.deletes_now()] == [theirs]
    wanted = of_batches("A") + left
    assert (story.plain(), story.rows_at()) == (wanted, wanted)


@pytest.mark.long
def test_an_undo_takes_its_rows_out_of_a_file_into_which_another_writer_merged_them(story: Native) -> None:
    """Spark's DELETE merges the deletes of a data file into one file. The row that it deleted stays deleted."""
    story.revert("A")
    merge_on_read(story)
    gone = first_row("B")
    story.sql(f"DELETE FROM {{t}} WHERE v = {gone[1]}")
    ends = [path.endswith("-lethe-deletes.parquet") for _, path, _ in story.deletes_now()]
    assert sorted(ends) == [False, True]

    undone = story.undo()

    assert (undone.succeeded, undone.rows_restored) == (True, 4)
    wanted = of_batches("A", "B", "D", "E") - Counter([gone])
    assert (story.plain(), story.rows_at(), story.hidden_rows()) == (wanted, wanted, 1)
    story.revert("B", name="later")
    assert story.undo("later", name="undo-later").reason == "AlreadyPurged"


@pytest.mark.long
def test_an_undo_is_refused_if_its_rows_are_in_deletes_for_several_data_files(story: Native) -> None:
    """Another writer moved them there. Lethe would have to write that file for all its data files."""
    story.filled("FG")
    story.revert("A")
    story.revert("F", name="other")
    merge_on_read(story, "partition")
    merge = "CALL lite.system.rewrite_position_delete_files(table => '{name}', options => map('rewrite-all', 'true'))"
    story.sql(merge)
    assert (len(story.deletes_now()), story.hidden_rows(), story.files_of_deletes()) == (2, 8, set())
    deletes = story.deletes_now()

    undone = story.undo()

    assert (undone.succeeded, undone.reason) == (False, "AlreadyPurged")
    assert "several data files" in undone.message
    assert story.deletes_now() == deletes
    story.check_native(of_batches("B", "D", "E", "G"), since=story.head().snapshot_id)


def test_a_row_that_another_writer_deleted_at_the_same_time_stays_deleted_after_an_undo(
    story: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It planned its DELETE before the Revert and committed after it, which Iceberg permits on version 2."""
    files = {path for path, ids in story.files().items() if "A" in ids}
    story.revert("A")
    gone = _delete_first_row(story, sorted(files)[0], monkeypatch)

    assert story.undo().succeeded

    wanted = of_batches("A", "B", "D", "E") - Counter([gone])
    assert (story.plain(), story.rows_at()) == (wanted, wanted)
    assert of_arrow(lethe.scan(story.full_name).to_arrow()) == wanted


@pytest.mark.long
def test_data_files_leave_the_table_with_all_their_position_deletes(story: Native) -> None:
    """By a vacuum that deletes and rewrites files, also with deletes of other writers. A Revert drops no file."""
    merge_on_read(story)
    story.sql(f"DELETE FROM {{t}} WHERE v = {first_row('E')[1]}")
    assert len(story.deletes_now()) == 1

    files = story.files()
    story.revert("E", name="whole")
    assert story.files() == files
    assert sum(rows for _, _, rows in story.deletes_now()) == 5, (
        "each row of E, and the deletes of the other writer stay"
    )

    story.filled("F")
    story.sql(f"DELETE FROM {{t}} WHERE v = {first_row('F')[1]}")
    story.run(story.restatement(a_request("by-ledger", batch_ids=("F",)), deletes="Ledger"))
    story.revert("A")
    story.vacuum()
    assert story.deletes_now() == []
    story.check_native(of_batches("B", "D"), since=story.head().snapshot_id)


@pytest.mark.long
def test_maintenance_leaves_them_in_place_so_that_an_undo_is_possible(story: Native) -> None:
    more = "FGHIJKLMNO"
    story.filled(*more)
    story.revert("A")
    deletes = story.deletes_now()
    context = story.context(maintaining(story))

    rewritten = rewrite_manifests(context, table_of(story))
    compacted = compact_small_files(context, table_of(story), None, lambda: "")

    assert (rewritten.outcome > 0, compacted.merged) == (True, 22)  # all files but the two with A
    assert story.deletes_now() == deletes
    story.check_native(of_batches("B", "D", "E", *more), since=story.head().snapshot_id)
    assert story.undo().succeeded
    assert (story.deletes_now(), story.plain()) == ([], of_batches("A", "B", "D", "E", *more))


@pytest.mark.long
def test_after_an_upgrade_to_version_3_vectors_take_over_the_positions(story: Native) -> None:
    story.revert("A", name="a")
    story.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='3')")

    upgraded = story.seen_as(Native, format_version=3, deletes=Deletes.DELETION_VECTORS)
    upgraded.revert("B", name="b")

    assert [path.endswith(".puffin") for _, path, _ in upgraded.deletes_now()] == [True, True]
    assert upgraded.plain() == of_batches("D", "E")
    assert upgraded.undo("a", name="undo-a").succeeded
    upgraded.check_native(of_batches("A", "D", "E"))


def _delete_first_row(story: Native, path: str, monkeypatch: pytest.MonkeyPatch) -> Row:
    """Delete the first row of batch A in a data file, as another writer does that has not seen Lethe's deletes."""
    rows = pq.read_table(local(path), partitioning=None).to_pylist()
    position = next(n for n, row in enumerate(rows) if row["batch_id"] == "A")
    table = table_of(story)
    monkeypatch.setattr(names, "POSITION_DELETES_SUFFIX", "deletes")
    tasks, files = tasks_by_path(table, [path], story.head().snapshot_id), load_file_io({}, path)
    written = write_deletes(table, tasks, {path: FrozenBitMap64([position])}, (), "other", files)
    monkeypatch.undo()
    update = table.java.newRowDelta()
    for file in written.added:
        update = update.addDeletes(file)
    update.commit()
    return ("A", rows[position]["v"], rows[position]["day"])

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
from lethe_spark.jvm.data_files import tasks_by_path, write_deletes
from pyiceberg.io import load_file_io
from pyiceberg.manifest import ManifestContent
from pyroaring import FrozenBitMap64
from pyspark.sql import SparkSession

from tests.spark.support.built_once import built_once
from tests.spark.support.maintenance import table_of
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import Row, local, of_arrow, of_batches
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

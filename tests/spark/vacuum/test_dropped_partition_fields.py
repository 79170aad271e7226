"""Tables whose partition fields, and the columns of these, were dropped. Which deletes apply to a file is what Iceberg says."""

import json
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import lethe
import lethe_spark
import pytest
from lethe.base.errors import InputError
from lethe.contract.dataset import HoldSpec
from lethe.contract.settings import Deletes
from lethe.iceberg.delete_entries import dangling
from lethe.iceberg.position_deletes import DeletesOfFile, write_position_deletes
from lethe_spark.apps.session import make_session
from lethe_spark.jvm.data_files import deletes_in_use, tasks_by_path
from lethe_spark.jvm.spark_table import SparkTable
from pyiceberg.io import load_file_io
from pyroaring import FrozenBitMap64
from pyspark.sql import SparkSession

from tests.spark.parameters import MODES, some, tuples
from tests.spark.support.all_types import alone
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import Row, Story, local, of_batches, of_spark
from tests.spark.support.streaming_writer import delete_by_equality
from tests.spark.support.void_spec import give_void_spec, on_day_1, void_spec
from tests.support.builders import a_request
from tests.support.lake import CATALOG, Lake

POSITIONS = Deletes.POSITION_DELETES


def with_a_void_spec(spark: SparkSession, lake: Lake, mode: str = Deletes.LEDGER, catalog: str = CATALOG) -> Native:
    """Files of all specs hold rows: those of `give_void_spec`, and D and E together of the last one."""
    story = Native.begin(spark, lake, (), catalog, deletes=Deletes(mode))
    give_void_spec(story)
    story.filled("DE")
    assert {frozenset(ids) for ids in story.files().values()} >= {frozenset("BC"), frozenset("DE")}
    return story


def plain(story: Story) -> Counter[Row]:
    story.spark.catalog.clearCache()
    return of_spark(story.spark.table(story.full_name))


@pytest.mark.parametrize(
    ("purge", "mode", "catalog"),
    tuples(
        product(["alone", "by-spark"], MODES, [CATALOG, "rest"]),
        ("by-spark", Deletes.LEDGER, CATALOG),
        ("alone", POSITIONS, CATALOG),
    ),
)
def test_rows_that_another_engine_deleted_on_a_void_spec_stay_deleted(
    spark: SparkSession,
    lake: Lake,
    filtered: list[str],
    request: pytest.FixtureRequest,
    purge: str,
    mode: str,
    catalog: str,
) -> None:
    """Its equality delete applies to all older files, as that of a spec without fields does. Rows of files of the void spec are
    taken back and shown again meanwhile. lethe.scan reads no equality deletes."""
    if catalog == "rest":
        request.getfixturevalue("rest")
        make_session("rest")
    story = with_a_void_spec(spark, lake, mode, catalog)
    delete_by_equality(story, "day", 2, void_spec(story))
    wanted, left = (on_day_1(of_batches(*batches)) for batches in ("ABCDE", "ABD"))
    assert plain(story) == wanted

    def read() -> Counter[Row]:
        return of_spark(lethe_spark.read(spark, story.full_name))

    assert story.revert("C", "E").succeeded
    assert (plain(story), read()) == (wanted if mode == Deletes.LEDGER else left, left)
    assert story.undo().succeeded
    assert (plain(story), read()) == (wanted, wanted)
    assert story.revert("C", "E", name="again").succeeded

    result = alone(story) if purge == "alone" else story.vacuum()

    assert (result.outcome, result.tombstones_purged, filtered) == ("Committed", 2, [])
    assert (plain(story), read()) == (left, left)


def test_deletes_of_a_void_spec_are_not_taken_for_unused_while_iceberg_applies_them(
    spark: SparkSession, lake: Lake
) -> None:
    """No file of its own spec is left, but it applies to those of others."""
    story = with_a_void_spec(spark, lake)
    used = delete_by_equality(story, "day", 2, void_spec(story))
    spark.sql(f"DELETE FROM {story.full_name} WHERE batch_id IN ('B', 'C')")
    head, table = story.head().snapshot_id, SparkTable.load(spark, story.catalog, story.name)
    assert table is not None

    assert dangling(story.table(), head) == frozenset()
    assert deletes_in_use(table, head) == {(used, None)}


def without_day(rows: Counter[Row]) -> Counter[tuple[str | None, int]]:
    found: Counter[tuple[str | None, int]] = Counter()
    for (batch, v, _), n in rows.items():
        found[batch, v] += n
    return found


def check(story: Native, *batches: str, natively: bool = True) -> None:
    """All readers find the rows of these batches; without Lethe only if they were deleted natively, or purged."""
    wanted = without_day(of_batches(*batches))
    story.spark.catalog.clearCache()

    def counted(rows: Any) -> Counter[tuple[str | None, int]]:
        return Counter((r["batch_id"], r["v"]) for r in rows)

    assert counted(lethe_spark.read(story.spark, story.full_name).collect()) == wanted
    assert counted(lethe.scan(story.full_name).to_arrow().to_pylist()) == wanted
    if natively:
        assert counted(story.spark.table(story.full_name).collect()) == wanted


def drop_day(story: Native) -> Native:
    story.spark.sql(f"ALTER TABLE {story.full_name} DROP PARTITION FIELD day")
    story.spark.sql(f"ALTER TABLE {story.full_name} DROP COLUMN day")
    return story


@pytest.mark.parametrize("mode", some(MODES, "Ledger", "DeletionVectors"))
def test_batches_are_taken_back_and_shown_again_after_the_column_of_a_partition_is_dropped(
    spark: SparkSession, lake: Lake, mode: str
) -> None:
    story = drop_day(Native.begin(spark, lake, deletes=Deletes(mode)).filled())
    is_native = mode != "Ledger"

    assert story.revert("A").succeeded
    check(story, "B", "D", "E", natively=is_native)
    undone = story.undo()
    assert (undone.succeeded, undone.rows_restored) == (True, 4)
    check(story, "A", "B", "D", "E")
    assert story.revert("B", name="again").succeeded
    assert story.vacuum().outcome == "Committed"
    check(story, "A", "D", "E")


@pytest.mark.parametrize("mode", some(MODES, "PositionDeletes"))
def test_what_was_taken_back_before_the_column_was_dropped_can_be_shown_again(
    spark: SparkSession, lake: Lake, mode: str
) -> None:
    """Other files of the partition have deletes too, and are not mixed up."""
    story = Native.begin(spark, lake, deletes=Deletes(mode)).filled()
    assert story.revert("A", name="one").succeeded
    assert story.revert("B", name="two").succeeded
    drop_day(story)
    is_native = mode != "Ledger"

    assert story.undo("one").succeeded
    check(story, "A", "D", "E", natively=is_native)
    assert story.revert("E", name="three").succeeded
    check(story, "A", "D", natively=is_native)
    assert story.undo("two", name="undo-two").succeeded
    check(story, "A", "B", "D", natively=is_native)
    assert story.vacuum().outcome == "Committed"
    check(story, "A", "B", "D")


@pytest.mark.parametrize("mode", some(["PositionDeletes", "DeletionVectors"], "DeletionVectors"))
def test_a_vacuum_of_some_files_does_not_lose_the_deletes_of_others(spark: SparkSession, lake: Lake, mode: str) -> None:
    story = Native.begin(spark, lake, deletes=Deletes(mode)).filled()
    assert story.revert("A", name="one").succeeded
    assert story.revert("E", name="two").succeeded
    drop_day(story)

    assert story.run(story.vacuuming_so(batch_ids=("E",))).outcome == "Committed"

    check(story, "B", "D")
    assert story.undo("one").reason == "AlreadyPurged", (
        "the files were moved into one, and lose all that is hidden in it"
    )
    check(story, "B", "D")


def delete_first_row(story: Native, path: str) -> None:
    """As an engine does that writes a position delete for a file of the dropped field."""
    table = SparkTable.load(story.spark, story.catalog, story.name)
    assert table is not None
    file = tasks_by_path(table, [path], story.head().snapshot_id)[path].file()
    deletes = DeletesOfFile(f"{path}-another-engine.parquet", path, FrozenBitMap64([0]), {})
    (document,) = map(json.loads, write_position_deletes(load_file_io({}, path), [deletes]))
    builder = table.jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(table.java.specs().get(file.specId()))
    builder = builder.ofPositionDeletes().withFormat("PARQUET").withPath(deletes.path).withReferencedDataFile(path)
    builder = builder.withFileSizeInBytes(document["file-size-in-bytes"]).withRecordCount(1)
    table.java.newRowDelta().addDeletes(builder.withPartition(file.partition()).build()).commit()


def test_deletes_that_another_engine_wrote_for_such_files_are_reported_and_end_with_a_rollback(
    spark: SparkSession, lake: Lake
) -> None:
    """Iceberg refuses to plan any scan of such a snapshot, and no run may go on as if the catalog were away."""
    story = drop_day(Native.begin(spark, lake, deletes=Deletes.LEDGER).filled())
    before = story.head().snapshot_id
    delete_first_row(story, next(iter(story.files())))
    after = story.head().snapshot_id

    for run in (story.vacuuming(), story.restatement(a_request("one", batch_ids=("A",)), deletes=POSITIONS)):
        with pytest.raises(InputError, match="Roll the table back to a snapshot before these writes") as refused:
            story.run(run)
        assert refused.value.reason == "PartitionsLost"
        assert story.head().snapshot_id == after

    spark.sql(f"CALL {story.catalog}.system.rollback_to_snapshot('{story.name}', {before})")

    assert story.revert("A").succeeded
    assert story.vacuum().outcome == "Committed"
    check(story, "B", "D", "E")


def test_under_a_hold_what_was_taken_back_leaves_the_dropped_field_and_stays_in_the_table(
    spark: SparkSession, lake: Lake
) -> None:
    """The move copies the rows that a hold covers; the purge keeps their file."""
    story = Native.begin(spark, lake, deletes=POSITIONS).filled()
    assert story.revert("A", name="one").succeeded
    drop_day(story)
    v = next(iter(of_batches("A")))[1]
    under_hold = {"holds": (HoldSpec(name="case-7", filter=f"v = {v}"),)}

    held = story.run(story.vacuuming().model_copy(update=under_hold))
    (reverted,) = story.run(
        story.restatement(a_request("two", batch_ids=("B",)), deletes=POSITIONS).model_copy(update=under_hold)
    ).requests

    assert (held.files_held, held.tombstones_purged, reverted.succeeded) == (1, 0, True)
    assert story.in_files()["A"] == 4
    check(story, "D", "E")
    assert story.undo("one").succeeded
    check(story, "A", "D", "E")


def test_a_run_that_only_follows_another_writer_leaves_a_note_while_it_moves_such_files(
    spark: SparkSession, lake: Lake
) -> None:
    """No erasure is verified while a run may write rows that a vacuum has removed since it read them."""
    story = Native.begin(spark, lake, deletes=POSITIONS).filled()
    assert story.revert("A").succeeded
    drop_day(story)
    folder = Path(local(story.table().location()), "_runs")
    notes: list[str] = []

    def look() -> None:
        notes.extend(p.name for p in folder.glob("*-writing.json"))

    story.run(story.following(), before_commit=look)

    assert len(notes) == 1
    assert not list(folder.glob("*-writing.json"))
    check(story, "B", "D", "E")

"""Consolidation: what producers buffered is in the table, once, sorted, and nothing else is."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.base import names
from lethe.base.errors import InputError, LetheError
from lethe.contract.run import BufferRef, CreateTable, RunSpec, TableRef
from pyspark.sql import SparkSession

from tests.spark.support.story import Row, Story, of_batches
from tests.support.lake import CATALOG, SCHEMA, Lake

ODD_IDS = ["2013-01-01.UA", "a b", "x/y", "é😀", "50%", "=", "x" * 200]


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Story:
    return Story.begin(spark, lake)


def source_rows(story: Story) -> Counter[Row]:
    """What lies in the buffer, read file by file without Lethe or Spark; ids as the test gave them."""
    found: Counter[Row] = Counter()
    for batch_id in ODD_IDS:
        for file in story.folder(batch_id).glob("*.parquet"):
            found.update((batch_id, r["v"], r["day"]) for r in pq.read_table(file, partitioning=None).to_pylist())
    return found


def test_every_row_of_every_batch_is_in_the_table_once_whatever_the_batch_is_called(story: Story) -> None:
    story.put(*ODD_IDS, rows=5, files=2)

    result = story.consolidate(*ODD_IDS)

    assert (result.outcome, result.batches_promoted, result.rows_added) == ("Committed", 7, 35)
    story.check_reads(source_rows(story))
    assert sum(story.rows_at().values()) == 35
    assert set(story.states().values()) == {"promoted"}
    assert set(story.states()) == set(ODD_IDS)


def test_the_table_is_made_claimed_sorted_and_measured_and_its_files_are_few_sorted_and_the_runs_own(
    story: Story,
) -> None:
    story.put("C", "A", "B", "D", rows=6, files=3)

    story.consolidate("C", "A", "B", "D")

    table = story.table()
    assert table.properties[names.CLAIM] == f"air/{story.name}"
    assert table.properties["write.metadata.metrics.column.batch_id"] == "full"
    (order,) = table.sort_order().fields
    assert order.source_id == table.schema().find_field("batch_id").field_id
    files = story.files()
    assert len(files) <= 4  # two days, two tasks; the producers' twelve are gone
    for path, batches in files.items():
        assert batches == sorted(b or "" for b in batches)
        assert f"/data/{story.consolidation('C', 'A', 'B', 'D').run_id}/" in path


def test_a_consolidation_is_one_snapshot_with_every_key_and_each_object_it_promoted(story: Story) -> None:
    story.put("A", "B")
    spec = story.consolidation("A", "B")

    result = story.run(spec)

    (head,) = story.snapshots()
    keys = story.keys()
    assert result.snapshot_id == head.snapshot_id
    assert (keys[names.RUN_ID], keys[names.RUN_KIND]) == (spec.run_id, "Consolidation")
    assert [keys[f"tombstone.metrics.{k}.count"] for k in ("added", "deleted", "total")] == ["0", "0", "0"]
    assert Path(keys["tombstone.file"].removeprefix("file://").removeprefix("file:")).exists()
    entry = story.ledger().batches["A"]
    (listed,) = [s for s in story.buffer.sources() if s.id == "A"]
    assert (entry.rows, entry.snapshot_id, entry.objects) == (4, head.snapshot_id, listed.objects)


def test_only_refused_batches_commit_their_refusal_and_no_rows(story: Story) -> None:
    """The operator must not launch the same run for ever: it learns of the refusal from the ledger."""
    story.put_file("A", b"")

    result = story.consolidate("A")

    assert (result.batches_promoted, result.rows_added, story.states()) == (0, 0, {"A": "refused"})
    story.check_reads(Counter())


def test_a_table_without_partitions_is_sorted_as_a_whole(spark: SparkSession, lake: Lake) -> None:
    story = Story.begin(spark, lake, partition_by=())
    story.put("C", "A", "B", rows=6)

    story.consolidate("C", "A", "B")

    story.check_reads(of_batches("A", "B", "C", rows=6))
    for batches in story.files().values():
        assert batches == sorted(b or "" for b in batches)


def foreign_table(story: Story, *columns: str, **properties: str) -> None:
    story.lake.catalog.create_namespace_if_not_exists("air")
    fields = {"v": pa.int64(), "day": pa.int32(), "batch_id": pa.string()}
    schema = pa.schema([(c, fields.get(c, pa.string())) for c in columns or tuple(fields)])
    story.lake.catalog.create_table(story.name, schema, properties=properties)


def refusal(story: Story, spec: RunSpec) -> LetheError:
    with pytest.raises(InputError) as refused:
        story.run(spec)
    return refused.value


def test_a_table_of_another_dataset_is_not_touched(story: Story) -> None:
    foreign_table(story, **{names.CLAIM: "sea/ships"})
    story.put("A")

    error = refusal(story, story.consolidation("A", table=TableRef(catalog=CATALOG, name=story.name, adopt=True)))

    assert error.reason == "TableClaimed"
    assert "belongs to Dataset sea/ships" in error.message
    assert story.table().properties[names.CLAIM] == "sea/ships"
    assert story.table().current_snapshot() is None


def test_an_existing_table_is_not_written_before_its_adoption_is_allowed(story: Story) -> None:
    foreign_table(story)
    story.append_as_foreign_writer("old", None)
    story.put("A")

    error = refusal(story, story.consolidation("A"))

    assert (error.reason, "adopt: true" in error.message) == ("TableNotPrepared", True)
    assert len(story.snapshots()) == 1
    story.run(story.consolidation("A", table=TableRef(catalog=CATALOG, name=story.name, adopt=True)))
    story.check_reads(of_batches("A") + Counter({("old", 500, 1): 1, (None, 501, 1): 1}))


INVALID: dict[str, tuple[Callable[[Story], object], dict[str, Any], str, str]] = {
    "no such table": (lambda _: None, {"create": None}, "TableNotFound", "spec.table.create"),
    "no batch column": (lambda s: foreign_table(s, "v", "day"), {"adopt": True}, "BatchColumnMissing", "v, day"),
    "a batch column of numbers": (
        lambda s: s.lake.catalog.create_table(s.name, pa.schema([("v", pa.int64()), ("batch_id", pa.int64())])),
        {"adopt": True},
        "BatchColumnType",
        "expected string",
    ),
    "a definition that is no SQL": (
        lambda _: None,
        {"create": CreateTable(schema="v bigint,, nonsense")},
        "InvalidTableDefinition",
        "spec.table.create.schema",
    ),
    "format version 1": (
        lambda s: foreign_table(s, **{"format-version": "1"}),
        {"adopt": True},
        "FormatVersionTooOld",
        "format-version",
    ),
}


@pytest.mark.parametrize(("given", "table", "reason", "said"), INVALID.values(), ids=INVALID)
def test_a_table_that_cannot_be_used_is_refused_by_reason_and_left_as_it_was(
    story: Story, given: Callable[[Story], object], table: dict[str, Any], reason: str, said: str
) -> None:
    story.lake.catalog.create_namespace_if_not_exists("air")
    given(story)
    wanted = {"catalog": CATALOG, "name": story.name, "create": CreateTable(schema=SCHEMA), **table}

    error = refusal(story, story.consolidation("A", table=TableRef(**wanted)))

    assert (error.reason, error.exit_code) == (reason, 10)
    assert said in error.message
    assert not story.lake.catalog.table_exists(story.name) or story.table().current_snapshot() is None


def test_a_buffer_inside_the_tables_location_is_refused_before_anything_is_read(story: Story) -> None:
    """Clean-up of the one would delete the other."""
    story.filled("A")
    within = BufferRef(uri=f"{story.table().location()}/data/buffer")

    error = refusal(story, story.consolidation("B", buffer=within))

    assert error.reason == "BufferOverlapsTable"
    assert "Set spec.buffer.uri to another location" in error.message

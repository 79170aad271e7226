"""Batches with columns that the table does not have: refused, or taken over once, whoever dies or comes along."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from lethe.contract.run import RunSpec
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.story import Story, of_batches, some_rows
from tests.support.lake import Lake
from tests.support.steps import Killed, die


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Story:
    return Story.begin(spark, lake)


def put(story: Story, batch_id: str, rows: int = 4, **more: Any) -> None:
    """A batch with further columns, each an Arrow array of one value for all rows."""
    table = pa.Table.from_pylist(some_rows(batch_id, rows), pa.schema([("v", pa.int64()), ("day", pa.int32())]))
    for name, value in more.items():
        table = table.append_column(name, pa.repeat(value, rows))
    story.buffer.put(batch_id, table)


def adding(story: Story, *batch_ids: str, **changes: Any) -> RunSpec:
    return story.consolidation(*batch_ids, schema_evolution="AddColumns", **changes)


def values(story: Story, column: str) -> dict[str, Any]:
    """The values of a column by batch, as PyIceberg reads them."""
    rows = story.table().scan().to_arrow().to_pylist()
    return {r["batch_id"]: r[column] for r in rows}


def types(story: Story) -> dict[str, str]:
    return {f.name: str(f.field_type) for f in story.table().schema().fields}


def ids(columns: Iterable[Any]) -> list[int]:
    return [f.field_id for f in columns]


def test_new_columns_of_all_batches_are_added_and_what_a_batch_lacks_is_null(story: Story) -> None:
    put(story, "A")
    put(story, "B", tail=pa.scalar("N1"))
    put(story, "C", miles=pa.scalar(7, pa.int16()))

    result = story.run(adding(story, "A", "B", "C"))

    assert (result.outcome, result.batches_promoted, result.refused_count) == ("Committed", 3, 0)
    assert types(story) == {"v": "long", "day": "int", "batch_id": "string", "tail": "string", "miles": "int"}
    assert not any(f.required for f in story.table().schema().fields[3:])
    assert values(story, "tail") == {"A": None, "B": "N1", "C": None}
    assert values(story, "miles") == {"A": None, "B": None, "C": 7}
    story.check_reads(of_batches("A", "B", "C"))


def test_a_wider_type_widens_the_table_and_narrow_batches_still_fit(story: Story) -> None:
    """Also the column that the table is partitioned by."""
    put(story, "A")
    story.run(adding(story, "A"))
    wide = pa.table({"v": [1, 2], "day": pa.array([1, 2**40], pa.int64())})
    story.buffer.put("B", wide)
    put(story, "C")

    result = story.run(adding(story, "B", "C"))

    assert (result.batches_promoted, types(story)["day"]) == (2, "long")
    assert story.rows_at()["B", 2, 2**40] == 1
    story.revert("A")
    assert story.rows_at() == of_batches("C") + Counter({("B", 1, 1): 1, ("B", 2, 2**40): 1})


@pytest.mark.parametrize(
    "step", some(["before_columns", "after_columns", "after_write", "after_stage", "after_commit"], "after_columns")
)
def test_a_run_that_died_around_the_new_column_is_finished_by_its_repetition(story: Story, step: str) -> None:
    put(story, "A")
    put(story, "B", tail=pa.scalar("N1"))
    run = adding(story, "A", "B")
    with pytest.raises(Killed):
        story.run(run, **{step: die})

    story.run(run)

    assert list(types(story)) == ["v", "day", "batch_id", "tail"]
    assert values(story, "tail") == {"A": None, "B": "N1"}
    story.check_reads(of_batches("A", "B"))


def test_two_runs_that_add_one_column_at_one_moment_add_it_once(story: Story) -> None:
    put(story, "A")
    story.run(adding(story, "A"))
    put(story, "B", tail=pa.scalar("N1"))
    put(story, "C", tail=pa.scalar("N2"), more=pa.scalar(1))

    story.run(adding(story, "B"), before_columns=lambda: story.run(adding(story, "C")))

    assert list(types(story)) == ["v", "day", "batch_id", "tail", "more"]
    assert len(set(ids(story.table().schema().fields))) == 5
    assert values(story, "tail") == {"A": None, "B": "N1", "C": "N2"}
    story.check_reads(of_batches("A", "B", "C"))

"""What producers get wrong, one test for each: a clear word about that batch alone, and the others go in.

Reading itself is tested file by file in tests/unit/lethe_spark, S3's refusals in test_buffer_on_s3.
"""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from lethe.contract.result import RunResult
from lethe.contract.run import BufferRef, CreateTable, FileFormat, TableRef
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.story import Story, of_batches, some_rows
from tests.support import poison
from tests.support.buffer_formats import FORMATS, written
from tests.support.lake import CATALOG, ROWS, Lake
from tests.support.steps import Killed, die


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Story:
    """A good batch waits in the buffer."""
    story = Story.begin(spark, lake)
    story.put("good")
    return story


def put(story: Story, batch_id: str, content: bytes, rows: int = 4) -> Path:
    """A batch of one good file and one with this content. Returns: the folder."""
    story.put(batch_id, rows=rows)
    (story.folder(batch_id) / "part-1").write_bytes(content)
    return story.folder(batch_id)


def only(result: RunResult) -> tuple[str, str, str]:
    (refused,) = result.refused
    return refused.batch_id, refused.reason, refused.message


PARQUET = written("parquet", pa.Table.from_pylist(some_rows("x", 100), ROWS))
BAD: dict[str, tuple[bytes, str, str]] = {
    "zero bytes": (b"", "UnreadableFile", "the file is empty (0 bytes), expected Parquet"),
    "truncated": (PARQUET[: len(PARQUET) // 2], "UnreadableFile", "it is not readable as Parquet"),
    "another format": (b"v,day\n1,1\n", "UnreadableFile", "it is not readable as Parquet"),
    "a column missing": (written("parquet", pa.table({"v": [1]})), "SchemaMismatch", "column day (int32) is missing"),
    "a column too many": (
        written("parquet", pa.table({"v": [1], "day": pa.array([1], pa.int32()), "x": [1]})),
        "SchemaMismatch",
        "a column that the table does not have (number ",
    ),
    "a column of another type": (
        written("parquet", pa.table({"v": ["1"], "day": pa.array([1], pa.int32())})),
        "SchemaMismatch",
        "column v is string, expected int64",
    ),
}


def test_batches_with_a_bad_file_are_refused_as_a_whole_and_the_others_go_in(story: Story) -> None:
    for batch_id, (content, _, _) in BAD.items():
        put(story, batch_id, content)

    result = story.consolidate("good", *BAD)

    assert {r.batch_id: r.reason for r in result.refused} == {i: reason for i, (_, reason, _) in BAD.items()}
    for refused in result.refused:
        assert "part-1: " in refused.message
        assert BAD[refused.batch_id][2] in refused.message
    assert (result.outcome, result.batches_promoted) == ("Committed", 1)
    assert story.states() == {"good": "promoted", **dict.fromkeys(BAD, "refused")}
    story.check_reads(of_batches("good"))


@pytest.mark.parametrize("format_name", some(FORMATS, "orc"))
def test_every_format_goes_in_and_a_file_of_another_is_refused(
    spark: SparkSession, lake: Lake, format_name: FileFormat
) -> None:
    story = Story.begin(spark, lake)
    story.put("good", "bad")
    for batch_id in ("good", "bad"):
        content = written(format_name, pa.Table.from_pylist(some_rows(batch_id, 4), ROWS))
        (story.folder(batch_id) / "part-0.parquet").write_bytes(content)
    other = "parquet" if format_name != "parquet" else "orc"
    (story.folder("bad") / "more").write_bytes(written(other, pa.Table.from_pylist(some_rows("bad", 4), ROWS)))

    spec = story.consolidation("good", "bad", buffer=BufferRef(uri=story.buffer.uri, format=format_name))
    result = story.run(spec)

    assert only(result)[:2] == ("bad", "UnreadableFile")
    story.check_reads(of_batches("good"))


# --- files that kill or stall their decoder --------------------------------------------------------------------------


GOOD = tuple("abcde")


def test_one_run_refuses_a_file_that_takes_all_memory(spark: SparkSession, lake: Lake) -> None:
    """The decoder ends, and neither Spark's worker nor the run."""
    story = Story.begin(spark, lake)
    create = CreateTable(schema="v bigint, day int, name string")
    for n, batch_id in enumerate(GOOD):
        rows = pa.table({"v": [n], "day": pa.array([1], pa.int32()), "name": ["a"]})
        story.buffer.put(batch_id, rows)
    story.buffer.put("poison", pa.table({"v": [1]}))
    (story.folder("poison") / "part-0.parquet").write_bytes(poison.one_text_many_times())

    table = TableRef(catalog=CATALOG, name=story.name, create=create)
    result = story.run(story.consolidation(*GOOD, "poison", table=table))

    assert {r.batch_id: r.reason for r in result.refused} == {"poison": "FileTooCostly"}
    assert "MiB of memory" in result.refused[0].message
    assert (result.outcome, result.batches_promoted) == ("Committed", 5)


# --- refused batches leave the buffer -------------------------------------------------------------------------------


def area(story: Story) -> dict[str, list[str]]:
    """What was refused by the folder's name: the files that are kept."""
    folders = sorted((story.buffer.path / "_refused").glob("*/*"))
    return {str(f.parent.name): sorted(p.name for p in f.iterdir()) for f in folders}


def test_a_refused_batch_is_kept_in_the_area_of_refused_ones_with_its_reason(story: Story) -> None:
    put(story, "bad", b"")

    story.consolidate("good", "bad")

    assert area(story) == {"batch_id=bad": ["_REFUSED.json", "part-0.parquet", "part-1"]}
    (reported,) = (story.buffer.path / "_refused").rglob("_REFUSED.json")
    document = json.loads(reported.read_text())
    assert (document["batch"], document["reason"]) == ("bad", "UnreadableFile")
    assert "part-1: the file is empty" in document["message"]
    assert not story.folder("bad").exists()
    assert story.folder("good").exists()


def test_nothing_is_moved_before_the_refusal_is_committed(story: Story) -> None:
    put(story, "bad", b"")

    with pytest.raises(Killed):
        story.consolidate("good", "bad", before_commit=die)

    assert story.folder("bad").joinpath("_SUCCESS").exists()
    assert area(story) == {}

"""Consolidation of a buffer of the layout File: each file of it is one batch."""

import gzip
import os
import uuid
from collections.abc import Callable

import pyarrow as pa
import pyarrow.csv as pc
import pytest
from lethe.base.names import batch_file
from lethe.contract.result import RunResult
from lethe.contract.run import BufferRef, FileFormat
from pyspark.sql import SparkSession

from tests.spark.support.story import Story, of_batches, some_rows
from tests.support.lake import Lake

ODD_IDS = ["2013-01-01.UA", "a b", "x/y", "é😀", "50%", "_hidden", ".dot", "A.csv", "x" * 150]


def csv(batch_id: str) -> bytes:
    out = pa.BufferOutputStream()
    pc.write_csv(pa.Table.from_pylist(some_rows(batch_id, 4)), out)
    return out.getvalue().to_pybytes()


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Story:
    story = Story.begin(spark, lake)
    story.buffer.path.mkdir(parents=True)
    return story


def put(story: Story, *batch_ids: str, extension: str = ".csv") -> None:
    """As a producer does on a file system: hidden until it is whole."""
    for i in batch_ids:
        content = gzip.compress(csv(i)) if extension.endswith(".gz") else csv(i)
        hidden = story.buffer.path / f"_{uuid.uuid4().hex}"
        hidden.write_bytes(content)
        os.replace(hidden, story.buffer.path / batch_file(i, extension))


def consolidate(story: Story, *batch_ids: str, **at: Callable[[], object]) -> RunResult:
    format_: FileFormat = "csv"
    return story.run(
        story.consolidation(*batch_ids, buffer=BufferRef(uri=story.buffer.uri, format=format_, layout="File")), **at
    )


def there(story: Story) -> set[str]:
    return {str(p.relative_to(story.buffer.path)) for p in story.buffer.path.rglob("*") if p.is_file()}


def test_every_row_of_every_file_is_in_the_table_once_whatever_the_batch_is_called(story: Story) -> None:
    put(story, *ODD_IDS[:5])
    put(story, *ODD_IDS[5:], extension=".csv.gz")

    result = consolidate(story, *ODD_IDS)

    assert (result.outcome, result.batches_promoted, result.rows_added) == ("Committed", 9, 36)
    assert story.states() == dict.fromkeys(ODD_IDS, "promoted")
    story.check_reads(of_batches(*ODD_IDS))
    assert consolidate(story, *ODD_IDS).outcome == "AlreadyCommitted"
    (recorded,) = story.ledger().batches["a b"].objects
    assert recorded.key == f"{story.buffer.uri}/a%20b.csv"


def test_a_file_that_cannot_be_read_is_set_aside_under_its_name_and_goes_in_when_it_is_mended(story: Story) -> None:
    put(story, "good", "bad")
    (story.buffer.path / "bad.csv").write_bytes(b"v,day\n1,never\n")

    result = consolidate(story, "good", "bad")

    assert (result.batches_promoted, [r.batch_id for r in result.refused]) == (1, ["bad"])
    assert [n.rpartition("/")[2] for n in sorted(there(story)) if n.startswith("_refused/bad.csv/")] == [
        "_REFUSED.json",
        "bad.csv",
    ]
    assert {n for n in there(story) if "/" not in n} == {"_lethe.json", "good.csv"}
    put(story, "bad")
    assert consolidate(story, "bad").batches_promoted == 1
    story.check_reads(of_batches("good", "bad"))

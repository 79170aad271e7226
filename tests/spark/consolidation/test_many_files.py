"""A batch with as many files as a batch may have."""

import os
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.base import names
from lethe.buffer.layout import OBJECTS_AT_MOST
from pyspark.sql import SparkSession

from tests.spark.support.story import Story, of_batches
from tests.support.lake import ROWS, Lake

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

LINKS_AT_MOST = 50_000  # to one file, on most file systems


def test_every_row_of_a_batch_with_as_many_files_as_it_may_have_is_promoted(spark: SparkSession, lake: Lake) -> None:
    """With one file more, it is not a batch: it waits, and other batches are promoted."""
    story = Story.begin(spark, lake)
    story.put("A", "B")
    for batch, count in (("many", OBJECTS_AT_MOST - 1), ("more", OBJECTS_AT_MOST)):
        folder = story.folder(batch)
        folder.mkdir()
        for n in range(count):
            first = folder / f"{n - n % LINKS_AT_MOST}.parquet"
            if n % LINKS_AT_MOST == 0:
                pq.write_table(pa.Table.from_pylist([{"v": 1, "day": 1}], ROWS), first)
            else:
                os.link(first, folder / f"{n}.parquet")
        (folder / names.SUCCESS_MARKER).touch()
    begun, cpu = time.monotonic(), time.process_time()

    result = story.consolidate("A", "many", "more")

    print(f"{time.monotonic() - begun:.0f} s, {time.process_time() - cpu:.0f} s of the driver's Python")
    assert (result.outcome, result.batches_promoted, result.refused) == ("Committed", 2, ())
    found = story.rows_at()
    assert found.pop(("many", 1, 1)) == OBJECTS_AT_MOST - 1
    assert found == of_batches("A")
    assert len(list(story.folder("more").iterdir())) == OBJECTS_AT_MOST + 1

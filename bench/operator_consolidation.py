"""Small files that runs of the operator consolidate, from the creation of their Dataset until all are promoted. I/O."""

import io
from collections.abc import Iterator
from typing import Any, Final

import pyarrow.parquet as pq
from lethe.base import names
from lethe.base.ids import batch_folder

from bench import producer
from bench.asked import Subject
from bench.heads import total_records
from bench.operator_restatements import alone
from bench.operator_scales import OperatorScale
from bench.operator_site import OperatorSite
from bench.timing import say

PROMOTED_WITHIN_SECONDS: Final = 3600.0
# Files that are in memory at once.
AT_ONCE: Final = 1_000


def consolidation(site: OperatorSite, scale: OperatorScale) -> dict[str, Any]:
    """A buffer that is full when its Dataset is created, with default settings."""
    alone(site)
    subject = Subject(site, "bench-files")
    subject.clean()
    rows = _fill(subject, scale.small_files)
    create = {"schema": producer.SCHEMA, "partitionBy": [producer.PARTITION]}
    spec = {
        "table": {"catalog": "main", "name": subject.table, "create": create},
        "batchColumn": producer.BATCH_COLUMN,
        "buffer": {"uri": subject.buffer},
    }
    site.create("Dataset", subject.name, spec, {"bench": subject.name})
    seconds = subject.await_promoted(scale.small_files, PROMOTED_WITHIN_SECONDS)
    result = {
        "files": scale.small_files,
        "rows": rows,
        "seconds": round(seconds, 1),
        "per_hour": round(scale.small_files / seconds * 3600),
        "commits": subject.commits(),
    }
    if (total := total_records(site.catalog.load_table(subject.table))) != rows:
        result["error"] = f"the table has {total:,} rows, expected {rows:,}"
    return {"results": [result]}


def _fill(subject: Subject, count: int) -> int:
    """Put batches into the buffer, as their producers would. Returns: the number of their rows."""
    say(f"  {count:,} small files")
    rows = 0

    def objects(first: int) -> Iterator[tuple[str, bytes]]:
        nonlocal rows
        for number in range(first, min(first + AT_ONCE, count)):
            batch = producer.rows_of(number)
            rows += batch.num_rows
            sink = io.BytesIO()
            pq.write_table(batch, sink)
            yield f"{_folder(subject, number)}/part-0.parquet", sink.getvalue()

    for first in range(0, count, AT_ONCE):
        subject.site.put_all(objects(first))
        numbers = range(first, min(first + AT_ONCE, count))
        subject.site.put_all((f"{_folder(subject, n)}/{names.SUCCESS_MARKER}", b"") for n in numbers)
    return rows


def _folder(subject: Subject, number: int) -> str:
    return f"{subject.buffer}/{batch_folder(producer.BATCH_COLUMN, producer.batch_id(number))}"

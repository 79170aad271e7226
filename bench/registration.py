"""What it costs to register files that producers wrote: seconds by stage, files a minute, growth of the metadata. I/O.

Each round registers as many files again, one batch each, in one run and one commit.
"""

import shutil
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from lethe.base import names
from lethe.base.ids import batch_folder
from lethe.contract.result import Phase
from lethe.contract.run import BufferRef, ConsolidationMode, ConsolidationSpec, CreateTable, RunSpec, TableRef
from lethe.contract.settings import RunFamily
from lethe.iceberg import catalogs
from lethe_spark.jobs.consolidation import job as consolidate
from lethe_spark.run.context import RunContext
from lethe_spark.run.progress import Reporter

from bench.consolidation_scales import ConsolidationScale
from bench.lake import BUCKET, DATASET, Lake, ignore
from bench.timing import say
from tests.support.servers import s3 as servers

TABLE = "run.registered"
PARTITIONS = 60
ROWS = 100
SCHEMA = "v bigint, w double, note string, day int, batch_id string"
STEPS = ("after-list", "after-read", "before-commit", "after-commit")


@dataclass(frozen=True)
class Timed(RunContext):
    """A context that notes when its steps were reached."""

    at: dict[str, float] = field(default_factory=dict)

    def step(self, name: str) -> None:
        self.at[name] = time.monotonic()
        super().step(name)


def put(buffer: Path, batch_ids: Sequence[str]) -> None:
    """A batch of one small file for each id."""
    for n, batch_id in enumerate(batch_ids):
        folder = buffer / batch_folder("batch_id", batch_id)
        folder.mkdir(parents=True)
        rows = {
            "v": pa.array(range(n, n + ROWS)),
            "w": pa.array([n / 7] * ROWS),
            "note": pa.array([f"note {n}"] * ROWS),
            "day": pa.array([n % PARTITIONS] * ROWS, pa.int32()),
            "batch_id": pa.array([batch_id] * ROWS),
        }
        pq.write_table(pa.table(rows), folder / "part-0.parquet")
        (folder / names.SUCCESS_MARKER).touch()


def register(lake: Lake, buffer: str, batch_ids: Sequence[str]) -> dict[str, float]:
    """One run. `buffer`: its URI. Returns: seconds by stage."""
    spec = RunSpec(
        family=RunFamily.CONSOLIDATION,
        run_id=uuid.uuid4().hex,
        dataset=DATASET,
        table=TableRef(
            catalog=lake.catalog, name=TABLE, create=CreateTable(table_schema=SCHEMA, partition_by=("day",))
        ),
        batch_column="batch_id",
        buffer=BufferRef(uri=buffer),
        consolidation=ConsolidationSpec(mode=ConsolidationMode.REGISTER, batch_ids=tuple(batch_ids)),
    )
    reporter = Reporter(spec, ignore)
    context = Timed(spec, reporter, catalogs.properties(lake.catalog), spark=lake.spark)
    began = time.monotonic()
    try:
        result = consolidate.run(context)
    finally:
        reporter.close(Phase.SUCCEEDED)
    ended = time.monotonic()
    if result.files_added != len(batch_ids):
        raise RuntimeError(f"{result.files_added} of {len(batch_ids)} files were registered")
    reached = [began, *(context.at[s] for s in STEPS), ended]
    stages = ("prepare and list", "read footers", "hand over and plan", "commit", "tidy up")
    found = {s: round(b - a, 2) for s, a, b in zip(stages, reached, reached[1:], strict=False)}
    return found | {"all": round(ended - began, 2)}


def measure(lake: Lake, scale: ConsolidationScale) -> dict[str, Any]:
    """Rounds of as many files each, into one table."""
    return _rounds(lake, scale, f"file://{lake.home}", lake.home)


def on_s3(lake: Lake, scale: ConsolidationScale) -> dict[str, Any]:
    """The same with buffer and table on an S3 server, which runs on the same cores."""
    with servers.running() as s3:
        return _rounds(lake.on_s3(s3), scale, f"s3://{BUCKET}", s3.folder / BUCKET)


def _rounds(lake: Lake, scale: ConsolidationScale, root: str, folder: Path) -> dict[str, Any]:
    """`root`: the URI of `folder`."""
    buffer = folder / "registered"
    shutil.rmtree(buffer, ignore_errors=True)
    results = []
    for number in range(scale.register_rounds):
        batch_ids = [f"round-{number}.{n:0>8}" for n in range(scale.register_files)]
        put(buffer, batch_ids)
        seconds = register(lake, f"{root}/registered", batch_ids)
        location = catalogs.load(lake.catalog).load_table(TABLE).location()
        metadata = folder / location.removeprefix(root).lstrip("/")
        results.append(
            {
                "files": len(batch_ids),
                "stages": seconds,
                "per_minute": round(len(batch_ids) / seconds["all"] * 60),
                "metadata_bytes": sum(p.stat().st_size for p in metadata.rglob("*") if p.is_file()),
            }
        )
        say(f"  {len(batch_ids):,} files registered: {seconds}")
    return {"results": results}

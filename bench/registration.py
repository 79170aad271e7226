"""What it costs to register files that producers wrote: seconds by stage, files a minute, growth of the metadata. I/O.

Each round registers as many files again, one batch each, in one run and one commit; the first round includes what a fresh
driver has to warm up. Prints a line of JSON for each round.
"""

import argparse
import json
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from lethe import names
from lethe.ids import batch_folder
from lethe.run import BufferRef, ConsolidationSpec, CreateTable, Phase, RunKind, RunSpec, TableRef
from lethe.table import catalogs
from lethe_spark.context import RunContext
from lethe_spark.jobs import consolidate
from lethe_spark.progress import Reporter

from bench.lake import CATALOG, DATASET, Lake, nobody

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


def register(lake: Lake, buffer: Path, batch_ids: Sequence[str]) -> dict[str, float]:
    """One run. Returns: seconds by stage."""
    spec = RunSpec(
        kind=RunKind.CONSOLIDATION,
        run_id=uuid.uuid4().hex,
        dataset=DATASET,
        table=TableRef(
            catalog=CATALOG, name="bench.registered", create=CreateTable(schema=SCHEMA, partition_by=("day",))
        ),
        batch_column="batch_id",
        buffer=BufferRef(uri=f"file://{buffer}"),
        consolidation=ConsolidationSpec(mode="Register", batch_ids=tuple(batch_ids)),
    )
    reporter = Reporter(spec, nobody)
    context = Timed(lake.spark, spec, reporter, catalogs.properties(CATALOG))
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


def measure(lake: Lake, home: Path, files: int, number: int) -> Mapping[str, object]:
    batch_ids = [f"round-{number}.{n:0>8}" for n in range(files)]
    put(home / "buffer", batch_ids)
    seconds = register(lake, home / "buffer", batch_ids)
    table = catalogs.load(CATALOG).load_table("bench.registered")
    metadata = Path("/" + table.location().removeprefix("file:").lstrip("/"))
    return {
        "round": number,
        "files": files,
        "seconds": seconds,
        "files_per_minute": round(files / seconds["all"] * 60),
        "metadata_bytes": sum(p.stat().st_size for p in metadata.rglob("*") if p.is_file()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lethe-bench-") as folder:
        home = Path(folder)
        lake = Lake.open(home, "1g")
        for number in range(options.rounds):
            print(json.dumps(measure(lake, home, options.files, number)), flush=True)
        lake.spark.stop()


if __name__ == "__main__":
    main()

"""Measure what grows with a table: its metadata, planning, commits and registering, up to ten million data files.

python -m bench.scaling [--scale tiny|small|medium|full] [--out docs/benchmarks]

The data files do not exist. Iceberg and Lethe write real manifests and ledgers for them, and nothing reads data.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count as count_from
from itertools import islice
from pathlib import Path
from typing import Any, Final

from lethe.base import names
from lethe.ledger.ledger import BatchState, Delta
from lethe.uri import local_path
from lethe_spark.jvm.commit import Register
from lethe_spark.jvm.data_files import data_files
from lethe_spark.jvm.spark_table import SparkTable

from bench.lake import BATCH_COLUMN, Lake, commit, entry, our_properties
from bench.report import MIB, Cell, Goal, Part, View, goal, results_of
from bench.runner import Suite, program
from bench.timing import say
from bench.vacuum import PER_FILE, SIZE, batch_id, delete, described_file, scan_in_a_process

# Files of a commit.
AT_ONCE: Final = 20_000
# Files of a partition before the next one begins.
PER_PARTITION: Final = 10_000
PARTITIONS: Final = 12
PLANNED_FILES: Final = 1_000_000
PLAN_SECONDS: Final = 40
PLAN_BYTES: Final = 1024**3


@dataclass(frozen=True)
class ScalingScale:
    """The sizes that determine how long the benchmark takes."""

    name: str
    # Data files of one growing table, ascending.
    files: tuple[int, ...]
    # Active tombstones, evenly spread over the batches of the first size.
    tombstones: int
    # Commits of 100 tombstones at each size.
    commits: int
    # Memory of the driver, as Spark takes it.
    driver_memory: str = "4g"


SCALES: Final = {
    "tiny": ScalingScale("tiny", (50, 100), 20, 1, "768m"),
    "small": ScalingScale("small", (20_000, 100_000), 10_000, 3),
    "medium": ScalingScale("medium", (100_000, 1_000_000), 100_000, 5),
    "full": ScalingScale("full", (100_000, 1_000_000, 10_000_000), 100_000, 5),
}


def growing(lake: Lake, scale: ScalingScale) -> dict[str, Any]:
    """One table that grows: at each size its metadata, and the times of the steps that read or write it."""
    table = lake.create("run.scaling", properties=our_properties())
    field_id = table.field_id(BATCH_COLUMN)
    assert field_id is not None
    delete(
        lake,
        table,
        field_id,
        [batch_id(n * scale.files[0] * PER_FILE // scale.tombstones) for n in range(scale.tombstones)],
    )
    results: list[dict[str, Any]] = []
    there = 0
    for files in scale.files:
        rates = []
        while there < files:
            count = min(AT_ONCE, files - there)
            rates.append(_register(lake, table, field_id, there, count))
            there += count
            say(f"{there:,} files: the last {count:,} in {rates[-1]:.1f} s")
        found: dict[str, Any] = {
            "files": files,
            "registered": min(AT_ONCE, files),
            "register_seconds": rates[-1],
            **_metadata(table),
        }
        found["commit_seconds"] = [_revert(lake, table, field_id, files, n) for n in range(scale.commits)]
        plan = scan_in_a_process(str(table.metadata_location))
        found |= {
            "plan_seconds": plan["seconds"],
            "plan_peak_bytes": plan["peak_bytes"],
            "planned_files": plan["files"],
        }
        say(f"{files:,} files: planned in {plan['seconds']:.1f} s with {plan['peak_bytes'] / 2**20:,.0f} MiB")
        results.append(found)
    return {"tombstones": scale.tombstones, "per_file": PER_FILE, "file_bytes": SIZE, "results": results}


def _register(lake: Lake, table: SparkTable, field_id: int, first: int, count: int) -> float:
    """Seconds to describe files to Iceberg and commit them, each as a batch of its own."""
    documents = list(islice(_documents(first, field_id), count))
    batches = tuple(entry(batch_id(n * PER_FILE), BatchState.PROMOTED, 5_000_000) for n in range(first, first + count))
    since = time.monotonic()
    commit(lake, table, Register(data_files(table, documents)), lambda run: Delta(run, set_batches=batches))
    return round(time.monotonic() - since, 2)


def _revert(lake: Lake, table: SparkTable, field_id: int, files: int, number: int) -> float:
    """Seconds of one commit of 100 tombstones."""
    ids = [batch_id((number * 100 + n) * files * PER_FILE // 100_003 + 1) for n in range(100)]
    since = time.monotonic()
    delete(lake, table, field_id, ids)
    return round(time.monotonic() - since, 3)


def _metadata(table: SparkTable) -> dict[str, int]:
    """Bytes of the head's manifests, of their list, of the table's metadata file, and of the ledger, with files that only older
    snapshots need."""
    table.refresh()
    head = table.java.currentSnapshot()
    manifests = list(head.allManifests(table.java.io()))
    return {
        "manifests": len(manifests),
        "manifest_bytes": sum(int(m.length()) for m in manifests),
        "manifest_list_bytes": _size(str(head.manifestListLocation())),
        "metadata_bytes": _size(str(table.metadata_location)),
        "ledger_bytes": sum(f.stat().st_size for f in Path(local_path(table.location), names.LEDGER_FOLDER).iterdir()),
    }


def _size(uri: str) -> int:
    return Path(local_path(uri)).stat().st_size


def _documents(first: int, field_id: int) -> Iterator[str]:
    for n in count_from(first):
        yield described_file(n, n // PER_PARTITION % PARTITIONS + 1, (n, n + 1), field_id)


def goals(parts: Mapping[str, Part]) -> list[Goal]:
    """The plan of a vacuum of a million files."""
    found = []
    for r in (r for r in results_of(parts, "growing") if r["files"] == PLANNED_FILES):
        what = f"plan of a vacuum of {r['files']:,} files with {parts['growing']['tombstones']:,} tombstones"
        found.append(goal(f"{what}: seconds", r["plan_seconds"], PLAN_SECONDS))
        found.append(goal(f"{what}: peak bytes", r["plan_peak_bytes"], PLAN_BYTES))
    return found


SUITE = Suite(
    name="scaling",
    purpose=(__doc__ or "").splitlines()[0],
    parts={"growing": growing},
    scales=SCALES,
    goals=goals,
    views=(
        View(
            "A growing table",
            ("growing",),
            ("files",),
            cells=(
                Cell("manifest bytes per file", "manifest_bytes", per="files"),
                Cell("ledger bytes per batch", "ledger_bytes", per="files"),
                Cell("KiB of the metadata file", "metadata_bytes", 1024),
                Cell("registered a second", "registered", per="register_seconds"),
                Cell("s to commit 100 tombstones", "commit_seconds"),
                Cell("s to plan a vacuum", "plan_seconds"),
                Cell("MiB for it", "plan_peak_bytes", MIB),
            ),
        ),
    ),
    page="scaling.md",
)


if __name__ == "__main__":
    program(SUITE)

"""What the tests of a vacuum's maintenance share."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lethe.contract.result import RunResult
from lethe.contract.run import Maintenance, RunSpec, SnapshotLimits
from lethe.iceberg.facts import data_files
from lethe_spark.jvm.spark_table import SparkTable

from tests.spark.support.story import Story, local

DAY = 86_400
MAINTENANCE = set(Maintenance.model_fields)


def maintaining(story: Story, key: str = "1", limits: SnapshotLimits | None = None, **wanted: Any) -> RunSpec:
    """A vacuum with these fields of `spec.maintenance` and of the vacuum itself."""
    run = story.vacuuming(limits, key)
    assert run.vacuum is not None
    asked = Maintenance(**{k: v for k, v in wanted.items() if k in MAINTENANCE})
    changes = {"maintenance": asked, **{k: v for k, v in wanted.items() if k not in MAINTENANCE}}
    return run.model_copy(update={"vacuum": run.vacuum.model_copy(update=changes)})


def maintain(story: Story, at: dict[str, Callable[[], object]] | None = None, **wanted: Any) -> RunResult:
    return story.run(maintaining(story, **wanted), **(at or {}))


def table_of(story: Story) -> SparkTable:
    table = SparkTable.load(story.spark, story.catalog, story.name)
    assert table is not None
    return table


def by_day(story: Story) -> dict[str, list[list[str | None]]]:
    """Of each partition, what each of its data files holds, in the order of the rows."""
    found: dict[str, list[list[str | None]]] = {}
    for path, ids in story.files().items():
        found.setdefault(Path(path).parent.name, []).append(ids)
    return found


def added_by(story: Story) -> dict[str, int | None]:
    """Of each live data file, the snapshot that its manifest says added it."""
    table = story.table()
    field_id = table.schema().find_field("batch_id").field_id
    return {f.path: f.added_by for f in data_files(table, story.head().snapshot_id, field_id)}


def manifests(story: Story) -> int:
    return len(story.head().manifests(story.table().io))


def below(story: Story) -> dict[str, Path]:
    """Every file below the table by its path there, but for check sums of the local file system."""
    root = Path(local(story.table().location()))
    return {p.relative_to(root).as_posix(): p for p in root.rglob("*") if p.is_file() and not p.name.endswith(".crc")}


def grow_old(*paths: Path, days: float = 4) -> None:
    """Files, and the check sums that the local file system keeps of them, were written so long ago."""
    moment = time.time() - days * DAY
    for path in paths:
        for file in (path, path.with_name(f".{path.name}.crc")):
            if file.exists():
                os.utime(file, (moment, moment))

"""What engines that do not know Lethe find in its tables, in each mode of deletes, before and after a vacuum.

`make docs-engines` writes what is measured into docs/engines.md. This test fails if the page says something else.
"""

import json
import os
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import lethe
from lethe.contract.settings import Deletes
from pyspark.sql import SparkSession

from tests.spark.engines.page import Cell, Kind, Outcome, cell, rendered, replaced
from tests.spark.engines.readers import COLUMNS, READERS
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import Story, of_batches
from tests.support.environments import python_of
from tests.support.lake import Lake

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = ROOT / "docs" / "engines.md"
WRITE: Final = os.environ.get("LETHE_WRITE_ENGINES", "")
SPARK, SCAN = "Spark SQL", "lethe.scan"
ROWS: Final = 100  # of a batch
MODES: Final = [(mode, v) for mode in Deletes for v in ([mode.native.format_version] if mode.native else [2, 3])]
EVERY, LEFT = ([row[:2] for row in of_batches(*ids, rows=ROWS).elements()] for ids in (("A", "B", "C"), ("A", "C")))
Tables = dict[Kind, Native]


def test_the_page_says_what_each_engine_finds(spark: SparkSession, lake: Lake) -> None:
    stories = [_reverted(spark, lake, mode, v) for mode, v in MODES]
    versions = {SCAN: "", SPARK: f"{spark.version} (Iceberg {_iceberg(spark)})"}
    matrix: dict[str, dict[Kind, Cell]] = {}
    for vacuumed in (False, True):
        tables = {Kind(s.deletes, s.format_version, vacuumed): s for s in stories}
        if vacuumed:
            for story in stories:
                story.vacuum()
        for engine, found in _read(tables, versions, lake.home):
            matrix.setdefault(engine, {}).update(found)

    assert all(c.outcome is Outcome.RIGHT for c in matrix[SCAN].values())
    assert not [(e, k) for e, cells in matrix.items() for k, c in cells.items() if c.outcome is Outcome.WRONG]
    for engine, cells in matrix.items():
        for kind, found in cells.items():
            if engine != SCAN and kind.deletes == Deletes.LEDGER:  # by design
                expected = Outcome.RIGHT if kind.vacuumed else Outcome.ALL_ROWS
                assert found.outcome in (expected, Outcome.REFUSES), (engine, kind)

    page = replaced(PAGE.read_text(), rendered(matrix, versions))
    if WRITE:
        PAGE.write_text(page)
    assert PAGE.read_text() == page, "run `make docs-engines`, and look at what has changed"


def _reverted(spark: SparkSession, lake: Lake, mode: Deletes, format_version: int) -> Native:
    """Three batches in the same files; the rows of B are reverted."""
    name = Story.begin(spark, lake).name
    story = Native(spark, lake, name, format_version=format_version, deletes=mode)
    story.put("A", "B", "C", rows=ROWS)
    story.consolidate("A", "B", "C")
    assert story.revert("B").rows_deleted == ROWS
    return story


def _read(tables: Tables, versions: dict[str, str], home: Path) -> Iterable[tuple[str, dict[Kind, Cell]]]:
    yield SCAN, {k: _cell({"rows": _by_lethe(s)}) for k, s in tables.items()}
    yield SPARK, {k: _cell({"rows": [row[:2] for row in s.plain().elements()]}) for k, s in tables.items()}
    metadata = [s.table().metadata_location for s in tables.values()]
    with ThreadPoolExecutor(2) as pool:
        for engine, found in zip(READERS, pool.map(lambda e: _in_a_process(e, metadata, home), READERS), strict=True):
            versions[engine] = found["version"]
            yield engine, dict(zip(tables, map(_cell, found["tables"]), strict=True))


def _by_lethe(story: Native) -> list[list[Any]]:
    found = lethe.scan(story.full_name).to_arrow().select(COLUMNS)
    return [list(row.values()) for row in found.to_pylist()]


def _cell(read: dict[str, Any]) -> Cell:
    return Cell(Outcome.REFUSES, read["error"]) if "error" in read else cell(read["rows"], LEFT, EVERY)


def _in_a_process(engine: str, metadata: list[str], home: Path) -> dict[str, Any]:
    """What `readers` prints. ClickHouse reads only files below its working directory."""
    command = [python_of("engines"), "-m", "tests.spark.engines.readers", engine, *metadata]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"{engine}: {done.stderr[-2000:]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _iceberg(spark: SparkSession) -> str:
    assert spark.sparkContext._jvm is not None
    return str(spark.sparkContext._jvm.org.apache.iceberg.IcebergBuild.version())

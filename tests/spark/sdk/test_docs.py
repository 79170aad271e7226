"""The Python of the documentation about reading and writing, run in the order of the pages on a table as they describe it."""

import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import lethe
import lethe_spark
import pytest
from pyspark.sql import SparkSession

from tests.support.lake import Lake
from tests.unit.docs.blocks import ROOT, Block, blocks_of

A_SNAPSHOT = "8642949070972100074"
# Pages, and a line of the block.
READING = (
    ("README.md", "lethe.scan("),
    ("docs/reading.md", "lethe_spark.create_view("),
    ("docs/reading.md", "since=yesterday"),
)


@pytest.mark.long
def test_the_blocks_do_what_the_pages_say(spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    warehouse = f"file://{lake.home}/main"
    lake.add_catalog("main", type="sql", uri=f"sqlite:///{lake.home}/main.db", warehouse=warehouse)
    monkeypatch.setenv("PYICEBERG_HOME", str(lake.home))
    lethe_spark.make_session("main")
    spark.sql("CREATE NAMESPACE IF NOT EXISTS main.air")
    spark.sql("CREATE TABLE main.air.flights (carrier string, day string, batch_id string) USING iceberg")
    frame = spark.createDataFrame([("UA", "2013-03-02"), ("EV", "2013-02-08")], "carrier string, day string")
    known: dict[str, Any] = {"frame": frame, "spark": spark}
    lethe_spark.write(frame, "main.air.flights", batch_id="2026-03-03")
    yesterday = datetime.now(UTC)
    first = str(lethe.scan("main.air.flights").snapshot_id)

    run(known, "docs/sdk.md", 'lethe_spark.make_session("main")')
    assert batches() == ["2026-03-02", "2026-03-02", "2026-03-03", "2026-03-03"]
    run(known, "docs/sdk.md", "done = lethe_spark.write(")
    assert batches() == ["2026-03-02.corrected", "2026-03-02.corrected", "2026-03-03", "2026-03-03"]
    run(known, "docs/sdk.md", "lethe_spark.undo(")
    assert batches() == ["2026-03-02.corrected", "2026-03-02.corrected", "2026-03-03", "2026-03-03"]
    known |= {"yesterday": yesterday, "today": datetime.now(UTC)}
    subprocess.run([sys.executable, "-m", "lethe.cli", "track", "main.air.flights"], check=True, timeout=60)
    for page, line in READING:
        run(known, page, line, first)
    # PyIceberg reads its configuration when it is imported.
    subprocess.run([sys.executable, "-c", the_block("docs/batches.md", "to_duckdb(").text], check=True, timeout=60)


def run(known: dict[str, Any], page: str, line: str, snapshot: str = "") -> None:
    """Execute the block of a page that contains the line. `snapshot`: the id in place of the one on the page."""
    block = the_block(page, line)
    exec(compile(block.text.replace(A_SNAPSHOT, snapshot), str(block), "exec"), known)


def the_block(page: str, line: str) -> Block:
    (block,) = [b for b in blocks_of(page, (ROOT / page).read_text()) if b.language == "python" and line in b.text]
    return block


def batches() -> list[str]:
    return sorted(lethe.scan("main.air.flights").to_arrow()["batch_id"].to_pylist())

"""The benchmark itself, at a scale that says nothing about speed: that it still runs, checks itself and tells its result."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import report, rivals

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_benchmark_measures_every_goal_at_a_tiny_scale(tmp_path: Path) -> None:
    """One process, as `make bench-ledger` starts it. What it cannot measure it would report as failed, with exit code 1."""
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-m", "bench.ledger", "--scale", "tiny", "--work", str(tmp_path / "work"), "--out", str(out)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}/operator:{ROOT}/spark_apps"},
        capture_output=True,
        text=True,
        timeout=600,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    document = json.loads((out / "ledger.json").read_text())
    assert len(document["goals"]) == 13
    assert all(g["measured"] is not None for g in document["goals"])
    kinds = {r.get("kind") for part in document["parts"].values() for r in part["results"]}
    assert kinds >= {rivals.LEDGER, rivals.COPY_ON_WRITE, rivals.DELETION_VECTORS, rivals.EQUALITY_DELETES}
    page = (tmp_path / "out.md").read_text()
    assert report.BEGIN in page
    assert all((out / picture).exists() for picture in ("commits.svg", "reads.svg", "reverts.svg"))
    assert not (tmp_path / "work" / "warehouse").exists(), "the tables are left behind"


def test_a_second_report_replaces_the_first_and_leaves_the_prose(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(f"# Benchmarks\n\nBefore.\n\n{report.BEGIN}\nold\n{report.END}\n\nAfter.\n")

    report.insert(page, "first\n")
    report.insert(page, "second\n")

    text = page.read_text()
    assert "old" not in text
    assert "first" not in text
    assert text.startswith("# Benchmarks\n\nBefore.\n")
    assert text.endswith("After.\n")
    assert "second" in text


def test_a_goal_that_was_not_measured_is_not_met() -> None:
    failed = {"kind": rivals.LEDGER, "batches": 1, "error": "ValueError: no", "seconds": {"median": 0.1}}
    vectors = {"kind": rivals.DELETION_VECTORS, "batches": 1, "seconds": {"median": 0.9}}

    found = report.goals({"reverts-full": {"results": [failed, vectors]}})

    assert {(g["measured"], g["met"]) for g in found} == {(None, report.UNKNOWN)}


@pytest.mark.long
def test_registration_is_measured_at_a_tiny_scale() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.registration", "--files", "70", "--rounds", "2"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'spark_apps'}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=240,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    rounds = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [(r["round"], r["files"]) for r in rounds] == [(0, 70), (1, 70)]

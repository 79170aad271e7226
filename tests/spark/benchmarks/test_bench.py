"""The benchmark itself, at a scale that says nothing about speed: that it still runs, checks itself and tells its result."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import (
    consolidation_report,
    deletes_kinds,
    deletes_report,
    ledger_report,
    page,
    rivals,
    tracking,
    vacuum_purges,
    vacuum_report,
)

ROOT = Path(__file__).parents[3]


def measured(name: str, home: Path) -> dict[str, Any]:
    """What a benchmark has measured in a process of its own, as `make bench-…` starts it."""
    out = home / "out"
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{name}", "--scale", "tiny", "--work", str(home / "work"), "--out", str(out)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}/operator:{ROOT}/spark_apps:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads((out / f"{name}.json").read_text())
    return found


@pytest.mark.long
def test_the_benchmark_measures_every_goal_at_a_tiny_scale(tmp_path: Path) -> None:
    """What it cannot measure it would report as failed, with exit code 1."""
    document = measured("ledger", tmp_path)

    assert len(document["goals"]) == 13
    assert all(g["measured"] is not None for g in document["goals"])
    kinds = {r.get("kind") for part in document["parts"].values() for r in part["results"]}
    assert kinds >= {rivals.LEDGER, rivals.COPY_ON_WRITE, rivals.DELETION_VECTORS, rivals.EQUALITY_DELETES}
    assert page.begin("ledger") in (tmp_path / "out.md").read_text()
    assert all((tmp_path / "out" / picture).exists() for picture in ("commits.svg", "reads.svg", "reverts.svg"))
    assert not (tmp_path / "work" / "warehouse").exists(), "the tables are left behind"


def test_a_second_report_replaces_the_first_and_leaves_the_prose(tmp_path: Path) -> None:
    file = tmp_path / "benchmarks.md"
    begin, end = page.begin("ledger"), page.end("ledger")
    file.write_text(f"# Benchmarks\n\nBefore.\n\n{begin}\nold\n{end}\n\nAfter.\n")

    page.insert(file, "ledger", "first\n")
    page.insert(file, "ledger", "second\n")

    text = file.read_text()
    assert "old" not in text
    assert "first" not in text
    assert text.startswith("# Benchmarks\n\nBefore.\n")
    assert text.endswith("After.\n")
    assert "second" in text


def test_a_goal_that_was_not_measured_is_not_met() -> None:
    failed = {"kind": rivals.LEDGER, "batches": 1, "error": "ValueError: no", "seconds": {"median": 0.1}}
    vectors = {"kind": rivals.DELETION_VECTORS, "batches": 1, "seconds": {"median": 0.9}}

    found = ledger_report.goals({"reverts-full": {"results": [failed, vectors]}})

    assert {(g["measured"], g["met"]) for g in found} == {(None, page.UNKNOWN)}


def test_the_benchmark_of_the_table_of_batches_measures_every_kind_of_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends with an error if an update was made anew that was not to be."""
    monkeypatch.setenv("PYICEBERG_HOME", "put back afterwards")
    monkeypatch.setenv("LETHE_BENCH_WORK", str(tmp_path))

    assert tracking.main(["--batches", "300", "--changed", "5", "--repeats", "1"]) == 0

    lines = [line.split("|") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [(line[1].strip(), line[2].strip()) for line in lines] == [
        ("all, from the ledger", "300"),
        ("new", "5"),
        ("reverted, neighbours", "5"),
        ("reverted, scattered", "5"),
        ("none (a vacuum)", "0"),
    ]


@pytest.mark.long
def test_the_benchmark_of_consolidation_measures_every_part_at_a_tiny_scale(tmp_path: Path) -> None:
    document = measured("consolidation", tmp_path)

    assert set(document["parts"]) == {"sustained", "growth", "register", "rivals", "commits"}
    assert all(g["measured"] is not None for g in document["goals"])
    assert document["parts"]["sustained"]["commits"] == 2
    assert page.begin("consolidation") in (tmp_path / "out.md").read_text()


@pytest.mark.long
def test_the_benchmark_of_deletes_measures_every_reader_of_every_kind_at_a_tiny_scale(tmp_path: Path) -> None:
    """And finds that each sees just the rows that it should: a plain one all of them with the ledger alone."""
    document = measured("deletes", tmp_path)

    reverts, reads, vacuums = (document["parts"][part] for part in ("reverts", "reads", "vacuums"))
    kinds = set(deletes_kinds.VERSIONS)
    assert {r["kind"] for r in reverts["results"]} == {r["kind"] for r in vacuums["results"]} == kinds
    assert all(r["bytes"]["min"] > 0 for r in reverts["results"])
    seen = {(r["kind"], r["reader"]): r["rows"] for r in reads["results"]}
    assert seen.keys() >= {(kind, reader) for kind in kinds for reader in deletes_kinds.READERS}
    assert seen["Ledger", deletes_kinds.PLAIN] == seen[deletes_kinds.NOTHING_DELETED, deletes_kinds.PLAIN] == 2400
    assert {n for (kind, _), n in seen.items() if kind in kinds - {"Ledger"}} == {2200}
    assert page.begin("deletes") in (tmp_path / "deletes.md").read_text()
    assert all((tmp_path / "out" / picture).exists() for picture in ("deletes-reverts.svg", "deletes-reads.svg"))


@pytest.mark.long
def test_the_benchmark_of_the_vacuum_measures_every_way_at_a_tiny_scale(tmp_path: Path) -> None:
    """And finds that each leaves just the rows that it should."""
    document = measured("vacuum", tmp_path)

    assert set(document["parts"]) == {"purges-sorted", "purges-unsorted", "scan", "reads"}
    for part in ("purges-sorted", "purges-unsorted"):
        results = document["parts"][part]["results"]
        assert {(r["way"], r["deleted"]) for r in results} == {(w, n) for w in vacuum_purges.WAYS for n in (4, 120)}
        assert not [r["error"] for r in results if "error" in r]
        assert all(r["held_bytes"] > 0 for r in results)
    scans = document["parts"]["scan"]["results"]
    assert {(r["files"], r["tombstones"], r["sorted"]) for r in scans} == {
        (f, t, s) for f in (20, 50) for t in (10, 40) for s in (True, False)
    }
    assert all(r["peak_bytes"] > 0 and 0 < r["planned_files"] <= r["files"] for r in scans)
    assert [r["what"] for r in document["parts"]["reads"]["results"]] == [
        "nothing deleted",
        "before the purge",
        "after the purge",
    ]
    assert all(g["measured"] is not None for g in document["goals"])
    assert page.begin("vacuum") in (tmp_path / "out.md").read_text()
    assert all(
        (tmp_path / "out" / f"vacuum-{name}.svg").exists() for name in ("purges-sorted", "purges-unsorted", "scan")
    )


def test_a_table_that_a_reader_refuses_is_told_as_that_and_not_as_a_failure() -> None:
    """PyIceberg reads no equality deletes: that is what a user has to know."""
    labels = {"kind": "EqualityDeletes", "reader": deletes_kinds.ARROW, "rows": 90}
    part = {
        "table": {"rows": 100, "batches": 10, "files": 1},
        "deleted": 1,
        "results": [{**labels, "refused": "Because"}],
    }
    machine = dict.fromkeys(("commit", "cores", "processor", "memory_gib", "master", "driver_memory", "catalog"), "")
    document = {
        "command": "x",
        "scale": "tiny",
        "machine": {**machine, "versions": {}, "load_before": [0]},
        "took_seconds": 0,
        "parts": {"reads": part},
    }

    text = deletes_report.section(document, {}, "benchmarks")

    assert "| lethe.scan | EqualityDeletes | 90 | refuses | Because |" in text


def test_growth_is_told_by_the_pace_of_the_machine_where_that_is_known() -> None:
    """Commits that take twice as long while all else does so as well have not become slower."""
    windows = [
        {"commits": n, "seconds": {"median": seconds}, "pace_seconds": pace}
        for n, seconds, pace in ((10, 0.2, 0.01), (20, 0.3, 0.02), (30, 0.44, 0.02))
    ]
    unknown = [{k: v for k, v in w.items() if k != "pace_seconds"} for w in windows]

    assert consolidation_report.growth({"results": windows}) == pytest.approx(1.1)
    assert consolidation_report.growth({"results": unknown}) == pytest.approx(2.2)


def test_a_vacuum_that_rewrites_more_than_it_has_to_misses_its_goal() -> None:
    def purged(deleted: int, rewritten: int, held: int = 1000) -> dict[str, Any]:
        spread = dict.fromkeys(("min", "median", "max"), rewritten)
        return {"way": "vacuum", "deleted": deleted, "sorted": True, "bytes": spread, "held_bytes": held}

    slow = {"files": 9, "tombstones": 9, "sorted": True, "seconds": dict.fromkeys(("min", "median", "max"), 11.0)}
    fast = {**slow, "tombstones": 3, "seconds": dict.fromkeys(("min", "median", "max"), 1.0)}
    purges = [purged(1, 1000), purged(2, 1100), purged(3, 0), {"way": "vacuum", "deleted": 4, "error": "no"}]

    found = vacuum_report.goals({"purges-sorted": {"results": purges}, "scan": {"results": [slow, fast]}})

    assert [(g["measured"], g["met"]) for g in found] == [
        (1.0, page.YES),
        (1.1, page.NO),
        (0.0, page.YES),
        (None, page.UNKNOWN),
        (11.0, page.NO),
    ]

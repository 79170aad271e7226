"""The benchmark itself, at a scale that says nothing about speed: that it still runs, checks itself and tells its result."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import compactors, consolidation, deletes, formats, report, rivals, row_groups, stream, vacuum

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
    assert report.begin("ledger") in (tmp_path / "out.md").read_text()
    assert all((tmp_path / "out" / picture).exists() for picture in ("ledger-commits.svg", "ledger-reverts.svg"))
    assert not (tmp_path / "work" / "warehouse").exists(), "the tables are left behind"


@pytest.mark.long
def test_the_benchmark_of_consolidation_measures_every_part_at_a_tiny_scale(tmp_path: Path) -> None:
    document = measured("consolidation", tmp_path)

    assert set(document["parts"]) == set(consolidation.SUITE.parts)
    assert all(g["measured"] is not None for g in document["goals"])
    assert document["parts"]["sustained"]["commits"] == 2
    assert report.begin("consolidation") in (tmp_path / "out.md").read_text()


@pytest.mark.long
def test_the_benchmark_of_other_programs_finds_all_rows_of_each_at_a_tiny_scale(tmp_path: Path) -> None:
    document = measured("compactors", tmp_path)

    programs = {*compactors.TO_FOLDER, *compactors.OF_DUCKLAKE, *compactors.OF_TABLE, compactors.SPARK}
    assert {r["program"] for r in document["parts"]["programs"]["results"]} == {*programs, *compactors.FIXED}
    assert all(g["measured"] is not None for g in document["goals"])


@pytest.mark.long
def test_the_benchmark_of_formats_reads_all_rows_by_each_program_at_a_tiny_scale(tmp_path: Path) -> None:
    document = measured("formats", tmp_path)

    results = document["parts"]["inputs"]["results"]
    assert {r["program"] for r in results} == set(formats.PROGRAMS)
    assert {r["input"] for r in results} == set(formats.INPUTS)
    assert all(r["cpu_seconds"]["all"] for r in results)


@pytest.mark.long
def test_the_benchmark_of_the_operator_on_one_machine_finds_all_rows_and_all_time_at_a_tiny_scale(
    tmp_path: Path,
) -> None:
    document = measured("stream", tmp_path)

    ways = {r["way"]: r["seconds"] for r in document["parts"]["local"]["results"]}
    stages = {r["stage"]: r["seconds"] for r in document["parts"]["stages"]["results"]}
    assert stages["run: Writing"] > 0
    assert sum(stages.values()) == pytest.approx(ways[stream.OPERATOR], abs=1)
    assert all(g["measured"] is not None for g in document["goals"])


@pytest.mark.long
def test_the_benchmark_of_deletes_measures_every_reader_of_every_kind_at_a_tiny_scale(tmp_path: Path) -> None:
    """And finds that each sees just the rows that it should: a plain one all of them with the ledger alone."""
    document = measured("deletes", tmp_path)

    reverts, unsorted, reads, plans, vacuums = (document["parts"][part] for part in deletes.SUITE.parts)
    kinds = set(map(str, deletes.KINDS))
    assert {r["kind"] for r in vacuums["results"]} == kinds
    assert {r["kind"] for r in reverts["results"]} == {*kinds, deletes.DELETE}
    assert all(r["bytes"]["min"] > 0 for r in reverts["results"] if r["kind"] in kinds)
    assert all(r["read"] > r["column"] > 0 for r in unsorted["results"])
    assert {(r["reader"], r["commits"]) for r in plans["results"]} == {
        (r, n) for r in ("Spark", "PyIceberg") for n in (0, 3)
    }
    seen = {(r["kind"], r["reader"]): r["rows"] for r in reads["results"]}
    assert seen.keys() >= {(kind, reader) for kind in kinds for reader in deletes.READERS}
    assert seen["Ledger", deletes.PLAIN] == seen[deletes.NOTHING_DELETED, deletes.PLAIN] == 2400
    assert {n for (kind, _), n in seen.items() if kind in kinds - {"Ledger"}} == {2200}
    assert report.begin("deletes") in (tmp_path / "deletes.md").read_text()
    assert (tmp_path / "out" / "deletes-taking-batches-back.svg").exists()


@pytest.mark.long
def test_the_benchmark_of_row_groups_reads_and_purges_each_size_at_a_tiny_scale(tmp_path: Path) -> None:
    document = measured("row_groups", tmp_path)

    reads, purges = (document["parts"][part]["results"] for part in ("reads", "purges"))
    assert {(r["query"], r["mib"]) for r in reads} == {(q, mib) for q in row_groups.QUERIES for mib in (8, 16)}
    assert {(r["version"], r["mib"]) for r in purges} == {(v, mib) for v in (2, 3) for mib in (8, 16)}
    assert all(r["moved"] > r["encoded"] > 0 for r in purges)
    assert report.begin("row_groups") in (tmp_path / "out.md").read_text()
    assert (tmp_path / "out" / "row_groups-row-groups-reads.svg").exists()


@pytest.mark.long
def test_the_benchmark_of_the_vacuum_measures_every_way_at_a_tiny_scale(tmp_path: Path) -> None:
    """And finds that each leaves just the rows that it should."""
    document = measured("vacuum", tmp_path)

    assert set(document["parts"]) == {"purges-sorted", "purges-unsorted", "scan", "reads"}
    for part in ("purges-sorted", "purges-unsorted"):
        results = document["parts"][part]["results"]
        assert {(r["way"], r["deleted"]) for r in results} == {(w, n) for w in vacuum.WAYS for n in (4, 120)}
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
    assert report.begin("vacuum") in (tmp_path / "out.md").read_text()
    assert all((tmp_path / "out" / f"vacuum-{name}.svg").exists() for name in ("purges", "scan"))


@pytest.mark.long
def test_the_benchmark_of_requests_of_persons_measures_every_goal_at_a_tiny_scale(tmp_path: Path) -> None:
    """And finds that each request erases just the rows of its people."""
    document = measured("subjects", tmp_path)

    assert set(document["parts"]) == {"rewritten", "retention", "crowd", "person"}
    assert len(document["goals"]) == 9
    assert all(g["measured"] is not None for g in document["goals"])
    assert {kind: r["number"] for kind, r in document["parts"]["person"]["results"][0]["runs"].items()}["Vacuum"] == 2
    assert report.begin("subjects") in (tmp_path / "out.md").read_text()

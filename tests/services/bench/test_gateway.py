"""The benchmark of the gateway, on a small table."""

from pathlib import Path

import pytest

from bench import gateway, report
from bench.runner import main

REPORTED = {
    "pages,uploads": ("newest page", "ids of a month", "one batch", "peak MiB of memory"),
    "events": ("events a second",),
}


@pytest.mark.long
@pytest.mark.parametrize("parts", REPORTED)
def test_it_measures_what_it_is_told_to_and_writes_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: str
) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", "put back afterwards")
    where = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]

    assert main(gateway.SUITE, ["--scale", "tiny", "--only", parts, *where]) == 0

    text = (tmp_path / "out.md").read_text()
    assert [words for words in REPORTED[parts] if words not in text] == []


def test_a_kind_that_failed_is_not_a_goal_that_is_met() -> None:
    failed = {"kind": "newest page", "error": "AssertionError: 503"}
    one = {"kind": "one batch", "p95": 0.01}
    part = {"batches": 10, "results": [failed, one], "memory_mib": {"peak": 300.0}}

    found = gateway.goals({"pages": part})

    assert [g["met"] for g in found] == [report.UNKNOWN, report.YES, report.NO]

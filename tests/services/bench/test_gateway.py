"""The benchmark of the gateway, on a small table."""

from pathlib import Path

import pytest

from bench import gateway, report
from bench.runner import main


def test_it_measures_every_kind_of_request_and_writes_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", "put back afterwards")

    code = main(
        gateway.SUITE,
        [
            "--scale",
            "tiny",
            "--only",
            "pages,uploads",
            "--work",
            str(tmp_path / "work"),
            "--out",
            str(tmp_path / "out"),
        ],
    )

    assert code == 0
    text = (tmp_path / "out.md").read_text()
    for kind in ("newest page", "ids of a month", "one batch", "peak MiB of memory"):
        assert kind in text


def test_a_kind_that_failed_is_not_a_goal_that_is_met() -> None:
    failed = {"kind": "newest page", "error": "AssertionError: 503"}
    one = {"kind": "one batch", "p95": 0.01}
    part = {"batches": 10, "results": [failed, one], "memory_mib": {"peak": 300.0}}

    found = gateway.goals({"pages": part})

    assert [g["met"] for g in found] == [report.UNKNOWN, report.YES, report.NO]

"""The benchmark of status events, on a few commits and a real broker."""

from pathlib import Path

import pytest

from bench import gateway
from bench.runner import main


def test_it_measures_a_backlog_and_the_lag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", "put back afterwards")
    where = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]

    assert main(gateway.SUITE, ["--scale", "tiny", "--only", "events", *where]) == 0

    text = (tmp_path / "out.md").read_text()
    assert "| backlog | 2 | 201 |" in text
    assert "| lag | 3 |" in text

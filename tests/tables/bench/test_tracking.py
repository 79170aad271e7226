"""The benchmark of the table of batches, on PyIceberg and local files."""

from pathlib import Path

import pytest

from bench import (
    tracking,
)


@pytest.mark.long
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

"""The examples of the SDK run as a user runs them, and keep what their texts promise."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import lethe
import pytest
from lethe_spark.run.context import KILLED

ROOT = Path(__file__).parents[3]


def run(example: str, home: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(ROOT / "examples/sdk" / example), str(home)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "spark_apps"), **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_batches_are_written_replaced_reverted_undone_and_read(tmp_path: Path) -> None:
    done = run("batch.py", tmp_path / "lake")

    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [
        "written again: True",
        "two batches: 1=10 (2026-03-02), 2=20 (2026-03-02), 3=30 (2026-03-03)",
        "replaced: 1=11 (2026-03-02.corrected), 2=21 (2026-03-02.corrected), 3=30 (2026-03-03)",
        "reverted: 1=11 (2026-03-02.corrected), 2=21 (2026-03-02.corrected)",
        "undone: 1=11 (2026-03-02.corrected), 2=21 (2026-03-02.corrected), 3=30 (2026-03-03)",
        "at the revert: [1, 2]",
    ]


@pytest.mark.long
def test_an_epoch_is_in_the_table_once_though_the_stream_was_killed_before_it_could_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the table's commit and before the checkpoint's: the worst moment."""
    home = tmp_path / "lake"
    landing = home / "landing"
    landing.mkdir(parents=True)
    for n in range(3):
        lines = [json.dumps({"id": 10 * n + i, "page": f"p{n}"}) for i in range(2)]
        (landing / f"{n}.json").write_text("\n".join(lines))
    monkeypatch.setenv("PYICEBERG_HOME", str(home))

    killed = run("streaming.py", home, LETHE_CRASH_AT="after-commit")

    assert killed.returncode == KILLED, killed.stderr[-3000:]
    assert lethe.scan("local.shop.clicks").count() == 2
    assert not list((home / "checkpoint/commits").glob("0*"))

    restarted = run("streaming.py", home)

    assert restarted.returncode == 0, restarted.stderr[-3000:]
    assert restarted.stdout.splitlines() == ["epoch 0: 2 rows, written before", "epoch 1: 2 rows", "epoch 2: 2 rows"]
    rows = lethe.scan("local.shop.clicks").to_arrow()
    assert sorted(rows["id"].to_pylist()) == [0, 1, 10, 11, 20, 21]
    stream = json.loads((home / "checkpoint/metadata").read_text())["id"]
    assert Counter(rows["batch_id"].to_pylist()) == {f"clicks-{stream}-{n:09d}": 2 for n in range(3)}

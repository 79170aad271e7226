"""`lethe demo` from its first line to its last. It checks its own numbers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_the_demo_finds_every_number_right(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lethe.cli", "demo", "--person", "--dir", str(tmp_path / "demo")],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "All numbers were right." in done.stdout
    assert "the erasure is verified" in done.stdout
    assert "one record for the three tables is accepted" in done.stdout
    assert "no file of the tables, no log and no resource has her address" in done.stdout
    assert "make demo-cluster" in done.stdout
    assert "Exception" not in done.stderr

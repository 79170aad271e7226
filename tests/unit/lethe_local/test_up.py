"""What `lethe local up` does while it runs: it starts ended parts again, and survives what happens to its folder."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from lethe_local import up
from lethe_local.up import LONGEST_PAUSE_SECONDS, LocalProcess

from tests.support.clock import wait_until

LIMIT_SECONDS = 30


def test_a_part_that_has_run_for_long_starts_again_as_soon_as_after_its_first_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = LocalProcess("operator", [sys.executable, "-c", "pass"], {}, tmp_path)
    now = time.monotonic()

    def pause_after(seconds: float) -> float:
        """Start the part, let it end after this time, and return for how long it then stays down."""
        nonlocal now
        part.look()
        running = part.running
        assert running is not None
        wait_until(lambda: running.exit_code is not None, LIMIT_SECONDS)
        now += seconds
        part.look()
        pause, now = part.starts - now, part.starts
        return pause

    monkeypatch.setattr(up, "time", SimpleNamespace(monotonic=lambda: now))

    assert [pause_after(1), pause_after(1), pause_after(1)] == pytest.approx([1, 2, 4])
    assert pause_after(2 * LONGEST_PAUSE_SECONDS) == pytest.approx(1)

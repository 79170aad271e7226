"""What ends with the process of a pod."""

import os
import sys
from pathlib import Path

import pytest
from lethe_local import node

from tests.support.clock import wait_until

# Starts a process in a group of its own, as the warm driver does with its Spark session, writes its number, and waits.
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open("child.new", "w").write(str(child.pid))
import os
os.rename("child.new", "child")
time.sleep(600)
"""
LIMIT_SECONDS = 30

pytestmark = pytest.mark.skipif(not node.PROC.is_dir(), reason="the kernel has no /proc, so there is no warm driver")


def started(folder: Path) -> tuple[node.PodProcess, int]:
    """A process and the number of the one that it has started."""
    folder.mkdir()
    running = node.start([sys.executable, "-c", PARENT], dict(os.environ), folder)
    wait_until((folder / "child").exists, LIMIT_SECONDS)
    return running, int((folder / "child").read_text())


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_process_is_killed_with_those_that_it_has_put_into_other_groups(tmp_path: Path) -> None:
    running, child = started(tmp_path / "one")
    _, other = started(tmp_path / "other")

    running.kill()
    running.wait(LIMIT_SECONDS)

    wait_until(lambda: not is_alive(child), LIMIT_SECONDS)
    assert is_alive(other)
    node.kill_leftover(tmp_path / "other")
    wait_until(lambda: not is_alive(other), LIMIT_SECONDS)


def test_what_a_process_of_an_earlier_life_has_left_is_killed_though_the_process_itself_is_gone(tmp_path: Path) -> None:
    running, child = started(tmp_path / "one")
    running.process.kill()
    running.process.wait()
    assert is_alive(child)

    node.kill_leftover(tmp_path / "one")

    wait_until(lambda: not is_alive(child), LIMIT_SECONDS)

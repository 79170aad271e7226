"""The process of a pod: started in a group of its own, stopped by SIGTERM and then SIGKILL. I/O: processes.

A process may start others in groups of their own, as the warm driver does with its Spark session. On Linux they are found by a
variable that each process inherits.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PID_FILE: Final = "pid"
LOG_FILE: Final = "log"
GRACE_SECONDS: Final = 30.0
# Names the folder of the pod in the environment of its processes.
FOLDER_VARIABLE: Final = "LETHE_POD_FOLDER"
PROC: Final = Path("/proc")


@dataclass
class PodProcess:
    """A running process and what it has started."""

    process: "subprocess.Popen[bytes]"
    folder: Path
    terminated: float | None = None  # when SIGTERM was sent, by time.monotonic; None: it was not

    @property
    def exit_code(self) -> int | None:
        """As a container has it: 128 + n after signal n; None: the process runs."""
        code = self.process.poll()
        return None if code is None else code if code >= 0 else 128 - code

    def stop(self) -> None:
        """Ask the process to end, and after its grace period kill it. Call it until the process has ended."""
        now = time.monotonic()
        if self.terminated is None:
            self.terminated = now
            _signal(self.process.pid, signal.SIGTERM)
        elif now - self.terminated > GRACE_SECONDS:
            self.kill()

    def kill(self) -> None:
        """Kill the process, if it runs, and what it has left behind."""
        _signal(self.process.pid, signal.SIGKILL)
        _kill_groups(self.folder)

    def wait(self, seconds: float) -> None:
        """Wait until the process has ended; kill it after a time."""
        try:
            self.process.wait(max(seconds, 0.1))
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()


def start(command: Sequence[str], environ: Mapping[str, str], folder: Path) -> PodProcess:
    """Start a process whose output goes to `log` in its folder. Raises: OSError."""
    with (folder / LOG_FILE).open("ab") as log:
        process = subprocess.Popen(
            command,
            env={**environ, FOLDER_VARIABLE: str(folder)},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (folder / PID_FILE).write_text(f"{process.pid} {_started(process.pid)}")
    return PodProcess(process, folder)


def kill_leftover(folder: Path) -> None:
    """Kill the process of a pod that an earlier life of `lethe local up` started, if it still runs, and what it has started."""
    pid = _running(folder)
    if pid is not None:
        _signal(pid, signal.SIGKILL)
    _kill_groups(folder)


def wait_for_leftover(folder: Path, seconds: float) -> None:
    """Wait until the processes that `kill_leftover` has killed are gone, so that they write no more files."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends and (is_running(folder) or any(_of_folder(folder))):
        time.sleep(0.02)


def is_running(folder: Path) -> bool:
    """Whether the process that was started in a folder has not ended."""
    return _running(folder) is not None


def _running(folder: Path) -> int | None:
    """The process that was started in a folder; None: it has ended."""
    try:
        pid, _, started = (folder / PID_FILE).read_text().partition(" ")
    except OSError:
        return None
    return int(pid) if pid.isdecimal() and started and _started(int(pid)) == started else None


def _kill_groups(folder: Path) -> None:
    """Kill the processes of a pod that are in other groups than its first process."""
    for pid in _of_folder(folder):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _of_folder(folder: Path) -> Iterator[int]:
    """The processes of a pod. Empty, if the system has no /proc."""
    wanted = f"{FOLDER_VARIABLE}={folder}".encode()
    for entry in PROC.glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if wanted in entry.read_bytes().split(b"\0"):
                yield int(entry.parent.name)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _started(pid: int) -> str:
    """When a process started, which tells it from a later one with the same number; "": it does not exist."""
    found = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip()

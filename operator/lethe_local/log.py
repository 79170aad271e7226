"""Reads the logs of runs, and of the processes that always run, in the folder of `lethe local`. I/O: files."""

import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lethe.base.errors import InputError
from lethe.contract.run_log import lines_of_run

from lethe_local.folder import WARM_DRIVER, Folder
from lethe_local.node import process

LOOK_SECONDS: Final = 0.3
LAST_LINES: Final = 200


def lines_of(folder: Folder, name: str, last: int, follow: bool) -> Iterator[str]:
    """The log of `operator`, `committer`, or a run. `last` and `follow` as of `log_lines`. Raises: InputError (`NoLog`)."""
    file = log_of(folder, name)
    if file is not None:
        yield from log_lines(file, last, follow)
        return
    lines = warm_lines(folder, name)
    if not lines:
        raise InputError(
            "NoLog",
            f"{folder.runs} has no log of {name}: a log is deleted with its run, and the committer writes those of its runs into "
            "its own. `lethe runs` shows the names of runs; `lethe local logs committer` shows the log of the committer.",
        )
    yield from lines[-last:]


def log_of(folder: Folder, name: str) -> Path | None:
    """The log of `operator`, `committer`, or a run with a process of its own; None: there is none."""
    part = folder.parts / name / "log"
    return part if part.exists() else next(_logs_of(folder, name), None)


def warm_lines(folder: Folder, run: str) -> list[str]:
    """The log of a run that the warm driver has carried out; empty: it has not."""
    found = (list(lines_of_run(log_lines(log, 0, follow=False), run)) for log in _logs_of(folder, WARM_DRIVER))
    return next(filter(None, found), [])


def _logs_of(folder: Folder, job: str) -> Iterator[Path]:
    """The logs of the processes of a Job, the newest first."""
    yield from sorted(folder.runs.glob(f"{job}-*/log"), key=lambda p: p.stat().st_mtime, reverse=True)


def log_lines(file: Path, last: int, follow: bool) -> Iterator[str]:
    """The last lines of a log, and then, with `follow`, each new one until its process has ended.

    Args:
        last: How many; 0: all.
    """
    with file.open(errors="replace") as log:
        yield from (line.rstrip("\n") for line in deque(log, maxlen=last or None))
        rest = ""
        while follow:
            ended = not process.is_running(file.parent)
            *whole, rest = (rest + log.read()).split("\n")
            yield from whole
            if ended:
                break
            time.sleep(LOOK_SECONDS)
        if rest:
            yield rest

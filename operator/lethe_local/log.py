"""Reads the logs of runs, and of the processes that always run, in the folder of `lethe local`. I/O: files."""

import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lethe.base.errors import InputError

from lethe_local.folder import Folder
from lethe_local.node import process

LOOK_SECONDS: Final = 0.3
LAST_LINES: Final = 200


def log_of(folder: Folder, name: str) -> Path:
    """The log of `operator`, `committer`, or a run. Raises: InputError (`NoLog`)."""
    found = [f for f in (folder.parts / name / "log",) if f.exists()]
    found += sorted(folder.runs.glob(f"{name}-*/log"), key=lambda p: p.stat().st_mtime)
    if not found:
        raise InputError(
            "NoLog",
            f"{folder.runs} has no log of {name}: a log is deleted with its run, and the committer writes those of its runs "
            "into its own. `lethe runs` shows the names of runs; `lethe local logs committer` shows the log of the committer.",
        )
    return found[-1]


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

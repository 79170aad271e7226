"""The processor time that a process and those it started have used. I/O: reads /proc.

Without executors of Spark, which are pods of their own.
"""

import os
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

_lock = threading.Lock()
_reported = 0.0


def processor_seconds() -> float:
    """The processor time of this process and its descendants, with those that ended and were waited for. 0 without /proc."""
    seconds: dict[int, float] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            seconds[int(folder.name)] = sum(int(n) for n in fields[11:15]) / os.sysconf("SC_CLK_TCK")
            children[int(fields[1])].append(int(folder.name))
    found, todo = 0.0, [os.getpid()]
    while todo:
        process = todo.pop()
        found += seconds.get(process, 0)
        todo += children[process]
    return found


def since_last_report() -> float:
    """The processor time since this was last asked, or since the process started.

    So the runs of a process that stays up share all that it has used, also between runs. Never negative: the time of a
    process is lost if its parent does not wait for its end.
    """
    global _reported  # one number for each process, as its processor time is
    with _lock:
        now = processor_seconds()
        used, _reported = max(now - _reported, 0.0), now
    return round(used, 3)

"""Prepares a process that stays up, and tells the processor time that a process has used.

I/O: the environment, the C library, and /proc. Call `prepare` before other imports.
"""

import ctypes
import gc
import logging
import os
import sys
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

log = logging.getLogger(__name__)

_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
HEAPS: Final = 2
# Larger blocks, such as an answer of the API server, are returned to the system as soon as they are freed.
RETURNED_BYTES: Final = 256 * 1024
TURN_SECONDS: Final = 0.0005
"""How long a thread computes before another one gets Python's lock, which is 5 ms by default.

Beside three that compute, a thread waits about 8 ms for each answer of a server by default, and less than 2 ms with this. Those
that compute take 4 % longer.
"""

_lock = threading.Lock()
_reported = 0.0


class _WithoutPandas:
    """pyarrow imports pandas where it is installed, which costs 40 MiB and a third of a second."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def without_pandas() -> None:
    """Let this process find no pandas."""
    sys.meta_path.insert(0, _WithoutPandas())


def prepare() -> None:
    """Keep the memory of this process small, and let its threads go on soon after a server has answered them.

    Threads share two heaps: with one for each, memory that one thread has freed is of no use to the others. Arrow's memory comes
    from the system's allocator, which returns it. There is no pandas.
    """
    sys.setswitchinterval(TURN_SECONDS)
    without_pandas()
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    try:
        library = ctypes.CDLL(None)
        library.mallopt(_M_ARENA_MAX, HEAPS)
        library.mallopt(_M_MMAP_THRESHOLD, RETURNED_BYTES)
    except (OSError, AttributeError):
        log.debug("this C library has no mallopt")


def return_memory() -> None:
    """Collect garbage, and return memory that this process does not use to the system, as far as Arrow and the C library can."""
    gc.collect()
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):  # not every C library has it
        ctypes.CDLL(None).malloc_trim(0)


def processor_seconds() -> float:
    """The processor time of this process and its descendants, with those that ended and were waited for.

    Executors of Spark do not count: they are pods of their own. 0 without /proc.
    """
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

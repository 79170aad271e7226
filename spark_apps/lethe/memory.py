"""What keeps the memory of a process small. Call `prepare` before other imports. I/O: the environment and the C library."""

import ctypes
import logging
import os
import sys
from typing import Any, Final

log = logging.getLogger(__name__)

_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
HEAPS: Final = 2
# Larger blocks, such as an answer of the API server, are returned to the system as soon as they are freed.
RETURNED_BYTES: Final = 256 * 1024


class _WithoutPandas:
    """pyarrow imports pandas where it is installed, which costs 40 MiB and a third of a second."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def without_pandas() -> None:
    """Let this process find no pandas."""
    sys.meta_path.insert(0, _WithoutPandas())


def prepare() -> None:
    """Threads share two heaps: with one for each, memory that one thread has freed is of no use to the others.

    Arrow's memory comes from the system's allocator, which returns it. There is no pandas.
    """
    without_pandas()
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    try:
        library = ctypes.CDLL(None)
        library.mallopt(_M_ARENA_MAX, HEAPS)
        library.mallopt(_M_MMAP_THRESHOLD, RETURNED_BYTES)
    except (OSError, AttributeError):
        log.debug("this C library has no mallopt")

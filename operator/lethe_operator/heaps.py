"""How many heaps the threads of a process share. I/O: the C library."""

import ctypes
import logging
from typing import Final

log = logging.getLogger(__name__)

_M_ARENA_MAX: Final = -8
HEAPS: Final = 2


def share() -> None:
    """Let all threads share two heaps: with one for each, memory that one thread has freed is of no use to the others. Call it
    before threads start."""
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, HEAPS)
    except (OSError, AttributeError):
        log.debug("this C library has no mallopt")

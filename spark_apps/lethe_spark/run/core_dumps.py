"""Keep the memory of a run off the disk: it holds values of rows, also erased ones. I/O: a limit of this process."""

import contextlib
import resource


def forbid_core_dumps() -> None:
    """Let this process and all that it starts write no core dump. A process may always lower its own limit."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

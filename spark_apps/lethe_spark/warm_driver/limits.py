"""What a run of a warm driver may use, and what it uses. The decisions are pure; `measured` reads /proc and a folder."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MIB: Final = 1024**2
# Between two runs, a session that still holds more than these shares of the limits is replaced.
KEPT_HEAP: Final = 0.5
KEPT_MEMORY: Final = 0.8
KEPT_DISK: Final = 0.25


@dataclass(frozen=True)
class SessionLimits:
    """Limits of one run, and with it of the session's processes."""

    # Seconds from its start.
    seconds: float
    # Bytes in the session's folder.
    disk: int
    # Bytes of memory of all processes of the session.
    memory: int


@dataclass(frozen=True)
class SessionUse:
    """What the session uses now."""

    seconds: float
    disk: int
    memory: int


def exceeded(use: SessionUse, limits: SessionLimits) -> str:
    """Which limit a run exceeds, as a sentence without a final period; empty: none."""
    if use.seconds > limits.seconds:
        return f"it took longer than {limits.seconds:g} seconds"
    if use.disk > limits.disk:
        return f"it wrote {use.disk // MIB} MiB to the local disk, and may write {limits.disk // MIB} MiB"
    if use.memory > limits.memory:
        return f"its processes used {use.memory // MIB} MiB of memory, and may use {limits.memory // MIB} MiB"
    return ""


def keeps_too_much(use: SessionUse, heap_used: int, heap_max: int, limits: SessionLimits) -> str:
    """Why a session must be replaced before its next run; empty: it can carry out another one."""
    if heap_max and heap_used > heap_max * KEPT_HEAP:
        return f"{heap_used // MIB} of {heap_max // MIB} MiB of its heap are still in use"
    if use.memory > limits.memory * KEPT_MEMORY:
        return f"its processes still use {use.memory // MIB} MiB of memory"
    if use.disk > limits.disk * KEPT_DISK:
        return f"{use.disk // MIB} MiB are left on the local disk"
    return ""


def measured(seconds: float, session: int, folder: Path) -> SessionUse:
    """What the processes of a session (in the sense of setsid) and its folder use. I/O."""
    return SessionUse(seconds, sum(_sizes(folder)), sum(map(_memory, processes(session))))


def processes(session: int) -> list[int]:
    """The process ids of a session. I/O."""
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:  # it has ended
                continue
            state, _, _, of = stat.rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                found.append(int(entry))
    return found


def _memory(pid: int) -> int:
    """The memory of a process. Pages that several processes share, such as forked workers, count once in their sum."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:  # it has ended
        pass
    return 0


def _sizes(folder: Path) -> Iterator[int]:
    """The space that files take, in bytes."""
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.lstat(os.path.join(directory, name)).st_blocks * 512
            except OSError:  # it was removed
                continue

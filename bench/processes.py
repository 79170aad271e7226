"""The peak memory and processor seconds of a process and its children, from /proc. I/O.

Memory is proportional (PSS), so that shared pages of forked workers count once.
"""

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_EVERY_SECONDS: Final = 0.5
# What threads of Java are called, as far as the kernel keeps their names
_JAVA: Final = (
    ("C1 Compiler", "java, compiling"),
    ("C2 Compiler", "java, compiling"),
    ("Executor task", "java, tasks"),
)
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass
class Watch:
    """Use as `with Watch(pid) as watch:`. The values are final after the block. Usage between the last sample and the end of a
    process is missing."""

    pid: int
    # The highest sum over all processes at one time.
    peak_bytes: int = 0
    # By process name; for Java by the purpose of its threads.
    cpu_seconds: dict[str, float] = field(default_factory=dict)

    def __enter__(self) -> "Watch":
        self._ended = threading.Event()
        self._used: dict[tuple[str, str], float] = {}
        self._thread = threading.Thread(target=self._sample, name="bench-watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(_EVERY_SECONDS):
            family = _family(self.pid)
            self.peak_bytes = max(self.peak_bytes, sum(_memory(p) for p in family))
            for pid in family:
                for thread, name, used in _used(pid):
                    self._used[thread, name] = used
            self.cpu_seconds = {
                name: round(sum(s for (_, n), s in self._used.items() if n == name), 1)
                for name in {n for _, n in self._used}
            }


def _family(pid: int) -> list[int]:
    found, open_ = [], [pid]
    while open_:
        current = open_.pop()
        found.append(current)
        for task in Path(f"/proc/{current}/task").glob("*/children"):
            try:
                open_ += map(int, task.read_text().split())
            except OSError:
                continue
    return found


def _memory(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _used(pid: int) -> list[tuple[str, str, float]]:
    """The process, or each thread of Java's: who it is, by which name it is counted, and its processor seconds."""
    try:
        process = _stat(Path(f"/proc/{pid}/stat"))
        if process[0] != "java":
            return [(str(pid), *process)]
        threads = sorted(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
    found = []
    for thread in threads:
        try:
            name, used = _stat(thread / "stat")
        except OSError:
            continue  # it has ended
        found.append(
            (thread.name, next((known for start, known in _JAVA if name.startswith(start)), "java, rest"), used)
        )
    return found


def _stat(file: Path) -> tuple[str, float]:
    head, _, rest = file.read_text().rpartition(")")
    fields = rest.split()
    return head.partition("(")[2], (int(fields[11]) + int(fields[12])) / _TICKS

"""Runs as the operator starts them, one process for each, and the memory and processor time of processes. I/O.

Memory is proportional (PSS), so that shared pages of forked workers count once.
"""

import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Final

from lethe.contract.result import ConsolidationResult
from lethe.contract.run import BufferRef, ConsolidationSpec, CreateTable, RunSpec, TableRef
from lethe.contract.settings import RunFamily

from bench.lake import CATALOG, DATASET
from bench.producer import BATCH_COLUMN, PARTITION, SCHEMA

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
    # By process name; for Java by the purpose of its threads. Since the processes started.
    cpu_seconds: dict[str, float] = field(default_factory=dict)

    def __enter__(self) -> "Watch":
        self._ended = threading.Event()
        self._used: dict[tuple[str, str], float] = {}
        self._look()
        self._before = sum(self._used.values())
        self._thread = threading.Thread(target=self._sample, name="bench-watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    @property
    def spent_seconds(self) -> float:
        """Of all processors, by all processes, since the block began."""
        return round(sum(self._used.values()) - self._before, 2)

    def _sample(self) -> None:
        while not self._ended.wait(_EVERY_SECONDS):
            self._look()

    def _look(self) -> None:
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


# What a run reports on stderr when no ConfigMap takes its progress: the time, and the phase that begins.
_PHASE: Final = re.compile(r"^(\d\d:\d\d:\d\d) ([A-Z]\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Measured:
    """One run. `stages`: whole seconds by phase; `cpu_seconds`: as `Watch` counts them; memory in bytes."""

    seconds: float
    stages: Mapping[str, int]
    cpu_seconds: Mapping[str, float]
    peak_bytes: int
    result: ConsolidationResult


def consolidation(
    buffer: str,
    table: str,
    batch_ids: Sequence[str],
    target_file_size_bytes: int = 512 * 1024 * 1024,
    catalog: str = CATALOG,
) -> RunSpec:
    """What the operator would tell a run; the first one makes the table.

    Args:
        buffer: The URI of the buffer.
    """
    return RunSpec(
        family=RunFamily.CONSOLIDATION,
        run_id=uuid.uuid4().hex,
        dataset=DATASET,
        table=TableRef(catalog=catalog, name=table, create=CreateTable(table_schema=SCHEMA, partition_by=(PARTITION,))),
        batch_column=BATCH_COLUMN,
        buffer=BufferRef(uri=buffer),
        consolidation=ConsolidationSpec(batch_ids=tuple(batch_ids), target_file_size_bytes=target_file_size_bytes),
    )


def carry_out(home: Path, spec: RunSpec, memory: str, more: Mapping[str, str] = MappingProxyType({})) -> Measured:
    """`more`: Spark's configuration. Raises: RuntimeError with the end of the driver's log, when the run does not commit."""
    run_file, log = home / f"{spec.run_id}.json", home / f"{spec.run_id}.log"
    run_file.write_text(spec.to_json())
    confs = {"spark.master": "local[2]", "spark.driver.memory": memory, **more}
    command = [sys.executable, "-m", "lethe_spark.apps.app", "--run", str(run_file)]
    command += [word for key, value in confs.items() for word in ("--conf", f"{key}={value}")]
    environment = {**os.environ, "LETHE_TERMINATION_LOG": str(home / "none")}
    since = time.monotonic()
    with log.open("w") as errors:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)
        with Watch(process.pid) as watch:
            out, _ = process.communicate()
    seconds = time.monotonic() - since
    text = log.read_text()
    if process.returncode or ConsolidationResult.model_validate_json(out).outcome != "Committed":
        raise RuntimeError(f"the run ended with {process.returncode}: {out[-500:]}{text[-2000:]}")
    for file in (run_file, log):
        file.unlink()
    return Measured(
        round(seconds, 2),
        _stages(text),
        watch.cpu_seconds,
        watch.peak_bytes,
        ConsolidationResult.model_validate_json(out),
    )


def _stages(log: str) -> dict[str, int]:
    """Seconds from each phase's first word to the next phase's."""
    told = [(datetime.strptime(clock, "%H:%M:%S").replace(tzinfo=UTC), phase) for clock, phase in _PHASE.findall(log)]
    found: dict[str, int] = {}
    for (since, phase), (until, _) in pairwise(told):
        found[phase] = found.get(phase, 0) + (until - since).seconds
    return found

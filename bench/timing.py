"""Measure cases in turns, A B C, A B C, so that other load affects all alike; and describe the machine. I/O."""

import gc
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lethe_spark.jvm.gateway import jvm
from pyspark.sql import SparkSession

WARM_UP = -1  # the number of the round that is not counted


@dataclass(frozen=True)
class Sample:
    """One measurement: wall seconds, and bytes and processor seconds where they are of interest."""

    seconds: float
    bytes: int | None = None
    cpu_seconds: float | None = None


@dataclass
class Case:
    """One case to measure."""

    # What is measured.
    labels: dict[str, Any]
    # Carries out one round. Called with the number of the round, first with WARM_UP.
    act: Callable[[int], Sample]
    rounds: int
    warm_up: bool = True
    samples: list[Sample] = field(default_factory=list)
    error: str = ""

    @property
    def name(self) -> str:
        return " ".join(str(v) for v in self.labels.values())

    def result(self) -> dict[str, Any]:
        """The labels, and the spread of each quantity, as JSON values."""
        found: dict[str, Any] = dict(self.labels)
        if self.error:
            found["error"] = self.error
        if self.samples:
            found["seconds"] = spread([round(s.seconds, 4) for s in self.samples])
            sizes = [s.bytes for s in self.samples if s.bytes is not None]
            if sizes:
                found["bytes"] = spread(sizes)
            spent = [round(s.cpu_seconds, 2) for s in self.samples if s.cpu_seconds is not None]
            if spent:
                found["cpu_seconds"] = spread(spent)
        return found


def spread(values: Sequence[float]) -> dict[str, Any]:
    return {
        "min": min(values),
        "median": statistics.median(values),
        "max": max(values),
        "mean": round(statistics.fmean(values), 4),
        "all": list(values),
    }


def in_turns(cases: Iterable[Case]) -> list[dict[str, Any]]:
    """Measure all cases, one after the other in each round. A case that fails reports the error in its result, and is skipped
    in further rounds."""
    wanted = list(cases)
    for number in range(WARM_UP, max((c.rounds for c in wanted), default=0)):
        for case in wanted:
            if case.error or number >= case.rounds or (number == WARM_UP and not case.warm_up):
                continue
            try:
                sample = case.act(number)
            except Exception as e:
                case.error = failure(e)
                say(f"  {case.name}: FAILED, {case.error}")
                continue
            if number != WARM_UP:
                case.samples.append(sample)
            label = "warm-up" if number == WARM_UP else f"{number + 1}/{case.rounds}"
            size = "" if sample.bytes is None else f", {sample.bytes:,} bytes"
            say(f"  {label:>8} {case.name}: {sample.seconds:.3f} s{size}")
    return [c.result() for c in wanted]


def failure(error: Exception) -> str:
    """An error in one line."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:300] if text else ''}"


def seconds_of(act: Callable[[], object]) -> float:
    """Wall seconds of one call, after a garbage collection."""
    gc.collect()
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


_START = time.monotonic()


def say(text: str) -> None:
    """A line of progress with the minutes since the start and the machine's load."""
    minutes, seconds = divmod(int(time.monotonic() - _START), 60)
    print(f"{minutes:3d}:{seconds:02d} (load {os.getloadavg()[0]:.1f}) {text}", file=sys.stderr, flush=True)


ROOT = Path(__file__).resolve().parent.parent


def describe(spark: SparkSession) -> dict[str, Any]:
    """The machine, and what a Spark session on it works with."""
    system = jvm(spark).java.lang.System
    found = describe_host()
    return {
        **found,
        "master": spark.sparkContext.master,
        "driver_memory": spark.conf.get("spark.driver.memory"),
        "catalog": "SQLite, local files",
        "versions": {
            **found["versions"],
            "java": str(system.getProperty("java.version")),
            "spark": spark.version,
            "iceberg": str(jvm(spark).org.apache.iceberg.IcebergBuild.version()),
        },
    }


def describe_host() -> dict[str, Any]:
    """The machine and the versions of Python's packages."""
    return {
        "cores": os.cpu_count(),
        "processor": _first(Path("/proc/cpuinfo"), "model name"),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "transparent_huge_pages": _chosen(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        "load_before": [round(x, 2) for x in os.getloadavg()],
        "versions": {
            "python": platform.python_version(),
            "pyiceberg": version("pyiceberg"),
            "fastavro": version("fastavro"),
        },
        "commit": commit(),
    }


def commit() -> str:
    """The commit of Lethe that was measured; a plus when files had been changed since."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--", "spark_apps", "operator", "bench") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def command(suite: str) -> str:
    given = iter(sys.argv[1:])
    shown: list[str] = []
    for argument in given:
        if argument in ("--work", "--out"):  # where the files are changes no figure
            next(given, None)
        elif not argument.startswith(("--work=", "--out=")):
            shown.append(argument)
    return " ".join([f"python -m bench.{suite}", *shown])


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _chosen(setting: Path) -> str:
    """The value in brackets of a setting of Linux, as in `always [madvise] never`; empty if there is none."""
    try:
        return setting.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        return ""


def _first(file: Path, key: str) -> str:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def loopback_bytes() -> int:
    """Bytes that the loopback interface has received since the machine started; it receives all that it sends."""
    statistics = Path("/proc/net/dev").read_text().splitlines()
    line = next(one for one in statistics if one.lstrip().startswith("lo:"))
    return int(line.partition(":")[2].split()[0])


def cpu_seconds(pid: int) -> float:
    """What a process and its threads have used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_bytes(pid: int, *, peak: bool = False) -> int:
    """The resident memory of a process, now or at its peak so far."""
    wanted = "VmHWM:" if peak else "VmRSS:"
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return next(int(line[1]) * 1024 for line in lines if line[0] == wanted)

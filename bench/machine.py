"""What a benchmark ran on and of: without it, its figures say nothing. I/O: asks the operating system and git."""

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lethe_spark.jvm.gateway import jvm
from pyspark.sql import SparkSession

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
    return " ".join([f"python -m bench.{suite}", *sys.argv[1:]])


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


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

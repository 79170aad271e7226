"""Consolidations as the operator starts them: one process for each, from the start of the JVM to the result. I/O."""

import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Final

from lethe.contract.result import ConsolidationResult
from lethe.contract.run import BufferRef, ConsolidationSpec, CreateTable, RunSpec, TableRef
from lethe.contract.settings import RunFamily

from bench.lake import CATALOG, DATASET
from bench.processes import Watch
from bench.producer import BATCH_COLUMN, PARTITION, SCHEMA

# What a run reports on stderr when nobody else listens: the time, and the phase that begins.
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

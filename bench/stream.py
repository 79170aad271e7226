"""Measure small files through `lethe local`, beside the same runs without the operator, and where its time goes. I/O.

    python -m bench.stream [--scale tiny|small|full] [--out docs/benchmarks]

A buffer is full when its Dataset is created, with default settings. The operator, the committer and the warm driver send traces,
of which the stages are made: a run's phases, and the time between two runs.
"""

import json
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from lethe import tracing
from lethe.kube import DATASETS, Kube
from lethe_local.folder import NAMESPACE
from pyiceberg.catalog import load_catalog

from bench import consolidation, producer
from bench.consolidation import ConsolidationScale
from bench.lake import Lake, refill, total_records
from bench.local import started
from bench.report import Cell, Goal, Part, View, goal, ratio, results_of
from bench.runner import Suite, program
from bench.timing import say
from tests.support.trace_collector import ReceivedSpan, running

NAME, TABLE = "bench", "run.stream"
PROMOTED_WITHIN_SECONDS: Final = 3600.0
ENDED_WITHIN_SECONDS: Final = 60.0
LIBRARY, OPERATOR = "runs, one after the other", "lethe local"
OF_LIBRARY: Final = 0.9
RUN: Final = "run Consolidation"


def local(lake: Lake, scale: ConsolidationScale) -> dict[str, Any]:
    """The same files by runs that follow one another without an operator, and through `lethe local`."""
    alone = consolidation.sustained(lake, scale)
    if errors := [r["error"] for r in alone["results"] if "error" in r]:
        raise RuntimeError(errors[0])
    made = refill(lake.home / "buffer", scale.files)
    shutil.rmtree(lake.home / "local", ignore_errors=True)
    with running() as collector, started(lake.home / "local", _environment(collector.url)) as kube:
        since = time.time()
        kube.create(DATASETS, NAMESPACE, _dataset(lake.home / "buffer", scale.files))
        _await_promoted(kube, scale.files)
        until = time.time()
        runs = _await_runs(kube, collector.spans)
    found = load_catalog("local", type="sql", uri=f"sqlite:///{lake.home}/local/catalog.db").load_table(TABLE)
    if (rows := total_records(found)) != made.rows:
        raise RuntimeError(f"the table has {rows:,} rows, {made.rows:,} were produced")
    seconds = {LIBRARY: sum(r["seconds"] for r in alone["results"]), OPERATOR: until - since}
    _stages_file(lake).write_text(json.dumps(stages_of(since, until, runs)))
    return {
        "files": scale.files,
        "runs": len(runs),
        "results": [
            {"way": way, "seconds": round(s, 1), "per_hour": round(scale.files / s * 3600)}
            for way, s in seconds.items()
        ],
    }


def stages(lake: Lake, _: ConsolidationScale) -> dict[str, Any]:
    """Where the time of `local` went, by its traces."""
    return shares_of(json.loads(_stages_file(lake).read_text()))


def shares_of(found: Mapping[str, float]) -> dict[str, Any]:
    """The result of a part that shows seconds by stage, as `stages_of` finds them. Pure."""
    every = sum(found.values())
    return {"results": [{"stage": s, "seconds": round(v, 1), "share": round(v / every, 3)} for s, v in found.items()]}


def _stages_file(lake: Lake) -> Path:
    return lake.home / "stages.json"


def stages_of(since: float, until: float, runs: Sequence[ReceivedSpan]) -> Mapping[str, float]:
    """Seconds by stage, which together are all of the time. Pure.

    Args:
        since: When the Dataset was created, by time.time.
        until: When its status showed all batches.
        runs: In their order. They do not overlap.
    """
    found: dict[str, float] = defaultdict(float)
    last, what = since, "until the first run starts"
    for run in runs:
        found[what] += max(0.0, run.began - last)
        names = ("run: Starting", *(f"run: {phase}" for phase in run.events))
        for name, (began, ended) in zip(names, pairwise((run.began, *run.event_times, run.ended)), strict=True):
            found[name] += ended - began
        last, what = run.ended, "between runs"
    found["until the status shows the last run"] += max(0.0, until - last)
    return found


def _environment(collector: str) -> dict[str, str]:
    """Of processes that send traces soon, and that do not use the catalog of this one."""
    kept = {name: value for name, value in os.environ.items() if name != "PYICEBERG_HOME"}
    return {**kept, tracing.ENDPOINT: collector, "OTEL_BSP_SCHEDULE_DELAY": "200"}


def _dataset(buffer: Path, files: int) -> dict[str, Any]:
    create = {"schema": producer.SCHEMA, "partitionBy": [producer.PARTITION]}
    spec = {
        "table": {"catalog": "local", "name": TABLE, "create": create},
        "batchColumn": producer.BATCH_COLUMN,
        "buffer": {"uri": f"file://{buffer}"},
        "consolidation": {"minBatches": min(100, files)},  # 100 is the default
    }
    return {"apiVersion": "lethe.dev/v1beta1", "kind": "Dataset", "metadata": {"name": NAME}, "spec": spec}


def _await_promoted(kube: Kube, files: int) -> None:
    ends, shown = time.monotonic() + PROMOTED_WITHIN_SECONDS, -1
    while shown < files:
        batches = (kube.get(DATASETS, NAMESPACE, NAME).get("status") or {}).get("batches") or {}
        if (promoted := batches.get("promoted", 0)) != shown:
            shown = promoted
            say(f"  {shown:,} of {files:,} batches are promoted")
        if time.monotonic() > ends:
            raise RuntimeError(f"{shown:,} of {files:,} batches were promoted within {PROMOTED_WITHIN_SECONDS:.0f} s")
        time.sleep(0.2)


def _await_runs(kube: Kube, spans: Sequence[ReceivedSpan]) -> list[ReceivedSpan]:
    """The spans of all runs, once all have ended and sent theirs."""
    ends = time.monotonic() + ENDED_WITHIN_SECONDS
    while time.monotonic() < ends:
        status = kube.get(DATASETS, NAMESPACE, NAME)["status"]
        runs = sorted((s for s in spans if s.name == RUN), key=lambda s: s.began)
        if len(runs) == status.get("usage", {}).get("runs") and all("finishTime" in r for r in status["runs"]):
            return runs
        time.sleep(0.2)
    raise RuntimeError(f"not all runs ended and sent their traces within {ENDED_WITHIN_SECONDS:.0f} s")


def goals(parts: Mapping[str, Part]) -> list[Goal]:
    """The operator's share."""
    if "local" not in parts:
        return []
    rates = {r["way"]: r["per_hour"] for r in results_of(parts, "local")}
    share = ratio(rates.get(OPERATOR), rates.get(LIBRARY))
    return [goal("files an hour through lethe local : without the operator", share, OF_LIBRARY, at_least=True)]


SUITE = Suite(
    name="stream",
    purpose=(__doc__ or "").splitlines()[0],
    parts={"local": local, "stages": stages},
    scales=consolidation.SCALES,
    goals=goals,
    views=(
        View(
            "Small files through lethe local",
            ("local",),
            ("way",),
            cells=(Cell("seconds", "seconds"), Cell("files an hour", "per_hour")),
        ),
        View(
            "Where the time goes", ("stages",), ("stage",), cells=(Cell("seconds", "seconds"), Cell("share", "share"))
        ),
    ),
)

if __name__ == "__main__":
    program(SUITE)

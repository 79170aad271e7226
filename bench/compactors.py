"""Measure how programs make few large files out of many small ones: their processor time, and what a run costs by itself. I/O.

    python -m bench.compactors [--scale tiny|small|full] [--only programs,fixed] [--out docs/benchmarks]

It needs `dev/venv.sh rivals`. Polars, pyarrow and DuckDB only read, sort and write: they are the floor. The others commit, and
Lethe also records each batch. The processor time is that of all processes. It includes their start, except of a warm session.
"""

import json
import os
import resource
import shutil
import statistics
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from lethe.iceberg import catalogs
from lethe_spark.jobs.consolidation import job as consolidate
from lethe_spark.run.context import RunContext
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog

from bench import producer
from bench.lake import CATALOG, Lake, refill, total_records
from bench.one_compaction import DAY, TABLE
from bench.processes import Watch, carry_out, consolidation
from bench.report import MIB, SECONDS, Cell, Goal, Part, View, goal, ratio, results_of
from bench.runner import Suite, program, sizes
from bench.timing import failure, say
from tests.support.environments import python_of
from tests.support.servers import rest_catalog

NEW, WARM = "Lethe, new driver", "Lethe, warm driver"
SPARK = "Spark's rewrite_data_files, warm session"
FLOOR = "Polars"
# Programs as one_compaction.py calls them: those that read the buffer and write a folder, and those that need a table.
TO_FOLDER: Final = {FLOOR: "polars", "DuckDB": "duckdb", "pyarrow": "pyarrow"}
OF_DUCKLAKE: Final = {"DuckLake, to register": "ducklake-register", "DuckLake, to merge": "ducklake-merge"}
OF_TABLE: Final = {"zamboni": "zamboni", "iceberg-compaction": "iceberg-compaction"}
OF_FLOOR: Final = 2.0
FIXED: Final = {WARM: 3.0, NEW: 12.0}


@dataclass(frozen=True)
class CompactorsScale:
    """The sizes that determine how long the benchmark takes."""

    name: str
    # Small files, of a batch each.
    files: int
    rounds: int
    # Small files of the runs whose fixed cost is measured.
    few: int = 10
    fixed_rounds: int = 3
    driver_memory: str = "1g"


SCALES = sizes(
    CompactorsScale,
    files=(20, 2_000, 10_000),
    rounds=(1, 1, 2),
    fixed_rounds=(1, 3, 5),
    driver_memory=("768m", "1g", "1g"),
)


def programs(lake: Lake, scale: CompactorsScale) -> dict[str, Any]:
    """All programs in turns, on the same files."""
    made = refill(lake.home / "buffer", scale.files)
    results: list[dict[str, Any]] = []
    with rest_catalog.running(_gone(lake.home / "rest")) as server:
        acts: dict[str, Callable[[], dict[str, Any]]] = {
            **{name: partial(_into_folder, lake, p) for name, p in TO_FOLDER.items()},
            NEW: partial(_by_new_driver, lake, scale, scale.files),
            WARM: partial(_by_warm_driver, lake, scale.files),
            SPARK: partial(_by_spark, lake),
            **{name: partial(_of_rest, lake, server.uri, p) for name, p in OF_TABLE.items()},
        }
        _by_warm_driver(lake, scale.few)  # the session starts its workers
        for _ in range(scale.rounds):
            results += [_measured(name, act, made.rows) for name, act in acts.items()]
            target = _emptied(lake.home / "target")
            for name, p in OF_DUCKLAKE.items():
                results.append(_measured(name, partial(_process, p, lake.home / "buffer", str(target)), made.rows))
    return {"files": made.batches, "rows": made.rows, "bytes": made.bytes, "results": results}


def fixed(lake: Lake, scale: CompactorsScale) -> dict[str, Any]:
    """Runs of few files, whose cost is mostly that of a run itself."""
    made = refill(lake.home / "buffer", scale.few)
    _by_warm_driver(lake, scale.few)
    acts = {NEW: partial(_by_new_driver, lake, scale, scale.few), WARM: partial(_by_warm_driver, lake, scale.few)}
    rounds = range(scale.fixed_rounds)
    return {"results": [_measured(name, act, made.rows) for _ in rounds for name, act in acts.items()]}


def _measured(name: str, act: Callable[[], dict[str, Any]], rows: int) -> dict[str, Any]:
    try:
        found = act()
    except Exception as e:
        say(f"  {name}: FAILED, {failure(e)}")
        return {"program": name, "error": failure(e)}
    if found["rows"] != rows:
        raise RuntimeError(f"{name} wrote {found['rows']} rows, {rows} were produced")
    say(f"  {name}: {found['cpu_seconds']:.1f} CPU s, {found['seconds']:.1f} s, {found['peak_bytes'] / MIB:,.0f} MiB")
    return {"program": name, **found}


# --- programs that are a process each --------------------------------------------------------------------------------


def _process(name: str, buffer: Path, target: str) -> dict[str, Any]:
    command = [python_of("rivals"), "-m", "bench.one_compaction", name, str(buffer), target]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    errors, before = buffer.parent / "errors.log", _used_by_ended()
    with errors.open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        with _costs(process.pid) as found:
            out, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(errors.read_text()[-500:].replace("\n", " "))
    # Exact, also of a process that ends between two samples.
    found["cpu_seconds"] = round(_used_by_ended() - before, 2)
    return found | json.loads(out.splitlines()[-1])


def _used_by_ended() -> float:
    """Processor seconds of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _into_folder(lake: Lake, name: str) -> dict[str, Any]:
    return _process(name, lake.home / "buffer", str(_emptied(lake.home / "target")))


def _of_rest(lake: Lake, uri: str, name: str) -> dict[str, Any]:
    _registered(RestCatalog("bench", uri=uri), lake.home / "buffer")
    return _process(name, lake.home / "buffer", uri)


def _registered(catalog: Catalog, buffer: Path) -> None:
    """The table of the small files as they are, made again."""
    catalog.create_namespace_if_not_exists(TABLE.partition(".")[0])
    if catalog.table_exists(TABLE):
        catalog.drop_table(TABLE)
    table = catalog.create_table(TABLE, producer.rows_of(0).schema)
    with table.update_spec() as update:
        update.add_identity(DAY)
    table.add_files([f"file://{f}" for f in sorted(buffer.glob("*/*.parquet"))], check_duplicate_files=False)


# --- programs in this session, and Lethe's runs -----------------------------------------------------------------------


def _by_spark(lake: Lake) -> dict[str, Any]:
    """Unsorted, as Iceberg's procedure does by default."""
    catalog = catalogs.load(CATALOG)
    _registered(catalog, lake.home / "buffer")
    with _costs(os.getpid()) as found:
        lake.spark.sql(
            f"CALL {CATALOG}.system.rewrite_data_files(table => '{TABLE}', options => map('rewrite-all', 'true'))"
        ).collect()
    return found | _content(catalog.load_table(TABLE))


def _by_warm_driver(lake: Lake, files: int) -> dict[str, Any]:
    table = f"run.warm_{uuid.uuid4().hex[:8]}"
    spec = consolidation(f"file://{lake.home}/buffer", table, _ids(files))
    with _costs(os.getpid()) as found, lake.carrying_out(spec, RunContext) as context:
        consolidate.run(context)
    return found | _content(catalogs.load(CATALOG).load_table(table))


def _by_new_driver(lake: Lake, scale: CompactorsScale, files: int) -> dict[str, Any]:
    table = f"run.new_{uuid.uuid4().hex[:8]}"
    done = carry_out(lake.home, consolidation(f"file://{lake.home}/buffer", table, _ids(files)), scale.driver_memory)
    found = {"seconds": done.seconds, "cpu_seconds": sum(done.cpu_seconds.values()), "peak_bytes": done.peak_bytes}
    return found | _content(catalogs.load(CATALOG).load_table(table))


def _content(table: Any) -> dict[str, int]:
    return {"rows": total_records(table), "files": int(table.current_snapshot().summary["total-data-files"])}


def _ids(files: int) -> Sequence[str]:
    return [producer.batch_id(n) for n in range(files)]


@contextmanager
def _costs(pid: int) -> Iterator[dict[str, Any]]:
    """What a process and its children use in a block: wall and processor seconds, and their highest memory, in bytes."""
    found: dict[str, Any] = {}
    since = time.monotonic()
    with Watch(pid) as watch:
        yield found
        found["seconds"] = round(time.monotonic() - since, 2)
    found |= {"cpu_seconds": watch.spent_seconds, "peak_bytes": watch.peak_bytes}


# --- files -----------------------------------------------------------------------------------------------------------


def _emptied(folder: Path) -> Path:
    _gone(folder).mkdir(parents=True)
    return folder


def _gone(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder


# --- report ----------------------------------------------------------------------------------------------------------


def goals(parts: Mapping[str, Part]) -> list[Goal]:
    """What Lethe uses beside the floor, and what a run of few files does."""
    found = []
    for name in (NEW, WARM):
        if "programs" in parts:
            text = f"{name} : {FLOOR}, CPU seconds for {parts['programs']['files']:,} files, at most"
            found.append(goal(text, ratio(*(_median(parts, "programs", one) for one in (name, FLOOR))), OF_FLOOR))
        if "fixed" in parts:
            found.append(goal(f"{name}: CPU seconds of a run of few files", _median(parts, "fixed", name), FIXED[name]))
    return found


def _median(parts: Mapping[str, Part], part: str, name: str) -> float | None:
    found = [r["cpu_seconds"] for r in results_of(parts, part) if r["program"] == name and "error" not in r]
    return statistics.median(found) if found else None


CELLS: Final = (Cell("CPU seconds", "cpu_seconds"), SECONDS, Cell("peak MiB", "peak_bytes", MIB))
SUITE = Suite(
    name="compactors",
    purpose=(__doc__ or "").splitlines()[0],
    parts={"programs": programs, "fixed": fixed},
    scales=SCALES,
    goals=goals,
    views=(
        View("Few files out of many", ("programs",), ("program",), cells=(*CELLS, Cell("files left", "files"))),
        View("Runs of few files", ("fixed",), ("program",), cells=CELLS),
    ),
)

if __name__ == "__main__":
    program(SUITE)

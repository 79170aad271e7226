"""Measure requests of persons through `lethe local`: until hidden and verified everywhere, and what is rewritten. I/O.

    python -m bench.subjects [--scale tiny|small|full] [--only PART,…] [--out docs/benchmarks]

Each Dataset adopts a table of its own, sorted by person (`bench.people`). The operator, the committer and the runs are those of a
user.
"""

import base64
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any, Final

import pyarrow as pa
from lethe.contract.status import RunEntry
from lethe.kube import DATASETS
from lethe_local.cli import client
from lethe_local.folder import NAMESPACE, Folder
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import DayTransform

from bench.people import (
    ROWS_OF_PERSON,
    Group,
    created,
    files_of,
    groups_of,
    linked,
    middle,
    original,
    person,
    rows,
    summaries,
)
from bench.processes import Watch
from bench.report import Cell, Goal, Part, View, goal, ratio, results_of
from bench.runner import Place, Suite, program
from bench.timing import describe_host, say
from tests.local.lake import Lake, running
from tests.support.documents import resource


@dataclass(frozen=True)
class SubjectScale:
    """The sizes that determine how long the benchmark takes."""

    name: str
    # Datasets of one person, and rows of each.
    datasets: int
    rows: int
    # Datasets of the requests for one and for many people, rows of each, and the many.
    crowd_datasets: int
    crowd_rows: int
    people: int
    # Rows of the table of which bytes are counted.
    counted_rows: int
    # Not used: each part of `lethe local` has its own memory.
    driver_memory: str = ""


SCALES: Final = {
    s.name: s
    for s in (
        SubjectScale("tiny", 2, 20_000, 2, 20_000, 50, 200_000),
        SubjectScale("small", 2, 1_000_000, 2, 1_000_000, 1_000, 5_000_000),
        SubjectScale("full", 50, 10_000_000, 20, 10_000_000, 1_000, 10_000_000),
    )
}

DAYS: Final = 365
LIMIT_SECONDS: Final = 3 * 3600
VECTORS: Final = 3
"""The format version in which an erasure hides rows by deletion vectors."""
VERSIONS: Final = (2, VECTORS)
BATCHES: Final = 1000
"""The batches of a table with batch ids."""

# --- requests --------------------------------------------------------------------------------------------------------


def adopted(lake: Lake, name: str, about: str) -> dict[str, Any]:
    """A Dataset of an existing table; `about`: its label."""
    (lake.buffer / name).mkdir(parents=True)
    spec = {
        "table": {"catalog": "local", "name": f"shop.{name}", "adopt": True},
        "batchColumn": "batch_id",
        "buffer": {"uri": f"file://{lake.buffer / name}"},
        "identities": [{"name": "customer", "column": "customer"}],
    }
    return resource("Dataset", name, spec, labels={"about": about})


def policy(about: str, **spec: Any) -> dict[str, Any]:
    wanted = {"datasetSelector": {"matchLabels": {"about": about}}, "triggers": {}, **spec}
    return resource("VacuumPolicy", about, wanted)


def ready(lake: Lake, names: Sequence[str]) -> None:
    """Wait until all of these Datasets are adopted."""

    def is_ready(name: str) -> bool:
        found = (lake.get("dataset", name).get("status") or {}).get("conditions") or ()
        return any(c["type"] == "Ready" and c["status"] == "True" for c in found)

    for name in names:
        wait(f"{name} ready", lambda name=name: is_ready(name))  # type: ignore[misc]
    say(f"{len(names)} Datasets are ready")


def wait(what: str, holds: Callable[[], bool], seconds: float = LIMIT_SECONDS) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > ends:
            raise TimeoutError(f"not {what} within {seconds:g} s")
        time.sleep(0.5)


def erase(lake: Lake, about: str, people: Sequence[int], last: str, **spec: Any) -> dict[str, Any]:
    """Ask for the erasure of people from all Datasets with a label.

    Args:
        last: The state, `hidden` or `verified`, until which it waits.

    Returns:
        By state, the seconds and the CPU seconds after which all Datasets were in it; the runs by kind, with the seconds from
        the decision to the end; and the number of failed ones by reason.
    """
    name = f"erase-{about}-{len(people)}"
    values = base64.b64encode("\n".join(map(person, people)).encode()).decode()
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": {"values": values}}
    subject = {"identity": "customer", "valuesFrom": {"secretKeyRef": {"name": name, "key": "values"}}}
    wanted = {"datasetSelector": {"matchLabels": {"about": about}}, "operation": "Erase", "subject": subject, **spec}
    process = lake.process
    assert process is not None
    since = datetime.now(UTC).replace(microsecond=0)
    seconds: dict[str, float] = {}
    cpu: dict[str, float] = {}
    with Watch(process.pid) as watch:
        wait("watched", lambda: bool(watch.cpu_seconds))
        used, began = sum(watch.cpu_seconds.values()), time.monotonic()
        lake.apply(secret, resource("Restatement", name, wanted))

        def is_done() -> bool:
            status = (lake.get("restatement", name).get("status") or {}).get("subject") or {}
            for state in ("hidden", "purged", "verified"):
                if status.get(state) and status[state] == status["selected"] and state not in seconds:
                    seconds[state] = round(time.monotonic() - began, 1)
                    cpu[state] = round(sum(watch.cpu_seconds.values()) - used, 1)
                    say(f"{name}: {state} in {status['selected']} Datasets after {seconds[state]} s")
            return last in seconds

        try:
            wait(f"{last} everywhere", is_done)
        except TimeoutError as e:
            raise TimeoutError(f"{e}: {_late(lake, name)}") from None
    of_kind: dict[str, list[float]] = {}
    failed: dict[str, int] = {}
    for run in _runs(lake, about, since):
        took = (run.finish_time - run.start_time).total_seconds()  # type: ignore[operator]
        of_kind.setdefault(str(run.kind), []).append(took)
        if run.phase == "Failed":
            failed[str(run.reason)] = failed.get(str(run.reason), 0) + 1
    erased = lake.get("restatement", name)["status"]["subject"]["datasets"]
    return {
        "seconds": seconds,
        "cpu": cpu,
        "runs": {
            k: {"number": len(v), "median_seconds": median(v), "most_seconds": max(v)} for k, v in of_kind.items()
        },
        "failed_runs": failed,
        "rows_erased": sum(d.get("rowsErased") or 0 for d in erased),
    }


def _runs(lake: Lake, about: str, since: datetime) -> list[RunEntry]:
    """The runs of Datasets with a label that were asked for since then and have ended, as far as statuses still show them."""
    with client(Folder(lake.home)) as kube:
        datasets = kube.list(DATASETS, NAMESPACE, f"about={about}")
    entries = (RunEntry.model_validate(r) for d in datasets for r in (d.get("status") or {}).get("runs") or ())
    return [e for e in entries if e.finish_time is not None and e.start_time is not None and e.start_time >= since]


def _late(lake: Lake, name: str) -> str:
    """The first Datasets of a request that are not done, and why."""
    status = lake.get("restatement", name).get("status") or {}
    late = [d for d in (status.get("subject") or {}).get("datasets") or () if d["state"] != "Verified"]
    return "; ".join(f"{d['name']} is {d['state']} ({d.get('reason')}): {d.get('message')}" for d in late[:5])


# --- parts -----------------------------------------------------------------------------------------------------------


def one_person(lake: Lake, scale: SubjectScale) -> dict[str, Any]:
    """One person in all Datasets, until no file of any table has a row of the person."""
    names = _datasets(lake, "person", scale.datasets, scale.rows, VECTORS)
    lake.apply(policy("person", triggers={"activeTombstones": 1, "evictByLeadSeconds": 86_400}))
    found = erase(lake, "person", [middle(scale.rows)], "verified", evictBySeconds=60)
    require(found["rows_erased"], ROWS_OF_PERSON * len(names))
    return {"results": [{"datasets": len(names), "rows": scale.rows, **found}]}


def crowd(lake: Lake, scale: SubjectScale) -> dict[str, Any]:
    """One person and many people in the same Datasets, until no reader sees them. No vacuum runs beside."""
    names = _datasets(lake, "crowd", scale.crowd_datasets, scale.crowd_rows, VECTORS)
    results = []
    everybody = scale.crowd_rows // ROWS_OF_PERSON
    # Of the many, none is the one.
    for people in ([middle(scale.crowd_rows)], [n * everybody // scale.people + 1 for n in range(scale.people)]):
        found = erase(lake, "crowd", people, "hidden")
        require(found["rows_erased"], ROWS_OF_PERSON * len(people) * len(names))
        results.append({"datasets": len(names), "rows": scale.crowd_rows, "people": len(people), **found})
    return {"results": results}


def rewritten(lake: Lake, scale: SubjectScale) -> dict[str, Any]:
    """What the erasure of a person from one table encodes again, and which row groups have the person's rows.

    In format version 2 the run of the Restatement writes files again, in version 3 the vacuum does. The rows have no batch ids,
    or they came in many batches.
    """
    return {"results": [r for batches in (0, BATCHES) for r in _rewritten(lake, scale, batches)]}


def _rewritten(lake: Lake, scale: SubjectScale, batches: int) -> list[dict[str, Any]]:
    source, who = original(lake.catalog(), scale.counted_rows, batches), middle(scale.counted_rows)
    known = {Path(f.file_path).name: set(groups_of(f)) for f in files_of(source)}
    before = set[Group]().union(*known.values())
    held = {group for file in files_of(source) for group in groups_of(file, person(who))}
    results = []
    for version in VERSIONS:
        about = f"counted-v{version}-{batches}"
        (name,) = _datasets(lake, about, 1, scale.counted_rows, version, batches)
        lake.apply(policy(about, triggers={"activeTombstones": 1, "evictByLeadSeconds": 86_400}))
        found = erase(lake, about, [who], "verified", evictBySeconds=60)
        require(found["rows_erased"], ROWS_OF_PERSON)
        added = [f for f in files_of(lake.table(name)) if Path(f.file_path).name not in known]
        sizes = {
            "held": sum(g.bytes for g in held),
            "encoded": sum(g.bytes for f in added for g in set(groups_of(f)) - before),
            "written": sum(f.file_size_in_bytes for f in added),
            "file": max(f.file_size_in_bytes for f in files_of(source)),
        }
        of = {"version": version, "rows": scale.counted_rows, "batches": batches, "row_groups": len(held)}
        results.append({**of, **sizes, **found})
    return results


def retention(lake: Lake, scale: SubjectScale) -> dict[str, Any]:
    """One of 365 daily partitions becomes too old."""
    today = datetime.now(UTC).date()
    by_day = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=DayTransform(), name="day"))
    table = created(lake.catalog(), "shop.daily", by_day)
    size = max(10, scale.counted_rows // DAYS // 10)
    table.append(pa.concat_tables(rows(n * size, size, today - timedelta(days=n + 1)) for n in range(DAYS)))
    before = int(summaries(table)[-1]["total-records"])
    lake.apply(adopted(lake, "daily", "daily"))
    ready(lake, ["daily"])
    known = len(summaries(lake.table("daily")))
    lake.apply(policy("daily", retention={"column": "booked", "maxAgeDays": DAYS - 1}))
    wait("removed", lambda: int(summaries(lake.table("daily"))[-1]["total-records"]) < before)
    made = summaries(lake.table("daily"))[known:]
    sizes = {k: sum(int(s.get(f"{k}-files-size", 0)) for s in made) for k in ("removed", "added")}
    require(before - int(made[-1]["total-records"]), size)
    return {"results": [{"rows": before, "partitions": DAYS, "rows_removed": size, **sizes}]}


def _datasets(lake: Lake, about: str, number: int, size: int, version: int, batches: int = 0) -> list[str]:
    source, names = original(lake.catalog(), size, batches), [f"{about}-{n:02d}" for n in range(number)]
    for name in names:
        linked(lake.catalog(), name, source, version)
    lake.apply(*(adopted(lake, name, about) for name in names))
    ready(lake, names)
    return names


def require(found: int, expected: int) -> None:
    if found != expected:
        raise RuntimeError(f"{found} rows were erased, expected {expected}")


@contextmanager
def place(work: Path, _: SubjectScale) -> Iterator[Place]:
    """A folder of `lethe local` that runs."""
    shutil.rmtree(work / "local", ignore_errors=True)
    (work / "local").mkdir(parents=True)
    machine = {**describe_host(), "catalog": "SQLite, local files"}
    with running(work / "local") as lake:
        yield Place(lake, machine)
    shutil.rmtree(work / "local")


# --- report ----------------------------------------------------------------------------------------------------------


def goals(parts: Mapping[str, Part]) -> list[Goal]:
    """Of requests, and of what vacuums rewrite."""
    found: list[Goal] = []
    for r in results_of(parts, "person"):
        of = f"one person in {r['datasets']} Datasets of {r['rows']:,} rows: seconds until"
        found.append(goal(f"{of} hidden everywhere", r["seconds"]["hidden"], 60))
        found.append(goal(f"{of} verified everywhere", r["seconds"]["verified"], 600))
    results = results_of(parts, "crowd")
    if results:
        one, many = results[0], results[-1]
        of = f"{many['people']:,} people ÷ one person in {one['datasets']} Datasets of {one['rows']:,} rows:"
        found.append(goal(f"{of} seconds until hidden", ratio(many["seconds"]["hidden"], one["seconds"]["hidden"]), 2))
        found.append(goal(f"{of} CPU seconds until hidden", ratio(many["cpu"]["hidden"], one["cpu"]["hidden"]), 2))
    for r in results_of(parts, "rewritten"):
        of = f"format version {r['version']}, {r['batches'] or 'no'} batches"
        text = f"bytes that an erasure encodes ÷ bytes of the row groups with the person's rows, {of}"
        found.append(goal(text, ratio(r["encoded"], r["held"]), 1.5))
    for r in results_of(parts, "retention"):
        found.append(goal(f"bytes written when one of {r['partitions']} days is too old", r["added"], 0))
    return found


SECONDS_UNTIL: Final = (
    Cell("seconds until hidden", "seconds.hidden"),
    Cell("verified", "seconds.verified"),
    Cell("CPU seconds until hidden", "cpu.hidden"),
    Cell("verified", "cpu.verified"),
)
RUNS: Final = (
    Cell("runs of the Restatements", "runs.Restatement.number"),
    Cell("seconds of each, with waiting", "runs.Restatement.median_seconds"),
    Cell("vacuums", "runs.Vacuum.number"),
    Cell("seconds of each, with waiting", "runs.Vacuum.median_seconds"),
)
SUITE = Suite(
    name="subjects",
    purpose=(__doc__ or "").splitlines()[0],
    parts={"rewritten": rewritten, "retention": retention, "person": one_person, "crowd": crowd},
    scales=SCALES,
    views=(
        View("One person in many Datasets", ("person",), ("datasets", "rows"), cells=SECONDS_UNTIL + RUNS),
        View(
            "One person and many people",
            ("crowd",),
            ("people", "datasets", "rows"),
            cells=SECONDS_UNTIL[0::2] + RUNS[:2],
        ),
        View(
            "Bytes of an erasure",
            ("rewritten",),
            ("version", "batches", "rows"),
            cells=(
                *SECONDS_UNTIL,
                Cell("with rows of the person", "held"),
                Cell("encoded", "encoded"),
                Cell("written", "written"),
                Cell("of one file", "file"),
            ),
        ),
        View(
            "Bytes of retention",
            ("retention",),
            ("rows", "partitions"),
            cells=(Cell("removed", "removed"), Cell("written", "added")),
        ),
    ),
    goals=goals,
    place=place,
)

if __name__ == "__main__":
    program(SUITE)

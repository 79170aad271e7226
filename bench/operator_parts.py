"""What is measured of the operator: thousands of Datasets, idle and busy, Reverts, launches, and failovers. I/O."""

import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow.parquet as pq
from lethe.base import names
from lethe.base.names import batch_folder
from lethe.kube import DATASETS, RESTATEMENTS, AlreadyExists
from lethe_operator.cluster.client import JOBS
from lethe_operator.resources.common import ANNOTATION_DATASET

from bench import fleet, producer
from bench.cluster import NAMESPACE, Object, OperatorScale, Site, Watcher, costs
from bench.fleet import Copy, FakeNode
from bench.lake import total_records
from bench.restatements import Endings, Subject, alone, batch_id, latencies
from bench.timing import say

REVERT_WITHIN_SECONDS: Final = 120.0
KILLED_WITHIN_SECONDS: Final = 300.0
# The longest interval of idle Datasets: six times resyncMaxSeconds of the chart.
LONGEST_SECONDS: Final = 1_800.0
# Intervals are spread, and the longest are 20 % shorter than that.
RATE_TOLERANCE: Final = 1.4
RATE_EVERY_SECONDS: Final = 60.0
# Of the Datasets, so many may be due at a moment.
LATE_SHARE: Final = 0.01
# In such a time, with any number of Datasets.
FEW_RECONCILES: Final = 30


def copies_of(scale: OperatorScale) -> list[Copy]:
    return [Copy(i) for i in range(scale.datasets)]


class Correct(Watcher):
    """Follows the statuses of the fleet."""

    def __init__(self, site: Site, copies: Mapping[str, Copy]) -> None:
        super().__init__(site.kube, DATASETS, fleet.LABEL)
        self._copies = copies
        # When each Dataset's status was first correct, by time.time.
        self.times: dict[str, float] = {}
        # What is wrong with the statuses of the others.
        self.wrong: dict[str, str] = {}
        # The generation that each status shows, and when it first did.
        self.observed: dict[str, tuple[int, float]] = {}

    def take(self, change: str, body: Object) -> None:
        name, now = body["metadata"]["name"], time.time()
        copy = self._copies.get(name)
        if copy is None or change == "DELETED":
            return
        generation = int((body.get("status") or {}).get("observedGeneration", 0))
        if self.observed.get(name, (0, 0.0))[0] < generation:
            self.observed[name] = generation, now
        if name in self.times:
            return
        if wrong := copy.wrong(body):
            self.wrong[name] = wrong
        else:
            self.times[name] = now
            self.wrong.pop(name, None)


def creation(site: Site, scale: OperatorScale) -> dict[str, Any]:
    """All Datasets are created as fast as the API server accepts them, while the operator runs."""
    copies = copies_of(scale)
    site.clear_namespace()
    site.restart()
    made = fleet.template(site)
    fleet.make_tables(site, made, copies)
    site.restart()
    with costs(site) as used, Correct(site, {c.name: c for c in copies}) as correct:
        since = time.time()
        fleet.apply(site, (c.dataset for c in copies))
        created = time.time() - since
        complete = correct.wait_for(lambda: len(correct.times) == len(copies), scale.correct_within_seconds)
        took = time.time() - since
        result = {
            "datasets": len(copies),
            "correct": len(correct.times),
            "create_seconds": round(created, 1),
            "seconds": round(max(correct.times.values(), default=since) - since, 1) if complete else round(took, 1),
            "correct_after": sorted(round(t - since, 1) for t in correct.times.values()),
        }
        say(f"  {len(correct.times):,} statuses are correct after {took:.0f} s")
        if not complete:
            name, why = next(iter(correct.wrong.items()), ("", "no status"))
            result["error"] = f"{len(copies) - len(correct.times)} statuses are not correct, such as {name}: {why}"
    return {"results": [result | used]}


def idle(site: Site, scale: OperatorScale) -> dict[str, Any]:
    """Nothing changes: what the operator costs. It has just been restarted beside many finished Restatements, so its memory
    includes the reading of all of them."""
    finished(site, scale)
    site.restart()
    site.settled_leader()  # as the chart installs it, with a standby, whose requests count
    settled = _until_idle(site, scale)
    window = Window.begin(site)
    time.sleep(scale.idle_seconds)
    result = window.end()
    site.stop_standbys()
    since = site.process.cpu_seconds()
    sums, size = site.process.metrics()
    result |= {
        "datasets": scale.datasets,
        "finished": scale.finished,
        "replicas": len(site.replicas),
        "settled_seconds": settled,
        "scrape_cpu_seconds": round(site.process.cpu_seconds() - since, 2),
        "scrape_bytes": size,
        "reconciles": sums.get("lethe_reconciles_total", 0.0),
    }
    say(f"  {result}")
    return {"results": [result]}


def _until_idle(site: Site, scale: OperatorScale) -> float:
    """Wait until the intervals of the Datasets have reached their maximum: no reconcile is late, and there are as few as the
    longest interval leads to. Returns: how long it took, in seconds.

    Raises: RuntimeError, if they do not within `scale.settle_seconds`.
    """
    say("  waiting for idle intervals to reach their maximum")
    began, known = time.monotonic(), _reconciles(site)[0]
    wanted = scale.datasets * RATE_EVERY_SECONDS / LONGEST_SECONDS
    while True:
        time.sleep(RATE_EVERY_SECONDS)
        before, (known, late) = known, _reconciles(site)
        is_rare = known - before <= max(wanted * RATE_TOLERANCE, FEW_RECONCILES)
        if is_rare and late <= LATE_SHARE * scale.datasets:
            return round(time.monotonic() - began, 1)
        if time.monotonic() - began > scale.settle_seconds:
            raise RuntimeError(
                f"{known - before:,.0f} reconciles in {RATE_EVERY_SECONDS:.0f} s, expected {wanted:,.0f}"
            )


def _reconciles(site: Site) -> tuple[float, float]:
    """How many there were, and how many are due and have not begun."""
    found = site.process.metrics()[0]
    return found.get("lethe_reconciles_total", 0.0), found.get("lethe_queue_depth", 0.0)


@dataclass(frozen=True)
class Window:
    """A time in which the operator is measured."""

    site: Site
    began: float
    cpu_seconds: float
    requests: float
    queries: float

    @classmethod
    def begin(cls, site: Site) -> "Window":
        return cls(site, time.monotonic(), site.process.cpu_seconds(), site.operator_requests(), site.catalog_queries())

    def end(self) -> dict[str, Any]:
        site, seconds = self.site, time.monotonic() - self.began
        own = 1  # the query that counts
        return {
            "seconds": round(seconds, 1),
            "cpu_share": round((site.process.cpu_seconds() - self.cpu_seconds) / seconds, 4),
            "memory_bytes": site.process.memory_bytes(),
            "memory_peak_bytes": site.process.memory_bytes(peak=True),
            "api_requests_per_second": round((site.operator_requests() - self.requests) / seconds, 3),
            "catalog_queries_per_second": round((site.catalog_queries() - self.queries - own) / seconds, 3),
        }


def finished(site: Site, scale: OperatorScale) -> None:
    """Let there be so many finished Restatements. They are copies of one that the committer carried out. Those of an interrupted
    run count."""
    model = _finished_model(site, copies_of(scale)[0])
    known = {
        r["metadata"]["name"] for r in site.kube.list(RESTATEMENTS, NAMESPACE, "bench=finished") if r.get("status")
    }

    def create(number: int) -> None:
        copy = Copy(number % scale.datasets)
        name = _name_of_finished(number)
        spec = {**model["spec"], "datasetRef": {"name": copy.name}}
        metadata = {"name": name, "labels": {"bench": "finished"}}
        body = {"apiVersion": model["apiVersion"], "kind": model["kind"], "metadata": metadata, "spec": spec}
        with suppress(AlreadyExists):
            site.kube.create(RESTATEMENTS, NAMESPACE, body)
        site.kube.patch(RESTATEMENTS, NAMESPACE, name, {"status": model["status"]}, "status")

    site.stop()  # it would start to carry them out between the two requests
    missing = [n for n in range(scale.finished) if _name_of_finished(n) not in known]
    fleet.in_threads(missing, create, "finished Restatements")


def _name_of_finished(number: int) -> str:
    return f"finished-{number:06d}"


def _finished_model(site: Site, copy: Copy) -> Mapping[str, Any]:
    """A Restatement that has succeeded."""
    site.running()
    with Endings(site, "bench=model") as endings:
        found = site.get(RESTATEMENTS, "model")
        if found is None:
            site.create(RESTATEMENTS, "model", revert_of(copy, 0), {"bench": "model"})
        if not endings.wait(1, REVERT_WITHIN_SECONDS):
            raise RuntimeError("the first Revert did not end: see the operator's log")
    found = site.get(RESTATEMENTS, "model")
    assert found is not None
    return found


def revert_of(copy: Copy, number: int) -> dict[str, Any]:
    return {
        "datasetRef": {"name": copy.name},
        "operation": "Revert",
        "batchIds": [batch_id(number)],
        "reason": "measured",
    }


def reverts(site: Site, scale: OperatorScale) -> dict[str, Any]:
    """Reverts one at a time, each on another of the idle Datasets, from the creation to the committer's commit."""
    site.running()
    copies = copies_of(scale)
    step = max(1, (len(copies) - 1) // scale.reverts)
    chosen = copies[1::step][: scale.reverts]
    label = f"revert-{int(time.time())}"
    asked: dict[str, float] = {}
    with Endings(site, f"bench={label}") as endings:
        for copy in chosen:
            name = f"{label}-{copy.index:05d}"
            asked[name] = time.time()
            site.create(RESTATEMENTS, name, revert_of(copy, 1), {"bench": label})
            endings.wait(len(asked), REVERT_WITHIN_SECONDS)
    return {"results": [latencies(asked, endings)]}


def failover(site: Site, scale: OperatorScale) -> dict[str, Any]:
    """The operator is killed and a Dataset is changed: how long until its status shows the change."""
    copies = [c for c in copies_of(scale) if not c.waiting] or copies_of(scale)
    took: list[float] = []
    problem = ""
    with Correct(site, {c.name: c for c in copies}) as correct:
        for round_ in range(scale.kills):
            leader = site.settled_leader()
            say("  the leader is killed")
            copy = copies[(round_ * 7 + 1) % len(copies)]
            leader.kill()
            since = time.time()
            leader.start(wait=False)  # as a Deployment does
            patch = {"spec": {"restatements": {"windowSeconds": 11 + round_ + int(since) % 100}}}
            wanted = site.kube.patch(DATASETS, NAMESPACE, copy.name, patch)["metadata"]["generation"]
            shown = correct.wait_for(
                lambda name=copy.name, g=wanted: correct.observed.get(name, (0, 0.0))[0] >= g,  # type: ignore[misc]
                KILLED_WITHIN_SECONDS,
            )
            if not shown:
                problem = f"no reconcile within {KILLED_WITHIN_SECONDS:.0f} s"
                break
            took.append(round(correct.observed[copy.name][1] - since, 2))
            say(f"  next reconcile after {took[-1]:.1f} s")
    site.stop()
    result: dict[str, Any] = {"datasets": scale.datasets, "replicas": len(site.replicas), "seconds": took}
    return {"results": [result | ({"error": problem} if problem else {})]}


LAUNCH_WITHIN_SECONDS: Final = 600.0
# A run that is launched later than this does not count as held.
IN_TIME_SECONDS: Final = 30.0
# Before the first run becomes due, so that all Datasets have been reconciled with their new spec.
LEAD_SECONDS: Final = 60.0
# Batches in the buffer of each run that becomes due: more than any other buffer has.
NEW_BATCHES: Final = fleet.WAITING_AT_MOST + 1
LISTED_WITHIN_SECONDS: Final = 900.0
LISTED_EVERY_SECONDS: Final = 15.0
OVER_WITHIN_SECONDS: Final = 600.0
QUIET_LOOKS: Final = 3


def launches(site: Site, scale: OperatorScale) -> dict[str, Any]:
    """Runs become due by the age of their batches, at an even rate, each of another Dataset. They end at once."""
    site.running()
    number = scale.runs_per_minute * scale.run_minutes
    chosen = [c for c in copies_of(scale) if c.waiting][:number]
    fleet.in_threads(chosen, lambda copy: _only_new_batches(site, copy), "buffers")
    put = {c.name: _oldest(site, c) for c in chosen}
    _until_listed(site, {c.name for c in chosen})  # otherwise batches of earlier listings would be due at once
    began = time.time() + LEAD_SECONDS
    due = {c.name: began + i * 60 / scale.runs_per_minute for i, c in enumerate(chosen)}
    by_name = {c.name: c for c in chosen}
    with (
        FakeNode(site.kube, lambda name: fleet.empty(site, by_name[name]) if name in by_name else None) as node,
        Started(site) as started,
        costs(site) as used,
    ):

        def soon(copy: Copy) -> None:
            age = max(1, round(due[copy.name] - put[copy.name]))
            due[copy.name] = put[copy.name] + age
            patch = {"spec": {"consolidation": {"maxAgeSeconds": age}}}
            site.kube.patch(DATASETS, NAMESPACE, copy.name, patch)

        fleet.in_threads(chosen, soon, "Datasets will have a due run")
        within_seconds = LEAD_SECONDS + 60 * scale.run_minutes + LAUNCH_WITHIN_SECONDS
        started.wait_for(lambda: len(started.times) >= len(chosen), within_seconds)
        _until_over(site)  # or the parts after this one would measure the attempts that follow
        ended = node.ended
    late = [round(max(0.0, started.times[n] - due[n]), 2) for n in due if n in started.times]
    result: dict[str, Any] = {
        "runs": len(chosen),
        "per_minute": scale.runs_per_minute,
        "launched": len(late),
        "ended": ended,
        "in_time_per_minute": round(scale.runs_per_minute * sum(s <= IN_TIME_SECONDS for s in late) / len(chosen), 1),
        "due_to_launched": late,
        "due_after": [round(due[n] - min(due.values()), 1) for n in due if n in started.times],
        **used,
    }
    if len(late) < len(chosen):
        result["error"] = f"{len(chosen) - len(late)} of {len(chosen)} due runs were not launched"
    return {"results": [result]}


class Started(Watcher):
    """When the first Job of each Dataset was created, as a watch shows it."""

    def __init__(self, site: Site) -> None:
        super().__init__(site.kube, JOBS)
        self.times: dict[str, float] = {}
        self._since = datetime.now(UTC)

    def take(self, change: str, body: Object) -> None:
        metadata = body["metadata"]
        created = datetime.fromisoformat(metadata["creationTimestamp"])
        name = (metadata.get("annotations") or {}).get(ANNOTATION_DATASET)
        if change == "ADDED" and name and (created - self._since).total_seconds() > -1:
            self.times.setdefault(name, time.time())


def _only_new_batches(site: Site, copy: Copy) -> None:
    """More than any buffer has had, so that a status shows whether they are known."""
    fleet.empty(site, copy)
    for number in range(NEW_BATCHES):
        fleet.put_batch(site, copy, fleet.PROMOTED + fleet.WAITING_AT_MOST + number)


def _until_listed(site: Site, names: Set[str]) -> None:
    """Wait until the statuses of these Datasets show their new batches. Raises: RuntimeError."""
    deadline = time.monotonic() + LISTED_WITHIN_SECONDS
    while True:
        shown = {
            d["metadata"]["name"]
            for page in site.kube.pages(DATASETS, NAMESPACE, fleet.LABEL)
            for d in page
            if ((d.get("status") or {}).get("buffer") or {}).get("batches") == NEW_BATCHES
        }
        if names <= shown:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(names - shown)} buffers were not listed within {LISTED_WITHIN_SECONDS:.0f} s")
        say(f"  {len(names & shown):,} of {len(names):,} buffers are listed")
        time.sleep(LISTED_EVERY_SECONDS)


def _until_over(site: Site) -> None:
    """Wait until no Job is active, and none starts for a while."""
    deadline, quiet = time.monotonic() + OVER_WITHIN_SECONDS, 0
    while quiet < QUIET_LOOKS and time.monotonic() < deadline:
        active = sum(_is_active(job) for page in site.kube.pages(JOBS, NAMESPACE) for job in page)
        quiet = 0 if active else quiet + 1
        say(f"  {active:,} runs are active")
        time.sleep(LISTED_EVERY_SECONDS)


def _is_active(job: dict[str, Any]) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return not any(c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in conditions)


def _oldest(site: Site, copy: Copy) -> float:
    """When the oldest object of a buffer was written, by the clock of the store."""
    bucket, _, prefix = copy.buffer.removeprefix("s3://").partition("/")
    found = site.s3.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/")["Contents"]
    return float(min(o["LastModified"].timestamp() for o in found if not o["Key"].endswith(names.CLAIM_FILE)))


PROMOTED_WITHIN_SECONDS: Final = 3600.0
# Files that are in memory at once.
AT_ONCE: Final = 1_000


def consolidation(site: Site, scale: OperatorScale) -> dict[str, Any]:
    """A buffer that is full when its Dataset is created, with default settings."""
    alone(site)
    subject = Subject(site, "bench-files")
    subject.clean()
    rows = _fill(subject, scale.small_files)
    create_dataset(subject)
    seconds = subject.await_promoted(scale.small_files, PROMOTED_WITHIN_SECONDS)
    result = {
        "files": scale.small_files,
        "rows": rows,
        "seconds": round(seconds, 1),
        "per_hour": round(scale.small_files / seconds * 3600),
        "commits": subject.commits(),
    }
    if (total := total_records(site.catalog.load_table(subject.table))) != rows:
        result["error"] = f"the table has {total:,} rows, expected {rows:,}"
    return {"results": [result]}


def _fill(subject: Subject, count: int) -> int:
    """Put batches into the buffer, as their producers would. Returns: the number of their rows."""
    say(f"  {count:,} small files")
    return sum(
        put_numbered(subject, range(first, min(first + AT_ONCE, count)), content_of)
        for first in range(0, count, AT_ONCE)
    )


@dataclass(frozen=True)
class Content:
    """The file of a batch."""

    data: bytes
    rows: int


def content_of(number: int) -> Content:
    batch, sink = producer.rows_of(number), io.BytesIO()
    pq.write_table(batch, sink)
    return Content(sink.getvalue(), batch.num_rows)


def put_numbered(subject: Subject, numbers: Sequence[int], content: Callable[[int], Content]) -> int:
    """Put batches into the buffer, the files before the markers. Returns: the number of their rows."""
    rows = 0

    def objects() -> Iterator[tuple[str, bytes]]:
        nonlocal rows
        for number in numbers:
            file = content(number)
            rows += file.rows
            yield f"{_folder(subject, number)}/part-0.parquet", file.data

    subject.site.put_all(objects())
    subject.site.put_all((f"{_folder(subject, n)}/{names.SUCCESS_MARKER}", b"") for n in numbers)
    return rows


def create_dataset(subject: Subject, **buffer: Any) -> None:
    """A Dataset of a producer's batches, with default settings but for these of its buffer."""
    create = {"schema": producer.SCHEMA, "partitionBy": [producer.PARTITION]}
    spec = {
        "table": {"catalog": "main", "name": subject.table, "create": create},
        "batchColumn": producer.BATCH_COLUMN,
        "buffer": {"uri": subject.buffer, **buffer},
    }
    subject.site.create(DATASETS, subject.name, spec, {"bench": subject.name})


def _folder(subject: Subject, number: int) -> str:
    return f"{subject.buffer}/{batch_folder(producer.BATCH_COLUMN, producer.batch_id(number))}"


BATCHES_AN_HOUR: Final = 10
DRAINED_WITHIN_SECONDS: Final = 1800.0


class Promoted(Watcher):
    """When the statuses of a fleet first counted each batch, by the number of the Dataset and the order of its batches."""

    def __init__(self, site: Site) -> None:
        super().__init__(site.kube, DATASETS, fleet.LABEL)
        self.times: dict[tuple[str, int], float] = {}

    def take(self, change: str, body: Object) -> None:
        if change == "DELETED":
            return
        name, now = body["metadata"]["name"], time.time()
        shown = int(((body.get("status") or {}).get("batches") or {}).get("promoted", 0))
        for number in range(shown - fleet.PROMOTED):
            self.times.setdefault((name, number), now)


def small(site: Site, scale: OperatorScale) -> dict[str, Any]:
    """Many Datasets with default settings get ten small batches an hour each, evenly. A warm driver carries out their runs."""
    copies = [Copy(i) for i in range(scale.small_datasets)]
    site.clear_namespace()
    site.restart()
    made = fleet.template(site)
    fleet.make_tables(site, made, copies)
    fleet.in_threads(copies, lambda copy: fleet.empty(site, copy), "empty buffers")
    fleet.apply(site, (c.with_defaults for c in copies))
    with Correct(site, {c.name: c for c in copies}) as shown:
        if not shown.wait_for(lambda: len(shown.observed) == len(copies), scale.correct_within_seconds):
            raise RuntimeError("not all Datasets have a status: see the operator's log")
    every = 3600 / BATCHES_AN_HOUR / len(copies)
    count = round(scale.small_minutes * 60 / every)
    put: dict[tuple[str, int], float] = {}
    with costs(site) as used, Promoted(site) as promoted, Started(site) as started:
        since = time.time()
        for index in range(count):
            number, copy = divmod(index, len(copies))
            time.sleep(max(0.0, since + index * every - time.time()))
            fleet.put_batch(site, copies[copy], fleet.PROMOTED + number)
            put[copies[copy].name, number] = time.time()
        took = time.time() - since
        say(f"  {count:,} batches are put, {len(promoted.times):,} are promoted")
        complete = promoted.wait_for(lambda: len(promoted.times) >= count, DRAINED_WITHIN_SECONDS)
    cpu = {name: used[f"{name}_cpu_seconds"] / count for name in ("operator", "committer", "spark")}
    result: dict[str, Any] = {
        "datasets": len(copies),
        "batches": count,
        "batches_an_hour": round(count / took * 3600),
        "seconds_until_all_promoted": round(max(promoted.times.values(), default=since) - since, 1),
        "to_promoted": sorted(round(at - put[key], 1) for key, at in promoted.times.items() if key in put),
        "datasets_with_jobs": len(started.times),
        "cpu_seconds_per_batch": round(sum(cpu.values()), 3),
        **{f"{name}_cpu_seconds_per_batch": round(seconds, 3) for name, seconds in cpu.items()},
        **used,
    }
    say(f"  {result['cpu_seconds_per_batch']} CPU seconds for a batch")
    if not complete:
        result["error"] = f"{count - len(promoted.times):,} of {count:,} batches were not promoted in time"
    return {"results": [result]}

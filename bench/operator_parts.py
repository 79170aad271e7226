"""What is measured of the operator: thousands of Datasets, idle and busy, Reverts, launches, and failovers. I/O."""

import io
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import lethe_spark
import pyarrow.parquet as pq
from lethe.base import names
from lethe.base.ids import batch_folder
from lethe.contract.kubernetes import VACUUM_NOW
from lethe.contract.run import CreateTable
from lethe.kube import DATASETS, RESTATEMENTS, AlreadyExists
from lethe_operator.cluster.client import JOBS
from lethe_operator.resources.common import ANNOTATION_DATASET
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext

from bench import cluster, fleet, producer
from bench.cluster import NAMESPACE, QUIET_SECONDS, Endings, RestatementScale, Subject, batch_id, events_of
from bench.consolidation import in_windows
from bench.fleet import Copy, FakeNode
from bench.lake import BATCH_COLUMN, CATALOG, METRICS, PARTITION, SCHEMA, Lake, our_properties, total_records
from bench.operator_process import OperatorScale, OperatorSite
from bench.timing import say

SAMPLED_EVERY_SECONDS: Final = 1.0
REVERT_WITHIN_SECONDS: Final = 120.0
KILLED_WITHIN_SECONDS: Final = 300.0
SAID_EVERY_SECONDS: Final = 30.0
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


@dataclass
class Correct:
    """Follows the statuses of the fleet. Use as a context."""

    copies: Mapping[str, Copy]
    # When each Dataset's status was first correct, by time.time.
    times: dict[str, float] = field(default_factory=dict)
    # What is wrong with the statuses of the others.
    wrong: dict[str, str] = field(default_factory=dict)
    # The generation that each status shows, and when it first did.
    observed: dict[str, tuple[int, float]] = field(default_factory=dict)
    _closed: threading.Event = field(default_factory=threading.Event)
    _more: threading.Condition = field(default_factory=threading.Condition)

    def __enter__(self) -> "Correct":
        threading.Thread(target=self._follow, name="correct", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()

    def wait(self, holds: Callable[[], bool], within_seconds: float) -> bool:
        deadline, said = time.monotonic() + within_seconds, time.monotonic()
        with self._more:
            while not holds():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._more.wait(min(left, 1.0))
                if time.monotonic() - said > SAID_EVERY_SECONDS:
                    said = time.monotonic()
                    say(f"  {len(self.times):,} of {len(self.copies):,} statuses are correct")
        return True

    def _follow(self) -> None:
        for kind, body in events_of(DATASETS, NAMESPACE, self._closed, labels=fleet.LABEL):
            name, now = body["metadata"]["name"], time.time()
            copy = self.copies.get(name)
            if copy is None or kind == "DELETED":
                continue
            generation = int((body.get("status") or {}).get("observedGeneration", 0))
            wrong = "" if name in self.times else copy.wrong(body)
            with self._more:
                if self.observed.get(name, (0, 0.0))[0] < generation:
                    self.observed[name] = generation, now
                if wrong:
                    self.wrong[name] = wrong
                else:
                    self.times.setdefault(name, now)
                    self.wrong.pop(name, None)
                self._more.notify_all()


def creation(site: OperatorSite, scale: OperatorScale) -> dict[str, Any]:
    """All Datasets are created as fast as the API server accepts them, while the operator runs."""
    copies = copies_of(scale)
    site.clear_namespace()
    site.restart()
    made = fleet.template(site)
    fleet.make_tables(site, made, copies)
    site.restart()
    requests, queries = site.operator_requests(), site.catalog_queries()
    with Correct({c.name: c for c in copies}) as correct:
        since = time.time()
        fleet.apply(site, copies)
        created = time.time() - since
        complete = correct.wait(lambda: len(correct.times) == len(copies), scale.correct_within_seconds)
        took = time.time() - since
        result = {
            "datasets": len(copies),
            "correct": len(correct.times),
            "create_seconds": round(created, 1),
            "seconds": round(max(correct.times.values(), default=since) - since, 1) if complete else round(took, 1),
            "correct_after": sorted(round(t - since, 1) for t in correct.times.values()),
            **_costs(site, requests, queries),
        }
        say(f"  {len(correct.times):,} statuses are correct after {took:.0f} s")
        if not complete:
            name, why = next(iter(correct.wrong.items()), ("", "no status"))
            result["error"] = f"{len(copies) - len(correct.times)} statuses are not correct, such as {name}: {why}"
    return {"results": [result]}


def _costs(site: OperatorSite, requests: float, queries: float) -> dict[str, float]:
    """Since the operator's start, which was just before."""
    return {
        "operator_cpu_seconds": round(site.process.cpu_seconds(), 1),
        "operator_memory_peak_bytes": site.process.memory_bytes(peak=True),
        "operator_api_requests": site.operator_requests() - requests,
        "catalog_queries": site.catalog_queries() - queries,
    }


def idle(site: OperatorSite, scale: OperatorScale) -> dict[str, Any]:
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
        "replicas": site.replicas_used,
        "settled_seconds": settled,
        "scrape_cpu_seconds": round(site.process.cpu_seconds() - since, 2),
        "scrape_bytes": size,
        "reconciles": sums.get("lethe_reconciles_total", 0.0),
    }
    say(f"  {result}")
    return {"results": [result]}


def _until_idle(site: OperatorSite, scale: OperatorScale) -> float:
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


def _reconciles(site: OperatorSite) -> tuple[float, float]:
    """How many there were, and how many are due and have not begun."""
    found = site.process.metrics()[0]
    return found.get("lethe_reconciles_total", 0.0), found.get("lethe_queue_depth", 0.0)


@dataclass(frozen=True)
class Window:
    """A time in which the operator is measured."""

    site: OperatorSite
    began: float
    cpu_seconds: float
    requests: float
    queries: float

    @classmethod
    def begin(cls, site: OperatorSite) -> "Window":
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


def finished(site: OperatorSite, scale: OperatorScale) -> None:
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


def _finished_model(site: OperatorSite, copy: Copy) -> Mapping[str, Any]:
    """A Restatement that has succeeded."""
    site.running()
    with Endings(site, "bench=model") as endings:
        found = site.get("Restatement", "model")
        if found is None:
            site.create("Restatement", "model", revert_of(copy, 0), {"bench": "model"})
        if not endings.wait(1, REVERT_WITHIN_SECONDS):
            raise RuntimeError("the first Revert did not end: see the operator's log")
    found = site.get("Restatement", "model")
    assert found is not None
    return found


def revert_of(copy: Copy, number: int) -> dict[str, Any]:
    return {
        "datasetRef": {"name": copy.name},
        "operation": "Revert",
        "batchIds": [batch_id(number)],
        "reason": "measured",
    }


def reverts(site: OperatorSite, scale: OperatorScale) -> dict[str, Any]:
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
            site.create("Restatement", name, revert_of(copy, 1), {"bench": label})
            endings.wait(len(asked), REVERT_WITHIN_SECONDS)
    return {"results": [latencies(asked, endings)]}


def latencies(asked: Mapping[str, float], endings: Endings) -> dict[str, Any]:
    """From the creation to the commit, and to the status that a watch shows."""
    ended = endings.by_name
    result: dict[str, Any] = {
        "restatements": len(asked),
        "to_committed": [round(e.committed - asked[n], 2) for n, e in ended.items() if n in asked and e.committed],
        "to_seen": [round(e.seen - asked[n], 2) for n, e in ended.items() if n in asked],
    }
    failed = {e.reason for n, e in ended.items() if n in asked and not e.succeeded}
    if missing := asked.keys() - ended.keys():
        result["error"] = f"{len(missing)} have not ended, the first of them {min(missing)}"
    elif failed:
        result["error"] = f"some failed: {', '.join(sorted(failed))}"
    return result


def failover(site: OperatorSite, scale: OperatorScale) -> dict[str, Any]:
    """The operator is killed and a Dataset is changed: how long until its status shows the change."""
    copies = [c for c in copies_of(scale) if not c.waiting] or copies_of(scale)
    took: list[float] = []
    problem = ""
    with Correct({c.name: c for c in copies}) as correct:
        for round_ in range(scale.kills):
            leader = site.settled_leader()
            say("  the leader is killed")
            copy = copies[(round_ * 7 + 1) % len(copies)]
            leader.kill()
            since = time.time()
            site.after_kill(leader)
            patch = {"spec": {"restatements": {"windowSeconds": 11 + round_ + int(since) % 100}}}
            wanted = site.kube.patch(DATASETS, NAMESPACE, copy.name, patch)["metadata"]["generation"]
            shown = correct.wait(
                lambda name=copy.name, g=wanted: correct.observed.get(name, (0, 0.0))[0] >= g,  # type: ignore[misc]
                KILLED_WITHIN_SECONDS,
            )
            if not shown:
                problem = f"no reconcile within {KILLED_WITHIN_SECONDS:.0f} s"
                break
            took.append(round(correct.observed[copy.name][1] - since, 2))
            say(f"  next reconcile after {took[-1]:.1f} s")
    site.stop()
    result: dict[str, Any] = {"datasets": scale.datasets, "replicas": site.replicas_used, "seconds": took}
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


def launches(site: OperatorSite, scale: OperatorScale) -> dict[str, Any]:
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
    with FakeNode(site.kube, NAMESPACE, lambda name: _empty(site, by_name.get(name))) as node, Started() as started:
        requests, cpu = site.operator_requests(), site.process.cpu_seconds()

        def soon(copy: Copy) -> None:
            age = max(1, round(due[copy.name] - put[copy.name]))
            due[copy.name] = put[copy.name] + age
            patch = {"spec": {"consolidation": {"maxAgeSeconds": age}}}
            site.kube.patch(DATASETS, NAMESPACE, copy.name, patch)

        fleet.in_threads(chosen, soon, "Datasets will have a due run")
        started.wait(len(chosen), LEAD_SECONDS + 60 * scale.run_minutes + LAUNCH_WITHIN_SECONDS)
        used = {
            "operator_cpu_seconds": round(site.process.cpu_seconds() - cpu, 1),
            "operator_api_requests": site.operator_requests() - requests,
        }
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


@dataclass
class Started:
    """When the first Job of each Dataset was created, as a watch shows it. Use as a context."""

    times: dict[str, float] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)
    _closed: threading.Event = field(default_factory=threading.Event)
    _more: threading.Condition = field(default_factory=threading.Condition)

    def __enter__(self) -> "Started":
        threading.Thread(target=self._follow, name="started", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()

    def wait(self, number: int, within_seconds: float) -> bool:
        with self._more:
            return self._more.wait_for(lambda: len(self.times) >= number, within_seconds)

    def _follow(self) -> None:
        since = datetime.now(UTC)
        for kind, job in events_of(JOBS, NAMESPACE, self._closed):
            metadata = job["metadata"]
            created = datetime.fromisoformat(metadata["creationTimestamp"])
            name = (metadata.get("annotations") or {}).get(ANNOTATION_DATASET)
            if kind == "ADDED" and name and (created - since).total_seconds() > -1:
                with self._more:
                    self.times.setdefault(name, time.time())
                    self._more.notify_all()


def _only_new_batches(site: OperatorSite, copy: Copy) -> None:
    """More than any buffer has had, so that a status shows whether they are known."""
    _empty(site, copy)
    for number in range(NEW_BATCHES):
        fleet.put_batch(site, copy, fleet.PROMOTED + fleet.WAITING_AT_MOST + number)


def _until_listed(site: OperatorSite, names: Set[str]) -> None:
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


def _until_over(site: OperatorSite) -> None:
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


def _empty(site: OperatorSite, copy: Copy | None) -> None:
    """Remove all batches from a buffer, but not its claim."""
    if copy is None:
        return
    folder = f"{copy.buffer}/"
    for name in site.names_in(copy.buffer):
        if name != names.CLAIM_FILE:
            site.clear(folder + name)


def _oldest(site: OperatorSite, copy: Copy) -> float:
    """When the oldest object of a buffer was written, by the clock of the store."""
    bucket, _, prefix = copy.buffer.removeprefix("s3://").partition("/")
    found = site.s3.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/")["Contents"]
    return float(min(o["LastModified"].timestamp() for o in found if not o["Key"].endswith(names.CLAIM_FILE)))


ENDS_WITHIN_SECONDS: Final = 300.0
# Shorter than the pause between two Restatements.
WINDOW_SECONDS: Final = 1
VACUUM_WITHIN_SECONDS: Final = 180.0
VACUUMS_AT_MOST: Final = 30


def thrown(site: OperatorSite, scale: OperatorScale) -> dict[str, Any]:
    """Thousands of Restatements at once."""
    alone(site)
    return cluster.all_at_once(site, scale.restatement)


def steady(site: OperatorSite, scale: OperatorScale) -> dict[str, Any]:
    """Restatements at a steady rate, beside consolidations and vacuums."""
    alone(site)
    return cluster.at_a_steady_rate(site, scale.restatement)


def warm(site: OperatorSite, scale: OperatorScale) -> dict[str, Any]:
    """Small Replays, one at a time, by a warm driver that runs already."""
    if not site.has_warm_drivers:
        say("  skipped: the installed chart has no warm drivers")
        return {"results": [{"skipped": "the installed chart has no warm drivers"}]}
    alone(site)
    indexes = range(scale.replays + 1)
    subject = _subject(site, "bench-warm", len(indexes))
    subject.put_replacements(indexes)
    asked: dict[str, float] = {}
    with Endings(site, subject.label) as endings:
        first = subject.ask(0, replay=True)  # starts the driver
        endings.wait(1, ENDS_WITHIN_SECONDS)
        started = time.time() - first
        for index in indexes[1:]:
            time.sleep(QUIET_SECONDS)
            asked[subject.request(index)] = subject.ask(index, replay=True)
            endings.wait(len(asked) + 1, ENDS_WITHIN_SECONDS)
    result = {"first_seconds": round(started, 1), **latencies(asked, endings)}
    if "error" not in result and (problem := subject.wrong(indexes, indexes, frozenset(indexes))):
        result["error"] = problem
    return {"results": [result]}


def vacuum(site: OperatorSite, scale: OperatorScale) -> dict[str, Any]:
    """Reverts one at a time, without a vacuum of their table and beside one."""
    alone(site)
    number = scale.beside_vacuum
    subject = _subject(site, "bench-beside", 3 * number + 10)
    left = iter(range(3 * number + 10))
    without: dict[str, float] = {}
    beside: dict[str, float] = {}
    vacuums = 0
    with Endings(site, subject.label) as endings:
        _one_at_a_time(subject, left, without, endings, lambda: len(without) >= number)
        while len(beside) < number and vacuums < VACUUMS_AT_MOST:
            job = _start_vacuum(site, subject)
            if job is None:
                break
            vacuums += 1
            _one_at_a_time(subject, left, beside, endings, lambda job=job: _has_ended(site, subject, job))  # type: ignore[misc]
            say(f"  {len(beside)} Reverts beside {vacuums} vacuums")
    result: dict[str, Any] = {
        "vacuums": vacuums,
        "without": latencies(without, endings),
        "beside": latencies(beside, endings),
    }
    errors = [r["error"] for r in (result["without"], result["beside"]) if "error" in r]
    if errors or not beside:
        result["error"] = "; ".join(errors) or f"no vacuum started within {VACUUM_WITHIN_SECONDS:.0f} s"
    return {"results": [result]}


def consecutive(site: OperatorSite, scale: OperatorScale) -> dict[str, Any]:
    """Reverts of one batch each, one after the other, in one session; no operator runs meanwhile."""
    site.stop()
    lake = Lake.open(site.work / "lake", scale.driver_memory)
    try:
        return consecutive_reverts(lake, scale.restatement)
    finally:
        lake.spark.stop()


def alone(site: OperatorSite) -> None:
    """An operator that has just started, in an empty namespace."""
    site.clear_namespace()
    site.restart()


def _subject(site: OperatorSite, name: str, batches: int) -> Subject:
    """A Dataset with promoted batches that collects Restatements only shortly."""
    subject = Subject(site, name)
    subject.clean()
    subject.put_batches(range(batches))
    subject.begin(batches)
    patch = {"spec": {"restatements": {"windowSeconds": WINDOW_SECONDS}}}
    site.kube.patch(DATASETS, NAMESPACE, name, patch)
    return subject


def _one_at_a_time(
    subject: Subject, left: Iterator[int], asked: dict[str, float], endings: Endings, done: Callable[[], bool]
) -> None:
    """Reverts until `done`, or until no batch is left."""
    while not done() and (index := next(left, None)) is not None:
        asked[subject.request(index)] = subject.ask(index, replay=False)
        before = len(endings.by_name)
        endings.wait(before + 1, ENDS_WITHIN_SECONDS)
        time.sleep(QUIET_SECONDS)


def _start_vacuum(site: OperatorSite, subject: Subject) -> str | None:
    """Request a vacuum, and wait until it works. Returns: its Job; None: none started."""
    known = {r["name"] for r in _vacuums(site, subject)}
    annotations = {VACUUM_NOW: str(time.time())}
    site.kube.patch(DATASETS, NAMESPACE, subject.name, {"metadata": {"annotations": annotations}})
    deadline = time.monotonic() + VACUUM_WITHIN_SECONDS
    while time.monotonic() < deadline:
        for run in _vacuums(site, subject):
            if run["name"] not in known and run.get("phase") not in ("Pending", None):
                return str(run["name"])
        time.sleep(0.5)
    return None


def _has_ended(site: OperatorSite, subject: Subject, job: str) -> bool:
    return all(r.get("finishTime") for r in _vacuums(site, subject) if r["name"] == job)


def _vacuums(site: OperatorSite, subject: Subject) -> list[dict[str, Any]]:
    status = (site.get("Dataset", subject.name) or {}).get("status") or {}
    return [r for r in status.get("runs") or () if r.get("kind") == "Vacuum"]


PROMOTED_WITHIN_SECONDS: Final = 3600.0
# Files that are in memory at once.
AT_ONCE: Final = 1_000


def consolidation(site: OperatorSite, scale: OperatorScale) -> dict[str, Any]:
    """A buffer that is full when its Dataset is created, with default settings."""
    alone(site)
    subject = Subject(site, "bench-files")
    subject.clean()
    rows = _fill(subject, scale.small_files)
    create = {"schema": producer.SCHEMA, "partitionBy": [producer.PARTITION]}
    spec = {
        "table": {"catalog": "main", "name": subject.table, "create": create},
        "batchColumn": producer.BATCH_COLUMN,
        "buffer": {"uri": subject.buffer},
    }
    site.create("Dataset", subject.name, spec, {"bench": subject.name})
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
    rows = 0

    def objects(first: int) -> Iterator[tuple[str, bytes]]:
        nonlocal rows
        for number in range(first, min(first + AT_ONCE, count)):
            batch = producer.rows_of(number)
            rows += batch.num_rows
            sink = io.BytesIO()
            pq.write_table(batch, sink)
            yield f"{_folder(subject, number)}/part-0.parquet", sink.getvalue()

    for first in range(0, count, AT_ONCE):
        subject.site.put_all(objects(first))
        numbers = range(first, min(first + AT_ONCE, count))
        subject.site.put_all((f"{_folder(subject, n)}/{names.SUCCESS_MARKER}", b"") for n in numbers)
    return rows


def _folder(subject: Subject, number: int) -> str:
    return f"{subject.buffer}/{batch_folder(producer.BATCH_COLUMN, producer.batch_id(number))}"


def consecutive_reverts(lake: Lake, scale: RestatementScale) -> dict[str, Any]:
    """Reverts of one batch each, one after the other; tidied up after each as every run does."""
    wanted = CreateTable(table_schema=SCHEMA, partition_by=(PARTITION,))
    table = SparkTable.create(lake.spark, CATALOG, "run.restated", wanted, METRICS | our_properties())
    table.ensure_layout(BATCH_COLUMN)

    def commit(_context: RunContext, number: int, _prepared: None) -> None:
        lethe_spark.revert(lake.spark, table.full_name, [f"flights-{number:06d}"])

    return in_windows(lake, table, scale.commits, scale.window, lambda _: None, commit)

"""What is measured on thousands of Datasets: their creation, idleness, Reverts, launches, and the death of the operator. I/O."""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from lethe.kube import DATASETS, RESTATEMENTS, AlreadyExists

from bench import fleet
from bench.asked import batch_id
from bench.endings import Endings
from bench.fleet import Copy
from bench.operator_scales import OperatorScale
from bench.operator_site import OperatorSite
from bench.site import NAMESPACE
from bench.timing import say
from bench.watching import watch

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
        for kind, body in watch(DATASETS, NAMESPACE, self._closed, labels=fleet.LABEL):
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

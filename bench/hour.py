"""An hour of small files on a cluster, as fast as they are promoted, beside Reverts and vacuums. I/O.

    python -m bench.hour [--scale tiny|small|full] [--out docs/benchmarks]

Producers deliver while fewer than `ahead` batches wait, so what is promoted in the hour is the highest rate that holds. They
share the processors with the cluster. Afterwards the rows of each batch are counted: none may be lost, be there twice, or have
come back. Needs a cluster with Lethe: `make bench-hour` sets up one of its own.
"""

import base64
import json
import os
import random
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import lethe
from lethe import tracing
from lethe.kube import PODS, VACUUM_POLICIES, NotFound
from lethe_operator.cluster.client import ResourceKind

from bench import cluster, producer
from bench.cluster import NAMESPACE, SYSTEM, Object, Site, costs
from bench.operator_parts import Content, content_of, create_dataset, put_numbered
from bench.report import MIB, Cell, Goal, Part, Shares, View, goal, percentile, results_of
from bench.restatements import Endings, Subject, alone, latencies
from bench.runner import Suite, program, sizes
from bench.stream import shares_of, stages_of
from bench.timing import say
from tests.support.trace_collector import ReceivedSpan, spans_of


@dataclass(frozen=True)
class HourScale:
    """How long it takes."""

    name: str
    # Duration of the deliveries.
    minutes: int
    # Batches that are delivered and not yet promoted, at most.
    ahead: int
    reverts_per_minute: int
    # Active tombstones at which a vacuum starts.
    vacuum_at: int
    driver_memory: str


SCALES: Final = sizes(
    HourScale,
    minutes=(2, 10, 60),
    ahead=(200, 5_000, 20_000),
    reverts_per_minute=(10, 6, 6),
    vacuum_at=(5, 20, 60),
    driver_memory=("", "", ""),
)

NAME: Final = "bench-hour"
# Contents of batches, which the producers repeat.
DISTINCT: Final = 1_000
AT_ONCE: Final = 500
LOOK_EVERY_SECONDS: Final = 0.5
SAMPLE_EVERY_SECONDS: Final = 10.0
AFTERWARDS_SECONDS: Final = 1_800.0
# Of promoted objects in the buffer. Listings take longer the more there are.
RETENTION_SECONDS: Final = 60
COMMITTED_WITHIN_SECONDS: Final = 4.0
S3: Final = "S3 server"
RUN, VACUUM = "run Consolidation", "run Vacuum"


@dataclass
class Deliveries:
    """Producers, in a thread, whose batches have the numbers from 0."""

    subject: Subject
    ahead: int
    of: Sequence[Content] = field(default_factory=lambda: [content_of(n) for n in range(DISTINCT)])
    delivered: int = 0
    promoted: int = 0

    def deliver(self, until: Callable[[], bool]) -> None:
        """Keep `ahead` batches ahead of what is promoted."""
        while not until():
            self.promoted = self.subject.promoted()
            numbers = range(self.delivered, self.delivered + min(AT_ONCE, self.ahead))
            if numbers.stop - self.promoted > self.ahead:
                time.sleep(LOOK_EVERY_SECONDS)
                continue
            put_numbered(self.subject, numbers, lambda n: self.of[n % DISTINCT])
            self.delivered = numbers.stop

    def wrong(self, reverted: Mapping[str, int]) -> str:
        """Count the rows of each batch that is left. Returns: the difference; empty if there is none."""
        found: Counter[str] = Counter()
        view = lethe.scan(self.subject.table, columns=[producer.BATCH_COLUMN], catalog=self.subject.site.catalog)
        for batch in view.to_batches():
            for count in batch.column(0).value_counts().to_pylist():
                found[count["values"]] += count["counts"]
        gone = set(reverted.values())
        wanted = Counter(
            {producer.batch_id(n): self.of[n % DISTINCT].rows for n in range(self.delivered) if n not in gone}
        )
        say(f"  {found.total():,} rows of {len(found):,} batches, expected {wanted.total():,} of {len(wanted):,}")
        return (
            "" if found == wanted else f"{(found - wanted).total()} rows too many, {(wanted - found).total()} too few"
        )


@dataclass
class Samples:
    """What is there at some moments."""

    site: Site
    deliveries: Deliveries
    progress: list[dict[str, Any]] = field(default_factory=list)
    memory: list[dict[str, Any]] = field(default_factory=list)

    def take(self, seconds: float) -> None:
        minute = round(seconds / 60, 2)
        waiting = self.deliveries.delivered - self.deliveries.promoted
        self.progress += [
            {"files": "promoted", "minute": minute, "number": self.deliveries.promoted},
            {"files": "waiting", "minute": minute, "number": waiting},
        ]
        used = {"operator": self.site.process.memory_bytes()}
        for name, container, usage in self.site.containers():
            pod = (
                S3
                if container == "versitygw"
                else next((p for p in ("warm driver", "committer") if p[:4] in name), "runs")
            )
            used[pod] = used.get(pod, 0) + usage.memory_bytes
        self.memory += [{"process": p, "minute": minute, "bytes": b} for p, b in sorted(used.items())]


def hour(site: Site, scale: HourScale) -> dict[str, Any]:
    """The deliveries, and all that goes on beside them."""
    with traces(site) as received:
        alone(site)
        subject = Subject(site, NAME)
        subject.clean()
        deliveries = Deliveries(subject, scale.ahead)
        samples = Samples(site, deliveries)
        _begin(site, subject, scale)
        with costs(site) as used, Endings(site, subject.label) as endings:
            since, busy, own = time.time(), busy_seconds(), time.process_time()
            over = since + 60 * scale.minutes
            producers = threading.Thread(
                target=deliveries.deliver, args=(lambda: time.time() >= over,), name="producers"
            )
            producers.start()
            asked, numbers = _revert_beside(deliveries, samples, scale, since, over)
            producers.join()
            promoted_in_time = deliveries.promoted
            took = time.time() - since
            say(f"  {promoted_in_time:,} of {deliveries.delivered:,} batches are promoted after {took:.0f} s")
            subject.await_promoted(deliveries.delivered, AFTERWARDS_SECONDS)
            endings.wait(len(asked), AFTERWARDS_SECONDS)
            until, busy, own = time.time(), busy_seconds() - busy, time.process_time() - own
        problem = deliveries.wrong(numbers)
        spans = received()
    runs = sorted((s for s in spans if s.name == RUN), key=lambda s: s.began)
    _file(site, "memory").write_text(json.dumps(samples.memory))
    _file(site, "progress").write_text(json.dumps(samples.progress))
    _file(site, "processors").write_text(json.dumps(_processors(used, busy, own)))
    _file(site, "stages").write_text(json.dumps(stages_of(since, until, runs)))
    result: dict[str, Any] = {
        **latencies(asked, endings),
        "minutes": scale.minutes,
        "files": promoted_in_time,
        "seconds": round(took, 1),
        "per_hour": round(promoted_in_time / took * 3600),
        "delivered": deliveries.delivered,
        "runs": len(runs),
        "vacuums": sum(s.name == VACUUM for s in spans),
        "snapshots": subject.commits(),
        **used,
    }
    if problem:
        result["error"] = problem
    return {"results": [result]}


def busy_seconds() -> float:
    """The seconds that all processors of this machine have worked since its start. Source: proc_stat(5)."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _processors(used: Mapping[str, float], busy: float, own: float) -> list[dict[str, Any]]:
    """The processor time of each process, and its share of all."""
    of = {
        "operator": used["operator_cpu_seconds"],
        "runs": used["spark_cpu_seconds"],
        "committer": used["committer_cpu_seconds"],
        S3: used["versitygw_cpu_seconds"],
        "producers": own,
    }
    of["Kubernetes, PostgreSQL and others"] = busy - sum(of.values())
    return [{"process": p, "seconds": round(s), "share": round(s / busy, 3)} for p, s in of.items()]


def _begin(site: Site, subject: Subject, scale: HourScale) -> None:
    create_dataset(subject, retentionSeconds=RETENTION_SECONDS)
    policy = {
        "datasetSelector": {"matchLabels": {"bench": subject.name}},
        "triggers": {"activeTombstones": scale.vacuum_at},
    }
    site.create(VACUUM_POLICIES, subject.name, policy, {"bench": subject.name})


def _revert_beside(
    deliveries: Deliveries, samples: Samples, scale: HourScale, since: float, over: float
) -> tuple[dict[str, float], dict[str, int]]:
    """Revert promoted batches at an even rate, and take samples. Returns: when each was asked for, and its batch, by name."""
    chance, every = random.Random(1), 60 / scale.reverts_per_minute
    asked: dict[str, float] = {}
    numbers: dict[str, int] = {}
    sampled, reverted = since - SAMPLE_EVERY_SECONDS, since
    while time.time() < over:
        if time.time() >= sampled + SAMPLE_EVERY_SECONDS:
            sampled += SAMPLE_EVERY_SECONDS
            samples.take(sampled - since)
        # The oldest batches are promoted first, so these are.
        promoted = deliveries.promoted // 2
        if time.time() >= reverted + every and promoted > len(numbers):
            reverted += every
            taken = set(numbers.values())
            number = chance.choice([n for n in range(promoted) if n not in taken])
            name = f"{NAME}-{len(numbers):06d}"
            numbers[name] = number
            spec = {
                "datasetRef": {"name": NAME},
                "operation": "Revert",
                "batchIds": [producer.batch_id(number)],
                "reason": "measured",
            }
            asked[name] = deliveries.subject.create(name, spec)
        time.sleep(LOOK_EVERY_SECONDS)
    return asked, numbers


# --- traces ----------------------------------------------------------------------------------------------------------

SERVICES: Final = ResourceKind("/api/v1", "services", "Service")
COLLECTOR: Final = "bench-traces"
PORT: Final = 4318
NODE_PORT: Final = 30_418
# Keeps the requests that it receives, and returns them all, one a line.
SOURCE: Final = """
import base64, gzip
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

kept = []

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        kept.append(base64.b64encode(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body))
        self.answer(b"")

    def do_GET(self):
        self.answer(b"\\n".join(kept))

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_): ...

ThreadingHTTPServer(("", 4318), Handler).serve_forever()
"""


@contextmanager
def traces(site: Site) -> Iterator[Callable[[], list[ReceivedSpan]]]:
    """The operator and the runs send their spans to a pod during the block. Gives what returns those that have arrived."""
    labels = {"app": COLLECTOR}
    _remove(site)
    image = site.kube.get(cluster.DEPLOYMENTS, SYSTEM, cluster.OPERATOR)["spec"]["template"]["spec"]["containers"][0][
        "image"
    ]
    container = {
        "name": "collector",
        "image": image,
        "command": ["python", "-c", SOURCE],
        "ports": [{"containerPort": PORT}],
    }
    ports = [{"port": PORT, "nodePort": NODE_PORT}]
    site.kube.create(PODS, NAMESPACE, _object("Pod", labels, {"containers": [container]}))
    site.kube.create(
        SERVICES, NAMESPACE, _object("Service", labels, {"type": "NodePort", "selector": labels, "ports": ports})
    )
    # An address that the pods and this machine reach.
    endpoint = f"http://{urlsplit(os.environ['LETHE_S3_ENDPOINT']).hostname}:{NODE_PORT}"
    for replica in site.replicas:
        replica.env = {**replica.env, tracing.ENDPOINT: endpoint}

    def received() -> list[ReceivedSpan]:
        with urllib.request.urlopen(endpoint) as answer:
            return [span for line in answer.read().split() for span in spans_of(base64.b64decode(line))]

    try:
        cluster.until(lambda: _answers(received), "the collector of traces did not start")
        yield received
    finally:
        _remove(site)


def _object(kind: str, labels: Mapping[str, str], spec: Mapping[str, Any]) -> Object:
    metadata = {"name": COLLECTOR, "labels": labels}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec}


def _answers(received: Callable[[], object]) -> bool:
    try:
        received()
    except OSError:
        return False
    return True


def _remove(site: Site) -> None:
    """The collector, and what an interrupted run has left of it."""
    for kind in (PODS, SERVICES):
        with suppress(NotFound):
            site.kube.delete(kind, NAMESPACE, COLLECTOR)
    cluster.until(lambda: site.get(PODS, COLLECTOR) is None, "the collector of traces was not deleted")


# --- the report ------------------------------------------------------------------------------------------------------


def _file(site: Site, name: str) -> Path:
    return site.work / f"hour-{name}.json"


def memory(site: Site, _: HourScale) -> dict[str, Any]:
    """Of each process during `hour`."""
    return {"results": json.loads(_file(site, "memory").read_text())}


def processors(site: Site, _: HourScale) -> dict[str, Any]:
    """What the processors did during `hour`."""
    return {"results": json.loads(_file(site, "processors").read_text())}


def progress(site: Site, _: HourScale) -> dict[str, Any]:
    """What was promoted during `hour`, and what waited."""
    return {"results": json.loads(_file(site, "progress").read_text())}


def stages(site: Site, _: HourScale) -> dict[str, Any]:
    """Where the time of the consolidations went, by their traces."""
    return shares_of(json.loads(_file(site, "stages").read_text()))


def goals(parts: Mapping[str, Part]) -> list[Goal]:
    """How long Reverts take beside all this."""
    return [
        goal(
            "Reverts beside consolidations and vacuums: 95 % are committed so many seconds after they were created",
            None if "error" in r else percentile(r["to_committed"], 95),
            COMMITTED_WITHIN_SECONDS,
        )
        for r in results_of(parts, "hour")
    ]


SUITE = Suite(
    name="hour",
    purpose=(__doc__ or "").splitlines()[0],
    parts={"hour": hour, "progress": progress, "memory": memory, "processors": processors, "stages": stages},
    scales=SCALES,
    goals=goals,
    views=(
        View(
            "An hour of small files",
            ("hour",),
            ("minutes", "files"),
            cells=(
                Cell("files an hour", "per_hour"),
                Cell("Reverts", "restatements"),
                Cell("vacuums", "vacuums"),
                Cell("runs", "runs"),
                Cell("operator, CPU seconds", "operator_cpu_seconds"),
                Cell("API requests", "operator_api_requests"),
            ),
        ),
        Shares("Reverts during the hour", ("hour",), {"from created to committed": "to_committed"}),
        View(
            "Files during the hour",
            ("progress",),
            ("files",),
            cells=(Cell("files", "number"),),
            plot="minute",
            only_plot=True,
        ),
        View(
            "Memory during the hour",
            ("memory",),
            ("process",),
            cells=(Cell("MiB", "bytes", MIB),),
            plot="minute",
            only_plot=True,
        ),
        View(
            "What the processors did",
            ("processors",),
            ("process",),
            cells=(Cell("CPU seconds", "seconds"), Cell("share", "share")),
        ),
        View(
            "Where the time of the hour goes",
            ("stages",),
            ("stage",),
            cells=(Cell("seconds", "seconds"), Cell("share", "share")),
        ),
    ),
    place=cluster.place,
)

if __name__ == "__main__":
    program(SUITE)

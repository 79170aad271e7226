"""The process: settings, kopf's handlers, start and stop.

kopf only watches and answers probes. It stores nothing: no handler needs a finalizer or an annotation, so the deletion of a
resource never waits for this operator.
"""

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, field, replace
from typing import Any, Final

import kopf

from lethe_operator import kube as kubernetes
from lethe_operator.apply.leases import Leases
from lethe_operator.apply.offers import Offers
from lethe_operator.handlers import watch_events
from lethe_operator.handlers.resync import resync
from lethe_operator.health import OperatorHealth
from lethe_operator.metrics import Metrics
from lethe_operator.observe.cluster import cluster_id
from lethe_operator.observe.restatements import RestatementCache
from lethe_operator.observe.tables import TableReader
from lethe_operator.reconcile import Reconciler
from lethe_operator.resources.common import GROUP, VERSION
from lethe_operator.settings import Settings, from_environment, with_files
from lethe_operator.work_queue import SHARED_RUNS, Key, WorkQueue

log = logging.getLogger(__name__)

PREFIX: Final = "lethe.dev"
MANAGED: Final = "app.kubernetes.io/managed-by=lethe"
WATCH_SECONDS: Final = 300


@dataclass
class Runtime:
    """The objects that live as long as the process."""

    settings: Settings
    kube: kubernetes.Kube
    health: OperatorHealth
    queue: WorkQueue
    tables: TableReader
    offers: Offers
    restatements: RestatementCache
    leases: Leases | None  # None: this operator is the only one and needs no Leases
    started: float  # by time.monotonic
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


def registry() -> kopf.OperatorRegistry:
    """All handlers."""
    found = kopf.OperatorRegistry()

    @kopf.on.startup(registry=found)
    async def start(memo: Any, **_: Any) -> None:
        runtime: Runtime = memo.runtime
        settings = runtime.settings
        if runtime.leases is not None:
            await asyncio.to_thread(runtime.leases.renew)
        add = runtime.queue.from_threads()
        runtime.offers.on_offer = lambda namespace: add(Key(SHARED_RUNS, namespace, ""))
        for source in (runtime.tables.listings, runtime.tables.events):
            source.on_change = lambda dataset: add(Key("Dataset", dataset.namespace, dataset.name))
        resyncs = resync(
            runtime.queue,
            runtime.health,
            runtime.kube,
            runtime.restatements,
            settings.watch_namespaces,
            settings.resync_seconds,
        )
        runtime.tasks = [asyncio.create_task(runtime.queue.run()), asyncio.create_task(resyncs)]
        if runtime.leases is not None:
            runtime.tasks.append(asyncio.create_task(runtime.leases.keep()))

    @kopf.on.login(registry=found)
    def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_via_client(**arguments)

    @kopf.on.cleanup(registry=found)
    async def stop(memo: Any, **_: Any) -> None:
        for task in memo.runtime.tasks:
            task.cancel()
        for task in memo.runtime.tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    @kopf.on.probe(id="operator", registry=found)
    async def healthy(memo: Any, **_: Any) -> str:
        runtime: Runtime = memo.runtime
        dead = next((t for t in runtime.tasks if t.done()), None)
        trouble = "The work queue, the resync or the renewal of Leases has stopped." if dead else None
        trouble = trouble or runtime.health.trouble(runtime.queue.longest_running_seconds(), runtime.started)
        if trouble:
            raise kopf.PermanentError(trouble)  # kopf answers 500
        return "ok"

    @kopf.on.event(GROUP, VERSION, "datasets", registry=found)
    async def on_dataset(body: kopf.Body, memo: Any, **_: Any) -> None:
        watch_events.dataset(memo.runtime.queue, memo.runtime.health, body)

    @kopf.on.event(GROUP, VERSION, "restatements", registry=found)
    async def on_restatement(type: str | None, body: kopf.Body, memo: Any, **_: Any) -> None:
        runtime: Runtime = memo.runtime
        watch_events.restatement(runtime.queue, runtime.health, runtime.restatements, type == "DELETED", body)

    @kopf.on.event(GROUP, VERSION, "vacuumpolicies", registry=found)
    async def on_vacuum_policy(body: kopf.Body, memo: Any, **_: Any) -> None:
        watch_events.vacuum_policy(memo.runtime.queue, memo.runtime.health, body)

    @kopf.on.event("batch", "v1", "jobs", registry=found)
    @kopf.on.event("", "v1", "pods", registry=found)
    @kopf.on.event("", "v1", "configmaps", registry=found)
    async def on_run_object(body: kopf.Body, memo: Any, **_: Any) -> None:
        watch_events.run_object(memo.runtime.queue, body)

    return found


def kopf_settings() -> kopf.OperatorSettings:
    """Explicit time-outs; kopf posts and stores nothing, and watches only Lethe's objects."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True  # otherwise kopf needs rights on all namespaces and CRDs
    settings.posting.enabled = False
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.client_timeout = WATCH_SECONDS + 10
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.persistence.finalizer = f"{PREFIX}/operator"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=PREFIX)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=PREFIX)
    settings.watching.label_selectors["batch", "v1", "jobs"] = MANAGED
    settings.watching.label_selectors["", "v1", "pods"] = f"{MANAGED},spark-role!=executor"
    settings.watching.label_selectors["", "v1", "configmaps"] = MANAGED
    return settings


def runtime_of(settings: Settings) -> Runtime:
    """Connect to the cluster and open the port for metrics. Raises: kubernetes.config.ConfigException, OSError."""
    kube = kubernetes.connect()
    settings = replace(settings, cluster=cluster_id(kube))
    metrics = Metrics()
    kube.on_request = metrics.api_request
    if settings.metrics_port is not None:
        metrics.serve(settings.metrics_port)
    tables = TableReader()
    tables.events.on_messages = lambda of, outcome, number: metrics.messages(of.namespace, of.name, outcome, number)
    offers = Offers()
    restatements = RestatementCache()
    leases = Leases(kube, settings.watch_namespaces, settings.operator, metrics.acts_in) if settings.operator else None
    reconcile = Reconciler(kube, tables, settings, metrics, offers, restatements)
    if leases is not None:
        reconcile = replace(reconcile, acts_in=leases.acts_in)
    queue = WorkQueue(reconcile, max_seconds=max(4 * settings.resync_seconds, 30))
    health = OperatorHealth(time.monotonic, settings.resync_seconds)
    return Runtime(settings, kube, health, queue, tables, offers, restatements, leases, time.monotonic())


def main() -> None:
    settings = with_files(from_environment())
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for verbose in ("botocore", "urllib3", "kopf", "asyncio", "aiohttp"):
        logging.getLogger(verbose).setLevel(logging.WARNING)
    log.info("watching %s", ", ".join(settings.watch_namespaces))
    kopf.run(
        registry=registry(),
        settings=kopf_settings(),
        standalone=True,
        namespaces=settings.watch_namespaces,
        liveness_endpoint=settings.liveness_endpoint or None,
        memo=kopf.Memo(runtime=runtime_of(settings)),
    )

"""The process: settings, kopf's handlers, start and stop. kopf only watches."""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Final

import kopf
from lethe import logs, tracing
from lethe.kube import LEASES, SPARK_APPLICATIONS, WATCHED, ResourceKind
from lethe.version import version

from lethe_operator.cluster import client
from lethe_operator.cluster.leader import Claims, Leadership, LeaseHolder
from lethe_operator.cluster.leadership import LEADER
from lethe_operator.cluster.queue import RESERVED, WORKERS, WorkQueue
from lethe_operator.cluster.schedule import Intervals, Key, Priority
from lethe_operator.cluster.watching import NoMemories, kopf_settings, watch
from lethe_operator.dataset.condition_metrics import ConditionMetrics
from lethe_operator.dataset.listing import Listings
from lethe_operator.dataset.listing_schedule import ListingLimits
from lethe_operator.dataset.objects import WatchedObjects
from lethe_operator.dataset.observe import cluster_id
from lethe_operator.dataset.tables import TableReader
from lethe_operator.handlers import RELIST_SECONDS, Relists, WatchEvents, all_keys, keys_of, resync, wait_until_listed
from lethe_operator.metrics import Metrics
from lethe_operator.probes import OperatorHealth, ProbeAnswer, probes
from lethe_operator.publish.publisher import Publishers, publishers_of
from lethe_operator.reconcile import Reconciler
from lethe_operator.request.reconcile import EraseRights
from lethe_operator.runs.launch import DatasetObjects, RunVersions
from lethe_operator.settings import Settings, from_environment, with_files

log = logging.getLogger(__name__)

# What changes in an idle Dataset's resources, table or buffer is a reason to reconcile it. Without a reason it is done so many
# times less often than its buffer is listed at least.
LISTINGS_PER_RECONCILE: Final = 6


@dataclass
class Runtime:
    """The objects that live as long as the process."""

    settings: Settings
    kube: client.Kube
    health: OperatorHealth
    queue: WorkQueue
    tables: TableReader
    objects: WatchedObjects
    dataset_objects: DatasetObjects
    leadership: Leadership
    metrics: Metrics
    started: float
    """By time.monotonic."""
    publishers: Publishers | None = None
    """None: status events are not enabled."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    open: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    kopf_started: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """This process has handed over, and kopf may end."""

    def healthy(self) -> ProbeAnswer:
        """Whether the process works; if not, Kubernetes restarts it."""
        dead = any(t.done() for t in self.tasks if not self.ended.is_set()) or not self.leadership.alive()
        trouble = "The work queue, the resync or the renewal of Leases has stopped." if dead else None
        trouble = trouble or self.health.trouble(self.queue.longest_running_seconds(), self.started)
        return ProbeAnswer(trouble is None, trouble or "ok")

    def ready(self) -> ProbeAnswer:
        """Whether the process leads, or could take over at once: it knows all resources and reaches the Lease."""
        permitted = self.objects.permitted(self.settings.watch_namespaces)
        trouble = None if self.objects.is_synced(permitted) else "The resources are not listed yet."
        if self.settings.watch_namespaces and not permitted:
            trouble = "The operator may not read in any of its namespaces."
        trouble = trouble or self.leadership.trouble()
        if trouble is not None:
            return ProbeAnswer(False, trouble)
        return ProbeAnswer(True, self.leadership.describe())


def registry(kinds: Iterable[ResourceKind] = WATCHED) -> kopf.OperatorRegistry:
    """All handlers.

    Args:
        kinds: The kinds to watch.
    """
    handlers = kopf.OperatorRegistry()

    @kopf.on.startup(registry=handlers)
    async def start(memo: Any, **_: Any) -> None:
        runtime: Runtime = memo.runtime
        settings, queue = runtime.settings, runtime.queue
        add = queue.from_threads()
        for source in (runtime.tables.events, runtime.tables.pointers):
            source.on_change = lambda of: add(Key("Dataset", of.namespace, of.name))
        runtime.tables.listings.on_change = lambda of, is_news: add(
            Key("Dataset", of.namespace, of.name), Priority.CHANGED if is_news else Priority.DUE
        )
        runtime.tables.lookups.on_change = lambda namespace, name: add(Key("Dataset", namespace, name))
        runtime.tables.pointers.on_trouble = lambda of: add(Key("Dataset", of.namespace, of.name), Priority.DUE)
        runtime.tables.start()
        if runtime.publishers is not None:
            runtime.publishers.on_change = lambda of: add(Key("Dataset", of.namespace, of.name), Priority.DUE)
            runtime.publishers.start()
        objects, namespaces = runtime.objects, settings.watch_namespaces

        def on_change(kind: ResourceKind, body: Mapping[str, Any]) -> None:
            for key in keys_of(kind, body):
                add(key)

        def on_acting(changed: Collection[str]) -> None:
            for namespace in changed:
                runtime.metrics.acts_in(namespace, runtime.leadership.acts_in(namespace))
            runtime.dataset_objects.forget_all(changed)
            if runtime.publishers is not None:
                runtime.publishers.forget_all(changed)
            # What came while no process acted does not wait for thousands of Datasets that have nothing to do.
            first = {Key("Dataset", of, name) for of in changed for name in objects.unsettled_datasets(of)}
            for key in all_keys(objects, list(changed)):
                add(key, Priority.CHANGED if key in first else Priority.DUE)

        objects.on_change = on_change
        runtime.leadership.catch_up = lambda of: objects.take_over(runtime.kube, of)
        runtime.leadership.on_change = on_acting
        resyncs = resync(queue, objects, runtime.kube, namespaces, settings.resync_seconds)
        relists = Relists(objects, runtime.kube, namespaces, runtime.health)
        runtime.tasks = [asyncio.create_task(task) for task in (queue.run(), resyncs, relists.run())]
        runtime.tasks.append(asyncio.create_task(end_on_signals(runtime)))
        await open_probes(runtime)
        # kopf lists everything too, more slowly. The first reconciles do not wait for that.
        await wait_until_listed(objects, runtime.kube, namespaces)
        runtime.leadership.start()  # not earlier: a process that knows nothing yet must not take the Lease from one that does

    @kopf.on.login(registry=handlers)
    def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_via_client(**arguments)

    @kopf.on.cleanup(registry=handlers)
    async def stop(memo: Any, **_: Any) -> None:
        runtime: Runtime = memo.runtime
        runtime.tables.stop()
        for task in runtime.tasks:
            task.cancel()
        for task in runtime.tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await asyncio.to_thread(runtime.leadership.stop)  # if kopf ends for another reason than a signal
        if runtime.publishers is not None:
            await asyncio.to_thread(runtime.publishers.stop)
        await runtime.open.aclose()

    watch(handlers, kinds, _record)
    return handlers


def _record(memo: Any, kind: ResourceKind, type: str | None, body: Any) -> None:
    runtime: Runtime = memo.runtime
    WatchEvents(runtime.queue, runtime.health, runtime.objects).record(kind, type, body)


def kinds_of(settings: Settings) -> tuple[ResourceKind, ...]:
    """The kinds of objects that this operator watches."""
    return (*WATCHED, SPARK_APPLICATIONS) if settings.spark_applications else WATCHED


async def open_probes(runtime: Runtime) -> None:
    """Answer probes as long as `runtime.open` is open.

    Raises:
        OSError: The port is in use.
    """
    if runtime.settings.probes_port is not None:
        await runtime.open.enter_async_context(probes(runtime.settings.probes_port, runtime.healthy, runtime.ready))


async def end_on_signals(runtime: Runtime) -> None:
    """On SIGTERM, hand over to a standby first, and then let kopf end: that may take seconds, in which nobody would act."""
    await runtime.kopf_started.wait()  # kopf has set its own handlers, which the following ones replace
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked.set)
    await asked.wait()
    log.info("handing over, because a signal asks for the end")
    if runtime.publishers is not None:  # the next leader publishes the same events, so not at the same time
        await asyncio.to_thread(runtime.publishers.stop)
    await asyncio.to_thread(runtime.leadership.stop)
    runtime.ended.set()


async def without_namespaces(runtime: Runtime) -> None:
    """A shard to which no namespace belongs chooses its leader, answers probes, and does nothing else."""
    runtime.kopf_started.set()  # there is no kopf
    async with runtime.open:
        await open_probes(runtime)
        runtime.leadership.start()  # without it, no pod would be ready, and alerts would miss a leader
        ending = asyncio.create_task(end_on_signals(runtime))
        while not ending.done():
            runtime.health.relisted()
            await asyncio.wait([ending], timeout=runtime.settings.resync_seconds)


def leadership_of(settings: Settings, metrics: Metrics) -> Leadership:
    """The Leases of this process: that of its shard, and those of the watched namespaces."""
    kube = client.connect_for_leases()
    kube.on_request = metrics.api_request
    namespace, _, name = settings.leader_lease.partition("/")
    lease = LeaseHolder(kube, namespace, name, settings.identity, LEADER) if name else None
    claims = Claims(kube, settings.watch_namespaces, settings.operator) if settings.operator else None
    shard = settings.shard.index
    leadership = Leadership(
        settings.watch_namespaces, lease, claims, on_leader=lambda leads: metrics.leads(shard, leads)
    )
    metrics.leads(shard, False)
    for watched in settings.watch_namespaces:
        metrics.acts_in(watched, False)
    return leadership


def runtime_of(settings: Settings) -> Runtime:
    """Connect to the cluster and open the port for metrics.

    Raises:
        kubernetes.config.ConfigException: There is no configuration of a cluster.
        OSError: The system refused it.
    """
    kube = client.connect()
    settings = replace(settings, cluster=cluster_id(kube))
    metrics = Metrics()
    kube.on_request = metrics.api_request
    if settings.metrics_port is not None:
        metrics.serve(settings.metrics_port)
    checks = settings.idle_checks
    limits = ListingLimits(
        settings.resync_seconds,
        settings.resync_max_seconds,
        checks.listing_core_share,
        checks.listing_requests_per_second,
    )
    tables = TableReader(listings=Listings(limits=limits), checks=checks)
    tables.pointers.on_query = metrics.catalog_query
    metrics.overdue_listings(tables.listings.overdue_seconds)
    tables.events.on_messages = lambda of, outcome, number: metrics.messages(of.namespace, of.name, outcome, number)
    objects = WatchedObjects(settings.committer.name if settings.committer.enabled else "", kinds_of(settings))
    kube.answers = objects
    leadership = leadership_of(settings, metrics)
    kube.writing = leadership.writing
    metrics.registry.register(ConditionMetrics(objects, lambda: leadership.acting))
    publishers = publishers_of(settings, kube, tables.opened, leadership.acts_in, metrics.registry)
    reconcile = Reconciler(
        kube,
        objects,
        tables,
        settings,
        metrics,
        versions=RunVersions(metrics, settings.spark_image),
        acts_in=leadership.acts_in,
        publishers=publishers,
        rights=EraseRights(kube) if settings.erase_right else None,
    )
    queue = WorkQueue(
        reconcile,
        max_seconds=max(4 * settings.resync_seconds, 30),
        intervals=Intervals(settings.resync_seconds, LISTINGS_PER_RECONCILE * settings.resync_max_seconds),
        per_namespace=WORKERS - RESERVED if len(settings.watch_namespaces) > 1 else None,
        on_start=metrics.reconcile_starts,
    )
    metrics.watch_queue(queue.depth)
    health = OperatorHealth(time.monotonic, RELIST_SECONDS)
    objects.finds = health
    return Runtime(
        settings,
        kube,
        health,
        queue,
        tables,
        objects,
        reconcile.dataset_objects,
        leadership,
        metrics,
        time.monotonic(),
        publishers,
    )


def main() -> None:
    """Run the operator until a signal ends it. A shard without namespaces only answers probes."""
    settings = with_files(from_environment())
    logs.to_stderr(settings.log_level, settings.log_format)
    tracing.start("lethe-operator")
    for verbose in ("botocore", "urllib3", "kopf", "asyncio", "aiohttp", "pyiceberg"):
        logging.getLogger(verbose).setLevel(logging.WARNING)
    if not settings.watch_namespaces:
        log.warning("shard %d of %d has none of the watched namespaces and does nothing", *astuple(settings.shard))
        asyncio.run(without_namespaces(runtime_of(settings)))
        return
    log.info("version %s", version())
    log.info("watching %s", ", ".join(settings.watch_namespaces))
    runtime = runtime_of(settings)
    kopf.run(
        registry=registry(k for k in kinds_of(settings) if k is not LEASES or settings.committer.enabled),
        settings=kopf_settings(settings.committer.name),
        memories=NoMemories(),
        standalone=True,
        namespaces=settings.watch_namespaces,
        memo=kopf.Memo(runtime=runtime),
        ready_flag=runtime.kopf_started,
        stop_flag=runtime.ended,
    )
    tracing.stop()

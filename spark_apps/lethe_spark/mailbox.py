"""The mailbox of a process that carries out runs: its entries, how it is followed on the API server, and its metrics.

Invariants: at most one run and one upkeep of a Dataset are in progress. The runs of a Dataset go in the order of their entries.
An entry is removed only after its result was delivered, so the entries of a process that dies remain for the next one.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final, Generic, TypeVar

from lethe.contract.run import CONTRACT_VERSION, MailboxEntry
from lethe.contract.settings import RunFamily
from lethe.kube import CONFIG_MAPS, Away, KubeError, NotFound
from lethe.metrics_server import serve_metrics
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from pydantic import ValidationError

from lethe_spark.run.kube import PodApi

log = logging.getLogger(__name__)

U = TypeVar("U")

UPKEEP_EVERY_SECONDS: Final = 30.0
"""The least time between two upkeeps of a Dataset."""
UPKEEP_LATE_SECONDS: Final = 90.0
"""An upkeep that has waited for this time goes before runs."""
UPKEEPS_AT_ONCE: Final = 2
"""At most this many upkeeps at once, so that threads remain for runs."""
SETTLED_FOR_SECONDS: Final = 60.0
"""An event that was sent before a key was removed may still contain the key."""

WATCH_SECONDS: Final = 50
"""Duration of one watch. It also limits how long a dead connection goes unnoticed."""
SHORTEST_SECONDS: Final = 0.5
"""A watch that ended sooner is followed by a pause of this length."""
PAUSES_SECONDS: Final = (0.2, 1.0, 2.0, 5.0)
"""Pauses after the first, second, … failure in a row."""

BUCKETS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""Bounds of histograms, in seconds."""


@dataclass(frozen=True)
class Post:
    """A key of the mailbox and its entry."""

    key: str
    text: str
    """The entry as stored in the mailbox."""
    entry: MailboxEntry

    @property
    def order(self) -> tuple[float, str]:
        """The sort key of entries: when they were created, in seconds since the epoch, then their keys."""
        return self.entry.created_time.timestamp(), self.key


@dataclass(frozen=True)
class Upkeep(Generic[U]):
    """Work for a Dataset after its runs: expiring snapshots, removing files, the table of batches."""

    dataset_uid: str
    work: U


@dataclass
class _DueUpkeep(Generic[U]):
    work: U
    since: float
    """When it was first requested."""
    due: float
    """The earliest time to do it."""


@dataclass
class Mailbox(Generic[U]):
    """What one process knows of its mailbox, and which Datasets are in progress. Threads must share a lock.

    It keeps state and has no I/O; times are seconds of a monotonic clock.
    """

    files: frozenset[str] = frozenset()
    """Files with values and keys that the process has. It takes no run that needs others."""
    _posts: dict[str, Post] = field(default_factory=dict)
    _settled: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Finished entries by key: their text, and until when to ignore them."""
    _not_before: dict[str, float] = field(default_factory=dict)
    """Postponed entries by key: the earliest time of the next attempt."""
    _running: dict[str, str] = field(default_factory=dict)
    """The key of the run in progress, by the uid of its Dataset."""
    _keeping_up: set[str] = field(default_factory=set)
    """The uids of Datasets whose upkeep is in progress. Runs go on beside it, as they do beside those of other processes."""
    _upkeep: dict[str, _DueUpkeep[U]] = field(default_factory=dict)
    """Waiting upkeeps by Dataset."""
    _kept_up: dict[str, float] = field(default_factory=dict)
    """Time of the last upkeep by Dataset."""

    def put(self, data: Mapping[str, str]) -> dict[str, str]:
        """Take the new content of the mailbox.

        Returns:
            The unreadable keys, and why each is.
        """
        posts: dict[str, Post] = {}
        unreadable: dict[str, str] = {}
        for key, text in data.items():
            former = self._posts.get(key)
            if former is not None and former.text == text:
                posts[key] = former
                continue
            try:
                entry = MailboxEntry.model_validate_json(text)
            except ValidationError as e:
                fields = sorted({".".join(map(str, p["loc"])) for p in e.errors(include_input=False)})
                unreadable[key] = f"not a {CONTRACT_VERSION} entry ({', '.join(fields[:5])})"
                continue
            if entry.api_version != CONTRACT_VERSION:
                unreadable[key] = f"the entry has version {entry.api_version}, this image supports {CONTRACT_VERSION}"
                continue
            posts[key] = Post(key, text, entry)
        self._posts = posts
        self._settled = {k: s for k, s in self._settled.items() if k in posts and posts[k].text == s[0]}
        self._not_before = {k: t for k, t in self._not_before.items() if k in posts}
        return unreadable

    def take(self, now: float) -> Post | Upkeep[U] | None:
        """The next run or upkeep; until it ends, its Dataset has no other of its kind. None: nothing is due now."""
        late = self._next_upkeep(now, wanted_for=UPKEEP_LATE_SECONDS)
        chosen = late or self._next_post(now) or self._next_upkeep(now)
        if isinstance(chosen, Upkeep):
            del self._upkeep[chosen.dataset_uid]
            self._kept_up[chosen.dataset_uid] = now
            self._keeping_up.add(chosen.dataset_uid)
        elif chosen is not None:
            self._running[chosen.entry.dataset_uid] = chosen.key
        return chosen

    def next_due(self, now: float) -> float | None:
        """Seconds until something may be due without a change of the mailbox. None: nothing until a change."""
        times = [*(until for _, until in self._settled.values()), *self._not_before.values()]
        times += [u.due for i, u in self._upkeep.items() if i not in self._keeping_up]
        return max(0.0, min(t for t in times if t > now) - now) if any(t > now for t in times) else None

    def settled(self, post: Post, now: float, upkeep: U | None = None) -> None:
        """Record that the run is done, its result delivered, and its key removed. It may never have begun.

        `upkeep` replaces a waiting upkeep of the Dataset.
        """
        uid = post.entry.dataset_uid
        self._settled[post.key] = (post.text, now + SETTLED_FOR_SECONDS)
        self._ended(post)
        if upkeep is not None:
            before = self._upkeep.get(uid)
            since = before.since if before else now
            due = max(now, self._kept_up.get(uid, -UPKEEP_EVERY_SECONDS) + UPKEEP_EVERY_SECONDS)
            self._upkeep[uid] = _DueUpkeep(upkeep, since, due)

    def put_off(self, post: Post, until: float) -> None:
        """Postpone a run that failed or whose result could not be delivered. Later runs of its Dataset wait for it."""
        self._not_before[post.key] = until
        self._ended(post)

    def cancelled(self, now: float) -> list[Post]:
        """The runs that the operator has cancelled, whether or not they have begun. They are never taken."""
        return [p for p in self._posts.values() if p.entry.cancelled and not self._is_settled(p, now)]

    def wants(self, key: str) -> bool:
        """Whether the mailbox has this key, and its run is not cancelled."""
        post = self._posts.get(key)
        return post is not None and not post.entry.cancelled

    def is_empty(self, now: float) -> bool:
        """Whether every run that the mailbox names is finished, or is for a process with other files."""
        return all(self._is_settled(p, now) or not self.is_for_us(p.entry) for p in self._posts.values())

    def has_others(self, now: float) -> bool:
        """Whether a run waits for a process with other files."""
        return any(not self.is_for_us(p.entry) for p in self._unsettled(now))

    def is_for_us(self, entry: MailboxEntry) -> bool:
        """Whether the process has the files that a run needs."""
        return self.files.issuperset(entry.files)

    def kept_up(self, dataset_uid: str) -> None:
        """Record that the upkeep of this Dataset has ended, so that its next one may begin."""
        self._keeping_up.discard(dataset_uid)

    @property
    def runs_in_progress(self) -> int:
        """The number of runs that were taken, and neither finished nor postponed. Upkeeps do not count."""
        return len(self._running)

    def waiting(self, now: float) -> int:
        """The number of runs that have not begun."""
        return max(0, len(self._unsettled(now)) - self.runs_in_progress)

    def oldest_time(self, now: float) -> datetime | None:
        """When the oldest entry was made that is not done; None: there is none."""
        return min((p.entry.created_time for p in self._unsettled(now)), default=None)

    @property
    def under_way(self) -> int:
        """The number of Datasets with a run or upkeep in progress."""
        return len(self._running.keys() | self._keeping_up)

    def _ended(self, post: Post) -> None:
        """The run is not in progress any more. Another run of its Dataset may be, if this one was cancelled before it began."""
        uid = post.entry.dataset_uid
        if self._running.get(uid) == post.key:
            del self._running[uid]

    def _next_post(self, now: float) -> Post | None:
        firsts: dict[str, Post] = {}
        for post in sorted(self._posts.values(), key=lambda p: p.order):
            if not post.entry.cancelled and not self._is_settled(post, now) and self.is_for_us(post.entry):
                firsts.setdefault(post.entry.dataset_uid, post)
        free = (p for uid, p in firsts.items() if uid not in self._running and self._not_before.get(p.key, now) <= now)
        return min(free, key=lambda p: p.order, default=None)

    def _next_upkeep(self, now: float, wanted_for: float = 0.0) -> Upkeep[U] | None:
        if len(self._keeping_up) >= UPKEEPS_AT_ONCE:
            return None
        due = [
            (u.since, uid)
            for uid, u in self._upkeep.items()
            if uid not in self._keeping_up and u.due <= now and now - u.since >= wanted_for
        ]
        return Upkeep(uid, self._upkeep[uid].work) if due and (uid := min(due)[1]) else None

    def _unsettled(self, now: float) -> list[Post]:
        return [p for p in self._posts.values() if not self._is_settled(p, now)]

    def _is_settled(self, post: Post, now: float) -> bool:
        text, until = self._settled.get(post.key, ("", 0.0))
        return text == post.text and now < until


def receive(
    mailbox: Mailbox[Any], news: threading.Condition, data: Mapping[str, str], drop: Callable[..., None]
) -> None:
    """Put the data of the ConfigMap into the mailbox, and drop the keys that cannot be read.

    Args:
        mailbox: Guarded by `news`.
        news: Notified of the change.
        data: The whole data of the ConfigMap.
        drop: Removes keys from the ConfigMap.
    """
    with news:
        unreadable = mailbox.put(data)
        news.notify_all()
    for key, why in unreadable.items():
        log.error("key %s of the mailbox is dropped: %s", key, why)
    if unreadable:
        drop(*unreadable)


def drop_keys(api: PodApi, mailbox: str, keys: Iterable[str]) -> None:
    """Remove keys from the ConfigMap of a mailbox.

    Raises:
        RequestRefused: Rights, quota, admission or validation forbid the request.
        Away: No answer, or one that asks to retry later.
    """
    with suppress(NotFound):  # the mailbox was deleted, with all its keys
        api.kube.patch(CONFIG_MAPS, api.namespace, mailbox, {"data": dict.fromkeys(keys)})


class _Outdated(Exception):
    """The API server no longer has the changes since our version."""


@dataclass
class Watching:
    """Watches one ConfigMap.

    It lists the mailbox once, then watches it. States are delivered in their order. After a missed state the mailbox is listed
    again.
    """

    api: PodApi
    name: str
    """Name of the ConfigMap."""
    put: Callable[[Mapping[str, str]], object]
    """Called with the data after each possible change. Empty data: the ConfigMap does not exist."""
    on_answer: Callable[[], None]
    """Called after each answer of the API server."""
    watch_seconds: int = WATCH_SECONDS
    """Duration of one watch."""
    stopped: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Start a daemon thread that lists and watches the mailbox until `stopped` is set."""
        threading.Thread(target=self.follow, name="lethe-mailbox", daemon=True).start()

    def follow(self) -> None:
        """List and watch until stopped."""
        failures = 0
        while not self.stopped.is_set():
            try:
                version = self._list()
                failures = 0
                while not self.stopped.is_set():
                    began = monotonic()
                    version = self._watch(version)
                    if monotonic() < began + SHORTEST_SECONDS:  # a proxy cuts watches short
                        self.stopped.wait(SHORTEST_SECONDS)
            except _Outdated:
                log.info("the API server no longer has the changes since the last event: listing the mailbox again")
            except (KubeError, ValueError, KeyError) as e:
                log.warning("the mailbox %s cannot be watched: %s", self.name, e)
                self.stopped.wait(PAUSES_SECONDS[min(failures, len(PAUSES_SECONDS) - 1)])
                failures += 1

    def _list(self) -> str:
        page = self.api.kube.page(CONFIG_MAPS, self.api.namespace, name=self.name)
        self.put((page.items[0].get("data") or {}) if page.items else {})
        self.on_answer()
        return page.version

    def _watch(self, version: str) -> str:
        """Watch until the server closes.

        Returns:
            The version of the last event.
        """
        events = self.api.kube.watch(
            CONFIG_MAPS,
            self.api.namespace,
            version,
            name=self.name,
            seconds=self.watch_seconds,
            on_open=lambda _end: self.on_answer(),
        )
        try:
            for event in events:
                version = self._take(event)
                self.on_answer()
        except KubeError as e:
            if e.status == 410:
                raise _Outdated from e
            raise
        return version

    def _take(self, event: Any) -> str:
        config_map = event["object"]
        match event["type"]:
            case "ADDED" | "MODIFIED":
                self.put(config_map.get("data") or {})
            case "DELETED":
                self.put({})
            case "ERROR" if config_map.get("code") == 410:
                raise _Outdated
            case "ERROR":
                raise Away(
                    int(config_map.get("code") or 0), str(config_map.get("reason")), "the API server ended the watch"
                )
        return str(config_map["metadata"]["resourceVersion"])


def metrics_port(environ: Mapping[str, str]) -> int | None:
    """The port of `/metrics`; None: no metrics are served."""
    return int(environ.get("LETHE_METRICS_PORT") or 0) or None


class MailboxMetrics:
    """The Prometheus metrics of a process: the committer, or the warm driver.

    They start again at zero with the process. Only these processes know them: the operator counts the same runs by Dataset.

    Args:
        process: The prefix of all names, such as `lethe_committer`.
        namespace: The value of the label `namespace`.
        lock: Guards the mailbox.
    """

    def __init__(self, process: str, namespace: str, mailbox: Mailbox[Any], lock: threading.Condition) -> None:
        self.registry = CollectorRegistry()
        self._process = process
        self._namespace = namespace
        self._mailbox = mailbox
        self._lock = lock
        ProcessCollector(registry=self.registry)
        self._runs = Counter(
            f"{process}_runs_total",
            "Runs that ended, by kind, outcome and reason.",
            ("namespace", "kind", "outcome", "reason"),
            registry=self.registry,
        )
        self._durations = Histogram(
            f"{process}_run_duration_seconds",
            "Seconds from the start of a run to the delivery of its result.",
            ("namespace", "kind"),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._put_off = Counter(
            f"{process}_runs_put_off_total",
            "How often a run stayed in the mailbox because its documents could not be read or its result could not be delivered.",
            ("namespace",),
            registry=self.registry,
        )
        self._put_off.labels(namespace)
        self.gauge(
            "runs_waiting", "Runs in the mailbox that have not begun.", lambda: self._mailbox.waiting(monotonic())
        )
        self.gauge("runs_in_progress", "Runs in progress.", lambda: self._mailbox.runs_in_progress)
        self.gauge(
            "mailbox_oldest_age_seconds",
            "How long ago the oldest entry of the mailbox was made that is not done; 0 if there is none.",
            self._oldest_age,
        )

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is read, with the lock, when it is scraped."""

        def read() -> float:
            with self._lock:
                return float(value())

        gauge = Gauge(f"{self._process}_{name}", text, ("namespace",), registry=self.registry)
        gauge.labels(self._namespace).set_function(read)

    def counter(self, name: str, text: str) -> Counter:
        """Add a counter, which starts at 0. Its only label is the namespace."""
        added = Counter(f"{self._process}_{name}", text, ("namespace",), registry=self.registry)
        return added.labels(self._namespace)

    def run_ended(self, family: RunFamily, outcome: str, reason: str, seconds: float) -> None:
        """Count a run by its kind, outcome and reason, and observe its seconds up to the delivery of its result."""
        self._runs.labels(self._namespace, family.value, outcome, reason).inc()
        self._durations.labels(self._namespace, family.value).observe(seconds)

    def put_off(self) -> None:
        """Count a run that stays in the mailbox for a later attempt."""
        self._put_off.labels(self._namespace).inc()

    def serve(self, port: int | None) -> None:
        """Serve `/metrics` on a port, in a thread; None: do not.

        Raises:
            OSError: The port is in use.
        """
        if port is not None:
            serve_metrics(port, self.registry)

    def _oldest_age(self) -> float:
        oldest = self._mailbox.oldest_time(monotonic())
        return 0.0 if oldest is None else max(0.0, (datetime.now(UTC) - oldest).total_seconds())

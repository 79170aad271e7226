"""Restatements on the cluster, as a user sees them: at once, steadily, one at a time, and beside a vacuum. I/O."""

import io
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import lethe
import lethe_spark
import pyarrow as pa
import pyarrow.parquet as pq
from lethe import ledger_store
from lethe.base import names
from lethe.contract.kubernetes import VACUUM_NOW
from lethe.contract.run import CreateTable
from lethe.kube import DATASETS, RESTATEMENTS, VACUUM_POLICIES
from lethe_operator.restatement.queue import PAUSE_BETWEEN_COMMITS
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext

from bench import lake as of_lake
from bench.cluster import NAMESPACE, RESOURCES, Object, OperatorScale, Site, Watcher, costs
from bench.consolidation import in_windows
from bench.lake import CATALOG, METRICS, PARTITION, Lake, our_properties
from bench.timing import say

# Between two Restatements: longer than the pause between two commits, so that none waits for the commit before it.
QUIET_SECONDS: Final = PAUSE_BETWEEN_COMMITS.total_seconds() + 1


@dataclass(frozen=True)
class Ending:
    """`seen`: when the status said so, and `committed`: not later than that, both in seconds since the epoch."""

    succeeded: bool
    reason: str
    seen: float
    committed: float | None


class Endings(Watcher):
    """`by_name` grows while it is open."""

    def __init__(self, site: Site, label: str) -> None:
        super().__init__(site.kube, RESTATEMENTS, label)
        self.by_name: dict[str, Ending] = {}

    def wait(self, number: int, within_seconds: float) -> bool:
        """Until so many have ended. Returns: whether they have."""
        return self.wait_for(lambda: len(self.by_name) >= number, within_seconds)

    def take(self, change: str, body: Object) -> None:
        """Of each Restatement, its first ending counts."""
        name, status = body["metadata"]["name"], body.get("status") or {}
        ended: Mapping[str, str] = next((c for c in status.get("conditions") or () if c["type"] == "Succeeded"), {})
        if change == "DELETED" or name in self.by_name or ended.get("status") not in ("True", "False"):
            return
        at, now = (status.get("result") or {}).get("committedTime"), time.time()
        # It has whole seconds: this is the latest moment that it may mean.
        committed = min(datetime.fromisoformat(at).timestamp() + 1, now) if at else None
        self.by_name[name] = Ending(ended["status"] == "True", ended["reason"], now, committed)


BATCH_COLUMN: Final = "batch_id"
COLUMNS: Final = "id BIGINT, at TIMESTAMP, value DOUBLE"
SCHEMA: Final = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("value", pa.float64())])
ROWS: Final = 10  # of each batch
DAYS: Final = 10
CREATORS: Final = 8
PROMOTED_WITHIN_SECONDS: Final = 1800.0
POLL_SECONDS: Final = 0.05


@dataclass(frozen=True)
class Subject:
    """`name` is the Dataset's, and the label of all that belongs to it."""

    site: Site
    name: str

    @property
    def table(self) -> str:
        return f"bench.{self.name.replace('-', '_')}"

    @property
    def buffer(self) -> str:
        return f"s3://lake/bench/{self.name}/buffer"

    @property
    def label(self) -> str:
        return f"bench={self.name}"

    def replacement(self, index: int) -> str:
        return f"s3://lake/bench/{self.name}/restated/{index}"

    # --- before ---

    def clean(self) -> None:
        """Remove what an earlier run left."""
        for kind in RESOURCES:
            self.site.delete_all(kind, self.label)
        while self.site.get(DATASETS, self.name) is not None:
            time.sleep(1)
        self.site.drop_table(self.table)
        self.site.clear(f"s3://lake/bench/{self.name}")

    def put_batches(self, indexes: Sequence[int]) -> None:
        folders = [f"{self.buffer}/{BATCH_COLUMN}={batch_id(i)}" for i in indexes]
        self._put(folders, indexes)

    def put_replacements(self, indexes: Sequence[int]) -> None:
        self._put([self.replacement(i) for i in indexes], indexes)

    def _put(self, folders: Sequence[str], indexes: Sequence[int]) -> None:
        self.site.put_all((f"{folder}/part-0.parquet", parquet(i)) for folder, i in zip(folders, indexes, strict=True))
        self.site.put_all((f"{folder}/{names.SUCCESS_MARKER}", b"") for folder in folders)

    def begin(self, batches: int) -> None:
        """Make the Dataset, and wait until its first batches are promoted. Raises: RuntimeError, if that takes half an hour."""
        self.site.create(
            DATASETS,
            self.name,
            {
                "table": {
                    "catalog": "main",
                    "name": self.table,
                    "create": {"schema": COLUMNS, "partitionBy": ["days(at)"]},
                },
                "batchColumn": BATCH_COLUMN,
                "buffer": {"uri": self.buffer},
                "consolidation": {"minBatches": min(100, batches), "maxAgeSeconds": 120},
            },
            {"bench": self.name},
        )
        self.await_promoted(batches, PROMOTED_WITHIN_SECONDS)

    def await_promoted(self, batches: int, within_seconds: float) -> float:
        """Wait until so many batches are promoted. Returns: the seconds that it took. Raises: RuntimeError, after the limit."""
        since = time.monotonic()
        while (promoted := self.promoted()) < batches:
            if time.monotonic() - since > within_seconds:
                raise RuntimeError(f"{promoted:,} of {batches:,} batches were promoted within {within_seconds:.0f} s")
            time.sleep(0.5)
        seconds = time.monotonic() - since
        say(f"  {batches:,} batches are promoted after {seconds:.0f} s")
        return seconds

    def promoted(self) -> int:
        """Batches that were promoted, also those that were reverted afterwards."""
        batches = self.site.status(self.name).get("batches") or {}
        return int(batches.get("promoted", 0)) + int(batches.get("reverted", 0))

    # --- asking ---

    def ask(self, index: int, replay: bool) -> float:
        """Create a Restatement of one batch. Returns: the time, in seconds since the epoch."""
        spec: dict[str, Any] = {
            "datasetRef": {"name": self.name},
            "operation": "Replay" if replay else "Revert",
            "batchIds": [batch_id(index)],
            "reason": "measured",
        }
        if replay:
            spec["replacement"] = {"batchId": f"{batch_id(index)}.2", "uri": self.replacement(index)}
        return self.create(self.request(index), spec)

    def create(self, name: str, spec: Mapping[str, Any]) -> float:
        """Create a Restatement. Returns: the time, in seconds since the epoch."""
        at = time.time()
        self.site.create(RESTATEMENTS, name, spec, {"bench": self.name})
        return at

    def request(self, index: int) -> str:
        return f"{self.name}-{index:06d}"

    def ask_all(self, indexes: Sequence[int], replays: frozenset[int]) -> dict[str, float]:
        """Create Restatements as fast as the API server accepts them. Returns: the time of each, by name."""
        with ThreadPoolExecutor(CREATORS) as pool:
            times = pool.map(lambda i: self.ask(i, i in replays), indexes)
            return {self.request(i): at for i, at in zip(indexes, times, strict=True)}

    # --- after ---

    def wrong(self, promoted: Sequence[int], asked: Sequence[int], replays: frozenset[int]) -> str:
        """Check that each remaining row exists once and the ledger has each request. Returns: the difference; empty if none."""
        view = lethe.scan(self.table, columns=[BATCH_COLUMN, "id"], catalog=self.site.catalog)
        found = view.to_arrow()
        rows = Counter(zip(found[BATCH_COLUMN].to_pylist(), found["id"].to_pylist(), strict=True))
        left = {batch_id(i): i for i in set(promoted) - set(asked)}
        left |= {f"{batch_id(i)}.2": i for i in asked if i in replays}
        wanted = Counter((name, n) for name, i in left.items() for n in ids(i))
        known = len(ledger_store.load(view.table.io, view.facts).ledger.requests)
        if known != len(asked):
            return f"the ledger holds {known} requests, expected {len(asked)}"
        return "" if rows == wanted else f"{(rows - wanted).total()} rows too many, {(wanted - rows).total()} too few"

    def await_hidden(self, index: int, within_seconds: float) -> bool:
        """Until PyIceberg sees no row of a batch. Returns: whether it does not."""
        deadline = time.monotonic() + within_seconds
        while (
            self.site.catalog.load_table(self.table)
            .scan(f"{BATCH_COLUMN} = '{batch_id(index)}'", selected_fields=(BATCH_COLUMN,))
            .count()
        ):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def commits(self) -> dict[str, int]:
        """How many snapshots each kind of run has made, of those that are retained."""
        table = self.site.catalog.load_table(self.table)
        kinds = [s.summary.additional_properties.get(names.RUN_KIND, "other") for s in table.snapshots() if s.summary]
        return dict(Counter(kinds))


def batch_id(index: int) -> str:
    return f"b-{index:06d}"


def ids(index: int) -> range:
    return range(index * ROWS, (index + 1) * ROWS)


def parquet(index: int) -> bytes:
    midnight = datetime(2024, 1, 1 + index % DAYS, tzinfo=UTC)
    times = [midnight + timedelta(minutes=n) for n in range(ROWS)]
    rows = pa.table({"id": list(ids(index)), "at": times, "value": [float(n) for n in ids(index)]}, schema=SCHEMA)
    sink = io.BytesIO()
    pq.write_table(rows, sink)
    return sink.getvalue()


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


WITHIN_SECONDS: Final = 3600
AFTERWARDS_SECONDS: Final = 600


def _ready(site: Site, scale: OperatorScale, name: str, number: int) -> tuple["Subject", Sequence[int], frozenset[int]]:
    """A Dataset with so many promoted batches, which of them are restated, and which of these by Replays."""
    subject, indexes = Subject(site, name), range(number)
    replays = frozenset(i for i in indexes if i % scale.replay_every == 0)
    alone(site)
    subject.clean()
    subject.put_batches(indexes)
    subject.put_replacements(sorted(replays))
    subject.begin(number)
    return subject, indexes, replays


def thrown(site: Site, scale: OperatorScale) -> dict[str, Any]:
    """Restatements that are created as fast as the API server accepts them, each of another batch."""
    subject, indexes, replays = _ready(site, scale, "bench-thrown", scale.thrown)
    before = subject.commits()
    with costs(site) as used, Endings(site, subject.label) as endings:
        since = time.time()
        asked = subject.ask_all(indexes, replays)
        created = time.time() - since
        say(f"  {scale.thrown:,} Restatements are created after {created:.0f} s")
        endings.wait(scale.thrown, WITHIN_SECONDS)
        took = time.time() - since
    ended = endings.by_name
    commits = _more(subject.commits(), before)
    say(f"  {len(ended):,} have ended after {took:.0f} s")
    result: dict[str, Any] = {
        **latencies(asked, endings),
        "replays": len(replays),
        "create_seconds": round(created, 1),
        "last_committed_seconds": round(max((e.committed or 0 for e in ended.values()), default=0) - since, 1),
        "last_seen_seconds": round(took, 1),
        "commits": commits.get("Restatement", 0),
        "ended_after": [round(e.seen - since, 1) for e in sorted(ended.values(), key=lambda e: e.seen)],
        "committed_after": sorted(round(e.committed - since, 1) for e in ended.values() if e.committed),
        **used,
    }
    return {"results": [_checked(result, subject, indexes, indexes, replays)]}


def steady(site: Site, scale: OperatorScale) -> dict[str, Any]:
    """Restatements at a steady rate, with a producer whose batches are consolidated and a policy that vacuums."""
    subject, indexes, replays = _ready(site, scale, "bench-steady", scale.per_minute * scale.minutes)
    policy = {
        "datasetSelector": {"matchLabels": {"bench": subject.name}},
        "triggers": {"activeTombstones": scale.vacuum_at},
    }
    site.create(VACUUM_POLICIES, subject.name, policy, {"bench": subject.name})
    before = subject.commits()
    added: list[int] = []
    with costs(site) as used, Endings(site, subject.label) as endings:
        stop = threading.Event()
        producer = threading.Thread(
            target=_produce, args=(subject, len(indexes), scale.batches_per_minute, added, stop)
        )
        producer.start()
        asked: dict[str, float] = {}
        started = time.time()
        for index in indexes:
            time.sleep(max(0.0, started + index * 60 / scale.per_minute - time.time()))
            asked[subject.request(index)] = subject.ask(index, index in replays)
        endings.wait(len(indexes), AFTERWARDS_SECONDS)
        stop.set()
        producer.join()
        took = time.time() - started
    ended = endings.by_name
    commits = _more(subject.commits(), before)
    say(f"  {len(ended):,} of {len(indexes):,} have ended after {took:.0f} s, beside {commits}")
    result: dict[str, Any] = {
        **latencies(asked, endings),
        "replays": len(replays),
        "seconds": round(took, 1),
        "asked_after": [round(asked[n] - started, 1) for n, e in ended.items() if e.committed],
        "commits": commits,
        "batches_added": len(added),
        **used,
    }
    _until(lambda: _waiting(subject) == 0, AFTERWARDS_SECONDS)  # the last produced batches are promoted
    return {"results": [_checked(result, subject, [*indexes, *added], indexes, replays)]}


def _produce(subject: Subject, first: int, per_minute: int, added: list[int], stop: threading.Event) -> None:
    """Batches of new indexes, one at a time."""
    index = first
    while not stop.wait(60 / per_minute):
        subject.put_batches([index])
        added.append(index)
        index += 1


def _waiting(subject: Subject) -> int:
    return int((subject.site.status(subject.name).get("buffer") or {}).get("batches", -1))


def _until(done: Callable[[], bool], within_seconds: float) -> None:
    deadline = time.monotonic() + within_seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(2)


def _checked(
    result: dict[str, Any],
    subject: Subject,
    promoted: Sequence[int],
    asked: Sequence[int],
    replays: frozenset[int],
) -> dict[str, Any]:
    """The result, with what is wrong with the table, if all Restatements have succeeded."""
    problem = "" if "error" in result else subject.wrong(promoted, asked, replays)
    return result | ({"error": problem} if problem else {})


def _more(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {kind: n - before.get(kind, 0) for kind, n in sorted(after.items()) if n > before.get(kind, 0)}


ENDS_WITHIN_SECONDS: Final = 300.0
# Shorter than the pause between two Restatements.
WINDOW_SECONDS: Final = 1
VACUUM_WITHIN_SECONDS: Final = 180.0
VACUUMS_AT_MOST: Final = 30


def warm(site: Site, scale: OperatorScale) -> dict[str, Any]:
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
    return {"results": [_checked(result, subject, indexes, indexes, frozenset(indexes))]}


def visible(site: Site, scale: OperatorScale) -> dict[str, Any]:
    """Reverts one at a time, until an unmodified PyIceberg no longer sees the rows."""
    alone(site)
    subject = _subject(site, "bench-visible", scale.seen)
    asked: dict[str, float] = {}
    hidden: list[float] = []
    with Endings(site, subject.label) as endings:
        for index in range(scale.seen):
            asked[subject.request(index)] = at = subject.ask(index, replay=False)
            is_hidden = subject.await_hidden(index, ENDS_WITHIN_SECONDS)
            hidden.append(round(time.time() - at, 2))
            if not is_hidden or not endings.wait(len(asked), ENDS_WITHIN_SECONDS):
                break
            time.sleep(QUIET_SECONDS)
    result: dict[str, Any] = {**latencies(asked, endings), "to_hidden": hidden}
    if len(hidden) < scale.seen:
        result["error"] = f"PyIceberg still saw the rows of {batch_id(len(hidden) - 1)} after {hidden[-1]} s"
    return {"results": [result]}


def vacuum(site: Site, scale: OperatorScale) -> dict[str, Any]:
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


def consecutive(site: Site, scale: OperatorScale) -> dict[str, Any]:
    """Reverts of one batch each, one after the other, in one session; no operator runs meanwhile."""
    site.stop()
    lake = Lake.open(site.work / "lake", scale.driver_memory)
    try:
        return consecutive_reverts(lake, scale)
    finally:
        lake.spark.stop()


def alone(site: Site) -> None:
    """An operator that has just started, in an empty namespace."""
    site.clear_namespace()
    site.restart()


def _subject(site: Site, name: str, batches: int) -> Subject:
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


def _start_vacuum(site: Site, subject: Subject) -> str | None:
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


def _has_ended(site: Site, subject: Subject, job: str) -> bool:
    return all(r.get("finishTime") for r in _vacuums(site, subject) if r["name"] == job)


def _vacuums(site: Site, subject: Subject) -> list[dict[str, Any]]:
    return [r for r in site.status(subject.name).get("runs") or () if r.get("kind") == "Vacuum"]


def consecutive_reverts(lake: Lake, scale: OperatorScale) -> dict[str, Any]:
    """Reverts of one batch each, one after the other; tidied up after each as every run does."""
    wanted = CreateTable(table_schema=of_lake.SCHEMA, partition_by=(PARTITION,))
    table = SparkTable.create(lake.spark, CATALOG, "run.restated", wanted, METRICS | our_properties())
    table.ensure_layout(of_lake.BATCH_COLUMN)

    def commit(_context: RunContext, number: int, _prepared: None) -> None:
        lethe_spark.revert(lake.spark, table.full_name, [f"flights-{number:06d}"])

    return in_windows(lake, table, scale.commits, scale.window, lambda _: None, commit)

"""Restatements by the operator on a cluster: thousands at once, steadily with other runs, and one at a time. I/O."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from bench.asked import Subject
from bench.endings import Ending, Endings
from bench.lake import Lake
from bench.restatement_scales import QUIET_SECONDS, RestatementScale
from bench.site import Site, connect
from bench.timing import say

WITHIN_SECONDS: Final = 3600
AFTERWARDS_SECONDS: Final = 600
SAMPLED_EVERY_SECONDS: Final = 2.0


def thrown(lake: Lake, scale: RestatementScale) -> dict[str, Any]:
    """Restatements that are created as fast as the API server accepts them, each of another batch."""
    lake.spark.stop()  # the cores belong to the cluster
    return thrown_at(connect(), scale)


def thrown_at(site: Site, scale: RestatementScale) -> dict[str, Any]:
    """The same, on a connected cluster."""
    subject = Subject(site, "bench-thrown")
    indexes = list(range(scale.thrown))
    replays = frozenset(i for i in indexes if i % scale.replay_every == 0)
    subject.clean()
    subject.put_batches(indexes)
    subject.put_replacements(sorted(replays))
    subject.begin(scale.thrown)
    before = subject.commits()
    with _numbers(subject.site) as numbers, Endings(subject.site, subject.label) as endings:
        since = time.time()
        asked = subject.ask_all(indexes, replays)
        created = time.time() - since
        say(f"  {scale.thrown:,} Restatements are created after {created:.0f} s")
        endings.wait(scale.thrown, WITHIN_SECONDS)
        took = time.time() - since
    ended = endings.by_name
    commits = _more(subject.commits(), before)
    say(f"  {len(ended):,} have ended after {took:.0f} s")
    result = {
        "restatements": scale.thrown,
        "replays": len(replays),
        "succeeded": sum(e.succeeded for e in ended.values()),
        "create_seconds": round(created, 1),
        "last_committed_seconds": round(max((e.committed or 0 for e in ended.values()), default=0) - since, 1),
        "last_seen_seconds": round(took, 1),
        "commits": commits.get("Restatement", 0),
        "ended_after": [round(e.seen - since, 1) for e in sorted(ended.values(), key=lambda e: e.seen)],
        "committed_after": sorted(round(e.committed - since, 1) for e in ended.values() if e.committed),
        **numbers,
    }
    if problem := _problem(subject, indexes, asked, ended, replays, indexes):
        result["error"] = problem
    return {"results": [result]}


def steady(lake: Lake, scale: RestatementScale) -> dict[str, Any]:
    """Restatements at a steady rate, with a producer whose batches are consolidated and a policy that vacuums."""
    lake.spark.stop()
    return steady_at(connect(), scale)


def steady_at(site: Site, scale: RestatementScale) -> dict[str, Any]:
    """The same, on a connected cluster."""
    subject = Subject(site, "bench-steady")
    indexes = list(range(scale.per_minute * scale.minutes))
    replays = frozenset(i for i in indexes if i % scale.replay_every == 0)
    subject.clean()
    subject.put_batches(indexes)
    subject.put_replacements(sorted(replays))
    subject.begin(len(indexes))
    policy = {
        "datasetSelector": {"matchLabels": {"bench": subject.name}},
        "triggers": {"activeTombstones": scale.vacuum_at},
    }
    subject.site.create("VacuumPolicy", subject.name, policy, {"bench": subject.name})
    before = subject.commits()
    added: list[int] = []
    with _numbers(subject.site) as numbers, Endings(subject.site, subject.label) as endings:
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
    result = {
        "restatements": len(indexes),
        "replays": len(replays),
        "succeeded": sum(e.succeeded for e in ended.values()),
        "seconds": round(took, 1),
        "to_committed": [round(e.committed - asked[n], 2) for n, e in ended.items() if e.committed],
        "to_seen": [round(e.seen - asked[n], 2) for n, e in ended.items()],
        "asked_after": [round(asked[n] - started, 1) for n, e in ended.items() if e.committed],
        "commits": commits,
        "batches_added": len(added),
        **numbers,
    }
    if problem := _problem(subject, indexes, asked, ended, replays, [*indexes, *_promoted_of(subject, added)]):
        result["error"] = problem
    return {"results": [result]}


def alone(lake: Lake, scale: RestatementScale) -> dict[str, Any]:
    """Reverts one at a time, each asked for when the one before has ended and the cluster is quiet again."""
    lake.spark.stop()
    subject = Subject(connect(), "bench-alone")
    indexes = list(range(scale.alone))
    subject.clean()
    subject.put_batches(indexes)
    subject.begin(len(indexes))
    before = subject.commits()
    asked: dict[str, float] = {}
    with Endings(subject.site, subject.label) as endings:
        for index in indexes:
            time.sleep(QUIET_SECONDS)
            asked[subject.request(index)] = subject.ask(index, replay=False)
            endings.wait(len(asked), AFTERWARDS_SECONDS)
    ended = endings.by_name
    say(f"  {len(ended):,} of {len(indexes):,} have ended")
    result = {
        "restatements": len(indexes),
        "to_committed": [round(e.committed - asked[n], 2) for n, e in ended.items() if e.committed],
        "to_seen": [round(e.seen - asked[n], 2) for n, e in ended.items()],
        "commits": _more(subject.commits(), before),
    }
    if problem := _problem(subject, indexes, asked, ended, frozenset(), indexes):
        result["error"] = problem
    return {"results": [result]}


def _produce(subject: Subject, first: int, per_minute: int, added: list[int], stop: threading.Event) -> None:
    """Batches of new indexes, one at a time."""
    index = first
    while not stop.wait(60 / per_minute):
        subject.put_batches([index])
        added.append(index)
        index += 1


def _promoted_of(subject: Subject, added: list[int]) -> list[int]:
    """Wait until the last produced batches are promoted, before the rows are counted."""
    _until(lambda: _waiting(subject) == 0, AFTERWARDS_SECONDS)
    return added


def _waiting(subject: Subject) -> int:
    found = subject.site.get("Dataset", subject.name) or {}
    return int(((found.get("status") or {}).get("buffer") or {}).get("batches", -1))


def _until(done: Callable[[], bool], within_seconds: float) -> None:
    deadline = time.monotonic() + within_seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(2)


def _problem(
    subject: Subject,
    indexes: list[int],
    asked: dict[str, float],
    ended: dict[str, Ending],
    replays: frozenset[int],
    promoted: list[int],
) -> str:
    """What did not come to be, in a sentence."""
    if missing := asked.keys() - ended.keys():
        return f"{len(missing)} have not ended, the first of them {min(missing)}"
    if failed := {e.reason for e in ended.values() if not e.succeeded}:
        return f"some failed: {', '.join(sorted(failed))}"
    return subject.wrong(promoted, indexes, replays)


def _more(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {kind: n - before.get(kind, 0) for kind, n in sorted(after.items()) if n > before.get(kind, 0)}


@contextmanager
def _numbers(site: Site) -> Iterator[dict[str, float]]:
    """What it costs: is filled in at the end of the block. The memory is the most that was seen."""
    found: dict[str, float] = {}
    before, served = site.operator(), site.requests_served()
    peak, stop = [before["memory_bytes"]], threading.Event()

    def sample() -> None:
        while not stop.wait(SAMPLED_EVERY_SECONDS):
            peak.append(site.operator_memory())

    sampling = threading.Thread(target=sample, name="sampling", daemon=True)
    sampling.start()
    yield found
    stop.set()
    sampling.join()
    after = site.operator()
    found |= {
        "operator_memory_before_bytes": before["memory_bytes"],
        "operator_memory_peak_bytes": max(peak),
        "operator_cpu_seconds": round(after["cpu_seconds"] - before["cpu_seconds"], 1),
        "operator_api_requests": after["api_requests"] - before["api_requests"],
        "api_requests_of_all": site.requests_served() - served,
    }

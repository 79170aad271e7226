"""Runs of thousands of Datasets that become due at an even rate: how long after that they are launched. I/O."""

import threading
import time
from collections.abc import Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from lethe.base import names
from lethe.kube import DATASETS, JOBS
from lethe_operator.resources.common import ANNOTATION_DATASET

from bench import fleet
from bench.fake_node import FakeNode
from bench.fleet import Copy
from bench.operator_rows import copies_of
from bench.operator_scales import OperatorScale
from bench.operator_site import OperatorSite
from bench.site import NAMESPACE
from bench.timing import say
from bench.watching import watch

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
        for kind, job in watch(JOBS, NAMESPACE, self._closed):
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

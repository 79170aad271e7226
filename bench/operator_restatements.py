"""Restatements with an operator that has nothing else to do: many at once, steadily, by a warm driver, beside a vacuum. I/O."""

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from lethe.contract.kubernetes import VACUUM_NOW
from lethe.kube import DATASETS

from bench import on_cluster, sdk_reverts
from bench.asked import Subject
from bench.endings import Endings
from bench.lake import Lake
from bench.operator_rows import latencies
from bench.operator_scales import OperatorScale
from bench.operator_site import OperatorSite
from bench.restatement_scales import QUIET_SECONDS
from bench.site import NAMESPACE
from bench.timing import say

ENDS_WITHIN_SECONDS: Final = 300.0
# Shorter than the pause between two Restatements.
WINDOW_SECONDS: Final = 1
VACUUM_WITHIN_SECONDS: Final = 180.0
VACUUMS_AT_MOST: Final = 30


def thrown(site: OperatorSite, scale: OperatorScale) -> dict[str, Any]:
    """Thousands of Restatements at once."""
    alone(site)
    return on_cluster.thrown_at(site, scale.restatement)


def steady(site: OperatorSite, scale: OperatorScale) -> dict[str, Any]:
    """Restatements at a steady rate, beside consolidations and vacuums."""
    alone(site)
    return on_cluster.steady_at(site, scale.restatement)


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
        return sdk_reverts.commits(lake, scale.restatement)
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

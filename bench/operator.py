"""Measure the operator: thousands of Datasets, idle and busy, and how long users wait.

    python -m bench.operator [--scale tiny|small|full] [--only creation,idle,…] [--out docs/benchmarks]

Needs a cluster with Lethe and the exports of its services: `make bench-operator` sets up one of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bench import operator_parts, restatements
from bench.cluster import SCALES, place
from bench.consolidation import WINDOW_CELLS, growth_goal
from bench.report import MIB, Cell, Goal, Part, Result, Shares, View, goal, percentile, ratio, results_of
from bench.runner import Suite, program

COMMITTED: Final = {"committed": "to_committed", "shown": "to_seen", "gone for PyIceberg": "to_hidden"}
OPERATOR: Final = (
    Cell("CPU seconds", "operator_cpu_seconds"),
    Cell("peak MiB", "operator_memory_peak_bytes", MIB),
    Cell("API requests", "operator_api_requests"),
    Cell("committer, peak MiB", "committer_memory_peak_bytes", MIB),
)


@dataclass(frozen=True)
class Limit:
    """A goal of a part with one result."""

    text: str
    """May name keys of the result in braces."""
    key: str
    """Where the quantity is. Of a list, `share` percent must be within the limit."""
    limit: float | str
    """A number, or the key of one."""
    unit: float = 1.0
    share: int = 100
    at_least: bool = False

    def goal(self, result: Result) -> Goal:
        """Not measured, if the result is not whole."""
        found = None if "error" in result or "skipped" in result else result.get(self.key)
        if isinstance(found, list):
            found = percentile(found, self.share)
        limit = result[self.limit] if isinstance(self.limit, str) else self.limit
        text = self.text if "skipped" in result else self.text.format(**result)
        return goal(text, None if found is None else found / self.unit, limit, self.at_least)


_IDLE: Final = "idle beside {datasets:,} Datasets and {finished:,} finished Restatements: "
_THROWN: Final = "{restatements:,} Restatements at once, {replays:,} of them Replays: "
_95: Final = "95 % are committed so many seconds after they were created"
LIMITS: Final[Mapping[str, tuple[Limit, ...]]] = {
    "creation": (
        Limit("{datasets:,} Datasets created at once all have a correct status after so many seconds", "seconds", 600),
    ),
    "idle": (
        Limit(f"{_IDLE}cores", "cpu_share", 0.15),
        Limit(f"{_IDLE}peak MiB", "memory_peak_bytes", 768, MIB),
        Limit(f"{_IDLE}requests to the API server per second", "api_requests_per_second", 1),
        Limit(f"{_IDLE}queries of the catalog per second", "catalog_queries_per_second", 50),
    ),
    "reverts": (Limit(f"a Revert on one of them: {_95}", "to_committed", 5, share=95),),
    "launches": (
        Limit("due runs that are launched per minute", "in_time_per_minute", "per_minute", at_least=True),
        Limit("from due to launched: 95 % within so many seconds", "due_to_launched", 10, share=95),
    ),
    "warm": (
        Limit(
            "small Replays by a warm driver: half are committed so many seconds after they were created",
            "to_committed",
            3,
            share=50,
        ),
    ),
    "visible": (
        Limit(
            "a Revert, on S3: half are seen by an unmodified PyIceberg so many seconds later", "to_hidden", 2, share=50
        ),
    ),
    "thrown": (
        Limit(f"{_THROWN}all have succeeded after so many seconds", "last_seen_seconds", 240),
        Limit(f"{_THROWN}commits", "commits", 25),
        Limit(f"{_THROWN}the committer's peak MiB", "committer_memory_peak_bytes", 512, MIB),
        Limit(f"{_THROWN}the operator's peak MiB", "operator_memory_peak_bytes", 384, MIB),
    ),
    "steady": (Limit(f"{{restatements:,}} Restatements steadily: {_95}", "to_committed", 10, share=95),),
    "consolidation": (
        Limit("at least this many small files an hour, over {files:,} of them", "per_hour", 2_000_000, at_least=True),
    ),
    "failover": (Limit("the operator is killed: the next reconcile follows within so many seconds", "seconds", 15),),
}
BESIDE_VACUUM: Final = 1.2


def goals(parts: Mapping[str, Part]) -> list[Goal]:
    """Each goal with what was measured, None where it was not."""
    found = [limit.goal(r) for name, limits in LIMITS.items() for r in results_of(parts, name) for limit in limits]
    for r in results_of(parts, "vacuum"):
        text = "Reverts beside a vacuum of their table : without it"
        found.append(goal(text, None if "error" in r else slowed(r), BESIDE_VACUUM))
    if "consecutive" in parts:
        found.append(growth_goal("consecutive Reverts", parts["consecutive"]))
    return found


def slowed(result: Mapping[str, Any]) -> float | None:
    """The median latency beside a vacuum, divided by that without."""
    beside, without = (percentile(result[k]["to_committed"], 50) for k in ("beside", "without"))
    return ratio(beside, without)


SUITE = Suite(
    name="operator",
    purpose=(__doc__ or "").splitlines()[0],
    # First what needs an empty namespace. `creation` makes the Datasets for the parts after it.
    parts={
        "warm": restatements.warm,
        "visible": restatements.visible,
        "thrown": restatements.thrown,
        "vacuum": restatements.vacuum,
        "steady": restatements.steady,
        "consolidation": operator_parts.consolidation,
        "small": operator_parts.small,
        "creation": operator_parts.creation,
        "idle": operator_parts.idle,
        "reverts": operator_parts.reverts,
        "launches": operator_parts.launches,
        "failover": operator_parts.failover,
        "consecutive": restatements.consecutive,
    },
    scales=SCALES,
    goals=goals,
    views=(
        View(
            "All Datasets at once",
            ("creation",),
            ("datasets",),
            cells=(
                Cell("seconds to create", "create_seconds"),
                Cell("until all are correct", "seconds"),
                *OPERATOR,
                Cell("catalog queries", "catalog_queries"),
            ),
        ),
        View(
            "Idle",
            ("idle",),
            ("datasets", "finished"),
            cells=(
                Cell("cores", "cpu_share"),
                Cell("MiB", "memory_bytes", MIB),
                Cell("peak MiB", "memory_peak_bytes", MIB),
                Cell("API requests a second", "api_requests_per_second"),
                Cell("catalog queries a second", "catalog_queries_per_second"),
            ),
        ),
        View(
            "Thousands of Restatements at once",
            ("thrown",),
            ("restatements", "replays"),
            cells=(
                Cell("seconds to create", "create_seconds"),
                Cell("commits", "commits"),
                Cell("last commit after", "last_committed_seconds"),
                Cell("all shown after", "last_seen_seconds"),
                *OPERATOR,
            ),
        ),
        View("Restatements beside consolidation and vacuum", ("steady",), ("restatements", "replays"), cells=OPERATOR),
        Shares("Restatements one at a time, and steadily", ("reverts", "visible", "warm", "steady"), COMMITTED),
        Shares(
            "Reverts beside a vacuum",
            ("vacuum",),
            {f"{when} a vacuum": f"{when}.to_committed" for when in ("without", "beside")},
        ),
        Shares("Launches", ("launches",), {"from due to launched": "due_to_launched"}),
        Shares("The operator is killed", ("failover",), {"to the next reconcile": "seconds"}),
        View(
            "Small files through the operator",
            ("consolidation",),
            ("files",),
            cells=(Cell("seconds", "seconds"), Cell("files an hour", "per_hour")),
        ),
        View(
            "Many small Datasets",
            ("small",),
            ("datasets", "batches"),
            cells=(
                Cell("CPU seconds for a batch", "cpu_seconds_per_batch"),
                Cell("of them the operator's", "operator_cpu_seconds_per_batch"),
                Cell("the committer's", "committer_cpu_seconds_per_batch"),
                Cell("the warm driver's", "spark_cpu_seconds_per_batch"),
                Cell("operator, peak MiB", "operator_memory_peak_bytes", MIB),
                Cell("warm driver, peak MiB", "spark_memory_peak_bytes", MIB),
            ),
        ),
        Shares("Batches of many small Datasets", ("small",), {"from delivered to promoted": "to_promoted"}),
        View("Revert after Revert", ("consecutive",), ("commits",), cells=WINDOW_CELLS, plot="commits", ends=True),
    ),
    place=place,
)

if __name__ == "__main__":
    program(SUITE)

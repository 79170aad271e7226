"""Figures of the operator as sentences and tables, and whether the goals are met. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from bench.consolidation_report import ends, growth, windows
from bench.page import goal, goals_summary, heading, picture, ratio
from bench.restatement_report import SHARES, latencies, percentile, steady_text, thrown_text

CREATION_SECONDS: Final = 600.0
IDLE_CPU: Final = 0.15
IDLE_MIB: Final = 768.0
IDLE_API: Final = 1.0
IDLE_CATALOG: Final = 50.0
REVERT_P95_SECONDS: Final = 5.0
LAUNCH_P95_SECONDS: Final = 10.0
WARM_MEDIAN_SECONDS: Final = 3.0
THROWN_SECONDS: Final = 180.0
THROWN_MIB: Final = 384.0
STEADY_P95_SECONDS: Final = 10.0
BESIDE_VACUUM: Final = 1.2
FAILOVER_SECONDS: Final = 15.0
FILES_PER_HOUR: Final = 2_000_000
GROWTH: Final = 1.25
Part = Mapping[str, Any]
Goal = dict[str, Any]


def goals(parts: Mapping[str, Part]) -> list[Goal]:
    """Each goal with what was measured, None where it was not."""
    return [g for name, make in GOALS.items() if name in parts for g in make(parts[name])]


def _one(part: Part) -> tuple[Mapping[str, Any], bool]:
    """The only result of a part, and whether it is whole."""
    (found,) = part["results"]
    return found, "error" not in found and "skipped" not in found


def _creation(part: Part) -> list[Goal]:
    r, whole = _one(part)
    text = f"{r['datasets']:,} Datasets created at once all have a correct status after so many seconds"
    return [goal(text, r["seconds"] if whole else None, CREATION_SECONDS)]


def _idle(part: Part) -> list[Goal]:
    r, whole = _one(part)
    of = f"idle beside {r['datasets']:,} Datasets"
    rows = (
        (f"{of}: cores", "cpu_share", 1.0, IDLE_CPU),
        (f"{of} and {r['finished']:,} finished Restatements: peak MiB", "memory_peak_bytes", 2.0**20, IDLE_MIB),
        (f"{of}: requests to the API server per second", "api_requests_per_second", 1.0, IDLE_API),
        (f"{of}: queries of the catalog per second", "catalog_queries_per_second", 1.0, IDLE_CATALOG),
    )
    return [goal(text, r[key] / unit if whole else None, limit) for text, key, unit, limit in rows]


def _reverts(part: Part) -> list[Goal]:
    r, whole = _one(part)
    text = "a Revert on one of them: 95 % are committed so many seconds after they were created"
    return [goal(text, percentile(r["to_committed"], 95) if whole else None, REVERT_P95_SECONDS)]


def _launches(part: Part) -> list[Goal]:
    r, whole = _one(part)
    late = percentile(r["due_to_launched"], 95) if whole else None
    return [
        goal(
            "due runs that are launched per minute",
            r["in_time_per_minute"] if whole else None,
            r["per_minute"],
            at_least=True,
        ),
        goal("from due to launched: 95 % within so many seconds", late, LAUNCH_P95_SECONDS),
    ]


def _warm(part: Part) -> list[Goal]:
    r, whole = _one(part)
    text = "small Replays by a warm driver: half are committed so many seconds after they were created"
    return [goal(text, percentile(r["to_committed"], 50) if whole else None, WARM_MEDIAN_SECONDS)]


def _thrown(part: Part) -> list[Goal]:
    r, whole = _one(part)
    text = f"{r['restatements']:,} Restatements at once, {r['replays']:,} of them Replays"
    return [
        goal(
            f"{text}: all have succeeded after so many seconds",
            r["last_seen_seconds"] if whole else None,
            THROWN_SECONDS,
        ),
        goal(
            f"{text}: the operator's peak MiB",
            r["operator_memory_peak_bytes"] / 2**20 if whole else None,
            THROWN_MIB,
        ),
    ]


def _steady(part: Part) -> list[Goal]:
    r, whole = _one(part)
    text = f"{r['restatements']:,} Restatements steadily: 95 % are committed so many seconds after they were created"
    return [goal(text, percentile(r["to_committed"], 95) if whole else None, STEADY_P95_SECONDS)]


def _vacuum(part: Part) -> list[Goal]:
    r, whole = _one(part)
    return [goal("Reverts beside a vacuum of their table : without it", slowed(r) if whole else None, BESIDE_VACUUM)]


def slowed(result: Mapping[str, Any]) -> float | None:
    """The median latency beside a vacuum, divided by that without."""
    beside, without = (percentile(result[k]["to_committed"], 50) for k in ("beside", "without"))
    return ratio(beside, without)


def _consolidation(part: Part) -> list[Goal]:
    r, whole = _one(part)
    text = f"at least this many small files an hour, over {r['files']:,} of them"
    return [goal(text, r["per_hour"] if whole else None, FILES_PER_HOUR, at_least=True)]


def _failover(part: Part) -> list[Goal]:
    r, whole = _one(part)
    text = "the operator is killed: the next reconcile follows within so many seconds"
    return [goal(text, max(r["seconds"], default=None) if whole else None, FAILOVER_SECONDS)]


def _consecutive(part: Part) -> list[Goal]:
    _, last = ends(part)
    text = f"the last {part['window']:,} of {last['commits']:,} consecutive Reverts : the first, at most"
    return [goal(text, growth(part), GROWTH)]


GOALS: Final[Mapping[str, Callable[[Part], list[Goal]]]] = {
    "creation": _creation,
    "idle": _idle,
    "reverts": _reverts,
    "launches": _launches,
    "warm": _warm,
    "thrown": _thrown,
    "steady": _steady,
    "vacuum": _vacuum,
    "consolidation": _consolidation,
    "failover": _failover,
    "consecutive": _consecutive,
}


def section(document: Mapping[str, Any], drawn: Mapping[str, str], folder: str) -> str:
    """The generated part of the page, in Markdown. `drawn`: plots by part."""
    parts = document["parts"]
    lines = [*heading(document, folder, "operator.json"), *goals_summary(document["goals"])]
    for name, (title, text) in SECTIONS.items():
        if name in parts:
            lines += [
                f"### {title}",
                "",
                *picture(drawn, name, folder),
                *_problem(name, parts[name]),
                *text(parts[name]),
                "",
            ]
    return "\n".join(lines).rstrip() + "\n"


def _problem(name: str, part: Part) -> list[str]:
    first = part["results"][0]
    if "skipped" in first:
        return [f"Not measured: {first['skipped']}.", ""]
    says_itself = name in ("thrown", "steady")
    return [f"**Failed**: {first['error']}.", ""] if "error" in first and not says_itself else []


def _creation_text(part: Part) -> list[str]:
    r, _ = _one(part)
    return [
        f"Created within {r['create_seconds']:.0f} s. Statuses are correct after {_shares(r['correct_after'])}; all after "
        f"{r['seconds']:.0f} s. {_costs(r)}, {_mib(r['operator_memory_peak_bytes'])} at the peak, "
        f"{r['catalog_queries']:,.0f} queries of the catalog."
    ]


def _shares(values: Sequence[float]) -> str:
    return ", ".join(f"{_s(percentile(values, share))} ({share} %)" for share in SHARES)


def _costs(r: Mapping[str, Any]) -> str:
    return (
        f"The operator: {r['operator_cpu_seconds']:.0f} s of processor time, {r['operator_api_requests']:,.0f} requests to the "
        "API server"
    )


def _idle_text(part: Part) -> list[str]:
    r, _ = _one(part)
    return [
        f"Over {r['seconds']:.0f} s: {100 * r['cpu_share']:.1f} % of a core, {_mib(r['memory_bytes'])} "
        f"({_mib(r['memory_peak_bytes'])} at the peak since the start). In a second, {r['api_requests_per_second']:.2f} requests "
        f"of all {r['replicas']} replicas to the API server and {r['catalog_queries_per_second']:.1f} queries of the catalog. "
        f"One scrape of its metrics: {r['scrape_cpu_seconds']:.2f} s of processor time, {_mib(r['scrape_bytes'])}."
    ]


def _latencies_text(part: Part) -> list[str]:
    r, whole = _one(part)
    return [latencies(r)] if whole else []


def _launches_text(part: Part) -> list[str]:
    r, _ = _one(part)
    return [
        f"{r['launched']:,} of {r['runs']:,} due runs were launched, {r['per_minute']:,} per minute, after "
        f"{_shares(r['due_to_launched'])}. {_costs(r)}."
    ]


def _vacuum_text(part: Part) -> list[str]:
    r, _ = _one(part)
    titles = (("without", "Without a vacuum"), ("beside", f"Beside {r['vacuums']} vacuums"))
    return [f"- {title}, {r[key]['restatements']} Reverts. {latencies(r[key])}" for key, title in titles]


def _consolidation_text(part: Part) -> list[str]:
    r, whole = _one(part)
    text = f"{r['files']:,} files with {r['rows']:,} rows: promoted {r['seconds']:,} s after their Dataset was created, by "
    return [f"{text}{r['commits'].get('Consolidation', 0)} runs."] if whole else []


def _failover_text(part: Part) -> list[str]:
    r, _ = _one(part)
    took = ", ".join(f"{s:.1f}" for s in r["seconds"])
    return [f"With {r['replicas']} replicas and {r['datasets']:,} Datasets, seconds to the next reconcile: {took}."]


def _s(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def _mib(size: float) -> str:
    return f"{size / 2**20:,.1f} MiB"


SECTIONS: Final[Mapping[str, tuple[str, Callable[[Part], list[str]]]]] = {
    "creation": ("All Datasets at once", _creation_text),
    "idle": ("Idle", _idle_text),
    "reverts": ("One Revert", _latencies_text),
    "launches": ("Launches", _launches_text),
    "warm": ("A Replay by a warm driver", _latencies_text),
    "thrown": ("Thousands of Restatements at once", thrown_text),
    "steady": ("Restatements beside consolidation and vacuum", steady_text),
    "vacuum": ("Reverts beside a vacuum", _vacuum_text),
    "consolidation": ("Small files through the operator", _consolidation_text),
    "failover": ("The operator is killed", _failover_text),
    "consecutive": ("Revert after Revert", windows),
}

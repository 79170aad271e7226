"""Figures of restatement as sentences and tables, and whether the goals are met. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench import rivals
from bench.consolidation_report import ends, growth, windows
from bench.page import (
    NO,
    NO_DIFFERENCE,
    find,
    goal,
    goals_summary,
    heading,
    median,
    number,
    picture,
    pivot,
    ratio,
    table,
)
from bench.sdk_reverts import SDK

THROWN_SECONDS: Final = 600.0
THROWN_COMMITS: Final = 20
STEADY_P95_SECONDS: Final = 60.0
ALONE_MEDIAN_SECONDS: Final = 5.0
TIMES: Final = 100.0
GROWTH: Final = 1.25
SHARES: Final = (50, 95, 99)


def goals(parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each goal with what was measured, None where it was not."""
    return [
        *_thrown_goals(parts),
        *_steady_goals(parts),
        *_alone_goals(parts),
        *_sql_goals(parts),
        *_commit_goals(parts),
    ]


def percentile(values: Sequence[float], share: int) -> float | None:
    """The least value that `share` percent are not above; None of none."""
    ordered = sorted(values)
    return ordered[max(0, -(-share * len(ordered) // 100) - 1)] if ordered else None


def _thrown_goals(parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    if "thrown" not in parts:
        return []
    (r,) = parts["thrown"]["results"]
    whole = "error" not in r
    n = f"{r['restatements']:,} Restatements at once"
    return [
        goal(
            f"{n} have all succeeded after so many seconds", r["last_seen_seconds"] if whole else None, THROWN_SECONDS
        ),
        goal(f"{n} take so many commits", float(r["commits"]) if whole else None, THROWN_COMMITS),
    ]


def _steady_goals(parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    if "steady" not in parts:
        return []
    (r,) = parts["steady"]["results"]
    text = f"{r['restatements']:,} steadily: 95 % are committed so many seconds after they were created"
    return [goal(text, percentile(r["to_committed"], 95) if "error" not in r else None, STEADY_P95_SECONDS)]


def _alone_goals(parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    if "alone" not in parts:
        return []
    (r,) = parts["alone"]["results"]
    text = f"{r['restatements']:,} one at a time: half are committed so many seconds after they were created"
    return [goal(text, percentile(r["to_committed"], 50) if "error" not in r else None, ALONE_MEDIAN_SECONDS)]


def _sql_goals(parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    if "sql" not in parts:
        return []
    part = parts["sql"]
    ours = median(find(part["results"], kind=SDK, batches=part["group"]))
    one = median(find(part["results"], kind=rivals.DELETION_VECTORS, batches=1))
    grouped = find(part["results"], kind=rivals.DELETION_VECTORS, batches=part["group"])
    times = None if ours is None else ratio(one, ours / part["group"])
    no_slower = goal(f"a group of {part['group']:,} : one DELETE of the same", ratio(ours, median(grouped)), 1.0)
    mine = find(part["results"], kind=SDK, batches=part["group"])
    if no_slower["met"] == NO and mine and grouped and mine["seconds"]["min"] <= grouped["seconds"]["max"]:
        no_slower["met"] = NO_DIFFERENCE
    text = f"batches a second in groups of {part['group']:,} : with one DELETE (v3) after the other"
    return [goal(text, times, TIMES, at_least=True), no_slower]


def _commit_goals(parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    if "commits" not in parts:
        return []
    _, last = ends(parts["commits"])
    text = f"the last {parts['commits']['window']:,} of {last['commits']:,} reverts : the first, at most"
    return [goal(text, growth(parts["commits"]), GROWTH)]


def section(document: Mapping[str, Any], drawn: Mapping[str, str], folder: str) -> str:
    """The generated part of the page, in Markdown. `drawn`: plots by part."""
    parts = document["parts"]
    lines = [*heading(document, folder, "restatement.json"), *goals_summary(document["goals"])]
    if "thrown" in parts:
        lines += ["### Thousands at once", "", *picture(drawn, "thrown", folder), *thrown_text(parts["thrown"]), ""]
    if "steady" in parts:
        lines += [
            "### Steadily, beside consolidation and vacuum",
            "",
            *picture(drawn, "steady", folder),
            *steady_text(parts["steady"]),
            "",
        ]
    if "alone" in parts:
        lines += ["### One at a time", "", *_alone(parts["alone"]), ""]
    if "sql" in parts:
        lines += ["### In one session, beside SQL", "", *_sql(parts["sql"]), ""]
    if "commits" in parts:
        lines += ["### Revert after revert", "", *windows(parts["commits"])]
    return "\n".join(lines).rstrip() + "\n"


def thrown_text(part: Mapping[str, Any]) -> list[str]:
    (r,) = part["results"]
    told = (
        f"{r['succeeded']:,} of {r['restatements']:,} succeeded, {r['replays']:,} of them Replays, created within "
        f"{r['create_seconds']:.0f} s: {r['commits']:,} commits, the last after {r['last_committed_seconds']:.0f} s; all "
        f"shown after {r['last_seen_seconds']:.0f} s. {_costs(r)}"
    )
    return [told, *_failed(r)]


def steady_text(part: Mapping[str, Any]) -> list[str]:
    (r,) = part["results"]
    beside = ", ".join(f"{n:,} {kind}" for kind, n in r["commits"].items())
    told = (
        f"{r['restatements']:,} Restatements within {r['seconds'] / 60:.1f} minutes, {r['replays']:,} of them Replays; "
        f"meanwhile {r['batches_added']:,} batches came. Commits: {beside}. {_costs(r)}"
    )
    return [f"{told} {latencies(r)}", *_failed(r)]


def _alone(part: Mapping[str, Any]) -> list[str]:
    (r,) = part["results"]
    return [f"{r['restatements']:,} Reverts. {latencies(r)}", *_failed(r)]


def latencies(r: Mapping[str, Any]) -> str:
    """From the creation of each Restatement to its commit, and to the status that says so."""
    told = []
    for what, key in (("Committed", "to_committed"), ("shown", "to_seen")):
        shares = (f"p{share} {number(percentile(r[key], share))}" for share in SHARES)
        told.append(f"{what}: {', '.join(shares)}, most {number(max(r[key], default=None))} s")
    return f"{'; '.join(told)}."


def _costs(r: Mapping[str, Any]) -> str:
    return (
        f"The operator: {_mib(r, 'before')} MiB before and {_mib(r, 'peak')} at the peak, {r['operator_cpu_seconds']:.0f} s of "
        f"processor time, {r['operator_api_requests']:,.0f} requests to the API server."
    )


def _mib(r: Mapping[str, Any], when: str) -> str:
    return f"{r[f'operator_memory_{when}_bytes'] / 2**20:,.0f}"


def _failed(r: Mapping[str, Any]) -> list[str]:
    return ["", f"**Failed**: {r['error']}."] if "error" in r else []


def _sql(part: Mapping[str, Any]) -> list[str]:
    columns, rows = pivot(part["results"], lambda r: (r["kind"],), lambda r: f"{r['batches']:,}")
    return [f"{part['rows']:,} rows in {part['batches']:,} batches.", "", *table(("batches at once:", *columns), rows)]

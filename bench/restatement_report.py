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
    goals_table,
    heading,
    median,
    number,
    picture,
    ratio,
    seconds,
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
    lines = [*heading(document, folder, "restatement.json"), *goals_table(document["goals"], "goal is")]
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
        f"{r['restatements']:,} Restatements of a batch each, {r['replays']:,} of them Replays, the others Reverts; "
        f"created within {r['create_seconds']:.0f} s."
    )
    rows = [
        ("succeeded", f"{r['succeeded']:,}"),
        ("the last is committed after", f"{r['last_committed_seconds']:.0f} s"),
        ("and says so after", f"{r['last_seen_seconds']:.0f} s"),
        ("commits", f"{r['commits']:,}"),
        *_costs(r),
    ]
    return [told, "", *_failed(r), *table(("", ""), rows)]


def steady_text(part: Mapping[str, Any]) -> list[str]:
    (r,) = part["results"]
    beside = ", ".join(f"{n:,} {kind}" for kind, n in r["commits"].items())
    told = (
        f"{r['restatements']:,} Restatements within {r['seconds'] / 60:.1f} minutes, {r['replays']:,} of them Replays; "
        f"meanwhile {r['batches_added']:,} batches came. Commits: {beside}."
    )
    return [told, "", *_failed(r), *latency_rows(r), "", *table(("", ""), _costs(r))]


def _alone(part: Mapping[str, Any]) -> list[str]:
    (r,) = part["results"]
    told = f"{r['restatements']:,} Reverts, each created when the one before had ended and the cluster was quiet again."
    return [told, "", *_failed(r), *latency_rows(r)]


def latency_rows(r: Mapping[str, Any]) -> list[str]:
    rows = [
        (what, *(number(percentile(r[key], share)) for share in SHARES), number(max(r[key], default=None)))
        for what, key in (("committed", "to_committed"), ("and says so", "to_seen"))
    ]
    return table(("seconds after it was created", *(f"p{share}" for share in SHARES), "most"), rows)


def _costs(r: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        ("the operator's memory, before and at its peak", f"{_mib(r, 'before')} and {_mib(r, 'peak')} MiB"),
        ("its processor time", f"{r['operator_cpu_seconds']:.0f} s"),
        ("its requests to the API server, but for watches", f"{r['operator_api_requests']:,.0f}"),
        ("requests of all to the API server", f"{r['api_requests_of_all']:,.0f}"),
    ]


def _mib(r: Mapping[str, Any], when: str) -> str:
    return f"{r[f'operator_memory_{when}_bytes'] / 2**20:,.0f}"


def _failed(r: Mapping[str, Any]) -> list[str]:
    return [f"**Failed**: {r['error']}.", ""] if "error" in r else []


def _sql(part: Mapping[str, Any]) -> list[str]:
    rows = []
    for r in part["results"]:
        each = ratio(median(r), r["batches"])
        rows.append((r["kind"], f"{r['batches']:,}", *seconds(r), "" if each is None else f"{1 / each:,.0f}"))
    told = f"Of a table of {part['rows']:,} rows in {part['batches']:,} batches; in turns, in a warm session."
    return [told, "", *table(("", "batches at once", "min s", "median s", "max s", "batches a second"), rows)]

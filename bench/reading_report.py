"""The report on reading: measured values, ratios, and whether the goals are met. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench import rivals
from bench.ledger_report import of_table
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

SORTED_FACTOR: Final = 1.05
UNSORTED_FACTOR: Final = 1.3
LAYOUTS: Final = {"spark-sorted": "a sorted", "spark-unsorted": "an unsorted"}


def goals(parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each goal with the ratio that was measured, None where it was not, and in a word whether it is met."""
    found = []
    for part, layout in ((p, name) for p, name in LAYOUTS.items() if p in parts):
        results = parts[part]["results"]
        plain = median(find(results, kind=rivals.PLAIN))
        for where, count, limit in _wanted(part, results):
            ours = median(find(results, kind=rivals.LEDGER, deleted=count, where=where))
            text = (
                f"reading {layout} table with {count:,} tombstones, {where}, takes at most {limit:g} of the plain scan"
            )
            found.append(goal(text, ratio(ours, plain), limit))
        for count in sorted({r["deleted"] for r in results if r["kind"] == rivals.EQUALITY_DELETES}):
            text = f"reading {layout} table with {count:,} tombstones takes no longer than with equality deletes"
            one = find(results, kind=rivals.LEDGER, deleted=count, where="scattered")
            found.append(_no_slower(text, one, find(results, kind=rivals.EQUALITY_DELETES, deleted=count)))
    return found


def _wanted(part: str, results: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, float]]:
    """Where the tombstones lie, how many they are, and the goal's ratio."""
    levels = sorted({r["deleted"] for r in results if r["kind"] == rivals.LEDGER and r["deleted"]})
    if part == "spark-unsorted":
        return [("scattered", levels[-1], UNSORTED_FACTOR)]
    return [(where, levels[len(levels) // 2], SORTED_FACTOR) for where in ("scattered", "clustered")]


def _no_slower(text: str, ours: Mapping[str, Any] | None, theirs: Mapping[str, Any] | None) -> dict[str, Any]:
    """The goal that one is not slower than the other. A difference within the spread of the repeats is reported as none."""
    told = goal(text, ratio(median(ours), median(theirs)), 1.0)
    if told["met"] == NO and ours and theirs and ours["seconds"]["min"] <= theirs["seconds"]["max"]:
        told["met"] = NO_DIFFERENCE
    return told


def section(document: Mapping[str, Any], drawn: Mapping[str, str], folder: str) -> str:
    """The generated part of the page, in Markdown. `drawn`: plots by part."""
    parts = document["parts"]
    lines = [*heading(document, folder, "reading.json"), *goals_summary(document["goals"])]
    if any(p in parts for p in LAYOUTS):
        lines += ["### Reads by Spark", "", *picture(drawn, "reads", folder)]
        for p in (p for p in LAYOUTS if p in parts):
            lines += [*_reads(parts[p]), ""]
    if "engines" in parts:
        lines += ["### Reads without Spark", "", *_engines(parts["engines"]), ""]
    return "\n".join(lines).rstrip() + "\n"


def _reads(part: Mapping[str, Any]) -> list[str]:
    results = sorted(part["results"], key=lambda r: (r["deleted"], r["kind"] != rivals.LEDGER, r["kind"]))
    columns, rows = pivot(
        results,
        lambda r: (f"{r['kind']}, {r['where']}" if r["where"] == "clustered" else r["kind"],),
        lambda r: f"{r['deleted']:,}",
    )
    return [of_table(part["table"]), "", *table(("batches deleted:", *columns), rows)]


def _engines(part: Mapping[str, Any]) -> list[str]:
    columns, rows = pivot(
        part["results"],
        lambda r: (r["engine"], r["kind"]),
        lambda r: r["query"],
        lambda r: number(median(r)) or "failed",
    )
    told = f"The sorted table, with {part['deleted']:,} batches deleted; medians."
    return [told, "", *table(("engine", "table", *columns), rows)]

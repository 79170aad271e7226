"""The report on the ledger: measured values, ratios, and whether the goals are met. Pure."""

from collections.abc import Mapping
from typing import Any

from bench import appends, rivals
from bench.page import (
    find,
    goal,
    goals_summary,
    heading,
    median,
    number,
    picture,
    pivot,
    ratio,
    spread,
    table,
)

COMMIT_FACTOR = 1.5
APPEND_FACTOR = 2.0
REVERT_OF_VECTORS, REVERT_OF_REWRITE = 0.5, 0.05
SAME_SIZE_FACTOR = 1.5  # "does not depend on the table's size": what a tenth and the whole may differ by


# --- goals ---------------------------------------------------------------------------------------------------------


def goals(parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each goal with the ratio that was measured, None where it was not, and in a word whether it is met."""
    return [*_commit_goals(parts), *_append_goals(parts), *_revert_goals(parts)]


def _commit_goals(parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    if "commits" not in parts:
        return []
    part = parts["commits"]
    sizes = [x["active"] for x in part["ledgers"]]
    found = []
    for what in ("commit", "restatement"):
        first, last = (median(find(part["results"], active=n, what=what)) for n in (sizes[0], sizes[-1]))
        text = (
            f"a {what} of {part['added']} at {sizes[-1]:,} active tombstones takes at most {COMMIT_FACTOR:g} times that at "
            f"{sizes[0]:,}"
        )
        found.append(goal(text, ratio(last, first), COMMIT_FACTOR))
    return found


def _append_goals(parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    if "appends" not in parts:
        return []
    part = parts["appends"]
    ours, theirs = (median(find(part["results"], kind=k)) for k in (appends.COMMIT, appends.EMPTY))
    text = f"a commit of {part['added']} at {part['snapshots']:,} snapshots : an empty append by Iceberg's Java API"
    return [goal(text, ratio(ours, theirs), APPEND_FACTOR)]


def _revert_goals(parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = []
    for part in (p for p in ("reverts-full", "reverts-small") if p in parts):
        results = parts[part]["results"]
        table = f"of {parts[part]['table']['rows']:,} rows"
        counts = sorted({r["batches"] for r in results})
        for count in (counts[0], counts[-1]):
            ours = median(find(results, kind=rivals.LEDGER, batches=count))
            for kind, limit in (
                (rivals.DELETION_VECTORS, REVERT_OF_VECTORS),
                (rivals.COPY_ON_WRITE, REVERT_OF_REWRITE),
            ):
                theirs = median(find(results, kind=kind, batches=count))
                text = f"a revert of {count:,} on a table {table} takes at most {limit:g} of the time of Spark's DELETE, {kind}"
                found.append(goal(text, ratio(ours, theirs), limit))
    if "reverts-full" in parts and "reverts-small" in parts:
        for count in sorted({r["batches"] for r in parts["reverts-full"]["results"]}):
            whole, tenth = (
                median(find(parts[p]["results"], kind=rivals.LEDGER, batches=count))
                for p in ("reverts-full", "reverts-small")
            )
            times = round(parts["reverts-full"]["table"]["rows"] / parts["reverts-small"]["table"]["rows"])
            text = f"a revert of {count:,} takes as long on a table {times} times as large (within {SAME_SIZE_FACTOR - 1:.0%})"
            found.append(goal(text, ratio(whole, tenth), SAME_SIZE_FACTOR))
    return found


# --- the page ------------------------------------------------------------------------------------------------------


def section(document: Mapping[str, Any], drawn: Mapping[str, str], folder: str) -> str:
    """The generated part of the page, in Markdown. `drawn`: plots by part."""
    parts = document["parts"]
    lines = [*heading(document, folder, "ledger.json"), *goals_summary(document["goals"])]
    if "commits" in parts:
        lines += ["### Commits", "", *picture(drawn, "commits", folder), *_commits(parts["commits"]), ""]
    if "appends" in parts:
        lines += ["### Beside an empty append", "", *_appends(parts["appends"]), ""]
    if any(p.startswith("reverts") for p in parts):
        lines += ["### Reverts", "", *picture(drawn, "reverts", folder)]
        for p in (p for p in ("reverts-full", "reverts-small", "reverts-unsorted") if p in parts):
            lines += [*_reverts(parts[p]), ""]
    return "\n".join(lines).rstrip() + "\n"


def _commits(part: Mapping[str, Any]) -> list[str]:
    results = sorted(part["results"], key=lambda r: (r["active"], r["what"]))
    columns, rows = pivot(results, lambda r: (f"{r['active']:,}",), lambda r: r["what"])
    sizes = pivot(results, lambda r: (f"{r['active']:,}",), lambda r: r["what"], _bytes)[1]
    head = ("active tombstones", *columns, *(f"{c}, bytes" for c in columns))
    told = f"Seconds to add {part['added']} tombstones, and the bytes written."
    return [told, "", *table(head, [(*r, *s[1:]) for r, s in zip(rows, sizes, strict=True)])]


def _appends(part: Mapping[str, Any]) -> list[str]:
    theirs = median(find(part["results"], kind=appends.EMPTY))
    rows = [(r["kind"], spread(r), number(ratio(median(r), theirs))) for r in part["results"]]
    text = f"On a table of {part['snapshots']:,} snapshots. Lethe's commits add {part['added']} tombstones."
    return [text, "", *table(("", "seconds", "of an empty append"), rows)]


def _reverts(part: Mapping[str, Any]) -> list[str]:
    results = sorted(part["results"], key=lambda r: (r["batches"], r["kind"] != rivals.LEDGER, r["kind"]))
    columns, rows = pivot(results, lambda r: (r["kind"],), lambda r: f"{r['batches']:,}")
    return [of_table(part["table"]), "", *table(("batches:", *columns), rows)]


def of_table(table: Mapping[str, Any]) -> str:
    """The size and the order of a table, in a sentence."""
    layout = "sorted" if table["sorted"] else "unsorted"
    return (
        f"{table['rows']:,} rows, {table['batches']:,} batches, {table['files']} files, {table['bytes'] / 2**20:,.0f} MiB, "
        f"{layout}."
    )


def _bytes(result: Mapping[str, Any]) -> str:
    return f"{result['bytes']['median']:,.0f}" if "bytes" in result else ""

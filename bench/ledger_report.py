"""The report on the ledger: measured values, ratios, and whether the goals are met. Pure."""

from collections.abc import Mapping
from typing import Any

from bench import appends, rivals
from bench.page import (
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
    lines = [*heading(document, folder, "ledger.json"), *goals_table(document["goals"], "ratio at most")]
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
    first = part["ledgers"][0]["active"]
    rows = []
    for r in sorted(part["results"], key=lambda r: (r["what"], r["active"])):
        base = median(find(part["results"], active=first, what=r["what"]))
        rows.append((r["what"], f"{r['active']:,}", *seconds(r), number(ratio(median(r), base)), *_bytes(r)))
    head = ("what", "active tombstones", "min s", "median s", "max s", f"of {first:,}", "median bytes", "most bytes")
    return [f"Adding {part['added']} tombstones, on a ledger that is read from its files.", "", *table(head, rows)]


def _appends(part: Mapping[str, Any]) -> list[str]:
    theirs = median(find(part["results"], kind=appends.EMPTY))
    rows = [(r["kind"], *seconds(r), number(ratio(median(r), theirs))) for r in part["results"]]
    text = f"On one table of {part['snapshots']:,} snapshots, in turns. Lethe's commits add {part['added']} tombstones."
    return [text, "", *table(("", "min s", "median s", "max s", "of an empty append"), rows)]


def _reverts(part: Mapping[str, Any]) -> list[str]:
    rows = []
    for r in sorted(part["results"], key=lambda r: (r["batches"], r["kind"] != rivals.LEDGER, r["kind"])):
        ours = median(find(part["results"], kind=rivals.LEDGER, batches=r["batches"]))
        n = str(len(r.get("seconds", {}).get("all", ())))
        rows.append((f"{r['batches']:,}", r["kind"], *seconds(r), n, number(ratio(ours, median(r)))))
    head = ("batches", "by", "min s", "median s", "max s", "runs", "ledger : this")
    return [of_table(part["table"]), "", *table(head, rows)]


def of_table(table: Mapping[str, Any]) -> str:
    """The size and the order of a table, in a sentence."""
    layout = (
        "sorted by batch within each month"
        if table["sorted"]
        else "unsorted: each file has rows of all batches of its month"
    )
    return (
        f"{table['rows']:,} rows, {table['batches']:,} batches, {table['files']} files, {table['bytes'] / 2**20:,.0f} MiB, "
        f"{layout}."
    )


def _bytes(result: Mapping[str, Any]) -> tuple[str, str]:
    return (
        ("", "") if "bytes" not in result else (f"{result['bytes']['median']:,.0f}", f"{result['bytes']['max']:,.0f}")
    )

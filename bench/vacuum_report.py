"""Figures of the vacuum as goals and tables. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from bench.page import find, goal, goals_summary, heading, median, number, picture, pivot, ratio, spread, table
from bench.vacuum_purges import VACUUM

REWRITTEN_AT_MOST: Final = 1.05  # of the bytes of the files that really hold deleted rows, in a sorted table
SCAN_SECONDS_AT_MOST: Final = 10.0  # of the largest table


def goals(parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The goals: a vacuum of a sorted table rewrites little more than necessary, and SCAN of the largest table is fast."""
    found = []
    purges = parts.get("purges-sorted", {"results": []})["results"]
    for r in (r for r in purges if r["way"] == VACUUM):
        text = f"a vacuum of {r['deleted']:,} batches of a sorted table rewrites at most 1.05 of what holds them"
        found.append(goal(text, rewritten(r), REWRITTEN_AT_MOST))
    scans = [r for r in parts.get("scan", {"results": []})["results"] if r["sorted"]]
    if scans:
        largest = max(scans, key=lambda r: (r["files"], r["tombstones"]))
        text = f"SCAN of {largest['files']:,} files for {largest['tombstones']:,} tombstones takes less than 10 s"
        found.append(goal(text, median(largest), SCAN_SECONDS_AT_MOST))
    return found


def rewritten(result: Mapping[str, Any]) -> float | None:
    """Bytes rewritten for each byte of the files that really held deleted rows."""
    return ratio(median(result, "bytes"), result.get("held_bytes"))


def section(document: Mapping[str, Any], drawn: Mapping[str, str], folder: str) -> str:
    """The generated part of the page, in Markdown. `drawn`: plots by part."""
    parts = document["parts"]
    lines = [*heading(document, folder, "vacuum.json"), *goals_summary(document["goals"])]
    titles = {
        "purges-sorted": "the sorted table",
        "purges-unsorted": "the unsorted table",
    }
    for part, name in titles.items():
        if part in parts:
            lines += [f"### Purges of {name}", "", *picture(drawn, part, folder), *_purges(parts[part]), ""]
    if "scan" in parts:
        lines += ["### SCAN", "", *picture(drawn, "scan", folder), *_scans(parts["scan"]), ""]
    if "reads" in parts:
        lines += ["### Reads before and after a purge", "", *_reads(parts["reads"])]
    return "\n".join(lines).rstrip() + "\n"


def _purges(part: Mapping[str, Any]) -> list[str]:
    size = part["table"]
    told = (
        f"{size['rows']:,} rows in {size['batches']:,} batches and {size['files']:,} files of {size['bytes']:,} bytes."
    )
    columns, rows = pivot(part["results"], lambda r: (r["way"],), lambda r: f"{r['deleted']:,}")
    others = []
    for way in dict.fromkeys(r["way"] for r in part["results"]):
        of_way = [r for r in part["results"] if r["way"] == way]
        others.append(
            (_each(number(rewritten(r)) for r in of_way), _each(str(r.get("deletes_left", "")) for r in of_way))
        )
    head = ("batches:", *columns, "bytes rewritten ÷ held", "delete files left")
    return [told, "", *table(head, [(*row, *other) for row, other in zip(rows, others, strict=True)])]


def _each(values: Iterable[str]) -> str:
    """The values of the columns before, once if they are equal."""
    found = list(values)
    return found[0] if len(set(found)) == 1 else ", ".join(found)


def _scans(part: Mapping[str, Any]) -> list[str]:
    columns, rows = pivot(
        part["results"],
        lambda r: ("sorted" if r["sorted"] else "unsorted", f"{r['files']:,}"),
        lambda r: f"{r['tombstones']:,} tombstones",
    )
    peak = max((r["peak_bytes"] for r in part["results"] if "peak_bytes" in r), default=0)
    return [f"Memory: {peak / 2**20:,.0f} MiB at most.", "", *table(("table", "files", *columns), rows)]


def _reads(part: Mapping[str, Any]) -> list[str]:
    plain = median(find(part["results"], what="nothing deleted"))
    told = f"By `lethe_spark.read`, with {part['deleted']:,} batches deleted."
    rows = [(r["what"], spread(r), number(ratio(median(r), plain))) for r in part["results"]]
    return [told, "", *table(("table", "seconds", "of nothing deleted"), rows)]

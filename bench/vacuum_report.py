"""Figures of the vacuum as goals and tables. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from bench.page import find, goal, goals_table, heading, median, number, picture, ratio, seconds, table
from bench.vacuum_purges import VACUUM

REWRITTEN_AT_MOST: Final = 1.05  # of the bytes of the files that really hold deleted rows, in a sorted table
SCAN_SECONDS_AT_MOST: Final = 10.0  # of the largest table
_GIB: Final = 2**30


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
    lines = [*heading(document, folder, "vacuum.json"), *goals_table(document["goals"], "at most")]
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


def per_gib(result: Mapping[str, Any]) -> float | None:
    """Seconds for each GiB rewritten; None where nothing was."""
    size = median(result, "bytes")
    return ratio(median(result), size / _GIB) if size else None


def _purges(part: Mapping[str, Any]) -> list[str]:
    size = part["table"]
    told = (
        f"{size['rows']:,} rows in {size['batches']:,} batches and {size['files']:,} files of {size['bytes']:,} bytes."
    )
    rows = []
    for r in part["results"]:
        held = f"{r['held_files']:,}" if "held_files" in r else ""
        files = f"{r.get('files', 0):,} + {r.get('whole_files', 0):,}" if "files" in r else ""
        left = str(r.get("deletes_left", ""))
        row = (r["way"], f"{r['deleted']:,}", *seconds(r), held, files, number(rewritten(r)), number(per_gib(r)), left)
        rows.append(row)
    head = (
        *("way", "batches", "min s", "median s", "max s", "files that hold them", "files rewritten + dropped whole"),
        *("bytes rewritten / held", "s per GiB", "delete files left"),
    )
    return [told, "", *table(head, rows)]


def _scans(part: Mapping[str, Any]) -> list[str]:
    rows = []
    for r in part["results"]:
        memory = f"{r['peak_bytes'] / 2**20:,.0f}" if "peak_bytes" in r else ""
        planned = f"{r['planned_files']:,}" if "planned_files" in r else ""
        kind = "sorted" if r["sorted"] else "unsorted"
        rows.append((kind, f"{r['files']:,}", f"{r['tombstones']:,}", *seconds(r), memory, planned))
    head = ("table", "files", "tombstones", "min s", "median s", "max s", "peak MiB", "files planned")
    return table(head, rows)


def _reads(part: Mapping[str, Any]) -> list[str]:
    plain = median(find(part["results"], what="nothing deleted"))
    told = f"All rows and columns by `lethe_spark.read`, with {part['deleted']:,} batches deleted, evenly spread."
    rows = [(r["what"], *seconds(r), number(ratio(median(r), plain))) for r in part["results"]]
    return [told, "", *table(("table", "min s", "median s", "max s", "of nothing deleted"), rows)]

"""Figures of row groups of several sizes as tables and a plot."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.drawing import plt, save, style
from bench.page import find, heading, median, number, picture, pivot, ratio, seconds, table

ALL: Final = "all rows"
ONE_COLUMN: Final = "sum of one column"
ONE_BATCH: Final = "rows of one batch"
QUERIES: Final = (ALL, ONE_COLUMN, ONE_BATCH)


def goals(_: Mapping[str, Any]) -> list[dict[str, Any]]:
    """None: the benchmark is there to choose a size."""
    return []


def section(document: Mapping[str, Any], drawn: Mapping[str, str], folder: str) -> str:
    """The generated part of the page, in Markdown. `drawn`: plots by part."""
    parts = document["parts"]
    lines = [*heading(document, folder, "row_groups.json"), *picture(drawn, "row groups", folder)]
    if "reads" in parts:
        lines += ["### Row groups: reads", "", *_reads(parts["reads"]), ""]
    if "purges" in parts:
        lines += ["### Row groups: purges on S3", "", *_purges(parts["purges"]), ""]
    return "\n".join(lines).rstrip() + "\n"


def _reads(part: Mapping[str, Any]) -> list[str]:
    size = part["table"]
    sentence = f"{size['rows']:,} rows in {size['batches']:,} batches and {size['files']:,} local files, read by Spark."
    groups = {t["mib"]: f"{t['groups']:,}" for t in part["tables"]}
    columns, rows = pivot(part["results"], lambda r: (f"{r['mib']} MiB", groups[r["mib"]]), lambda r: r["query"])
    return [sentence, "", *table(("row groups", "number", *columns), rows)]


def _of_largest(results: Sequence[Mapping[str, Any]], r: Mapping[str, Any]) -> float | None:
    """The time of a read divided by that of the table with the largest row groups."""
    return ratio(median(r), median(find(results, query=r["query"], mib=max(x["mib"] for x in results))))


def _purges(part: Mapping[str, Any]) -> list[str]:
    sentence = (
        f"{part['deleted']} batches are purged, each in another file. One round; the server runs on the same cores."
    )
    quantities = (
        ("seconds", lambda r: seconds(r)[1]),
        ("encoded ÷ held", lambda r: number(ratio(r.get("encoded"), r["held_bytes"]))),
        ("moved ÷ held", lambda r: number(ratio(r.get("moved"), r["held_bytes"]))),
    )
    head = ["row groups"]
    rows: list[tuple[str, ...]] = [(f"{mib} MiB",) for mib in dict.fromkeys(r["mib"] for r in part["results"])]
    for name, cell in quantities:
        columns, found = pivot(part["results"], lambda r: (f"{r['mib']} MiB",), lambda r: f"v{r['version']}", cell)
        head += [f"{name}, {c}" for c in columns]
        rows = [(*row, *more[1:]) for row, more in zip(rows, found, strict=True)]
    return [sentence, "", *table(head, rows)]


def draw(document: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Write a chart of reads, and of what a purge moves, by size. Returns: its file name by part."""
    style()
    parts = document["parts"]
    if not {"reads", "purges"} <= parts.keys():
        return {}
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    reads, purges = parts["reads"]["results"], parts["purges"]["results"]
    sizes = sorted({r["mib"] for r in reads})
    for query in QUERIES:
        values = [
            _of_largest(reads, r) for r in sorted((r for r in reads if r["query"] == query), key=lambda r: r["mib"])
        ]
        if None not in values:
            left.plot(range(len(sizes)), values, marker="o", label=query)
    for version in (2, 3):
        ours = sorted((r for r in purges if r["version"] == version and "moved" in r), key=lambda r: r["mib"])
        for what, line in (("encoded", ":"), ("moved", "-")):
            values = [ratio(r[what], r["held_bytes"]) for r in ours]
            right.plot([sizes.index(r["mib"]) for r in ours], values, line, marker="o", label=f"{what}, v{version}")
    left.set_title(f"seconds of a read ÷ with {sizes[-1]} MiB", fontsize=9)
    right.set_title("bytes of a purge on S3 ÷ bytes of the files", fontsize=9)
    for axis in (left, right):
        axis.set_xticks(range(len(sizes)), map(str, sizes))
        axis.set_xlabel("size of a row group, MiB")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    return {"row groups": save(figure, folder / "row-groups.svg")}

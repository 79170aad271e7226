"""Figures of purges of large files as goals, tables and a plot."""

from collections.abc import Mapping
from pathlib import Path
from statistics import median as middle
from typing import Any, Final

from bench.drawing import plt, save, style
from bench.page import find, goal, goals_summary, heading, median, number, picture, pivot, ratio, seconds, table
from bench.vacuum_purges import COPY_ON_WRITE, REWRITE_V3, VACUUM

FEW_BATCHES: Final = 10
# Goals for few batches, and for more. Time, compared with the rivals:
TIME_AT_MOST: Final = (0.1, 0.2)
UNSORTED_TIME_AT_MOST: Final = 0.3
# Bytes that are encoded, of those of the files that have deleted rows:
ENCODED_AT_MOST: Final = (0.15, 0.3)
# Bytes that come from an S3 server or go there, of the same:
MOVED_AT_MOST: Final = (0.2, 0.35)
PARTS: Final = {"sorted": "local files", "s3": "an S3 server", "unsorted": "local files, unsorted"}
_COLOURS: Final = {VACUUM: "#1b6ca8", REWRITE_V3: "#5a8f3d", COPY_ON_WRITE: "#888888"}


def goals(parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Time compared with the rivals, and what is encoded and moved of the files that have deleted rows."""
    found = []
    for part, place in PARTS.items():
        results = parts.get(part, {"results": []})["results"]
        for r in (r for r in results if r["way"] == VACUUM):
            count, more = r["deleted"], r["deleted"] > FEW_BATCHES
            for rival in (x["way"] for x in results if x["way"] != VACUUM and x["deleted"] == count):
                limit = UNSORTED_TIME_AT_MOST if part == "unsorted" else TIME_AT_MOST[more]
                quotient = ratio(median(r), median(find(results, way=rival, deleted=count)))
                found.append(goal(f"{place}: seconds of a vacuum of {count} batches ÷ {rival}", quotient, limit))
            if part != "unsorted":
                text = f"{place}: bytes encoded for {count} batches ÷ bytes of the files that have them"
                found.append(goal(text, encoded(r), ENCODED_AT_MOST[more]))
            if part == "s3":
                text = f"{place}: bytes to and from the server for {count} batches ÷ bytes of the files that have them"
                found.append(goal(text, moved(r), MOVED_AT_MOST[more]))
    return found


def encoded(result: Mapping[str, Any]) -> float | None:
    """Bytes encoded for each byte of the files that have deleted rows."""
    return ratio(result.get("encoded"), result.get("held_bytes"))


def moved(result: Mapping[str, Any]) -> float | None:
    """Bytes to and from the S3 server for each byte of the files that have deleted rows: the median of the rounds."""
    return ratio(middle(result["moved"]), result.get("held_bytes")) if "moved" in result else None


def section(document: Mapping[str, Any], drawn: Mapping[str, str], folder: str) -> str:
    """The generated part of the page, in Markdown. `drawn`: plots by part."""
    parts = document["parts"]
    lines = [*heading(document, folder, "large.json"), *goals_summary(document["goals"])]
    lines += picture(drawn, "times", folder)
    results = [
        {**r, "place": place} for part, place in PARTS.items() for r in parts.get(part, {"results": []})["results"]
    ]
    columns, rows = pivot(results, _labels, lambda r: f"{r['deleted']:,}", lambda r: seconds(r)[1])
    for quantity, value in (("bytes encoded ÷ held", encoded), ("bytes moved ÷ held", moved)):
        of_row: dict[tuple[str, ...], list[str]] = {}
        for r in results:
            of_row.setdefault(_labels(r), []).append(number(value(r)) if _ours(r) else "")
        rows = [(*row, ", ".join(filter(None, of_row[row[:2]]))) for row in rows]
        columns = [*columns, quantity]
    lines += table(("table", "batches:", *columns), rows) if rows else []
    return "\n".join(lines).rstrip() + "\n"


def _labels(r: Mapping[str, Any]) -> tuple[str, ...]:
    return (r["place"], r["way"])


def _ours(r: Mapping[str, Any]) -> bool:
    """Whether bytes of its row groups are known: only a vacuum of a sorted table copies some and encodes others."""
    return bool(r["way"] == VACUUM and r["sorted"])


def draw(document: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Write a bar chart of the medians. Returns: its file name by part."""
    style()
    parts = {p: document["parts"][p] for p in PARTS if p in document["parts"]}
    if not parts:
        return {}
    figure, axes = plt.subplots(1, len(parts), figsize=(3.2 * len(parts), 3.6), squeeze=False, layout="constrained")
    for axis, (name, part) in zip(axes[0], parts.items(), strict=True):
        counts = sorted({r["deleted"] for r in part["results"]})
        ways = [w for w in _COLOURS if find(part["results"], way=w)]
        for n, way in enumerate(ways):
            values = [median(find(part["results"], way=way, deleted=count)) for count in counts]
            at = [i + n / (len(ways) + 1) for i in range(len(counts))]
            bars = axis.bar(at, [v or 0.0 for v in values], width=1 / (len(ways) + 1), color=_COLOURS[way], label=way)
            axis.bar_label(
                bars, labels=["not measured" if v is None else number(v) for v in values], fontsize=6, rotation=90
            )
        axis.set_xticks([i + (len(ways) - 1) / 2 / (len(ways) + 1) for i in range(len(counts))], map(str, counts))
        axis.set_xlabel("batches deleted")
        axis.set_title(PARTS[name], fontsize=9)
        axis.grid(alpha=0.3, axis="y")
    axes[0][0].set_ylabel("seconds")
    figure.legend(*axes[0][0].get_legend_handles_labels(), fontsize=6, loc="outside upper center")
    return {"times": save(figure, folder / "large.svg")}

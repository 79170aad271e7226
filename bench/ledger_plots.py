"""The same figures as pictures: SVG, the same bytes for the same figures. I/O: writes files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import rivals
from bench.drawing import counts, plt, save, style
from bench.page import find, median

COLOURS = {
    rivals.LEDGER: "#1b6ca8",
    rivals.PLAIN: "#888888",
    rivals.COPY_ON_WRITE: "#b5442e",
    rivals.POSITION_DELETES: "#d98e04",
    rivals.DELETION_VECTORS: "#5a8f3d",
    rivals.EQUALITY_DELETES: "#7a4f9e",
}


def draw(document: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Write a picture for each group of parts that was measured. Returns: file names by group."""
    style()
    parts = document["parts"]
    drawn: dict[str, str] = {}
    if "commits" in parts:
        drawn["commits"] = save(_commits(parts["commits"]), folder / "commits.svg")
    reverts = [parts[p] for p in ("reverts-small", "reverts-full", "reverts-unsorted") if p in parts]
    if reverts:
        drawn["reverts"] = save(_reverts(reverts), folder / "reverts.svg")
    return drawn


def _commits(part: Mapping[str, Any]) -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    for what, marker in (("commit", "o"), ("restatement", "s")):
        found = [r for r in part["results"] if r["what"] == what and "seconds" in r]
        sizes = [r["active"] for r in found]
        for axis, quantity in ((left, "seconds"), (right, "bytes")):
            middle = [r[quantity]["median"] for r in found]
            below = [m - r[quantity]["min"] for m, r in zip(middle, found, strict=True)]
            above = [r[quantity]["max"] - m for m, r in zip(middle, found, strict=True)]
            axis.errorbar(sizes, middle, yerr=[below, above], marker=marker, capsize=3, label=what)
    for axis, label in ((left, "seconds"), (right, "bytes written")):
        counts(axis, [x["active"] for x in part["ledgers"]], "active tombstones")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3, which="both")
    left.set_ylim(bottom=0)
    right.set_yscale("log")
    left.legend()
    figure.suptitle(f"A commit that adds {part['added']} tombstones: median, least and most")
    figure.tight_layout()
    return figure


def _reverts(parts: Sequence[Mapping[str, Any]]) -> Any:
    figure, axes = plt.subplots(1, len(parts), figsize=(3.6 * len(parts) + 1, 3.6), sharey=True, squeeze=False)
    for part, axis in zip(parts, axes[0], strict=True):
        sizes = sorted({r["batches"] for r in part["results"]})
        for kind in dict.fromkeys(r["kind"] for r in part["results"]):
            found = [(n, find(part["results"], kind=kind, batches=n)) for n in sizes]
            points = [(n, median(r)) for n, r in found if median(r) is not None]
            axis.plot(*zip(*points, strict=True), marker="o", color=COLOURS[kind], label=kind) if points else None
        counts(axis, sizes, "batches taken back")
        axis.set_yscale("log")
        layout = "" if part["table"]["sorted"] else ", unsorted"
        axis.set_title(f"{part['table']['rows'] / 1e6:g} million rows{layout}", loc="left")
        axis.grid(alpha=0.3, which="both")
    axes[0][0].set_ylabel("seconds")
    lines, kinds = axes[0][0].get_legend_handles_labels()
    axes[0][-1].legend(lines, kinds, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure

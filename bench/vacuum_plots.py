"""The same figures as pictures: SVG, the same bytes for the same figures. I/O: writes files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.drawing import counts, plt, save, style
from bench.page import find, median
from bench.vacuum_purges import COPY_ON_WRITE, REWRITE_V2, REWRITE_V3, VACUUM
from bench.vacuum_report import rewritten

COLOURS: Final = {VACUUM: "#1b6ca8", REWRITE_V2: "#c98a1b", REWRITE_V3: "#5a8f3d", COPY_ON_WRITE: "#888888"}


def draw(document: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Write a picture for each part that was measured and has one. Returns: file names by part."""
    style()
    parts = document["parts"]
    drawn: dict[str, str] = {}
    for part in ("purges-sorted", "purges-unsorted"):
        if part in parts:
            drawn[part] = save(_purges(parts[part]), folder / f"vacuum-{part}.svg")
    if "scan" in parts:
        drawn["scan"] = save(_scans(parts["scan"]), folder / "vacuum-scan.svg")
    return drawn


def _purges(part: Mapping[str, Any]) -> Any:
    sizes = sorted({r["deleted"] for r in part["results"]})
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2))
    quantities = (("seconds", median), ("bytes rewritten / held", rewritten))
    for axis, (label, quantity) in zip(axes, quantities, strict=True):
        for way, colour in COLOURS.items():
            results = [(n, find(part["results"], way=way, deleted=n)) for n in sizes]
            points = [(n, value) for n, r in results if r is not None and (value := quantity(r)) is not None]
            if points:
                axis.plot(*zip(*points, strict=True), marker="o", color=colour, label=way)
        counts(axis, sizes, "batches deleted")
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3, which="both")
    axes[0].legend()
    figure.tight_layout()
    return figure


def _scans(part: Mapping[str, Any]) -> Any:
    sizes = sorted({r["files"] for r in part["results"]})
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2))
    for axis, quantity in zip(axes, ("seconds", "peak MiB"), strict=True):
        for ordered, line in ((True, "-"), (False, "--")):
            for tombstones in sorted({r["tombstones"] for r in part["results"]}):
                points = []
                for n in sizes:
                    r = find(part["results"], files=n, tombstones=tombstones, sorted=ordered)
                    value = median(r) if quantity == "seconds" else (r or {}).get("peak_bytes", 0) / 2**20 or None
                    if value is not None:
                        points.append((n, value))
                label = f"{tombstones:,} tombstones, {'sorted' if ordered else 'unsorted'}"
                if points:
                    axis.plot(*zip(*points, strict=True), marker="o", linestyle=line, label=label)
        counts(axis, sizes, "data files")
        axis.set_ylabel(quantity)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3, which="both")
    axes[0].legend(fontsize=7)
    figure.tight_layout()
    return figure

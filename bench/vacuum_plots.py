"""The same figures as pictures: SVG, the same bytes for the same figures. I/O: writes files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.drawing import counts, curve, plt, quantity, save, style
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
    for axis, (label, value_of) in zip(axes, quantities, strict=True):
        for way, colour in COLOURS.items():
            results = ((n, find(part["results"], way=way, deleted=n)) for n in sizes)
            curve(axis, ((n, value_of(r)) for n, r in results if r is not None), color=colour, label=way)
        counts(axis, sizes, "batches deleted")
        quantity(axis, label)
    axes[0].legend()
    figure.tight_layout()
    return figure


def _scans(part: Mapping[str, Any]) -> Any:
    sizes = sorted({r["files"] for r in part["results"]})
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2))
    for axis, label in zip(axes, ("seconds", "peak MiB"), strict=True):
        for ordered, line in ((True, "-"), (False, "--")):
            for tombstones in sorted({r["tombstones"] for r in part["results"]}):
                table = f"{tombstones:,} tombstones, {'sorted' if ordered else 'unsorted'}"
                found = [(n, find(part["results"], files=n, tombstones=tombstones, sorted=ordered)) for n in sizes]
                points = ((n, median(r) if label == "seconds" else _peak_mib(r)) for n, r in found)
                curve(axis, points, linestyle=line, label=table)
        counts(axis, sizes, "data files")
        quantity(axis, label)
    axes[0].legend(fontsize=7)
    figure.tight_layout()
    return figure


def _peak_mib(result: Mapping[str, Any] | None) -> float | None:
    return result["peak_bytes"] / 2**20 if result is not None and "peak_bytes" in result else None

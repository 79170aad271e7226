"""The same figures as pictures: SVG, the same bytes for the same figures. I/O: writes files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.drawing import counts, curve, plt, quantity, save, style
from bench.page import find, median

COLOURS: Final = {
    "Ledger": "#1b6ca8",
    "DeletionVectors": "#5a8f3d",
    "PositionDeletes": "#d98e04",
}
OTHER: Final = "#888888"


def draw(document: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Write a picture for each part that was measured and has one. Returns: file names by part."""
    style()
    parts = document["parts"]
    drawn: dict[str, str] = {}
    if "reverts" in parts:
        drawn["reverts"] = save(_reverts(parts["reverts"]), folder / "deletes-reverts.svg")
    if "reads" in parts:
        drawn["reads"] = save(_reads(parts["reads"]), folder / "deletes-reads.svg")
    return drawn


def _reverts(part: Mapping[str, Any]) -> Any:
    sizes = sorted({r["batches"] for r in part["results"]})
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2))
    for axis, what, label in zip(axes, ("seconds", "bytes"), ("seconds", "bytes written"), strict=True):
        for kind, colour in COLOURS.items():
            points = ((n, median(find(part["results"], kind=kind, batches=n), what)) for n in sizes)
            curve(axis, points, color=colour, label=kind)
        counts(axis, sizes, "batches taken back")
        quantity(axis, label)
    axes[0].legend()
    figure.tight_layout()
    return figure


def _reads(part: Mapping[str, Any]) -> Any:
    found = [r for r in part["results"] if "seconds" in r and "error" not in r]
    found = sorted(found, key=lambda r: r["reader"], reverse=True)
    figure, axis = plt.subplots(figsize=(8, 0.9 + 0.27 * len(found)))
    middle = [r["seconds"]["median"] for r in found]
    low = [m - r["seconds"]["min"] for m, r in zip(middle, found, strict=True)]
    high = [r["seconds"]["max"] - m for m, r in zip(middle, found, strict=True)]
    names = [f"{r['reader']}, {r['kind']}" for r in found]
    axis.barh(names, middle, xerr=[low, high], color=[COLOURS.get(r["kind"], OTHER) for r in found], capsize=2)
    axis.set_xlabel("seconds to read all rows")
    axis.set_xlim(left=0)
    axis.grid(alpha=0.3, axis="x")
    figure.tight_layout()
    return figure

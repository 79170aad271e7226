"""How all pictures are drawn: SVG, the same bytes for the same figures. I/O: writes files."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("MPLBACKEND", "Agg")

import matplotlib
import matplotlib.pyplot as plt

__all__ = ["counts", "curve", "plt", "quantity", "save", "style"]


def style() -> None:
    """What makes two drawings of the same figures the same file."""
    matplotlib.rcParams.update({"svg.hashsalt": "lethe", "svg.fonttype": "path", "font.size": 9})


def save(figure: Any, file: Path) -> str:
    figure.savefig(file, format="svg", metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)
    return file.name


def counts(axis: Any, counts: Sequence[int], label: str) -> None:
    """A logarithmic axis with just these numbers on it."""
    axis.set_xscale("log")
    axis.set_xticks(counts, [f"{n:,}" for n in counts])
    axis.minorticks_off()
    axis.set_xlabel(label)


def quantity(axis: Any, label: str) -> None:
    """An axis that starts at nothing, with a grid behind it."""
    axis.set_ylabel(label)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3, which="both")


def curve(axis: Any, points: Iterable[tuple[float, float | None]], **look: Any) -> None:
    """A line through what was measured; nothing, not even in the legend, where nothing was."""
    measured = [(x, y) for x, y in points if y is not None]
    if measured:
        axis.plot(*zip(*measured, strict=True), marker="o", **look)

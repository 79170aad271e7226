"""How all pictures are drawn: SVG, the same bytes for the same figures. I/O: writes files."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("MPLBACKEND", "Agg")

import matplotlib
import matplotlib.pyplot as plt

__all__ = ["counts", "plt", "save", "style"]


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

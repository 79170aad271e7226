"""The same figures as pictures: SVG, the same bytes for the same figures. I/O: writes files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.consolidation_report import stages
from bench.drawing import counts, plt, save, style


def draw(document: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Write a picture for each part that was measured and has one. Returns: file names by part."""
    style()
    parts = document["parts"]
    drawn: dict[str, str] = {}
    if "growth" in parts:
        drawn["growth"] = save(_growth(parts["growth"]), folder / "growth.svg")
    if "commits" in parts:
        drawn["many-commits"] = save(_commits(parts["commits"]), folder / "many-commits.svg")
    return drawn


def _growth(part: Mapping[str, Any]) -> Any:
    found = [r for r in part["results"] if "error" not in r]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    names = [f"{r['files']:,}" for r in found]
    below = [0.0] * len(found)
    for stage in stages(found):
        heights = [1000 * r["stages"].get(stage, 0) / r["files"] for r in found]
        left.bar(names, heights, bottom=below, label=stage)
        below = [b + h for b, h in zip(below, heights, strict=True)]
    left.set_ylabel("seconds for each 1,000 files")
    left.set_xlabel("files of one run")
    left.legend()
    right.plot([r["files"] for r in found], [r["peak_bytes"] / 2**20 for r in found], marker="o")
    counts(right, [r["files"] for r in found], "files of one run")
    right.set_ylabel("peak memory, MiB")
    right.set_ylim(bottom=0)
    right.grid(alpha=0.3)
    figure.tight_layout()
    return figure


def _commits(part: Mapping[str, Any]) -> Any:
    results = part["results"]
    figure, axis = plt.subplots(figsize=(6, 3.2))
    at = [r["commits"] for r in results]
    axis.plot(at, [r["seconds"]["median"] for r in results], marker="o", label="median of a window")
    axis.fill_between(
        at, [r["seconds"]["min"] for r in results], [r["seconds"]["median"] for r in results], alpha=0.2, label="least"
    )
    axis.set_ylim(bottom=0)
    axis.set_xlabel("commits before")
    axis.set_ylabel("seconds for a commit")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.tight_layout()
    return figure

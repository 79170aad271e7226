"""The same figures as pictures: SVG, the same bytes for the same figures. I/O: writes files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.drawing import plt, save, style
from bench.restatement_plots import steady, thrown


def draw(document: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Write a picture for each part that was measured and has one. Returns: file names by part."""
    style()
    drawn: dict[str, str] = {}
    makers = {"creation": _creation, "reverts": _reverts, "launches": _launches, "thrown": thrown, "steady": steady}
    for part, make in makers.items():
        result = document["parts"].get(part, {"results": [{}]})["results"][0]
        if result and "skipped" not in result:
            drawn[part] = save(make(result), folder / f"operator-{part}.svg")
    return drawn


def _creation(result: Mapping[str, Any]) -> Any:
    figure, axis = plt.subplots(figsize=(7, 3.2))
    times = result["correct_after"]
    axis.step(times, range(1, len(times) + 1), where="post", label="have a correct status")
    axis.axvline(result["create_seconds"], color="grey", linestyle=":", label="the last is created")
    axis.set_xlabel("seconds")
    axis.set_ylabel("Datasets")
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend()
    figure.tight_layout()
    return figure


def _reverts(result: Mapping[str, Any]) -> Any:
    return _shares({"committed": result["to_committed"], "its status says so": result["to_seen"]}, "Reverts")


def _launches(result: Mapping[str, Any]) -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
    left.scatter([s / 60 for s in result["due_after"]], result["due_to_launched"], s=3, alpha=0.4)
    left.set_xlabel("due after minutes")
    left.set_ylabel("seconds to its launch")
    left.set_ylim(bottom=0)
    left.grid(alpha=0.3)
    _share(right, {"launched": result["due_to_launched"]}, "runs")
    figure.tight_layout()
    return figure


def _shares(series: Mapping[str, Sequence[float]], what: str) -> Any:
    figure, axis = plt.subplots(figsize=(5, 3.2))
    _share(axis, series, what)
    figure.tight_layout()
    return figure


def _share(axis: Any, series: Mapping[str, Sequence[float]], what: str) -> None:
    for label, values in series.items():
        ordered = sorted(values)
        axis.plot(ordered, [100 * (n + 1) / len(ordered) for n in range(len(ordered))], label=label)
    axis.set_xlabel("seconds")
    axis.set_ylabel(f"% of the {what}")
    axis.set_xlim(left=0)
    axis.grid(alpha=0.3)
    axis.legend()

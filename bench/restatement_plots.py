"""The same figures as pictures: SVG, the same bytes for the same figures. I/O: writes files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.drawing import plt, save, style


def draw(document: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Write a picture for each part that was measured and has one. Returns: file names by part."""
    style()
    parts = document["parts"]
    drawn: dict[str, str] = {}
    if "thrown" in parts:
        drawn["thrown"] = save(thrown(parts["thrown"]["results"][0]), folder / "thrown.svg")
    if "steady" in parts:
        drawn["steady"] = save(steady(parts["steady"]["results"][0]), folder / "steady.svg")
    return drawn


def thrown(result: Mapping[str, Any]) -> Any:
    figure, axis = plt.subplots(figsize=(7, 3.2))
    for key, label in (("committed_after", "committed"), ("ended_after", "its status says so")):
        times = result[key]
        axis.step(times, range(1, len(times) + 1), where="post", label=label)
    axis.axvline(result["create_seconds"], color="grey", linestyle=":", label="the last is created")
    axis.set_xlabel("seconds")
    axis.set_ylabel("Restatements")
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend()
    figure.tight_layout()
    return figure


def steady(result: Mapping[str, Any]) -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
    left.scatter([s / 60 for s in result["asked_after"]], result["to_committed"], s=3, alpha=0.4)
    left.set_xlabel("created after minutes")
    left.set_ylabel("seconds to its commit")
    left.set_ylim(bottom=0)
    for key, label in (("to_committed", "committed"), ("to_seen", "its status says so")):
        ordered = sorted(result[key])
        right.plot(ordered, [100 * (n + 1) / len(ordered) for n in range(len(ordered))], label=label)
    right.set_xlabel("seconds after it was created")
    right.set_ylabel("% of the Restatements")
    right.set_xlim(left=0)
    right.legend()
    for axis in (left, right):
        axis.grid(alpha=0.3)
    figure.tight_layout()
    return figure

"""Reads by Spark as a picture: SVG, the same bytes for the same figures. I/O: writes files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import rivals
from bench.drawing import plt, save, style
from bench.ledger_plots import COLOURS
from bench.page import find, median
from bench.reading_report import LAYOUTS


def draw(document: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Write the picture, if reads by Spark were measured. Returns: file names by part."""
    style()
    parts = [document["parts"][p] for p in LAYOUTS if p in document["parts"]]
    return {"reads": save(_reads(parts), folder / "reads.svg")} if parts else {}


def _reads(parts: Sequence[Mapping[str, Any]]) -> Any:
    heights = [len(p["results"]) for p in parts]
    figure, axes = plt.subplots(
        len(parts), 1, figsize=(8, 0.9 + 0.27 * sum(heights)), gridspec_kw={"height_ratios": heights}, squeeze=False
    )
    for part, axis in zip(parts, axes[:, 0], strict=True):
        plain = median(find(part["results"], kind=rivals.PLAIN))
        found = sorted(
            (r for r in part["results"] if "seconds" in r and "error" not in r),
            key=lambda r: (r["deleted"], r["kind"] != rivals.LEDGER, r["kind"]),
            reverse=True,
        )
        names = [f"{r['kind']}{_deleted(r)}" for r in found]
        middle = [r["seconds"]["median"] for r in found]
        low = [m - r["seconds"]["min"] for m, r in zip(middle, found, strict=True)]
        high = [r["seconds"]["max"] - m for m, r in zip(middle, found, strict=True)]
        axis.barh(names, middle, xerr=[low, high], color=[COLOURS[r["kind"]] for r in found], capsize=2)
        if plain is not None:
            axis.axvline(plain, color=COLOURS[rivals.PLAIN], linestyle="--", linewidth=1)
        axis.set_title("sorted by batch" if part["table"]["sorted"] else "unsorted", loc="left")
        axis.set_xlim(left=0)
        axis.grid(alpha=0.3, axis="x")
    axes[-1, 0].set_xlabel("seconds to read all rows; the dashed line is the plain scan")
    figure.tight_layout()
    return figure


def _deleted(result: Mapping[str, Any]) -> str:
    if result["kind"] == rivals.PLAIN:
        return ""
    where = " together" if result["where"] == "clustered" else ""
    return f", {result['deleted']:,}{where}"

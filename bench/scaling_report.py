"""Figures of growing tables as a table, and whether the goals are met. Pure."""

from collections.abc import Mapping
from statistics import median
from typing import Any, Final

from bench.page import goal, goals_table, heading, number, table

SCAN_SECONDS: Final = 40
SCAN_BYTES: Final = 1024**3
SCANNED_FILES: Final = 1_000_000


def goals(parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each goal with what was measured."""
    results = parts["growing"]["results"] if "growing" in parts else []
    found = []
    for r in results:
        if r["files"] == SCANNED_FILES:
            what = f"plan of a vacuum of {r['files']:,} files with {parts['growing']['tombstones']:,} tombstones"
            found.append(goal(f"{what}: seconds", r["plan_seconds"], SCAN_SECONDS))
            found.append(goal(f"{what}: peak bytes", r["plan_peak_bytes"], SCAN_BYTES))
    return found


def section(document: Mapping[str, Any], _drawn: Mapping[str, str], folder: str) -> str:
    """The generated part of the page, in Markdown."""
    part = document["parts"]["growing"]
    lines = [*heading(document, folder, "scaling.json"), *goals_table(document["goals"], "goal is")]
    lines.append(
        f"Each data file stands for {part['file_bytes'] / 2**20:,.0f} MiB of one batch, as registered files are; "
        f"{part['tombstones']:,} tombstones are active from the beginning."
    )
    rows = [
        (
            f"{r['files']:,}",
            f"{r['files'] * part['file_bytes'] / 2**40:,.0f}",
            f"{r['manifests']:,}",
            number(r["manifest_bytes"] / r["files"]),
            number(r["ledger_bytes"] / r["files"]),
            number(r["manifest_list_bytes"] / 2**10),
            number(r["metadata_bytes"] / 2**10),
            number(r["registered"] / r["register_seconds"] * 60),
            number(median(r["commit_seconds"])),
            number(r["plan_seconds"]),
            number(r["plan_peak_bytes"] / 2**20),
        )
        for r in part["results"]
    ]
    head = (
        "data files",
        "TiB",
        "manifests",
        "bytes of manifests per file",
        "bytes of the ledger per batch",
        "KiB of the manifest list",
        "KiB of the metadata file",
        "registered files a minute",
        "seconds to commit 100 tombstones",
        "seconds to plan a vacuum",
        "MiB for it",
    )
    return "\n".join([*lines, "", *table(head, rows)]).rstrip() + "\n"

"""Figures of the gateway as sentences and tables, and whether the goals are met. Pure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.gateway_pages import BATCH
from bench.page import find, goal, goals_table, heading, number, table

PAGE_SECONDS: Final = 0.3
BATCH_SECONDS: Final = 0.1
MEMORY_MIB: Final = 256.0


def goals(parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each goal with what was measured, None where it was not."""
    part = parts.get("pages")
    if part is None:
        return []
    listed = [r for r in part["results"] if r["kind"] != BATCH]
    worst = (
        max((r["p95"] for r in listed if "error" not in r), default=None)
        if all("error" not in r for r in listed)
        else None
    )
    one = find(part["results"], kind=BATCH)
    of = f"{part['batches']:,} batches"
    return [
        goal(f"{of}: 95 % of the pages of 100 of the slowest kind, seconds", worst, PAGE_SECONDS),
        goal(f"{of}: 95 % of the answers about one batch, seconds", one.get("p95") if one else None, BATCH_SECONDS),
        goal(f"{of}: peak memory of the process, MiB", part["memory_mib"]["peak"], MEMORY_MIB),
    ]


def section(document: Mapping[str, Any], _drawn: Mapping[str, str], folder: str) -> str:
    lines = ["## Gateway", "", *heading(document, folder, "gateway.json")]
    lines += goals_table(document["goals"], "at most")
    part = document["parts"].get("pages")
    if part is None:
        return "\n".join(lines)
    index, memory = part["index"], part["memory_mib"]
    lines += [
        "### Pages",
        "",
        f"One client, one request after the other, on a table with {part['batches']:,} batches. The first request builds the "
        f"index: {number(index['build_seconds'])} s and {index['bytes'] / 2**20:,.0f} MiB on the disk. After a commit it took "
        f"{number(index['refresh_seconds'])} s until an answer showed it, of which up to 3 s are the pause between two looks at "
        f"the catalog. Two clients together read {number(part['pages_per_second'])} pages per second. Memory: "
        f"{memory['after_build']:.0f} MiB at most while the index was built, {memory['peak']:.0f} MiB at most in all.",
        "",
        *table(
            ("request", "median ms", "95 % ms", "most ms", "processor ms, mean"), [_row(r) for r in part["results"]]
        ),
        "",
    ]
    return "\n".join(lines)


def draw(_document: Mapping[str, Any], _out: Path) -> dict[str, str]:
    return {}


def _row(result: Mapping[str, Any]) -> tuple[str, ...]:
    if "error" in result:
        return (result["kind"], "failed", str(result["error"]).replace("|", "/")[:120], "", "")
    seconds = (result["seconds"]["median"], result["p95"], result["seconds"]["max"], result["cpu_seconds"])
    return (result["kind"], *(f"{s * 1000:.1f}" for s in seconds))

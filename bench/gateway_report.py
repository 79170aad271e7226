"""Figures of the gateway as sentences and tables, and whether the goals are met. Pure."""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.gateway_pages import BATCH
from bench.gateway_uploads import PLAIN, UPLOAD
from bench.page import find, goal, goals_summary, heading, number, ratio, spread, table, values_spread

PAGE_SECONDS: Final = 0.3
BATCH_SECONDS: Final = 0.1
MEMORY_MIB: Final = 256.0
# Nine tenths of the speed.
UPLOAD_TO_PLAIN: Final = 1.11


def goals(parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each goal with what was measured, None where it was not."""
    return [g for name, make in _GOALS.items() if name in parts for g in make(parts[name])]


def _of_pages(part: Mapping[str, Any]) -> list[dict[str, Any]]:
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


def _of_uploads(part: Mapping[str, Any]) -> list[dict[str, Any]]:
    seconds = [_median(part, kind) for kind in (UPLOAD, PLAIN)]
    size = f"{part['bytes'] / 2**30:.2g} GiB"
    return [
        goal(f"a file of {size}: seconds of an upload : seconds of a plain PUT", ratio(*seconds), UPLOAD_TO_PLAIN),
        goal("uploads: peak memory of the process, MiB", part["memory_mib"], MEMORY_MIB),
    ]


_GOALS: Final = {"pages": _of_pages, "uploads": _of_uploads}


def _median(part: Mapping[str, Any], kind: str) -> float | None:
    found = find(part["results"], kind=kind)
    return float(found["seconds"]["median"]) if found and "error" not in found else None


def section(document: Mapping[str, Any], _drawn: Mapping[str, str], folder: str) -> str:
    lines = [*heading(document, folder, "gateway.json"), *goals_summary(document["goals"])]
    for name, make in _SECTIONS.items():
        if name in document["parts"]:
            lines += make(document["parts"][name])
    return "\n".join(lines)


def _pages_text(part: Mapping[str, Any]) -> list[str]:
    index, memory = part["index"], part["memory_mib"]
    return [
        "### Pages",
        "",
        f"{part['batches']:,} batches. The first request builds the index: {number(index['build_seconds'])} s and "
        f"{index['bytes'] / 2**20:,.0f} MiB on the disk. An answer shows a commit after {number(index['refresh_seconds'])} s. "
        f"Two clients together read {number(part['pages_per_second'])} pages per second. "
        f"Memory: {memory['peak']:.0f} MiB at most.",
        "",
        *table(("request", "median ms", "95 % ms"), [_row(r) for r in part["results"]]),
        "",
    ]


def _uploads_text(part: Mapping[str, Any]) -> list[str]:
    small = part["small"]
    rows = [
        (
            r["kind"],
            f"{part['bytes'] / 2**20 / r['seconds']['median']:,.0f}",
            spread(r),
        )
        for r in part["results"]
        if "seconds" in r
    ]
    return [
        "### Uploads",
        "",
        f"Batches of one small file, from {small['clients']} clients: {number(small['per_second'])} per "
        f"second, {1000 * small['seconds']['median']:.0f} ms each (median), {1000 * small['cpu_seconds']:.0f} ms of the "
        "gateway's processor.",
        "",
        f"One file of {part['bytes'] / 2**20:,.0f} MiB, in turns:",
        "",
        *table(("", "MiB per second", "seconds"), rows),
        "",
    ]


def _events_text(part: Mapping[str, Any]) -> list[str]:
    backlog, lag = (find(part["results"], kind=kind) for kind in ("backlog", "lag"))
    assert backlog is not None
    assert lag is not None
    seconds = lag["seconds"]
    return [
        "### Status events",
        "",
        f"A backlog of {backlog['commits']:,} commits of 100 batches: "
        f"{number(backlog['per_second'])} events per second, {1e6 * backlog['cpu_seconds'] / backlog['events']:.0f} µs of the "
        f"processor each, with the consumer. Beside {number(lag['commits_per_second'])} commits per second, a consumer has an "
        f"event {1000 * seconds['median']:.0f} ms after the commit (median), {1000 * seconds['p95']:.0f} ms (95 %), "
        f"{1000 * seconds['max']:.0f} ms at most.",
        "",
    ]


def _inlet_text(part: Mapping[str, Any]) -> list[str]:
    kinds = list(dict.fromkeys(r["kind"] for r in part["results"]))
    rows = []
    for kind in kinds:
        found = [r for r in part["results"] if r["kind"] == kind and "error" not in r]
        failed = next((str(r["error"]) for r in part["results"] if r["kind"] == kind and "error" in r), "")
        if not found:
            rows.append((kind, failed.replace("|", "/")[:120], "", "", ""))
            continue
        speeds = [r["rows_per_second"] for r in found]
        middle = [statistics.median(r[k] for r in found) for k in ("cpu_seconds", "memory_mib", "files")]
        speed = values_spread(min(speeds), statistics.median(speeds), max(speeds))
        rows.append((kind, speed, f"{middle[0]:.1f}", f"{middle[1]:.0f}", f"{middle[2]:.0f}"))
    each = part["bytes"] / part["messages"]
    return [
        "### The inlet",
        "",
        f"{part['messages']:,} JSON messages of {each:.0f} bytes in two partitions, with the start of the process. Both commit "
        f"every {part['commit_seconds']} seconds. The files of the sink stay in the table.",
        "",
        *table(("reader", "rows/s", "CPU s", "peak MiB", "files"), rows),
    ]


_SECTIONS: Final = {"pages": _pages_text, "uploads": _uploads_text, "events": _events_text, "inlet": _inlet_text}


def draw(_document: Mapping[str, Any], _out: Path) -> dict[str, str]:
    return {}


def _row(result: Mapping[str, Any]) -> tuple[str, ...]:
    if "error" in result:
        return (result["kind"], "failed", str(result["error"]).replace("|", "/")[:120])
    seconds = (result["seconds"]["median"], result["p95"])
    return (result["kind"], *(f"{s * 1000:.1f}" for s in seconds))

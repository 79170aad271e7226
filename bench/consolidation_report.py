"""Figures of consolidation as sentences and tables, and whether the goals are met. Pure."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from bench.page import goal, goals_summary, heading, number, picture, pivot, ratio, spread, table

FILES_PER_HOUR: Final = 5_000_000
S3_FILES_PER_HOUR: Final = 3_000_000
REGISTERED_PER_MINUTE: Final = 100_000
S3_REGISTERED_PER_MINUTE: Final = 60_000
# What is called "not growing": the least that two windows of equal commits differ by on a machine that does other things.
GROWTH: Final = 1.25
RUNS: Final = {"sustained": "sustained", "s3": "on an S3 server", "growth": "from few to many"}
REGISTERED: Final = {"register": "local files", "register-s3": "an S3 server"}


def goals(parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each goal with what was measured, None where it was not."""
    found = []
    if "sustained" in parts:
        part = parts["sustained"]
        text = f"small files an hour into one table, over {part['files']:,} of them"
        found.append(goal(f"at least this many {text}", part.get("per_hour"), FILES_PER_HOUR, at_least=True))
    if "s3" in parts:
        part = parts["s3"]
        text = f"the same on an S3 server, over {part['files']:,} of them"
        found.append(goal(f"at least this many {text}", part.get("per_hour"), S3_FILES_PER_HOUR, at_least=True))
    registered = (
        ("register", "", REGISTERED_PER_MINUTE),
        ("register-s3", " on an S3 server", S3_REGISTERED_PER_MINUTE),
    )
    for name, where, limit in registered:
        if name in parts:
            rates = [r["per_minute"] for r in parts[name]["results"] if "per_minute" in r]
            measured = round(median(rates)) if rates else None
            text = f"at least this many files registered a minute{where}, the median of all commits"
            found.append(goal(text, measured, limit, at_least=True))
    if "commits" in parts:
        _, last = ends(parts["commits"])
        text = f"the last {parts['commits']['window']:,} of {last['commits']:,} commits : the first, at most"
        found.append(goal(text, growth(parts["commits"]), GROWTH))
    return found


def section(document: Mapping[str, Any], drawn: Mapping[str, str], folder: str) -> str:
    """The generated part of the page, in Markdown. `drawn`: plots by part."""
    parts = document["parts"]
    lines = [*heading(document, folder, "consolidation.json"), *goals_summary(document["goals"])]
    runs = {RUNS[p]: parts[p]["results"] for p in RUNS if p in parts}
    if runs:
        lines += ["### Runs", "", *picture(drawn, "growth", folder), *_runs(runs), ""]
    registered = {REGISTERED[p]: parts[p]["results"] for p in REGISTERED if p in parts}
    if registered:
        lines += ["### Registered as they are", "", *_registered(registered), ""]
    if "rivals" in parts:
        lines += ["### One commit per batch", "", *_rivals(parts), ""]
    if "commits" in parts:
        lines += ["### Commit after commit", "", *picture(drawn, "many-commits", folder), *windows(parts["commits"])]
    return "\n".join(lines).rstrip() + "\n"


def stages(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """The phases that took a second or more in any of them, in their order."""
    return list(dict.fromkeys(s for r in results for s, seconds in r.get("stages", {}).items() if seconds))


def ends(part: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The first and the last window of commits."""
    return part["results"][0], part["results"][-1]


def growth(part: Mapping[str, Any]) -> float | None:
    """The median of the last window of commits by that of the first, each by the machine's pace meanwhile where it is known."""
    first, last = (r["seconds"]["median"] / r.get("pace_seconds", 1.0) for r in ends(part))
    return ratio(last, first)


def _runs(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """`results`: by the name of their part."""
    rows = []
    for name, r in ((name, r) for name, found in results.items() for r in found):
        if "error" in r:
            rows.append((name, f"{r['files']:,}", "failed", "", "", ""))
            continue
        spent = (f"{sum(r['cpu_seconds'].values()):.0f}", f"{r['peak_bytes'] / 2**20:,.0f}", f"{r['per_hour']:,}")
        rows.append((name, f"{r['files']:,}", number(r["seconds"]), *spent))
    return table(("part", "files", "seconds", "CPU seconds", "peak MiB", "files an hour"), rows)


def _registered(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """`results`: by the name of their part."""
    found = [
        {**r, "place": place, "then": r["files"] * (n + 1)} for place, of in results.items() for n, r in enumerate(of)
    ]
    columns, rows = pivot(found, lambda r: (f"{r['then']:,}",), lambda r: r["place"], lambda r: f"{r['per_minute']:,}")
    return table(("files then", *(f"{c}, a minute" for c in columns)), rows)


def _rivals(parts: Mapping[str, Any]) -> list[str]:
    part = parts["rivals"]
    ours = parts["sustained"].get("per_hour") if "sustained" in parts else None
    rows = []
    if ours is not None:
        rows.append(("Lethe, consolidated", number(ours / 60), "", "", "1.00"))
    for r in part["results"]:
        if "error" in r:
            rows.append((r["kind"], "failed", r["error"], "", ""))
            continue
        times = ratio(ours / 60, r["per_minute"]) if ours is not None else None
        rates = (number(r[k]) for k in ("per_minute", "per_minute_first", "per_minute_last"))
        rows.append((r["kind"], *rates, number(times)))
    return table(("", "batches a minute", "the first fifth", "the last fifth", "Lethe : this"), rows)


def windows(part: Mapping[str, Any]) -> list[str]:
    """The first and the last of the windows of commits one after the other."""
    first, last = ends(part)
    text = ", the last ".join(
        f"{part['window']:,}: {spread(r)} s each with {r['snapshots']:,} snapshots" for r in (first, last)
    )
    pace = ratio(last["pace_seconds"], first["pace_seconds"]) if "pace_seconds" in first else None
    work = f" Other work of the same machine took {number(pace)} times as long." if pace is not None else ""
    return [f"{last['commits']:,} commits. The first {text}.{work}"]

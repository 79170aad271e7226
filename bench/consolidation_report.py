"""Figures of consolidation as sentences and tables, and whether the goals are met. Pure."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from bench.page import goal, goals_table, heading, number, picture, ratio, table

FILES_PER_HOUR: Final = 5_000_000
S3_FILES_PER_HOUR: Final = 3_000_000
REGISTERED_PER_MINUTE: Final = 100_000
S3_REGISTERED_PER_MINUTE: Final = 60_000
# What is called "not growing": the least that two windows of equal commits differ by on a machine that does other things.
GROWTH: Final = 1.25


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
    lines = [*heading(document, folder, "consolidation.json"), *goals_table(document["goals"], "goal is")]
    if "sustained" in parts:
        lines += ["### Sustained", "", *_sustained(parts["sustained"]), ""]
    if "s3" in parts:
        lines += ["### On an S3 server", "", *_sustained(parts["s3"]), ""]
    if "growth" in parts:
        lines += ["### From few files to many", "", *picture(drawn, "growth", folder), *_growth(parts["growth"]), ""]
    if "register" in parts:
        lines += ["### Registered as they are", "", *_registered(parts["register"]), ""]
    if "register-s3" in parts:
        lines += ["### Registered on an S3 server", "", *_registered(parts["register-s3"]), ""]
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


def _sustained(part: Mapping[str, Any]) -> list[str]:
    told = (
        f"{part['files']:,} files, {part['rows']:,} rows, {part['bytes'] / 2**20:,.0f} MiB, in {part.get('commits', 0)} commits "
        f"and {part.get('seconds', 0) / 60:.1f} minutes: **{part.get('per_hour', 0):,} files an hour**."
    )
    return [told, "", *_runs(part["results"])]


def _growth(part: Mapping[str, Any]) -> list[str]:
    return _runs(part["results"])


def _runs(results: Sequence[Mapping[str, Any]]) -> list[str]:
    shown = stages(results)
    rows = []
    for r in results:
        if "error" in r:
            rows.append((f"{r['files']:,}", "failed", *[""] * (len(shown) + 4)))
            continue
        cpu = " + ".join(f"{seconds:.0f} {name}" for name, seconds in sorted(r["cpu_seconds"].items()) if seconds >= 1)
        memory = f"{r['peak_bytes'] / 2**20:,.0f}"
        steps = [str(r["stages"].get(s, 0)) for s in shown]
        rows.append(
            (f"{r['files']:,}", number(r["seconds"]), *steps, f"{r['output_files']}", cpu, memory, f"{r['per_hour']:,}")
        )
    head = ("files", "seconds", *shown, "output files", "CPU seconds", "peak MiB", "files an hour")
    return table(head, rows)


def _registered(part: Mapping[str, Any]) -> list[str]:
    names = list(part["results"][0]["stages"])
    rows = [
        (
            f"{r['files'] * (n + 1):,}",
            *(number(r["stages"][s]) for s in names),
            f"{r['per_minute']:,}",
            f"{r['metadata_bytes'] / 2**10:,.0f}",
        )
        for n, r in enumerate(part["results"])
    ]
    told = f"{part['results'][0]['files']:,} files in each commit; seconds by stage, in a driver that is warm after the first."
    return [told, "", *table(("files then", *names, "files a minute", "metadata KiB, all"), rows)]


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
    told = f"{part['batches']} batches, in turns, in a warm process; the rows stay as small files as they came."
    head = ("", "batches a minute", "the first fifth", "the last fifth", "Lethe : this")
    return [told, "", *table(head, rows)]


def windows(part: Mapping[str, Any]) -> list[str]:
    """A table of commits one after the other, window by window."""
    rows = []
    first, _ = ends(part)
    paced = "pace_seconds" in first
    for r in part["results"]:
        s = r["seconds"]
        pace = ratio(r["pace_seconds"], first["pace_seconds"]) if paced else None
        rows.append(
            (
                f"{r['commits']:,}",
                number(s["min"]),
                f"**{number(s['median'])}**",
                number(s["max"]),
                number(ratio(s["median"], first["seconds"]["median"])),
                *((number(pace),) if paced else ()),
                number(r["tidying_seconds"] / part["window"]),
                f"{r['snapshots']:,}",
                f"{r['metadata_bytes'] / 2**10:,.0f}",
            )
        )
    pace_head = ("the same work, of the first",) if paced else ()
    head = (
        "after",
        "min s",
        "median s",
        "max s",
        "of the first",
        *pace_head,
        "tidying s each",
        "snapshots",
        "metadata KiB",
    )
    return table(head, rows)

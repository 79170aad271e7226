"""What the ledger costs: commits on small and large ones, reads with tombstones, reverts, each beside its rivals.

    python -m bench.ledger [--scale tiny|small|full] [--only commits,reads,reverts] [--out docs/benchmarks]

Everything is measured in one process, in turns. The result is `<out>/ledger.json`, plots beside it, and a section of
`<out>.md`. A run that was interrupted goes on with `--resume`: what it had measured to the end is kept, and marked with
its own time.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import commits, machine, plots, reads, report, reverts
from bench.lake import Lake
from bench.scales import SCALES, Scale
from bench.timing import say

PARTS: dict[str, Callable[[Lake, Scale], dict[str, Any]]] = {
    "commits": commits.measure,
    "reverts-full": lambda lake, scale: reverts.measure(lake, scale, table="full"),
    "reverts-small": lambda lake, scale: reverts.measure(lake, scale, table="small"),
    "reads-sorted": lambda lake, scale: reads.measure(lake, scale, ordered=True),
    "reads-unsorted": lambda lake, scale: reads.measure(lake, scale, ordered=False),
    "reverts-unsorted": lambda lake, scale: reverts.measure(lake, scale, table="unsorted"),
}
GROUPS = ("commits", "reads", "reverts")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 when something could not be measured."""
    given = _arguments(argv)
    scale = SCALES[given.scale]
    work = Path(given.work or _default_work(scale)).resolve()
    out = Path(given.out or (machine.ROOT / "docs" / "benchmarks" if scale.name == "full" else work / "report"))
    state = work / "measured.json"
    if not given.resume:
        state.unlink(missing_ok=True)
    measured: dict[str, Any] = json.loads(state.read_text()) if state.exists() else {}
    wanted = [p for p in PARTS if p.partition("-")[0] in given.only]
    lake = Lake.open(work, scale.driver_memory)
    description = machine.describe(lake.spark)
    for part in wanted:
        if part in measured:
            say(f"{part}: measured already, at {measured[part]['started']}")
            continue
        say(f"{part}:")
        started, since = datetime.now(UTC), time.monotonic()
        found = PARTS[part](lake, scale)
        measured[part] = {
            "started": started.isoformat(timespec="seconds"),
            "took_seconds": round(time.monotonic() - since, 1),
            "load_after": round(os.getloadavg()[0], 2),
            **found,
        }
        _replace(state, measured)
    document: dict[str, Any] = {
        "command": machine.command(),
        "scale": scale.name,
        "machine": description,
        "took_seconds": round(sum(m["took_seconds"] for m in measured.values()), 1),  # also of what was kept
        "parts": {p: measured[p] for p in PARTS if p in measured},
    }
    document["goals"] = report.goals(document["parts"])
    out.mkdir(parents=True, exist_ok=True)
    (out / "ledger.json").write_text(json.dumps(document, indent=1) + "\n")
    drawn = plots.draw(document, out)
    page = out.with_name(out.name + ".md")
    report.insert(page, report.section(document, drawn, out.name))
    lake.spark.stop()
    failed = [r for p in document["parts"].values() for r in p["results"] if "error" in r]
    if not given.keep and not failed:
        shutil.rmtree(work / "warehouse", ignore_errors=True)
        for leftover in ("catalog.db", "measured.json"):
            (work / leftover).unlink(missing_ok=True)
        shutil.rmtree(work / "scratch", ignore_errors=True)
    say(f"{out / 'ledger.json'} and {page}: {len(failed)} of the measurements failed")
    return 1 if failed else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.ledger", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--scale", choices=sorted(SCALES), default="full")
    parser.add_argument(
        "--only", type=_groups, default=set(GROUPS), metavar=",".join(GROUPS), help="measure only some of these"
    )
    parser.add_argument(
        "--out", help="folder of the results (default: docs/benchmarks; below --work unless at full scale)"
    )
    parser.add_argument(
        "--work", help="folder of the tables (default: below $LETHE_CACHE; a full run needs up to 10 GB)"
    )
    parser.add_argument("--resume", action="store_true", help="keep what an interrupted run had measured")
    parser.add_argument("--keep", action="store_true", help="leave the tables for another run")
    return parser.parse_args(argv)


def _groups(text: str) -> set[str]:
    chosen = {t.strip() for t in text.split(",") if t.strip()}
    if unknown := chosen - set(GROUPS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: expected some of {', '.join(GROUPS)}")
    return chosen


def _default_work(scale: Scale) -> Path:
    cache = os.environ.get("LETHE_CACHE") or f"{os.environ.get('XDG_CACHE_HOME', Path.home() / '.cache')}/lethe"
    return Path(cache) / "bench" / scale.name


def _replace(file: Path, document: dict[str, Any]) -> None:
    """Whoever resumes finds the old state or the new one."""
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(document))
    draft.replace(file)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # not sys.exit: a callback thread of py4j must not keep a finished run alive

"""Run a benchmark: measure its parts in order, and write the report. I/O.

The result is `<out>/<name>.json`, plots beside it, and a section of `<out>.md`. `--resume` keeps the parts that an interrupted
run has completed, marked with their time.
"""

import argparse
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from bench import machine, page
from bench.lake import Lake
from bench.timing import say


class Sized(Protocol):
    """How large a run is: at least its name, and the memory of its Spark driver."""

    @property
    def name(self) -> str: ...
    @property
    def driver_memory(self) -> str: ...


S = TypeVar("S", bound=Sized)


@dataclass(frozen=True)
class Place:
    """Where the parts of a benchmark measure."""

    # The first argument of each part.
    subject: Any
    # The machine, as `machine.describe` describes it.
    machine: dict[str, Any]


@contextmanager
def session(work: Path, scale: Sized) -> Iterator[Place]:
    """A Spark session on a warehouse of local files."""
    lake = Lake.open(work, scale.driver_memory)
    yield Place(lake, machine.describe(lake.spark))
    lake.spark.stop()


@dataclass(frozen=True)
class Suite(Generic[S]):
    """`parts` in their order, those with one word before the hyphen are a group; each gives plain values, with `results`,
    one of which has `error` when it failed. `goals`, `section` and `draw` make a report of them. `page`: the file beside the
    folder of the results that the section goes into; the folder's own name if it is empty."""

    name: str
    purpose: str
    parts: Mapping[str, Callable[[Any, S], dict[str, Any]]]
    scales: Mapping[str, S]
    goals: Callable[[Mapping[str, Any]], list[dict[str, Any]]]
    section: Callable[[Mapping[str, Any], Mapping[str, str], str], str]
    draw: Callable[[Mapping[str, Any], Path], dict[str, str]]
    page: str = ""
    place: Callable[[Path, S], AbstractContextManager[Place]] = session

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(p.partition("-")[0] for p in self.parts))


def main(suite: Suite[S], argv: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 when something could not be measured."""
    given = _arguments(suite, argv)
    scale = suite.scales[given.scale]
    work = Path(given.work or _default_work(suite, scale)).resolve()
    out = Path(given.out or (machine.ROOT / "docs" / "benchmarks" if scale.name == "full" else work / "report"))
    state = work / "measured.json"
    if not given.resume:
        state.unlink(missing_ok=True)
    measured: dict[str, Any] = json.loads(state.read_text()) if state.exists() else {}
    wanted = [p for p in suite.parts if p.partition("-")[0] in given.only]
    with suite.place(work, scale) as place:
        for part in wanted:
            if part in measured:
                say(f"{part}: measured already, at {measured[part]['started']}")
                continue
            say(f"{part}:")
            started, since = datetime.now(UTC), time.monotonic()
            found = suite.parts[part](place.subject, scale)
            measured[part] = {
                "started": started.isoformat(timespec="seconds"),
                "took_seconds": round(time.monotonic() - since, 1),
                "load_after": round(os.getloadavg()[0], 2),
                **found,
            }
            for goal in suite.goals({part: measured[part]}):
                say(f"  {goal['goal']}: {page.number(goal['measured'])}, goal {goal['limit']:,.10g}: {goal['met']}")
            _replace(state, measured)
    document: dict[str, Any] = {
        "command": machine.command(suite.name),
        "scale": scale.name,
        "machine": place.machine,
        "took_seconds": round(sum(m["took_seconds"] for m in measured.values()), 1),  # also of what was kept
        "parts": {p: measured[p] for p in suite.parts if p in measured},
    }
    document["goals"] = suite.goals(document["parts"])
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{suite.name}.json"
    file.write_text(json.dumps(document, indent=1) + "\n")
    drawn = suite.draw(document, out)
    markdown = out.with_name(suite.page or f"{out.name}.md")
    page.insert(markdown, suite.name, suite.section(document, drawn, out.name))
    failed = [r for p in document["parts"].values() for r in p["results"] if "error" in r]
    if not given.keep and not failed:
        for folder in ("warehouse", "scratch", "buffer"):
            shutil.rmtree(work / folder, ignore_errors=True)
        for leftover in ("catalog.db", "measured.json"):
            (work / leftover).unlink(missing_ok=True)
    say(f"{file} and {markdown}: {len(failed)} of the measurements failed")
    return 1 if failed else 0


def _arguments(suite: Suite[S], argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m bench.{suite.name}", description=suite.purpose)
    parser.add_argument("--scale", choices=sorted(suite.scales), default="full")
    parser.add_argument(
        "--only",
        type=lambda text: _groups(suite, text),
        default=set(suite.groups),
        metavar=",".join(suite.groups),
        help="measure only some of these",
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


def _groups(suite: Suite[S], text: str) -> set[str]:
    chosen = {t.strip() for t in text.split(",") if t.strip()}
    if unknown := chosen - set(suite.groups):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: expected some of {', '.join(suite.groups)}")
    return chosen


def _default_work(suite: Suite[S], scale: S) -> Path:
    cache = os.environ.get("LETHE_CACHE") or f"{os.environ.get('XDG_CACHE_HOME', Path.home() / '.cache')}/lethe"
    return Path(cache) / "bench" / f"{suite.name}-{scale.name}"


def _replace(file: Path, document: dict[str, Any]) -> None:
    """Whoever resumes finds the old state or the new one."""
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(document))
    draft.replace(file)

"""Run a benchmark: measure its parts in order, and write the result and its report. I/O.

The result is `<out>/<name>.json`, plots beside it, and a section of a page. `--resume` keeps the parts that an interrupted run
has completed, marked with their time.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from bench import report, timing
from bench.lake import Lake
from bench.report import Goal, Part, Shares, View
from bench.timing import say


class Sized(Protocol):
    """How large a run is: at least its name, and the memory of its Spark driver."""

    @property
    def name(self) -> str: ...
    @property
    def driver_memory(self) -> str: ...


S = TypeVar("S", bound=Sized)


def sizes(scale: Callable[..., S], **of: tuple[Any, Any, Any]) -> dict[str, S]:
    """The scales tiny, small and full, by name. Each field has its three values side by side."""
    names = ("tiny", "small", "full")
    return {name: scale(name=name, **{field: of[field][n] for field in of}) for n, name in enumerate(names)}


@dataclass(frozen=True)
class Place:
    """Where the parts of a benchmark measure."""

    # The first argument of each part.
    subject: Any
    # The machine, as `timing.describe` describes it.
    machine: dict[str, Any]


@contextmanager
def session(work: Path, scale: Sized) -> Iterator[Place]:
    """A Spark session on a warehouse of local files."""
    lake = Lake.open(work, scale.driver_memory)
    yield Place(lake, timing.describe(lake.spark))
    lake.spark.stop()


def no_goals(_: Mapping[str, Part]) -> list[Goal]:
    """For a benchmark that helps to choose."""
    return []


@dataclass(frozen=True)
class Suite(Generic[S]):
    """A benchmark, which `python -m bench.NAME` runs."""

    name: str
    purpose: str
    parts: Mapping[str, Callable[[Any, S], dict[str, Any]]]
    """In their order; those with one word before the hyphen are a group. Each returns plain values with `results`, of which one
    has `error` when it failed."""
    scales: Mapping[str, S]
    views: Sequence[View | Shares]
    goals: Callable[[Mapping[str, Part]], list[Goal]] = no_goals
    page: str = ""
    """The page of the report, beside the folder of the results; empty: the one with the folder's name."""
    place: Callable[[Path, S], AbstractContextManager[Place]] = session

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(p.partition("-")[0] for p in self.parts))


def program(suite: Suite[S]) -> None:
    """Run a benchmark as a program. A callback thread of py4j must not keep a finished one alive."""
    code = main(suite)
    sys.stdout.flush()
    os._exit(code)


def main(suite: Suite[S], argv: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 when something could not be measured."""
    given = _arguments(suite, argv)
    scale = suite.scales[given.scale]
    work = Path(given.work or _default_work(suite, scale)).resolve()
    out = Path(given.out or (timing.ROOT / "docs" / "benchmarks" if scale.name == "full" else work / "report"))
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
                say(f"  {goal['goal']}: {report.number(goal['measured'])}, goal {goal['limit']:,.10g}: {goal['met']}")
            _replace(state, measured)
    document: dict[str, Any] = {
        "command": timing.command(suite.name),
        "scale": scale.name,
        "machine": place.machine,
        "took_seconds": round(sum(m["took_seconds"] for m in measured.values()), 1),  # also of what was kept
        "parts": {p: measured[p] for p in suite.parts if p in measured},
    }
    document["goals"] = suite.goals(document["parts"])
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{suite.name}.json"
    file.write_text(json.dumps(document, indent=1) + "\n")
    markdown = report.write(document, suite.views, suite.name, out, suite.page)
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
    """An interrupted process leaves the old state or the new one."""
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(document))
    draft.replace(file)

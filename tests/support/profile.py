"""Where the time of the tests goes: python -m tests.support.profile FILE [DEPTH]

With LETHE_TEST_PROFILE=FILE each run of pytest appends lines of JSON: for each phase of each test the seconds it took,
and the processor time of the worker and all processes that it started. Processor time hardly depends on what else the
machine does. This command sums the lines up: by folder (of DEPTH parts, 3 by default), and for the files and tests that
take longest.
"""

import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "LETHE_TEST_PROFILE"
AT_MOST = 25  # files and tests that are listed
COLLECTION = "collection"


def processor_seconds(root: int | None = None) -> float:
    """The processor time of a process and its descendants, with those that ended and were waited for. 0 without /proc."""
    seconds: dict[int, float] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for process, fields in _processes():
        children[int(fields[1])].append(process)
        seconds[process] = sum(int(n) for n in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    found, todo = 0.0, [root or os.getpid()]
    while todo:
        process = todo.pop()
        found += seconds.get(process, 0)
        todo += children[process]
    return found


def _processes() -> Iterator[tuple[int, list[str]]]:
    """Of each process its number and the fields of its /proc/N/stat after the name."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            yield int(folder.name), (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has ended
            continue


class Profile:
    """Writes a line for each phase of a test, and one for the collection."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file.open("a", buffering=1)
        self._began = time.monotonic()

    def _note(self, test: str, phase: str, seconds: float, processor: float) -> None:
        print(json.dumps([test, phase, round(seconds, 4), round(processor, 3)]), file=self._file)

    def pytest_collection_finish(self) -> None:
        self._note(COLLECTION, COLLECTION, time.monotonic() - self._began, processor_seconds())

    def _phase(self, item: pytest.Item, phase: str) -> Generator[None, Any, Any]:
        began, processor = time.monotonic(), processor_seconds()
        try:
            return (yield)
        finally:
            self._note(item.nodeid, phase, time.monotonic() - began, processor_seconds() - processor)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        return (yield from self._phase(item, "setup"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        return (yield from self._phase(item, "call"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        return (yield from self._phase(item, "teardown"))


def register(config: pytest.Config) -> None:
    """Profile this process, if it runs tests and the variable says so. With workers, only they run tests."""
    file = os.environ.get(VARIABLE)
    if file and (hasattr(config, "workerinput") or not config.getoption("numprocesses", None)):
        config.pluginmanager.register(Profile(Path(file)))


def report(lines: list[list[Any]], depth: int) -> str:
    """The tables that the command prints."""
    folders: dict[str, Counter[str]] = defaultdict(Counter)
    files: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for test, phase, seconds, processor in lines:
        path, _, name = test.partition("::")
        folder = folders["/".join(path.split("/")[:depth])]
        folder[phase] += seconds
        folder["processor"] += processor
        folder["tests"] += phase == "call"
        if name:
            files[path] += processor
            tests[f"{path}::{name.partition('[')[0]}"] += processor
    shown = [f"{'folder':56} {'tests':>6} {'setup':>8} {'call':>8} {'teardown':>8} {'processor':>9}"]
    for name, folder in sorted(folders.items(), key=lambda f: -f[1]["processor"]):
        numbers = " ".join(f"{folder[k]:8.1f}" for k in ("setup", "call", "teardown"))
        shown.append(f"{name:56} {folder['tests']:6.0f} {numbers} {folder['processor']:9.1f}")
    for title, counted in (("file", files), ("test", tests)):
        shown += ["", f"{title}, processor seconds"]
        shown += [f"{seconds:8.1f} {name}" for name, seconds in counted.most_common(AT_MOST)]
    return "\n".join(shown)


if __name__ == "__main__":
    written = Path(sys.argv[1]).read_text().splitlines()
    print(report([json.loads(line) for line in written], int(sys.argv[2]) if len(sys.argv) > 2 else 3))

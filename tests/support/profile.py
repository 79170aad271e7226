"""Where the time of the tests goes: python -m tests.support.profile FILE [DEPTH]

With LETHE_TEST_PROFILE=FILE each run of pytest appends lines of JSON: for each phase of each test the seconds it took,
and for each test the processor time of the worker and all processes that it started, which hardly depends on what else
the machine does. This command sums the lines up: by folder (of DEPTH parts, 3 by default), and for the files and tests
that take longest.
"""

import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from lethe.process import processor_seconds

VARIABLE = "LETHE_TEST_PROFILE"
AT_MOST = 25  # files and tests that are listed
COLLECTION = "collection"


class Profile:
    """Writes a line for each phase of a test, and one for the collection."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file.open("a", buffering=1)
        self._began = monotonic()
        self._processor = 0.0

    def _note(self, test: str, phase: str, began: float, with_processor: bool = False) -> None:
        """A look at all processes takes milliseconds, so there is one for each test, at its end."""
        before = self._processor
        if with_processor:
            self._processor = processor_seconds()
        line = [test, phase, round(monotonic() - began, 4), round(self._processor - before, 3)]
        print(json.dumps(line), file=self._file)

    def pytest_collection_finish(self) -> None:
        self._note(COLLECTION, COLLECTION, self._began, with_processor=True)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        began = monotonic()
        try:
            return (yield)
        finally:
            self._note(item.nodeid, "setup", began)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        began = monotonic()
        try:
            return (yield)
        finally:
            self._note(item.nodeid, "call", began)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        began = monotonic()
        try:
            return (yield)
        finally:
            self._note(item.nodeid, "teardown", began, with_processor=True)


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

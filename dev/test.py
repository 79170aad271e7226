"""Run the tests of a tier with everything they need: test.py TIER [FOLDER...]

    fast      lint, types and tests/unit; needs Python only
    test      lint, and all tests without a cluster
    cluster   the tests on an API server, and on a Kubernetes of their own, which is left up for the next time
    all       both with the long tests, and all linters
    ci        what CI runs: both without the long tests, and all linters

With folders, only their tests run, and no linter. What a tier needs is installed and built side by side, and the tests of
a folder start as soon as its own needs are there. `make` sets the variables that this uses.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
CACHE, STATE = Path(os.environ["LETHE_CACHE"]), Path(os.environ["LETHE_STATE"])
LOGS = STATE / "log"
PYTHON = str(CACHE / "venv/bin/python")
CLUSTER = {"CLUSTER_NAME": "lethe-test", "CLUSTER_INDEX": "1"}  # the demo has another
LONG_SECONDS = 5  # parts that take longer are reported
REMIND_SECONDS = 30  # while nothing else is printed


@dataclass(frozen=True)
class Part:
    """Something that tests need."""

    commands: Sequence[Sequence[str]]
    """Each may be repeated, and does nothing if its result is there."""
    after: Sequence[str] = ()
    """The parts that it needs."""


PARTS = {
    "python": Part([["dev/packages.sh", "python"], ["dev/venv.sh"]]),
    "packages": Part([["dev/packages.sh", "java", "postgres", "browser", "javascript", "busybox"]]),
    "jars": Part(
        [[PYTHON, "-m", "lethe.jars", f"{CACHE}/jars", "--scope", "test"], [PYTHON, "spark_apps/archive_classes.py"]],
        after=["python", "packages"],
    ),
    "s3": Part([["dev/tools.sh", "versitygw"]]),
    "chart": Part([["dev/tools.sh", "helm", "promtool"]], after=["s3"]),
    "moto": Part([["dev/venv.sh", "servers"]], after=["python"]),
    "servers": Part(
        [["dev/tools.sh", "fake-gcs-server", "azurite", "kstatus", "any-kubectl"]], after=["packages", "s3"]
    ),
    "kubernetes": Part([["dev/tools.sh", "kubernetes"]], after=["s3"]),
    # Only long tests need these.
    "compiler": Part([["dev/packages.sh", "compiler"]], after=["packages"]),
    "engines": Part(
        [
            ["dev/venv.sh", "engines"],
            ["dev/venv.sh", "flink"],
            ["dev/venv.sh", "rivals"],
            [PYTHON, "-m", "lethe.jars", f"{CACHE}/jars", "--scope", "bench"],
            ["dev/tools.sh", "iceberg-go", "apicurio", "trino"],
        ],
        after=["jars", "chart"],
    ),
    "launchers": Part([["dev/tools.sh", "spark-operator"]], after=["chart"]),
    "release": Part([["dev/tools.sh", "cosign", "crane", "syft", "olm-validate"]], after=["chart"]),
    "orchestrators": Part([["dev/venv.sh", tool] for tool in ("airflow", "dagster", "dbt", "dlt")], after=["python"]),
}
# By folder.
NEEDS = {
    "tests/unit": ["python"],
    "tests/tables": ["python"],
    "tests/long": ["python"],
    "tests/spark": ["python", "packages", "jars", "s3", "moto"],
    "tests/services": ["python", "packages", "jars", "s3", "moto", "chart", "servers"],
    "tests/apiserver": ["python", "packages", "jars", "s3", "moto", "servers", "kubernetes"],
    "tests/local": ["python", "packages", "jars", "s3", "servers"],
}
LONG_NEEDS = {
    "tests/spark": ["engines"],
    "tests/services": ["engines", "release"],
    "tests/apiserver": ["launchers"],
    "tests/local": ["compiler", "orchestrators"],
}
# Folders of one run of pytest. tests/local is the first, so that one worker has all of it: the tests share an installation.
UNIT = (("tests/unit", "tests/tables"),)
SERVERS = (("tests/spark",), ("tests/local", "tests/services"))
API_SERVER = (("tests/apiserver",),)
LONG = (("tests/long",),)
RUNS = (*UNIT, *SERVERS, *API_SERVER, *LONG)
ON_CLUSTER = "tests/cluster"


@dataclass(frozen=True)
class Plan:
    """What one command runs."""

    steps: tuple[tuple[tuple[str, ...], ...], ...] = ()
    """Without a cluster. The runs of a step go on at the same time: tests with servers wait while those with Spark compute."""
    cluster: tuple[str, ...] = ()
    """Folders on a cluster."""
    lint: str = ""
    """The argument of dev/lint.sh; empty: no linter."""
    long: bool = False
    """Also tests with the marker `long`."""


TIERS = {
    "fast": Plan(((("tests/unit",),),), lint="python"),
    "test": Plan((UNIT, SERVERS), lint="python"),
    "cluster": Plan((API_SERVER,), (ON_CLUSTER,)),
    "all": Plan((UNIT, SERVERS, API_SERVER, LONG), (ON_CLUSTER,), lint="all", long=True),
    "ci": Plan((UNIT, (*SERVERS, *API_SERVER)), (ON_CLUSTER,), lint="all"),
}


def plan_of(tier: str, folders: Sequence[str]) -> Plan:
    """What a command runs.

    Args:
        tier: One of TIERS.
        folders: Folders or files of tests to run instead of those of the tier.
    """
    plan = TIERS[tier]
    if not folders:
        return plan
    runs = (tuple(f for f in folders if _is_below(f, run)) for run in RUNS)
    on_cluster = tuple(f for f in folders if _is_below(f, [ON_CLUSTER]))
    return Plan(tuple((r,) for r in runs if r), on_cluster, long=plan.long)


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(path == f or path.startswith(f"{f}/") for f in folders)


def needs_of(run: Iterable[str], long: bool) -> list[str]:
    """The parts that the tests of some folders need."""
    tables = [NEEDS, LONG_NEEDS] if long else [NEEDS]
    found: dict[str, None] = {}
    for table in tables:
        for folder, parts in table.items():
            if any(_is_below(path, [folder]) for path in run):
                found |= dict.fromkeys(parts)
    return list(found)


class Failed(Exception):
    """A part could not be made, or tests failed. The reason is printed."""


@dataclass
class Parts:
    """Makes parts in the background, each once."""

    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(len(PARTS)))
    made: dict[str, "Future[None]"] = field(default_factory=dict)

    def begin(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.made:
                self.begin(PARTS[name].after)
                self.made[name] = self.pool.submit(self._make, name)

    def _make(self, name: str) -> None:
        for other in PARTS[name].after:
            self.made[other].result()
        began, log = time.monotonic(), LOGS / f"part-{name}.log"
        with log.open("wb") as output:
            for command in PARTS[name].commands:
                if run(command, output) != 0:
                    raise Failed(f"{name} could not be made: `{' '.join(command)}` failed\n{tail(log)}")
        seconds = time.monotonic() - began
        if seconds > LONG_SECONDS:
            say(f"  {name}: ready after {seconds:.0f} s")

    def wait_for(self, names: Iterable[str]) -> None:
        """Wait until parts are there. Raises: Failed."""
        names = list(names)
        self.begin(names)
        while missing := [n for n in names if not self.made[n].done()]:
            try:
                self.made[missing[0]].result(timeout=REMIND_SECONDS)
            except TimeoutError:
                if not self.made[missing[0]].done():
                    say(f"  waiting for: {', '.join(missing)}")
        for name in names:
            self.made[name].result()


RUNNING: list["subprocess.Popen[bytes]"] = []
ENDING = threading.Event()


def start(command: Sequence[str], output: IO[bytes] | None = None, **variables: str) -> "subprocess.Popen[bytes]":
    """Start a command in a process group of its own, which ends with this process. Raises: Failed: it is ending."""
    if ENDING.is_set():
        raise Failed("stopped")
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output else None,
        start_new_session=True,
    )
    RUNNING.append(process)
    return process


def run(command: Sequence[str], output: IO[bytes] | None = None, **variables: str) -> int:
    return start(command, output, **variables).wait()


def stop_all() -> None:
    ENDING.set()
    for process in RUNNING:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def tail(log: Path, lines: int = 40) -> str:
    return "\n".join(f"    {line}" for line in log.read_text(errors="replace").splitlines()[-lines:])


def pytest_command(plan: Plan, folders: Sequence[str], *options: str) -> list[str]:
    color = f"--color={'yes' if sys.stdout.isatty() else 'no'}"
    marked = [] if plan.long else ["-m", "not long"]
    return [PYTHON, "-m", "pytest", "-p", "no:cacheprovider", color, *marked, *options, *folders]


def last_lines(log: Path) -> str:
    """What pytest says at its end: the tests that failed, and their number."""
    lines = log.read_text(errors="replace").splitlines()
    summary = [n for n, line in enumerate(lines) if "short test summary info" in line]
    return "\n".join(lines[summary[-1] :] if summary else lines[-1:])


@dataclass
class Running:
    """A command whose output goes to a log. Several run at the same time, and are printed one after the other."""

    name: str
    command: Sequence[str]
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.log = LOGS / f"{self.name.replace('/', '-').replace(' ', '+')[:100]}.log"
        with self.log.open("wb") as output:
            self.process = start(self.command, output, **self.variables)

    def print_until_it_ends(self) -> bool:
        """Returns: whether it succeeded."""
        with self.log.open("rb") as written:
            while True:
                ended = self.process.poll() is not None
                sys.stdout.buffer.write(written.read())
                sys.stdout.buffer.flush()
                if ended:
                    return self.process.returncode == 0
                time.sleep(0.1)


def main(tier: str, *folders: str) -> int:
    """Returns: the exit code. 1: a test or a linter failed; 2: the arguments are wrong."""
    plan = plan_of(tier, folders)
    if not plan.steps and not plan.cluster:
        say(f"error: {' '.join(folders)}: expected folders below {', '.join([*NEEDS, ON_CLUSTER])}")
        return 2
    LOGS.mkdir(parents=True, exist_ok=True)
    if plan.long:
        os.environ["LETHE_HYPOTHESIS_PROFILE"] = "all"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parts = Parts()
    try:
        parts.wait_for(["python"])
        parts.begin(part for step in plan.steps for run in step for part in needs_of(run, plan.long))
        return run_all(plan, parts)
    except Failed as error:
        say(f"error: {error}")
        return 1
    finally:
        stop_all()


def run_all(plan: Plan, parts: Parts) -> int:
    """Returns: 0, if all tests and linters succeeded, else 1. The last lines are those of each run of pytest."""
    lint = Running("lint", ["dev/lint.sh", plan.lint]) if plan.lint else None
    runs: list[Running] = []
    failed = set()
    cluster = None
    if plan.cluster:
        if plan.long:
            parts.wait_for(["compiler", "engines"])
        # Each worker has a release of Lethe. It takes whole files, the longest first, in the order of tests/cluster/conftest.py.
        workers = [] if plan.long else ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"]
        tests = pytest_command(plan, plan.cluster, *workers)
        command = ["dev/on_cluster.sh", "long" if plan.long else "short", *tests]
        cluster = Running("tests/cluster", command, CLUSTER)
        say(f"tests/cluster: output in {cluster.log}, and here at the end")
    for step in plan.steps:
        beside = []
        for folders in step:
            parts.wait_for(needs_of(folders, plan.long))
            # A worker of tests/spark has a session of its own, 2 GiB with what it starts.
            workers = ["-n", "auto", "--maxprocesses", "4", "--dist", "worksteal"]
            beside.append(Running(" ".join(folders), pytest_command(plan, folders, *workers)))
        for each in beside:
            say(f"{each.name}:")
            if not each.print_until_it_ends():
                failed.add(each.name)
        runs += beside
    if cluster is not None:
        runs.append(cluster)
        if not cluster.print_until_it_ends():
            failed.add(cluster.name)
    if lint is not None and not lint.print_until_it_ends():
        failed.add(lint.name)
        say("lint FAILED, see above")
    if len(runs) > 1 or lint is not None:
        for each in runs:
            say(f"{each.name}:")
            print(last_lines(each.log), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in TIERS:
        say(__doc__ or "")
        sys.exit(2)
    sys.exit(main(*sys.argv[1:]))

"""A process that carries out runs: one JSON document per line on stdin, one answer per line on stdout.

Each line is an `Orders`; the jobs are the product's own, in a Spark session that stays up between orders.
"""

import dataclasses
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import lethe_spark
from lethe.base.errors import LetheError
from lethe.contract.result import Phase, RestatementGroupResult
from lethe.contract.run import RunSpec
from lethe_spark.apps.app import job_of
from lethe_spark.apps.session import make_session

from tests.spark.support.story import Story
from tests.support.builders import a_request
from tests.support.lake import CATALOG, Lake

ROOT = Path(__file__).parents[3]
ANSWER = "ANSWER "
CONFS = {
    "spark.master": "local[1]",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.memory": "512m",
    # Four JVMs on a machine of two: what comes up fastest counts, not what runs fastest in the end.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}


@dataclass(frozen=True)
class Orders:
    """`consolidate`: a run for each list of batch ids; `revert`: a run for each (request name, batch id), in between."""

    catalog: str
    table: str
    consolidate: Sequence[Sequence[str]] = ()
    revert: Sequence[Sequence[str]] = ()


@dataclass
class Answer:
    """`attempts`: of each run, how often it came to committing; `reverted`: the keys whose result says that they are done;
    `failed`: what ended runs."""

    attempts: list[int] = dataclasses.field(default_factory=list)
    reverted: list[str] = dataclasses.field(default_factory=list)
    failed: list[str] = dataclasses.field(default_factory=list)


# --- the process ---------------------------------------------------------------------------------------------------------


def main(home: str) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    lake = Lake(Path(home))
    spark = make_session(CATALOG, CONFS)
    spark.range(1).count()
    print(f"{ANSWER}{{}}", flush=True)
    for line in sys.stdin:
        orders = Orders(**json.loads(line))
        make_session(orders.catalog)
        story = Story(spark, lake, orders.table, catalog=orders.catalog)
        print(f"{ANSWER}{json.dumps(dataclasses.asdict(_carry_out(story, orders)))}", flush=True)
    spark.stop()


def _carry_out(story: Story, orders: Orders) -> Answer:
    answer = Answer()
    runs: list[RunSpec] = [story.consolidation(*ids) for ids in orders.consolidate]
    reverts = [story.restatement(a_request(name, batch_ids=(i,))) for name, i in orders.revert]
    every = max(1, -(-len(reverts) // max(1, len(runs))))
    for n in range(len(runs)):
        runs[n * (every + 1) + 1 : n * (every + 1) + 1] = reverts[n * every : (n + 1) * every]
    for spec in runs or reverts:
        context = story.context(spec)
        try:
            result = job_of(spec.kind)(context)
            done = result.requests if isinstance(result, RestatementGroupResult) else ()
            answer.reverted += [r.key for r in done if r.succeeded]
            answer.failed += [f"{r.reason}: {r.message}" for r in done if not r.succeeded]
        except LetheError as e:
            answer.failed.append(f"{spec.kind} {type(e).__name__} {e}")
        finally:
            context.reporter.close(Phase.SUCCEEDED)
        answer.attempts.append(context.steps.count("before-commit"))
    return answer


# --- the test's side -----------------------------------------------------------------------------------------------


class WorkProcess:
    """A running process that takes orders."""

    def __init__(self, lake: Lake, log: Path) -> None:
        self.log = log
        sources = [str(ROOT), str(Path(lethe_spark.__file__).parents[1])]
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.support.work_process", str(lake.home)],
                env={**os.environ, **lake.environment, "PYTHONPATH": ":".join(sources)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def send(self, orders: Orders) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(dataclasses.asdict(orders)) + "\n")
        self.process.stdin.flush()

    def receive(self, within_seconds: float = 240) -> Answer:
        """The answer to the last orders."""
        assert self.process.stdout is not None
        watch = threading.Timer(within_seconds, self.process.kill)
        watch.start()
        try:
            for line in self.process.stdout:
                if line.startswith(ANSWER):
                    return Answer(**json.loads(line.removeprefix(ANSWER)))
        finally:
            watch.cancel()
        raise AssertionError(f"no answer within {within_seconds} s:\n{self.log.read_text()[-4000:]}")

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()


@contextmanager
def work_processes(lake: Lake, folder: Path, count: int) -> Iterator[list[WorkProcess]]:
    """That many processes, ready for orders."""
    started = [WorkProcess(lake, folder / f"committer-{n}.log") for n in range(count)]
    try:
        for c in started:
            c.receive()
        yield started
    finally:
        for c in started:
            c.end()


if __name__ == "__main__":
    main(sys.argv[1])

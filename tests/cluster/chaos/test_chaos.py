"""Random acts on a few Datasets while pods, services, clocks and disks fail. In the end the rows are right, what was erased is in
no object, and nothing is stuck.

    make chaos DURATION=600 SEED=7

Without a seed there is a new one each time. It is printed, and the same seed gives the same acts and faults, though not the same
moments.
"""

import json
import os
import random
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cluster.chaos.clock import CONFIG_MAP, PRELOAD, install_clocks
from tests.cluster.chaos.faults import Faults
from tests.cluster.chaos.leftovers import remove_leftovers
from tests.cluster.chaos.plan import all_erased_marks, faults, steps
from tests.cluster.chaos.player import Player, marks_in_bucket, through_outages
from tests.cluster.chaos.report import Report
from tests.cluster.chaos.settled import OpenEnd, unsettled
from tests.cluster.install import change, install, wait_for_one_version
from tests.cluster.kube import Cluster, Object
from tests.cluster.lake import ClusterLake, connect
from tests.cluster.story import ClusterStory, a_name
from tests.model.rows import COLUMNS, mark_of

DURATION_SECONDS = float(os.environ.get("CHAOS_DURATION") or 600)
SETTLE_SECONDS = 1500
LOOK_AGAIN_SECONDS = 2.0
BUCKET = "s3://lake"
SCRATCH = "256Mi"
pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(DURATION_SECONDS + 3600)]

# Of the first Dataset, small runs are for the warm driver; of the second, runs have executors; of the third, all runs are Jobs.
TEMPLATES: list[Object] = [
    {},
    {"executors": {"min": 1, "max": 2, "memory": "1Gi", "waitSeconds": 180}},
    {"podTemplate": {"spec": {"volumes": [{"name": "spare", "emptyDir": {}}]}}},
]


@dataclass
class Chaos:
    seed: int
    players: list[Player]
    faults: Faults
    # URIs of what killed runs left behind, after it was removed because erasures waited for it.
    leftovers: list[str] = field(default_factory=list)


@pytest.fixture
def seed() -> int:
    return int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(10**6))


@pytest.fixture
def shaken(cluster: Cluster, bare_cluster: Cluster, lake: ClusterLake) -> Iterator[Cluster]:
    """Two operators, a warm driver with little disk, and Datasets that may mount a clock."""
    on = [
        "replicas=2",
        "warmDrivers.enabled=true",
        "warmDrivers.driver.cpu=200m",
        "warmDrivers.driver.memory=1536Mi",
        f"warmDrivers.driver.scratch={SCRATCH}",
    ]
    on += [f"podTemplate.allowed.configMaps={{{CONFIG_MAP}}}", f"podTemplate.allowed.mountPaths={{/mnt,{PRELOAD}}}"]
    change(cluster, *on)
    yield cluster
    install(bare_cluster, lake.services)
    wait_for_one_version(cluster)


@pytest.fixture
def chaos(shaken: Cluster, lake: ClusterLake, tmp_path: Path, seed: int) -> Iterator[Chaos]:
    for name in (body["metadata"]["name"] for body in shaken.list("datasets.lethe.dev")):
        if name.startswith("chaos"):  # of a run that was killed: with the same seed its rows have the same marks
            kinds = ",".join(f"{kind}.lethe.dev" for kind in ("restatements", "vacuumpolicies", "datasets"))
            shaken.run("delete", kinds, "-l", f"story={name}")
            ClusterStory(shaken, lake, name).clean()
    has_clocks = install_clocks(shaken, tmp_path)
    # Each player has connections of its own.
    stories = [ClusterStory(shaken, connect(lake.services), a_name(f"chaos{n}")) for n in range(len(TEMPLATES))]
    for story, template in zip(stories, TEMPLATES, strict=True):
        create = {"schema": COLUMNS, "partitionBy": ["day"]}
        story.apply(
            story.a_dataset(
                table={"catalog": story.catalog, "name": story.table, "create": create},
                runTemplate={"driver": {"scratch": SCRATCH}, **template},
                restatements={"windowSeconds": 2},
            ),
            story.a_policy(triggers={}),
        )
    players = [Player(story, steps(seed, n)) for n, story in enumerate(stories)]
    yield Chaos(seed, players, Faults(shaken, stories, has_clocks))
    for story in stories:
        story.clean()
        shaken.run("delete", "secret", "-l", f"story={story.name}")
    shaken.delete(f"configmap/{CONFIG_MAP}")


def test_after_chaos_every_row_is_right_and_nothing_is_stuck(
    shaken: Cluster, chaos: Chaos, capsys: pytest.CaptureFixture[str]
) -> None:
    def say(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    say(f"\nchaos: seed {chaos.seed}, {DURATION_SECONDS:.0f} s")
    settled_seconds = 0.0
    last_fault, failure = shake(chaos, say)
    if not failure:
        try:
            settle(shaken, chaos)
            settled_seconds = time.monotonic() - last_fault
            check_erased(chaos)
        except Exception as e:
            failure = "".join(traceback.format_exception(e))
    line = write(a_report(chaos, settled_seconds, failure))
    say(line)

    assert not failure, f"{line}\n{failure}"


def shake(chaos: Chaos, say: Callable[[str], None]) -> tuple[float, str]:
    """Begin steps and inject faults until the time is over, and play the steps that have begun to their end.

    Returns: when the last fault was over, by the monotonic clock, and what failed.
    """
    until, failed = time.monotonic() + DURATION_SECONDS, threading.Event()

    def play(player: Player) -> None:
        try:
            player.play(until, failed)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(len(chaos.players)) as pool:
        playing = [pool.submit(play, player) for player in chaos.players]
        for fault in faults(chaos.seed):
            if time.monotonic() + fault.after_seconds >= until or failed.wait(fault.after_seconds):
                break
            injected = chaos.faults.inject(fault)
            said = injected.target or injected.error or "no target"
            say(f"  {injected.at_seconds:4.0f} s: {injected.kind.value}: {said}")
        chaos.faults.heal()
        last_fault = time.monotonic()
    errors = [error for future in playing if (error := future.exception()) is not None]
    return last_fault, "\n".join("".join(traceback.format_exception(error)) for error in errors)


def settle(cluster: Cluster, chaos: Chaos) -> None:
    """Wait until every resource is settled and each table has the rows of its model. Raises: AssertionError.

    Erasures that wait for leftovers of killed runs, and for nothing else, are helped as docs/erasure.md says.
    """
    until = time.monotonic() + SETTLE_SECONDS
    while left := through_outages(lambda: open_ends(cluster, chaos)):
        said = "\n".join(map(str, left))
        assert time.monotonic() < until, f"not settled {SETTLE_SECONDS} s after the last fault:\n{said}"
        if all(end.held for end in left) and not chaos.leftovers:
            for player in chaos.players:
                chaos.leftovers += remove_leftovers(player.story.lake, player.story.table)
                player.story.annotate(vacuum_now="after-leftovers")
            assert chaos.leftovers, f"no killed run left anything, but erasures are held:\n{said}"
        threading.Event().wait(LOOK_AGAIN_SECONDS)
    for player in chaos.players:
        assert player.rows() == player.wanted, player.story.name


def open_ends(cluster: Cluster, chaos: Chaos) -> list[OpenEnd]:
    selector = f"story in ({','.join(p.story.name for p in chaos.players)})"
    datasets, restatements = (cluster.list(f"{kind}.lethe.dev", selector) for kind in ("datasets", "restatements"))
    names = {p.story.name for p in chaos.players}
    jobs = [j for j in cluster.list("jobs") if j["metadata"].get("labels", {}).get("lethe.dev/dataset") in names]
    return unsettled(datasets, restatements, jobs, {name for p in chaos.players for name in p.refused})


def check_erased(chaos: Chaos) -> None:
    """Search the whole bucket, after the producers have deleted their own files. Raises: AssertionError."""
    for player in chaos.players:
        player.story.lake.clear(player.story.buffer)
        player.story.lake.clear(player.story.restated)
    found = marks_in_bucket(chaos.players[0].story.lake, BUCKET)
    shown = {mark_of(row) for p in chaos.players for row in p.model.visible}
    erased = {mark for p in chaos.players for mark in all_erased_marks(p.model)}
    assert shown <= found.keys(), "the search does not find rows that are there"
    left = {mark: found[mark] for mark in erased & found.keys()}
    assert not left, f"erased rows are left, each with one of the objects: {left}"


def a_report(chaos: Chaos, settled_seconds: float, failure: str) -> Report:
    return Report(
        seed=chaos.seed,
        duration_seconds=DURATION_SECONDS,
        settled_seconds=settled_seconds,
        acts=[act for p in chaos.players for act in p.acts],
        faults=chaos.faults.injected,
        refused=[name for p in chaos.players for name in p.refused],
        failed_vacuums=[message for p in chaos.players for message in p.failed_vacuums],
        leftovers=chaos.leftovers,
        failure=failure,
    )


def write(report: Report) -> str:
    """Write the report beside the logs. Returns: its line."""
    state = Path(os.environ.get("LETHE_STATE") or Path.home() / ".local/state/lethe")
    log = state / "log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"chaos-{report.seed}.json").write_text(json.dumps(report.document(), indent=2) + "\n")
    with (log / "chaos.log").open("a") as lines:
        lines.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {report.line()}\n")
    return report.line()

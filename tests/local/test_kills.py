"""`lethe local` is killed at each step of its work, and goes on where it was: nothing is lost, and nothing is done twice."""

import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.local.cluster import LocalCluster
from tests.local.lake import Lake, restatement, running, with_two_batches
from tests.support.clock import wait_until

pytestmark = pytest.mark.long

LIMIT_SECONDS = 120


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with running(tmp_path_factory.mktemp("killed")) as lake:
        yield lake


@pytest.fixture(scope="module")
def dataset(lake: Lake) -> Lake:
    return with_two_batches(lake)


def step(lake: Lake, when: str) -> Callable[[], bool]:
    """Whether a step of the work that begins now has been reached."""
    cluster = LocalCluster(lake.home / "kubeconfig")

    def runs() -> set[str]:
        """Names of runs whose process works, be it of their own or the warm driver's."""
        status = (cluster.get("dataset/orders") or {}).get("status") or {}
        return {r["name"] for r in status.get("runs") or () if r.get("phase") not in (None, "Pending")}

    runs_before, head_before = runs(), lake.table().metadata.current_snapshot_id
    steps: dict[str, Callable[[], bool]] = {
        "at once": lambda: True,
        "its process runs": lambda: bool(runs() - runs_before),
        "it has committed": lambda: lake.table().metadata.current_snapshot_id != head_before,
    }
    return steps[when]


def kill(lake: Lake, all_processes: bool) -> None:
    """Kill `lethe local up`, and its children too, as if the machine had lost its power. Start it again."""
    lake.end(signal.SIGKILL)
    if all_processes:
        subprocess.run(["pkill", "-KILL", "-f", str(lake.home)], check=False)
    lake.up()


WORK = [
    (what, when)
    for what in ("a batch", "a revert", "a vacuum")
    for when in ("at once", "its process runs", "it has committed")
    if (what, when) != ("a revert", "its process runs")  # the committer always runs
]


@pytest.mark.parametrize("all_processes", [False, True], ids=["up", "everything"])
@pytest.mark.parametrize(("what", "when"), WORK)
def test_after_a_kill_at_any_step_the_work_is_done_once(
    dataset: Lake, what: str, when: str, all_processes: bool
) -> None:
    number = 1000 + 2 * WORK.index((what, when)) + all_processes
    name = f"batch-{number}"
    rows = dataset.ids()
    if what != "a batch":  # one to revert
        dataset.put(name, number)
        wait_until(lambda: number in dataset.ids(), LIMIT_SECONDS)
    if what == "a vacuum":  # and to purge
        dataset.apply(restatement(name, "Revert", batchIds=[name]))
        dataset.done("wait", "restatement", name, "--for", "Succeeded")
    reached = step(dataset, when)

    match what:
        case "a batch":
            dataset.put(name, number)
        case "a revert":
            dataset.apply(restatement(name, "Revert", batchIds=[name]))
        case "a vacuum":
            assert dataset.lethe("vacuum-now", "orders", "--batch", name).returncode == 0
    wait_until(reached, LIMIT_SECONDS)
    kill(dataset, all_processes)

    match what:
        case "a batch":
            wait_until(lambda: number in dataset.ids(), LIMIT_SECONDS)
            assert dataset.ids() == sorted([*rows, number])
        case "a revert":
            dataset.done("wait", "restatement", name, "--for", "Succeeded")
            assert dataset.ids() == rows
        case "a vacuum":
            dataset.wait_until("purged", lambda: purged(dataset, number))
            assert dataset.ids() == rows


def purged(lake: Lake, number: int) -> bool:
    """Whether no data file has the row."""
    rows = lake.table().scan(selected_fields=("id",)).to_arrow()
    return number not in rows["id"].to_pylist()

"""Checks for tables above buffers: shared by buffers of one folder, one at a time, and never older than ten minutes."""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lethe.ingest import shared_folders
from lethe_operator.dataset.listing import AGAIN_SECONDS, TablesAround

from tests.support.clock import ManualClock


class Looks:
    """The folders that were looked at, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places: list[str] = []
        look = shared_folders.holding_tables

        def counted(places: Sequence[str], properties: Mapping[str, str]) -> tuple[str, ...]:
            self.places += places
            self.before(places)
            return look(places, properties)

        monkeypatch.setattr(shared_folders, "holding_tables", counted)

    def before(self, places: Sequence[str]) -> None:
        """Replaced by tests."""


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


def _new_table(folder: Path) -> None:
    (folder / "metadata").mkdir(parents=True)
    (folder / "metadata/v1.metadata.json").touch()


def test_buffers_below_one_folder_share_its_check(tmp_path: Path, looks: Looks, clock: ManualClock) -> None:
    around = TablesAround(clock)

    assert around.of(f"file://{tmp_path}/in/a", {}) == ()
    assert f"file://{tmp_path}/in" in looks.places
    looks.places.clear()
    assert around.of(f"file://{tmp_path}/in/b", {}) == ()

    assert looks.places == [f"file://{tmp_path}/in/b"]


def test_other_credentials_share_nothing(tmp_path: Path, looks: Looks, clock: ManualClock) -> None:
    around = TablesAround(clock)
    around.of(f"file://{tmp_path}/in/a", {"s3.access-key-id": "one"})
    first = list(looks.places)
    looks.places.clear()

    around.of(f"file://{tmp_path}/in/a", {"s3.access-key-id": "two"})

    assert looks.places == first


def test_a_table_above_is_found_when_the_check_is_too_old(tmp_path: Path, clock: ManualClock) -> None:
    around = TablesAround(clock)
    assert around.of(f"file://{tmp_path}/t/in/a", {}) == ()
    _new_table(tmp_path / "t")
    clock.now += AGAIN_SECONDS - 1
    assert around.of(f"file://{tmp_path}/t/in/b", {}) == ()

    clock.now += 1

    assert around.of(f"file://{tmp_path}/t/in/a", {}) == (f"file://{tmp_path}/t",)
    assert around.of(f"file://{tmp_path}/t/in/b", {}) == (f"file://{tmp_path}/t",)


def test_a_table_that_goes_is_noticed_at_once(tmp_path: Path, clock: ManualClock) -> None:
    around = TablesAround(clock)
    _new_table(tmp_path / "t")
    assert around.of(f"file://{tmp_path}/t/in", {}) == (f"file://{tmp_path}/t",)

    (tmp_path / "t/metadata/v1.metadata.json").unlink()

    assert around.of(f"file://{tmp_path}/t/in", {}) == ()


def test_threads_at_once_look_at_a_folder_once(tmp_path: Path, looks: Looks, clock: ManualClock) -> None:
    around = TablesAround(clock)
    entered, go_on = threading.Event(), threading.Event()

    def held(_: Sequence[str]) -> None:
        looks.before = lambda _: None
        entered.set()
        assert go_on.wait(20)

    looks.before = held
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(around.of, f"file://{tmp_path}/in/a", {})
        assert entered.wait(20)
        second = pool.submit(around.of, f"file://{tmp_path}/in/a", {})
        with pytest.raises(TimeoutError):
            second.result(0.2)  # it waits for the first
        go_on.set()

        assert (first.result(20), second.result(20)) == ((), ())
    assert len(looks.places) == len(set(looks.places))


def test_after_a_failure_the_folder_is_looked_at_again(tmp_path: Path, looks: Looks, clock: ManualClock) -> None:
    around = TablesAround(clock)

    def away(_: Sequence[str]) -> None:
        looks.before = lambda _: None
        raise ConnectionError("away")

    looks.before = away
    with pytest.raises(ConnectionError):
        around.of(f"file://{tmp_path}/in/a", {})

    assert around.of(f"file://{tmp_path}/in/a", {}) == ()


def test_what_no_longer_counts_is_dropped(tmp_path: Path, clock: ManualClock) -> None:
    around = TablesAround(clock)
    for n in range(50):
        around.of(f"file://{tmp_path}/in/{n}", {"token": str(n)})
    clock.now += 2 * AGAIN_SECONDS

    around.of(f"file://{tmp_path}/in/a", {})

    assert len(around._checks) == 1

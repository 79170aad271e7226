"""The deletion of promoted objects beside the reconciles."""

import threading
from typing import Any

import pytest
from lethe.guards.claim import Owner
from lethe.ingest.shared_folders import Adopted
from lethe_operator.carry_out import SWEEPS_AT_ONCE, BufferSweep, Sweeps

from tests.support.builders import NOW
from tests.support.clock import wait_until
from tests.support.resources import a_dataset


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """No sweep ends before it is set."""
    opened = threading.Event()
    monkeypatch.setattr(BufferSweep, "run", lambda _: opened.wait(20))
    return opened


def begin(sweeps: Sweeps, name: str) -> bool:
    return sweeps.begin(BufferSweep(a_dataset(name), 1, {}, Owner("ns", name, "uid", ""), Adopted(), NOW))


def test_a_buffer_is_swept_once_at_a_time(gate: threading.Event) -> None:
    sweeps = Sweeps()
    assert begin(sweeps, "flights")
    assert not begin(sweeps, "flights")
    assert begin(sweeps, "weather")

    gate.set()
    wait_until(lambda: sweeps.under_way == 0, 20)

    assert begin(sweeps, "flights")


def test_so_many_buffers_are_swept_at_once(gate: threading.Event) -> None:
    sweeps = Sweeps()
    assert [begin(sweeps, str(n)) for n in range(SWEEPS_AT_ONCE + 1)] == [True] * SWEEPS_AT_ONCE + [False]
    gate.set()


def test_a_deletion_that_fails_leaves_its_turn_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: BufferSweep) -> None:
        raise MemoryError

    monkeypatch.setattr(BufferSweep, "run", fails)
    sweeps = Sweeps(start=lambda sweep: sweep())

    for _ in range(2):
        with pytest.raises(MemoryError):
            begin(sweeps, "flights")
        assert sweeps.under_way == 0


def test_a_sweep_that_gets_no_thread_leaves_its_turn_to_the_next() -> None:
    def starts(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    sweeps = Sweeps(start=starts)

    with pytest.raises(RuntimeError):
        begin(sweeps, "flights")

    assert sweeps.under_way == 0

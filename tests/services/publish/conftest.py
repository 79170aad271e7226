"""Events of a history of four batches, and a receiver of events."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from lethe_operator.publish.events import CloudEvent

from tests.support.builders import a_batch
from tests.support.publishing import LedgerHistory, RememberingSink, publish
from tests.support.servers.receiver import Receiver, a_receiver


@pytest.fixture
def history(tmp_path: Path) -> LedgerHistory:
    """One version with four batches."""
    made = LedgerHistory(tmp_path / "lake")
    made.commit(*(a_batch(i) for i in "ABCD"))
    return made


@pytest.fixture
def events(history: LedgerHistory) -> list[CloudEvent]:
    sink = RememberingSink()
    publish(history, sink)
    return sink.received


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = a_receiver()
    with made.up():
        yield made

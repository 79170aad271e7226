"""An idle reconcile asks the catalog for nothing; one that changes something decides on the current table."""

import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy
from lethe.kube import DATASETS
from lethe_operator.dataset import pointers
from lethe_operator.dataset.listing import Listings
from lethe_operator.dataset.listing_schedule import ListingLimits
from lethe_operator.dataset.tables import TableReader
from lethe_operator.reconcile import Reconciler
from lethe_operator.resources.dataset import parse_dataset
from lethe_operator.resources.observed import NoTable, TableView, Unavailable
from lethe_operator.settings import IdleChecks

from tests.support.resources import a_dataset
from tests.support.small_lake import FLIGHTS, SmallLake

# The poller takes its first look after this time: within a test, the pointers are those that reconciles found.
FAR = IdleChecks(pointer_seconds=1000)
LIMIT_SECONDS = 30
OF_LITE = {"table": {"catalog": "lite", "name": "air.flights"}}


@pytest.fixture
def lake(lake: SmallLake) -> SmallLake:
    """Its Dataset's buffer holds the batches A and B, and A is promoted."""
    lake.put("A", "B")
    lake.commit(lake.promoted("A"))
    return lake


@pytest.fixture
def operator(lake: SmallLake) -> Iterator[Reconciler]:
    operator = lake.operator()
    object.__setattr__(operator, "tables", TableReader(checks=FAR))
    operator.tables.start()
    yield operator
    operator.tables.stop()


@pytest.fixture
def queries() -> Iterator[list[str]]:
    """The statements that databases of catalogs receive."""
    found: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        found.append(statement)

    sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", note)
    yield found
    sqlalchemy.event.remove(sqlalchemy.Engine, "before_cursor_execute", note)


def ids_of_runs(lake: SmallLake) -> list[tuple[str, ...]]:
    return [tuple(r.consolidation.batch_ids) for r in lake.runs() if r.consolidation is not None]


def settle(lake: SmallLake, operator: Reconciler) -> None:
    """Reconcile until there is nothing left to do: A is deleted from the buffer, B is promoted by a run that ends."""
    operator(FLIGHTS)
    lake.end(lake.jobs()[0])
    for _ in range(4):
        operator(FLIGHTS)


def test_an_idle_reconcile_asks_the_catalog_for_nothing(
    lake: SmallLake, operator: Reconciler, queries: list[str]
) -> None:
    lake.cluster.patch(DATASETS, "ns", "flights", {"spec": {"batchTracking": {"enabled": False}}})
    settle(lake, operator)
    queries.clear()

    for _ in range(3):
        operator(FLIGHTS)

    assert queries == []


def test_what_is_launched_is_decided_on_the_current_table(
    lake: SmallLake, operator: Reconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer promotes B between the last look at the pointer and the decision. The decision on the polled pointer would
    be a run for B and C."""
    lake.cluster.patch(DATASETS, "ns", "flights", {"spec": {"consolidation": {"suspend": True}}})
    operator(FLIGHTS)
    polled = operator.tables.view(parse_dataset(lake.cluster.get(DATASETS, "ns", "flights")))
    lake.commit(lake.promoted("B"))
    lake.put("C")
    operator.tables.listings.forget("ns/flights")
    lake.cluster.patch(DATASETS, "ns", "flights", {"spec": {"consolidation": {"suspend": False}}})
    seen: list[Any] = []
    view = operator.tables.view

    def noted(*arguments: Any) -> Any:
        seen.append(view(*arguments))
        return seen[-1]

    monkeypatch.setattr(operator.tables, "view", noted)

    operator(FLIGHTS)

    assert seen[0] is polled  # the race did happen
    assert len(seen) == 2
    assert ids_of_runs(lake) == [("C",)]


def test_the_end_of_a_run_is_judged_by_the_current_table(lake: SmallLake, operator: Reconciler) -> None:
    """Its commit is newer than the pointer: it is not taken for a run without a commit, which would be repeated."""
    operator(FLIGHTS)
    (job,) = lake.jobs()
    operator(FLIGHTS)
    lake.end(job)

    operator(FLIGHTS)

    (run,) = lake.status()["runs"]
    assert (run["phase"], lake.status()["buffer"]["batches"]) == ("Succeeded", 0)
    assert len(lake.jobs()) == 1


def test_a_table_that_is_created_later_is_seen_before_anything_is_decided(
    lake: SmallLake, operator: Reconciler
) -> None:
    dataset = a_dataset(table={"catalog": "lite", "name": "air.later"})
    first, again = operator.tables.view(dataset), operator.tables.view(dataset)
    assert isinstance(first, NoTable)
    assert first == again
    lake.catalog.create_table("air.later", lake.table.schema())

    assert not operator.tables.is_current(dataset)
    assert isinstance(operator.tables.view(dataset), TableView)


def test_a_catalog_that_does_not_answer_is_shown_without_asking_it_for_each_dataset(
    lake: SmallLake, operator: Reconciler, monkeypatch: pytest.MonkeyPatch, queries: list[str]
) -> None:
    settle(lake, operator)
    error = ConnectionError("no route to the catalog")
    monkeypatch.setattr(operator.tables.pointers, "trouble", lambda _catalog: error)
    queries.clear()

    operator(FLIGHTS)
    found = operator.tables.view(a_dataset(**OF_LITE))

    assert isinstance(found, Unavailable)
    ready = next(c for c in lake.status()["conditions"] if c["type"] == "Ready")
    assert (ready["status"], "no route to the catalog" in ready["message"]) == ("False", True)
    assert queries == []


def test_a_catalog_that_fails_while_something_is_decided_starts_nothing(
    lake: SmallLake, operator: Reconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(lake, operator)
    lake.put("C")
    operator.tables.listings.forget("ns/flights")

    def away(*_: Any) -> Any:
        raise ConnectionError("no route to the catalog")

    monkeypatch.setattr(pointers.Pointers, "ask", away)
    before = len(lake.jobs())

    operator(FLIGHTS)

    assert (len(lake.jobs()), ids_of_runs(lake)) == (before, [])


def test_a_batch_and_a_commit_of_another_writer_are_noticed_between_reconciles(lake: SmallLake) -> None:
    """With the threads of an operator; time passes a hundred times as fast for its listings."""
    listings = Listings(lambda: 100 * time.monotonic(), limits=ListingLimits(shortest_seconds=5))
    operator = lake.operator()
    object.__setattr__(operator, "tables", TableReader(listings=listings, checks=IdleChecks(pointer_seconds=0.2)))
    changed: queue.SimpleQueue[str] = queue.SimpleQueue()
    for source in (operator.tables.listings, operator.tables.pointers):
        source.on_change = lambda meta, *_: changed.put(meta.full_name)

    def reconcile_until(holds: Callable[[], bool]) -> None:
        while not holds():
            assert changed.get(timeout=LIMIT_SECONDS) == "ns/flights"
            operator(FLIGHTS)

    operator.tables.start()
    try:
        settle(lake, operator)
        lake.put("C")
        reconcile_until(lambda: ids_of_runs(lake) == [("C",)])
        head = lake.status()["table"]["snapshotId"]
        lake.commit(lake.promoted("C"))
        reconcile_until(lambda: lake.status()["table"]["snapshotId"] != head)
    finally:
        operator.tables.stop()

"""Catalogs are asked for the pointers of many tables; each in its own thread, and changes are reported."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from lethe_operator.cluster.time_limit import Limiter
from lethe_operator.dataset import pointers as module
from lethe_operator.dataset.pointers import TROUBLE_SECONDS, OpenCatalogs, Pointer, Pointers, round_seconds
from lethe_operator.resources.dataset import Dataset
from lethe_operator.settings import IdleChecks

from tests.support.clock import ManualClock, wait_until
from tests.support.resources import a_dataset

LIMIT_SECONDS = 20


class FakeSource:
    """A catalog that a test makes hang or fail."""

    def __init__(self, tables_per_query: int = 1000) -> None:
        self.tables_per_query = tables_per_query
        self.locations: dict[str, str | None] = {}
        self.asked: list[tuple[str, ...]] = []
        self.hangs: threading.Event | None = None
        self.error: Exception | None = None

    def ask(self, tables: Sequence[str]) -> Mapping[str, str | None]:
        self.asked.append(tuple(tables))
        if self.hangs is not None:
            assert self.hangs.wait(LIMIT_SECONDS)
        if self.error is not None:
            raise self.error
        return {t: self.locations.get(t) for t in tables}


class FakeCatalogs(OpenCatalogs):
    """Each catalog is its source."""

    def __init__(self) -> None:
        super().__init__()
        self.sources = {"main": FakeSource(), "other": FakeSource()}

    def get(self, name: str, _properties: Mapping[str, str]) -> Any:
        return self.sources[name]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> FakeCatalogs:
    monkeypatch.setattr(module, "LARGE_QUERIES_PER_SECOND", 1000)
    monkeypatch.setattr(module, "source_of", lambda catalog: catalog)
    monkeypatch.setattr(module.catalogs, "properties", lambda _name: {})
    return FakeCatalogs()


@pytest.fixture
def pointers(opened: FakeCatalogs, clock: ManualClock) -> Iterator[Pointers]:
    made = Pointers(Limiter(), opened, IdleChecks(pointer_seconds=0.01), clock)
    yield made
    made.stop()


def of_table(name: str, catalog: str = "main") -> Dataset:
    return a_dataset(name, table={"catalog": catalog, "name": f"air.{name}"})


def changes(pointers: Pointers) -> list[str]:
    found: list[str] = []
    pointers.on_change = pointers.on_trouble = lambda meta: found.append(meta.full_name)
    return found


@pytest.mark.parametrize(
    ("queries", "one_by_one", "seconds"),
    [
        pytest.param(10_000, True, 250, id="one query per table: spread over the limit per second"),
        pytest.param(100, True, 5, id="few tables: the interval"),
        pytest.param(10, False, 10, id="10,000 tables of a SQL catalog: one query per second"),
        pytest.param(3, False, 5, id="fewer tables of a SQL catalog: the interval"),
    ],
)
def test_how_long_a_round_takes(queries: int, one_by_one: bool, seconds: float) -> None:
    checks = IdleChecks(pointer_seconds=5, catalog_queries_per_second=40)

    assert round_seconds(checks, queries, one_by_one) == seconds


def test_a_changed_pointer_is_reported_once_for_each_dataset_of_the_table(
    pointers: Pointers, opened: FakeCatalogs
) -> None:
    opened.sources["main"].locations = {"air.a": "a-1", "air.b": "b-1"}
    for name in ("a", "b"):
        pointers.register(of_table(name))
        pointers.record(of_table(name), Pointer(f"{name}-1", 1000))
    pointers.register(a_dataset("twin", table={"catalog": "main", "name": "air.a"}))
    found = changes(pointers)
    pointers.start()
    wait_until(lambda: len(opened.sources["main"].asked) >= 3, LIMIT_SECONDS)
    assert found == []

    opened.sources["main"].locations["air.a"] = "a-2"

    wait_until(lambda: bool(found), LIMIT_SECONDS)
    rounds = len(opened.sources["main"].asked)
    wait_until(lambda: len(opened.sources["main"].asked) >= rounds + 3, LIMIT_SECONDS)
    assert sorted(found) == ["ns/a", "ns/twin"]
    assert set(opened.sources["main"].asked) == {("air.a", "air.b")}
    known = pointers.known(of_table("a"))
    assert known is not None
    assert known.location == "a-2"


def test_a_pointer_that_one_dataset_loads_is_reported_to_the_others_of_its_table(pointers: Pointers) -> None:
    twin = a_dataset("twin", table={"catalog": "main", "name": "air.a"})
    for dataset in (of_table("a"), twin):
        pointers.register(dataset)
        pointers.record(dataset, Pointer("a-1", 1000))
    found = changes(pointers)

    pointers.record(twin, Pointer("a-2", 1001))

    assert found == ["ns/a"]


def test_an_earlier_query_does_not_replace_a_later_one(pointers: Pointers) -> None:
    """A poll may be answered after the table was loaded."""
    pointers.register(of_table("a"))
    pointers.start()
    pointers.record(of_table("a"), Pointer("a-2", 1000.5))

    pointers.record(of_table("a"), Pointer("a-1", 1000.0))

    known = pointers.known(of_table("a"))
    assert known is not None
    assert known.location == "a-2"


def test_a_catalog_that_hangs_does_not_delay_another_one(pointers: Pointers, opened: FakeCatalogs) -> None:
    hung, other = opened.sources["main"], opened.sources["other"]
    hung.hangs = threading.Event()
    pointers.register(of_table("a"))
    pointers.register(of_table("b", "other"))
    found = changes(pointers)
    pointers.start()
    wait_until(lambda: bool(hung.asked) and len(other.asked) > 1, LIMIT_SECONDS)

    other.locations["air.b"] = "b-1"

    wait_until(lambda: "ns/b" in found, LIMIT_SECONDS)
    assert len(hung.asked) == 1
    hung.hangs.set()


def test_a_catalog_that_does_not_answer_is_reported_when_it_lasts_and_when_it_ends(
    pointers: Pointers, opened: FakeCatalogs, clock: ManualClock
) -> None:
    """Once each, for every Dataset: no Dataset has to find out by itself."""
    source = opened.sources["main"]
    for name in ("a", "b"):
        pointers.register(of_table(name))
        pointers.record(of_table(name), Pointer(None, 1000))
    found = changes(pointers)
    source.error = ConnectionError("no route")
    pointers.start()
    wait_until(lambda: len(source.asked) >= 3, LIMIT_SECONDS)
    assert (found, pointers.trouble("main")) == ([], None)  # it may be one lost connection

    clock.now += TROUBLE_SECONDS
    wait_until(lambda: pointers.trouble("main") is source.error, LIMIT_SECONDS)
    wait_until(lambda: len(found) == 2, LIMIT_SECONDS)
    source.error = None
    wait_until(lambda: len(found) == 4, LIMIT_SECONDS)

    assert found == ["ns/a", "ns/b", "ns/a", "ns/b"]
    assert pointers.trouble("main") is None


def test_a_table_that_cannot_be_read_is_unknown_and_the_others_are_asked_in_turn(
    pointers: Pointers, opened: FakeCatalogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.sources["main"] = source = FakeSource(tables_per_query=1)
    source.locations = {"air.a": "a-1", "air.c": "c-1"}
    ask = source.ask

    def broken(tables: Sequence[str]) -> Mapping[str, str | None]:
        found = ask(tables)
        if tables == ["air.b"]:
            raise OSError("its metadata file is gone")
        return found

    monkeypatch.setattr(source, "ask", broken)
    for name in "abc":
        pointers.register(of_table(name))
    pointers.start()

    wait_until(lambda: len(source.asked) >= 9, LIMIT_SECONDS)

    assert source.asked[:6] == [("air.a",), ("air.b",), ("air.c",)] * 2
    assert [pointers.known(of_table(n)) is not None for n in "abc"] == [True, False, True]


def test_a_pointer_that_is_too_old_is_unknown(pointers: Pointers, opened: FakeCatalogs, clock: ManualClock) -> None:
    opened.sources["main"].hangs = threading.Event()
    pointers.register(of_table("a"))
    pointers.record(of_table("a"), Pointer("a-1", 1000))
    assert pointers.known(of_table("a")) is None  # nothing is asked periodically yet
    pointers.start()
    assert pointers.known(of_table("a")) is not None

    clock.now += 1 + TROUBLE_SECONDS

    assert pointers.known(of_table("a")) is None
    opened.sources["main"].hangs.set()


def test_a_forgotten_dataset_is_not_asked_for(pointers: Pointers, opened: FakeCatalogs) -> None:
    for name in ("a", "b"):
        pointers.register(of_table(name))
    pointers.register(a_dataset("b", table={"catalog": "main", "name": "air.c"}))  # another table now
    pointers.forget("ns/a")
    pointers.start()

    wait_until(lambda: len(opened.sources["main"].asked) >= 2, LIMIT_SECONDS)

    assert set(opened.sources["main"].asked) == {("air.c",)}

"""What is learned of a buffer between two listings, and which batches came before a Restatement."""

import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from lethe.base.objects import BufferedObject
from lethe.buffer import digest
from lethe.buffer.digest import BufferDigest
from lethe.buffer.layout import BufferedBatch
from lethe.iceberg import catalogs
from lethe_operator.dataset.listing import ListingRequest, Listings
from lethe_operator.dataset.listing_schedule import AT_ONCE, REST_AT_LEAST_SECONDS, ListingLimits
from lethe_operator.resources.observed import NotListed

from tests.support.builders import NOW, a_batch
from tests.support.clock import ManualClock, wait_until
from tests.support.resources import a_dataset
from tests.unit.lethe_operator.dataset.gate import LIMIT_SECONDS, ROOT, Gate, clock, gate, listings, seen

__all__ = ["clock", "gate", "listings"]


def a_batch_folder(id: str) -> BufferedBatch:
    """A batch as read from its folder alone."""
    objects = (BufferedObject(f"{ROOT}/batch_id={id}/p.parquet", 10, "e"), BufferedObject(f"{ROOT}/_SUCCESS", 0, "m"))
    return BufferedBatch(id, f"{ROOT}/batch_id={id}", objects, True, 10, NOW)


def ids(listings: Listings, **changes: Any) -> list[str]:
    found = listings.digest(a_dataset(), {}, {}, ListingRequest(**changes))
    assert isinstance(found, BufferDigest)
    return [b.id for b in found.oldest]


def test_a_folder_that_was_read_is_known_without_a_listing(listings: Listings, gate: Gate) -> None:
    seen(listings)
    gate.through.release()
    wait_until(lambda: isinstance(seen(listings), BufferDigest), LIMIT_SECONDS)

    listings.add_folders(a_dataset(), {"batch_id=C": a_batch_folder("C")}, {})

    assert (ids(listings), gate.listings) == (["A", "B", "C"], 1)
    assert isinstance(listings.last(a_dataset("other")), NotListed)


@pytest.mark.parametrize("times", [1, 2])
def test_a_folder_that_a_listing_may_have_passed_by_is_known_after_it(
    listings: Listings, gate: Gate, times: int
) -> None:
    """A came after its turn, C before: neither is lost, neither is counted twice."""
    gate.batch_ids = ("0", "C")
    seen(listings)
    assert gate.reached.acquire(timeout=LIMIT_SECONDS)
    for _ in range(times):
        listings.add_folders(a_dataset(), {f"batch_id={i}": a_batch_folder(i) for i in "AC"}, {})
    gate.through.release()

    wait_until(lambda: isinstance(seen(listings), BufferDigest), LIMIT_SECONDS)
    assert ids(listings) == ["0", "A", "C"]


def test_a_folder_of_another_buffer_is_not_noted(listings: Listings, gate: Gate) -> None:
    """Its reader does not know yet that the Dataset has changed."""
    seen(listings)
    gate.through.release()
    wait_until(lambda: isinstance(seen(listings), BufferDigest), LIMIT_SECONDS)

    listings.add_folders(a_dataset(buffer={"uri": f"{ROOT}-2"}), {"batch_id=C": a_batch_folder("C")}, {})
    listings.add_folders(a_dataset("other"), {"batch_id=C": a_batch_folder("C")}, {})

    assert ids(listings) == ["A", "B"]


def test_a_buffer_of_which_news_come_is_listed_seldom(listings: Listings, gate: Gate, clock: ManualClock) -> None:
    seen(listings)
    gate.through.release()
    wait_until(lambda: isinstance(seen(listings), BufferDigest), LIMIT_SECONDS)
    clock.now += 899

    assert (ids(listings, rest_seconds=900), gate.listings) == (["A", "B"], 1)
    clock.now += 1
    ids(listings, rest_seconds=900)
    wait_until(lambda: gate.listings == 2, LIMIT_SECONDS)
    gate.through.release()


def test_unless_it_holds_more_than_a_listing_can_tell(
    listings: Listings, gate: Gate, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest, "RUNS_AHEAD", 1)
    dataset = a_dataset(consolidation={"maxBatchesPerRun": 1})
    seen(listings, dataset)
    gate.through.release()
    wait_until(lambda: isinstance(seen(listings, dataset), BufferDigest), LIMIT_SECONDS)
    clock.now += REST_AT_LEAST_SECONDS

    listings.digest(dataset, {}, {}, ListingRequest(rest_seconds=900))

    wait_until(lambda: gate.listings == 2, LIMIT_SECONDS)
    gate.through.release()


def test_what_is_settled_makes_room_for_what_comes(listings: Listings, gate: Gate) -> None:
    """Or, with no listing for a long time, all that is known would be batches of long ago."""
    dataset = a_dataset(consolidation={"maxBatchesPerRun": 2})
    seen(listings, dataset)
    gate.through.release()
    wait_until(lambda: isinstance(seen(listings, dataset), BufferDigest), LIMIT_SECONDS)

    listings.drop_settled(dataset, {"A": a_batch("A"), "B": a_batch("B")})
    listings.add_folders(dataset, {f"batch_id={i}": a_batch_folder(i) for i in "CD"}, {})

    found = listings.last(dataset)
    assert isinstance(found, BufferDigest)
    assert ([b.id for b in found.oldest], found.promoted) == (["C", "D"], 2)


def test_more_news_during_a_listing_than_are_remembered_are_made_up_for_by_another(
    listings: Listings, gate: Gate
) -> None:
    dataset = a_dataset(consolidation={"maxBatchesPerRun": 1})
    seen(listings, dataset)
    assert gate.reached.acquire(timeout=LIMIT_SECONDS)

    listings.add_folders(dataset, {f"batch_id={i}": a_batch_folder(i) for i in "CD"}, {})
    gate.through.release()

    wait_until(lambda: bool(seen(listings, dataset)) and gate.listings == 2, LIMIT_SECONDS)
    gate.through.release()


def horizons(found: Any) -> Any:
    return found.horizons if isinstance(found, BufferDigest) else None


def test_only_a_listing_that_began_after_a_restatement_was_known_shows_what_came_before_it(
    listings: Listings, gate: Gate
) -> None:
    """One under way has passed batches by already. Restatements that are not asked for any more are forgotten."""

    def look(*searching: str) -> Any:
        return listings.digest(a_dataset(), {}, {}, ListingRequest(at_once=bool(searching), searching=searching))

    look()
    assert gate.reached.acquire(timeout=LIMIT_SECONDS)
    look("uid-erase")
    gate.through.release()
    wait_until(lambda: isinstance(listings.last(a_dataset()), BufferDigest), LIMIT_SECONDS)
    assert horizons(listings.last(a_dataset())) == {}

    look("uid-erase")
    gate.through.release()
    wait_until(lambda: horizons(listings.last(a_dataset())) == {"uid-erase": NOW}, LIMIT_SECONDS)
    wait_until(lambda: (gate.through.release(), horizons(look("uid-other")))[1] == {"uid-other": NOW}, LIMIT_SECONDS)


def test_a_horizon_stays_while_younger_batches_come(tmp_path: Path, clock: ManualClock) -> None:
    """Else a producer that never stops would keep an Erase from ever starting."""
    listings, dataset = Listings(clock), a_dataset(buffer={"uri": f"file://{tmp_path}"})

    def put(batch_id: str, modified: int) -> None:
        folder = tmp_path / f"batch_id={batch_id}"
        folder.mkdir()
        for name in ("p.parquet", "_SUCCESS"):
            (folder / name).touch()
            os.utime(folder / name, (modified, modified))

    def look() -> dict[str, datetime]:
        clock.now += 60
        return dict(horizons(listings.digest(dataset, {}, {}, ListingRequest(at_once=True, searching=["uid-erase"]))))

    assert look() == {"uid-erase": datetime.min.replace(tzinfo=UTC)}
    put("A", 1000)
    assert look() == {"uid-erase": datetime.min.replace(tzinfo=UTC)}
    listings.forget(dataset.meta.full_name)
    assert look() == {"uid-erase": datetime.fromtimestamp(1000, UTC)}
    put("B", 2000)
    assert look() == {"uid-erase": datetime.fromtimestamp(1000, UTC)}


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The properties of the Dataset's catalog, as a scheduled listing reads them again."""
    write_catalog(tmp_path, "s3.example")
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    return catalogs.properties("main")


def write_catalog(home: Path, host: str) -> None:
    (home / ".pyiceberg.yaml").write_text(f"catalog:\n  main: {{type: sql, s3.endpoint: 'https://{host}'}}\n")


@pytest.fixture
def scheduled(clock: ManualClock) -> Iterator[Listings]:
    listings = Listings(clock, LIMIT_SECONDS, ListingLimits(shortest_seconds=5), spread=lambda: 1.0)
    listings.start()
    yield listings
    listings.stop()


def pass_time(listings: Listings, clock: ManualClock, seconds: float) -> None:
    """Let the thread of the schedule notice that time has passed."""
    clock.now += seconds
    with listings._lock:
        listings._planned.notify_all()


def test_between_reconciles_a_buffer_is_listed_and_its_dataset_is_reported_if_it_has_changed(
    scheduled: Listings, gate: Gate, clock: ManualClock, configured: dict[str, str]
) -> None:
    reported: list[tuple[str, bool]] = []
    scheduled.on_change = lambda meta, is_news: reported.append((meta.full_name, is_news))
    for _ in range(10_000):
        gate.through.release()
    scheduled.digest(a_dataset(), {}, configured, ListingRequest())

    def time_passes() -> None:  # a pause depends on the processor time of the listings before
        pass_time(scheduled, clock, 5)

    wait_until(lambda: gate.listings >= 2, LIMIT_SECONDS, time_passes)
    assert reported == []

    gate.batch_ids = ("A", "B", "C")
    wait_until(lambda: bool(reported), LIMIT_SECONDS, time_passes)

    assert reported == [("ns/flights", True)]
    assert [b.id for b in scheduled.last(a_dataset()).oldest] == ["A", "B", "C"]  # type: ignore[union-attr]


def test_a_first_listing_that_no_reconcile_waits_for_is_no_news(
    scheduled: Listings, gate: Gate, configured: dict[str, str]
) -> None:
    """After a start, the first listings of thousands of buffers must not go before what users have changed."""
    reported: list[tuple[str, bool]] = []
    scheduled.on_change = lambda meta, is_news: reported.append((meta.full_name, is_news))
    scheduled._patience_seconds = 0
    scheduled.digest(a_dataset(), {}, configured, ListingRequest())

    gate.through.release()

    wait_until(lambda: reported == [("ns/flights", False)], LIMIT_SECONDS)


def test_while_the_table_cannot_be_read_its_buffer_is_not_listed(
    scheduled: Listings, gate: Gate, clock: ManualClock, configured: dict[str, str]
) -> None:
    for _ in range(10):
        gate.through.release()
    scheduled.digest(a_dataset(), {}, configured, ListingRequest())
    other = a_dataset("other", buffer={"uri": f"{ROOT}-2"})
    scheduled.digest(other, {}, configured, ListingRequest())

    scheduled.suspend("ns/flights")
    pass_time(scheduled, clock, 5)

    wait_until(lambda: gate.listings == 3, LIMIT_SECONDS)
    wait_until(lambda: scheduled._buffers["ns/other"].planned is not None, LIMIT_SECONDS)
    assert gate.listings == 3  # the other one
    scheduled.digest(a_dataset(), {}, configured, ListingRequest())
    assert gate.listings == 4


def test_other_credentials_are_first_seen_by_a_reconcile(
    scheduled: Listings, gate: Gate, clock: ManualClock, configured: dict[str, str], tmp_path: Path
) -> None:
    """It decides whether the buffer may be read with them."""
    reported: list[str] = []
    scheduled.on_change = lambda meta, _: reported.append(meta.full_name)
    gate.through.release()
    scheduled.digest(a_dataset(), {}, configured, ListingRequest())
    write_catalog(tmp_path, "other.example")

    pass_time(scheduled, clock, 5)

    wait_until(lambda: reported == ["ns/flights"], LIMIT_SECONDS)
    assert gate.listings == 1


def test_many_buffers_are_listed_by_few_threads(clock: ManualClock, gate: Gate) -> None:
    listings = Listings(clock, patience_seconds=0)
    before = threading.active_count()
    datasets = [a_dataset(f"d{n}", buffer={"uri": f"{ROOT}-{n}"}) for n in range(100)]
    for dataset in datasets:
        seen(listings, dataset)

    assert threading.active_count() - before <= AT_ONCE
    assert gate.listings <= AT_ONCE
    for _ in range(100):
        gate.through.release()
    wait_until(lambda: all(isinstance(listings.last(d), BufferDigest) for d in datasets), LIMIT_SECONDS)

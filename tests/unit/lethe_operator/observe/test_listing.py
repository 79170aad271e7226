"""A buffer is listed beside the reconciles, not all the time, and stops when nobody wants it."""

import os
import threading
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from lethe.buffer.batch import BufferedBatch, ListedObject
from lethe.buffer.digest import BufferDigest
from lethe.buffer.layout import layout_of
from lethe.guards.rejections import Around
from lethe.ledger.ledger import BufferedObject
from lethe.storage.buffer import Buffer
from lethe_operator.observe import listing as module
from lethe_operator.observe.listing import (
    REST_AT_LEAST_SECONDS,
    SILENCE_SECONDS,
    SWEEP_WITHIN_SECONDS,
    ListingRequest,
    Listings,
)
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import NotListed, Unavailable

from tests.support.builders import NOW, a_batch, listed
from tests.support.clock import ManualClock, wait_until
from tests.support.resources import a_dataset

ROOT = "s3://lake/buffer/flights"
LIMIT_SECONDS = 20


class Gate:
    """A store whose listing waits half-way until it is let through."""

    def __init__(self, *batch_ids: str) -> None:
        self.batch_ids = batch_ids or ("A", "B")
        self.reached = threading.Semaphore(0)
        self.through = threading.Semaphore(0)
        self.given = 0
        self.listings = 0
        self.error: Exception | None = None

    def list(self, uri: str, hidden: bool = True) -> Iterator[ListedObject]:
        assert not hidden
        self.listings += 1
        for i, id in enumerate(self.batch_ids):
            if i == 1:
                self.reached.release()
                assert self.through.acquire(timeout=LIMIT_SECONDS)
                if self.error is not None:
                    raise self.error
            self.given += 1
            yield listed(f"{uri}/batch_id={id}/_SUCCESS", 0, "m")
            yield listed(f"{uri}/batch_id={id}/p.parquet")

    def find(self, uri: str) -> ListedObject | None:
        raise AssertionError(f"{uri} was looked for")

    def delete(self, objects: Iterable[BufferedObject]) -> int:
        raise AssertionError(f"{objects} were deleted")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    monkeypatch.setattr(
        module, "open_buffer", lambda uri, column, _, layout: Buffer(uri, layout_of(layout, column), gate)
    )
    monkeypatch.setattr(module.surroundings, "around", lambda _uri, _properties: Around())
    monkeypatch.setattr(module.surroundings, "read_claim", lambda _uri, _properties: None)
    return gate


@pytest.fixture
def listings(clock: ManualClock) -> Listings:
    """Nobody waits for a listing."""
    return Listings(clock, patience_seconds=0)


def seen(listings: Listings, dataset: Dataset | None = None, run_ended: bool = False, **entries: Any) -> Any:
    return listings.digest(dataset or a_dataset(), entries, {}, ListingRequest(at_once=run_ended))


def test_a_small_buffer_is_listed_while_its_reconcile_waits(tmp_path: Path) -> None:
    folder = tmp_path / "batch_id=A"
    folder.mkdir()
    (folder / "p.parquet").write_text("rows")
    (folder / "_SUCCESS").touch()

    found = Listings().digest(a_dataset(buffer={"uri": f"file://{tmp_path}"}), {}, {}, ListingRequest())

    assert isinstance(found, BufferDigest)
    assert [(b.id, b.bytes) for b in found.oldest] == [("A", 4)]


def test_reconciles_go_on_with_the_last_digest_while_a_large_one_is_listed(
    listings: Listings, gate: Gate, clock: ManualClock
) -> None:
    assert isinstance(seen(listings), NotListed)
    gate.through.release()
    wait_until(lambda: isinstance(seen(listings), BufferDigest), LIMIT_SECONDS)
    clock.now += REST_AT_LEAST_SECONDS
    before = seen(listings)
    gate.reached.acquire()
    assert gate.reached.acquire(timeout=LIMIT_SECONDS)  # the second one is half-way

    assert seen(listings) == before
    assert (before.batches, gate.listings) == (2, 2)
    other = a_dataset("other", buffer={"uri": f"{ROOT}-other"})
    assert isinstance(seen(listings, other), NotListed)  # asked, not held up
    for _ in range(2):
        gate.through.release()
    wait_until(lambda: isinstance(seen(listings, other), BufferDigest), LIMIT_SECONDS)


def test_a_long_listing_is_followed_by_a_longer_rest(listings: Listings, gate: Gate, clock: ManualClock) -> None:
    seen(listings)
    clock.now += 40
    gate.through.release()
    wait_until(lambda: isinstance(seen(listings), BufferDigest), LIMIT_SECONDS)
    for _ in range(79):
        clock.now += 1
        seen(listings)

    assert gate.listings == 1
    clock.now += 1
    seen(listings)
    wait_until(lambda: gate.listings == 2, LIMIT_SECONDS)
    gate.through.release()


def test_the_end_of_a_run_cuts_the_rest_short(listings: Listings, gate: Gate, clock: ManualClock) -> None:
    seen(listings)
    clock.now += 40
    gate.through.release()
    wait_until(lambda: isinstance(seen(listings), BufferDigest), LIMIT_SECONDS)

    seen(listings, run_ended=True)

    wait_until(lambda: gate.listings == 2, LIMIT_SECONDS)
    gate.through.release()


def test_a_run_that_ends_during_a_listing_is_followed_by_another(listings: Listings, gate: Gate) -> None:
    """The one under way may have passed by what the run has changed."""
    seen(listings)
    assert gate.reached.acquire(timeout=LIMIT_SECONDS)
    seen(listings, run_ended=True)
    gate.through.release()

    wait_until(lambda: bool(seen(listings)) and gate.listings == 2, LIMIT_SECONDS)
    gate.through.release()


@pytest.mark.parametrize("end", ["deleted", "created anew", "another buffer"])
def test_a_listing_that_nobody_wants_stops(listings: Listings, gate: Gate, end: str) -> None:
    gate.batch_ids = tuple(f"b{n}" for n in range(1000))
    seen(listings)
    assert gate.reached.acquire(timeout=LIMIT_SECONDS)
    threads = [t for t in threading.enumerate() if t.name == "listing ns/flights"]

    match end:
        case "deleted":
            listings.forget("ns/flights")
        case "created anew":
            assert isinstance(seen(listings, a_dataset(meta={"uid": "another"})), NotListed)
        case _:
            assert isinstance(seen(listings, a_dataset(buffer={"uri": f"{ROOT}-2"})), NotListed)
    gate.through.release()
    gate.through.release()

    threads[0].join(LIMIT_SECONDS)
    assert not threads[0].is_alive()
    assert gate.given <= 2 + (0 if end == "deleted" else 1000)


def test_a_store_that_is_away_is_told_and_asked_again(listings: Listings, gate: Gate, clock: ManualClock) -> None:
    gate.error = ConnectionError("no route to s3")
    seen(listings)
    clock.now += 40
    gate.through.release()

    wait_until(lambda: isinstance(seen(listings), Unavailable), LIMIT_SECONDS)
    away = seen(listings)
    assert (away.reason, away.transient) == ("StorageUnavailable", True)
    assert away.message == f"Buffer {ROOT}: ConnectionError: no route to s3. The operator retries."

    gate.error = None
    clock.now += REST_AT_LEAST_SECONDS
    seen(listings)
    gate.through.release()
    wait_until(lambda: isinstance(seen(listings), BufferDigest), LIMIT_SECONDS)


def test_a_store_that_hangs_is_told_while_it_hangs(listings: Listings, gate: Gate, clock: ManualClock) -> None:
    """And is not asked a second time meanwhile."""
    seen(listings)
    assert gate.reached.acquire(timeout=LIMIT_SECONDS)
    clock.now += SILENCE_SECONDS + 1

    away = seen(listings)

    assert (away.reason, gate.listings) == ("StorageUnavailable", 1)
    gate.through.release()
    wait_until(lambda: isinstance(seen(listings), BufferDigest), LIMIT_SECONDS)


def expired(*ids: str) -> dict[str, Any]:
    """Entries of batches that were promoted long ago."""
    at = datetime.now(UTC) - timedelta(days=9)
    objects = {i: (BufferedObject(f"{ROOT}/batch_id={i}/p.parquet", 10, "e"),) for i in ids}
    return {i: a_batch(i, time=at, objects=objects[i]) for i in ids}


def test_what_may_be_deleted_is_handed_out_once(listings: Listings, gate: Gate) -> None:
    """A producer may write the same key again, and those rows were never promoted."""
    seen(listings, **expired("A", "B"))
    gate.through.release()
    found: list[Any] = []
    wait_until(lambda: isinstance(found.append(seen(listings)) or found[-1], BufferDigest), LIMIT_SECONDS)

    assert [b.id for b in found[-1].expired] == ["A", "B"]
    assert (seen(listings).expired, seen(listings).promoted) == ((), 2)
    assert listings.last(a_dataset()).expired == ()  # type: ignore[union-attr]


def test_what_may_be_deleted_is_not_handed_out_long_after_it_was_listed(
    listings: Listings, gate: Gate, clock: ManualClock
) -> None:
    seen(listings, **expired("A", "B"))
    gate.through.release()
    wait_until(lambda: listings.last_duration("ns/flights") is not None, LIMIT_SECONDS)
    clock.now += SWEEP_WITHIN_SECONDS + 1

    late = seen(listings)

    assert (late.expired, late.promoted) == ((), 2)
    gate.through.release()


@pytest.mark.parametrize("seconds", [0, 40])
def test_the_end_of_a_listing_that_nobody_waited_for_is_told(
    listings: Listings, gate: Gate, clock: ManualClock, seconds: float
) -> None:
    """Or what it has found would wait for the next event; one that its reconcile waited for needs no other."""
    told: list[str] = []
    listings.on_change = lambda meta: told.append(meta.full_name)
    seen(listings)
    thread = next(t for t in threading.enumerate() if t.name == "listing ns/flights")
    clock.now += seconds
    gate.through.release()
    thread.join(LIMIT_SECONDS)

    assert told == (["ns/flights"] if seconds else [])


def test_how_long_the_last_one_took_is_known(listings: Listings, gate: Gate, clock: ManualClock) -> None:
    seen(listings)
    clock.now += 40
    gate.through.release()

    wait_until(lambda: listings.last_duration("ns/flights") is not None, LIMIT_SECONDS)
    assert listings.last_duration("ns/flights") == (40, 4)


def a_batch_folder(id: str) -> BufferedBatch:
    """As somebody found it who looked at this folder alone."""
    objects = (BufferedObject(f"{ROOT}/batch_id={id}/p.parquet", 10, "e"), BufferedObject(f"{ROOT}/_SUCCESS", 0, "m"))
    return BufferedBatch(id, f"{ROOT}/batch_id={id}", objects, True, 10, NOW)


def ids(listings: Listings, **changes: Any) -> list[str]:
    found = listings.digest(a_dataset(), {}, {}, ListingRequest(**changes))
    assert isinstance(found, BufferDigest)
    return [b.id for b in found.oldest]


def test_a_folder_that_was_looked_at_is_known_without_a_listing(listings: Listings, gate: Gate) -> None:
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
    """Its reader has not heard yet that the Dataset is another one."""
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


def test_unless_it_holds_more_than_a_listing_can_tell(listings: Listings, gate: Gate, clock: ManualClock) -> None:
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


# --- Restatements that have to know what came before them --------------------------------------------------------------


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

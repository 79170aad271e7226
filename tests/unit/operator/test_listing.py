"""A buffer is listed beside the reconciles, not all the time, and stops when nobody wants it."""

import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from lethe.buffer import Buffer
from lethe.ledger.ledger import BufferedObject
from lethe.plan.batches import ListedObject
from lethe.plan.digest import BufferDigest
from lethe.plan.layouts import layout_of
from lethe_operator.observe import listing as module
from lethe_operator.observe.listing import REST_AT_LEAST_SECONDS, SILENCE_SECONDS, SWEEP_WITHIN_SECONDS, Listings
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import NotListed, Unavailable

from tests.builders import a_batch, listed
from tests.unit.operator.builders import a_dataset

ROOT = "s3://lake/buffer/flights"
LIMIT_SECONDS = 20


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


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
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    monkeypatch.setattr(
        module, "open_buffer", lambda uri, column, _, layout: Buffer(uri, layout_of(layout, column), gate)
    )
    return gate


@pytest.fixture
def listings(clock: Clock) -> Listings:
    """Nobody waits for a listing."""
    return Listings(clock, patience_seconds=0)


def seen(listings: Listings, dataset: Dataset | None = None, run_ended: bool = False, **entries: Any) -> Any:
    return listings.digest(dataset or a_dataset(), entries, {}, run_ended)


def eventually(said: Callable[[], bool]) -> bool:
    """The threads of this process only: nothing is waited for but their turn."""
    patience = threading.Event()
    return any(said() or patience.wait(0.01) for _ in range(100 * LIMIT_SECONDS))


def test_a_small_buffer_is_listed_while_its_reconcile_waits(tmp_path: Path) -> None:
    folder = tmp_path / "batch_id=A"
    folder.mkdir()
    (folder / "p.parquet").write_text("rows")
    (folder / "_SUCCESS").touch()

    found = Listings().digest(a_dataset(buffer={"uri": f"file://{tmp_path}"}), {}, {}, run_ended=False)

    assert isinstance(found, BufferDigest)
    assert [(b.id, b.bytes) for b in found.oldest] == [("A", 4)]


def test_reconciles_go_on_with_the_last_digest_while_a_large_one_is_listed(
    listings: Listings, gate: Gate, clock: Clock
) -> None:
    assert isinstance(seen(listings), NotListed)
    gate.through.release()
    assert eventually(lambda: isinstance(seen(listings), BufferDigest))
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
    assert eventually(lambda: isinstance(seen(listings, other), BufferDigest))


def test_a_long_listing_is_followed_by_a_longer_rest(listings: Listings, gate: Gate, clock: Clock) -> None:
    seen(listings)
    clock.now += 40
    gate.through.release()
    assert eventually(lambda: isinstance(seen(listings), BufferDigest))
    for _ in range(79):
        clock.now += 1
        seen(listings)

    assert gate.listings == 1
    clock.now += 1
    seen(listings)
    assert eventually(lambda: gate.listings == 2)
    gate.through.release()


def test_the_end_of_a_run_cuts_the_rest_short(listings: Listings, gate: Gate, clock: Clock) -> None:
    seen(listings)
    clock.now += 40
    gate.through.release()
    assert eventually(lambda: isinstance(seen(listings), BufferDigest))

    seen(listings, run_ended=True)

    assert eventually(lambda: gate.listings == 2)
    gate.through.release()


def test_a_run_that_ends_during_a_listing_is_followed_by_another(listings: Listings, gate: Gate) -> None:
    """The one under way may have passed by what the run has changed."""
    seen(listings)
    assert gate.reached.acquire(timeout=LIMIT_SECONDS)
    seen(listings, run_ended=True)
    gate.through.release()

    assert eventually(lambda: bool(seen(listings)) and gate.listings == 2)
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


def test_a_store_that_is_away_is_told_and_asked_again(listings: Listings, gate: Gate, clock: Clock) -> None:
    gate.error = ConnectionError("no route to s3")
    seen(listings)
    clock.now += 40
    gate.through.release()

    assert eventually(lambda: isinstance(seen(listings), Unavailable))
    away = seen(listings)
    assert (away.reason, away.transient) == ("StorageUnavailable", True)
    assert away.message == f"Buffer {ROOT}: ConnectionError: no route to s3. It is asked again."

    gate.error = None
    clock.now += REST_AT_LEAST_SECONDS
    seen(listings)
    gate.through.release()
    assert eventually(lambda: isinstance(seen(listings), BufferDigest))


def test_a_store_that_hangs_is_told_while_it_hangs(listings: Listings, gate: Gate, clock: Clock) -> None:
    """And is not asked a second time meanwhile."""
    seen(listings)
    assert gate.reached.acquire(timeout=LIMIT_SECONDS)
    clock.now += SILENCE_SECONDS + 1

    away = seen(listings)

    assert (away.reason, gate.listings) == ("StorageUnavailable", 1)
    gate.through.release()
    assert eventually(lambda: isinstance(seen(listings), BufferDigest))


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
    assert eventually(lambda: isinstance(found.append(seen(listings)) or found[-1], BufferDigest))

    assert [b.id for b in found[-1].expired] == ["A", "B"]
    assert (seen(listings).expired, seen(listings).promoted) == ((), 2)
    assert listings.last(a_dataset()).expired == ()  # type: ignore[union-attr]


def test_what_may_be_deleted_is_not_handed_out_long_after_it_was_listed(
    listings: Listings, gate: Gate, clock: Clock
) -> None:
    seen(listings, **expired("A", "B"))
    gate.through.release()
    assert eventually(lambda: listings.taken("ns/flights") is not None)
    clock.now += SWEEP_WITHIN_SECONDS + 1

    late = seen(listings)

    assert (late.expired, late.promoted) == ((), 2)
    gate.through.release()


@pytest.mark.parametrize("seconds", [0, 40])
def test_the_end_of_a_listing_that_nobody_waited_for_is_told(
    listings: Listings, gate: Gate, clock: Clock, seconds: float
) -> None:
    """Or what it has found would wait for the next event; one that its reconcile waited for needs no other."""
    told: list[str] = []
    listings.told = lambda meta: told.append(meta.full_name)
    seen(listings)
    thread = next(t for t in threading.enumerate() if t.name == "listing ns/flights")
    clock.now += seconds
    gate.through.release()
    thread.join(LIMIT_SECONDS)

    assert told == (["ns/flights"] if seconds else [])


def test_how_long_the_last_one_took_is_known(listings: Listings, gate: Gate, clock: Clock) -> None:
    seen(listings)
    clock.now += 40
    gate.through.release()

    assert eventually(lambda: listings.taken("ns/flights") is not None)
    assert listings.taken("ns/flights") == (40, 4)

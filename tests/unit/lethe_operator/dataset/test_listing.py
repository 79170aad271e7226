"""A buffer is listed in parallel with reconciles, not all the time, and the listing stops when it is no longer needed."""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from lethe.base.objects import BufferedObject
from lethe.buffer.digest import BufferDigest
from lethe_operator.dataset import listing
from lethe_operator.dataset.listing import SILENCE_SECONDS, ListingRequest, Listings
from lethe_operator.dataset.listing_schedule import AT_ONCE, REST_AT_LEAST_SECONDS, ListingLimits
from lethe_operator.resources.observed import NotListed, Unavailable

from tests.support.builders import a_batch
from tests.support.clock import ManualClock, wait_until
from tests.support.resources import a_dataset
from tests.unit.lethe_operator.dataset.gate import LIMIT_SECONDS, ROOT, Gate, clock, gate, listings, seen

__all__ = ["clock", "gate", "listings"]


def test_a_small_buffer_is_listed_while_its_reconcile_waits(tmp_path: Path) -> None:
    folder = tmp_path / "batch_id=A"
    folder.mkdir()
    (folder / "p.parquet").write_text("rows")
    (folder / "_SUCCESS").touch()

    found = Listings().digest(a_dataset(buffer={"uri": f"file://{tmp_path}"}), {}, {}, ListingRequest())

    assert isinstance(found, BufferDigest)
    assert [(b.id, b.bytes) for b in found.oldest] == [("A", 4)]


def test_files_of_one_id_do_not_keep_others_from_being_promoted(tmp_path: Path, clock: ManualClock) -> None:
    """Nobody knows which of two files of one id is the batch, so both stay. Here there are as many as a digest names."""
    for n in range(8):
        for extension in ("csv", "parquet"):
            (tmp_path / f"twin{n}.{extension}").write_text("rows")
            os.utime(tmp_path / f"twin{n}.{extension}", (n, n))
    (tmp_path / "good.parquet").write_text("rows")
    (tmp_path / "later.parquet").write_text("rows")
    dataset = a_dataset(buffer={"uri": f"file://{tmp_path}", "layout": "File"}, consolidation={"maxBatchesPerRun": 1})
    listings = Listings(clock)
    found = [listings.digest(dataset, {}, {}, ListingRequest(at_once=True)) for _ in range(2)]

    last = found[-1]
    assert isinstance(last, BufferDigest)
    assert ({b.id for b in last.oldest}, last.batches, last.invalid) == ({"good", "later"}, 2, 16)


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


def test_new_batches_are_found_beside_a_listing_that_takes_long(
    listings: Listings, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen(listings)
    gate.through.release()
    wait_until(lambda: isinstance(seen(listings), BufferDigest), LIMIT_SECONDS)
    gate.batch_ids = tuple("ABCDE")
    seen(listings, run_ended=True)  # is held up half-way
    assert listings.is_listed_now(a_dataset())
    monkeypatch.setattr(listing, "NEW_OBJECTS_AT_MOST", 6)

    def found(new: bool = True) -> int:
        return int(listings.digest(a_dataset(), {}, {}, ListingRequest(new=new)).batches)

    wait_until(lambda: found() == 5, LIMIT_SECONDS)
    assert gate.after[:2] == ["batch_id=B", "batch_id=D"]  # not all at once
    assert gate.listings == 2
    gate.through.release()
    wait_until(lambda: listings._buffers["ns/flights"].running is None, LIMIT_SECONDS)
    assert found(new=False) == 5


def test_new_batches_that_are_found_late_lead_to_another_reconcile(listings: Listings, gate: Gate) -> None:
    reported: list[bool] = []
    seen(listings)
    gate.through.release()
    wait_until(lambda: isinstance(seen(listings), BufferDigest), LIMIT_SECONDS)
    listings.on_change = lambda _, is_news: reported.append(is_news)
    gate.batch_ids = tuple("ABC")

    assert not listings.is_listed_now(a_dataset())
    listings.digest(a_dataset(), {}, {}, ListingRequest(new=True))

    wait_until(lambda: reported == [True], LIMIT_SECONDS)
    assert not listings.is_listed_now(a_dataset())
    assert seen(listings).batches == 3


def test_a_reconcile_that_can_start_a_restatement_does_not_wait_for_a_listing(gate: Gate, clock: ManualClock) -> None:
    reported: list[bool] = []
    listings = Listings(clock, patience_seconds=10 * LIMIT_SECONDS)
    listings.on_change = lambda _, is_news: reported.append(is_news)
    gate.through.release()
    seen(listings)
    assert gate.reached.acquire(timeout=LIMIT_SECONDS)
    gate.batch_ids = tuple("ABC")

    before = listings.digest(a_dataset(), {}, {}, ListingRequest(at_once=True, new=True, waits=False))

    assert gate.reached.acquire(timeout=LIMIT_SECONDS)
    assert isinstance(before, BufferDigest)
    gate.through.release()
    wait_until(lambda: True in reported, LIMIT_SECONDS)
    assert listings.last(a_dataset()).batches == 3  # type: ignore[union-attr]


@pytest.mark.parametrize("end", ["deleted", "created anew", "another buffer"])
def test_a_listing_that_is_no_longer_needed_stops(listings: Listings, gate: Gate, end: str) -> None:
    gate.batch_ids = tuple(f"b{n}" for n in range(1000))
    seen(listings)
    assert gate.reached.acquire(timeout=LIMIT_SECONDS)
    running = listings._buffers["ns/flights"].running
    assert running is not None

    match end:
        case "deleted":
            listings.forget("ns/flights")
        case "created anew":
            assert isinstance(seen(listings, a_dataset(meta={"uid": "another"})), NotListed)
        case _:
            assert isinstance(seen(listings, a_dataset(buffer={"uri": f"{ROOT}-2"})), NotListed)
    gate.through.release()
    gate.through.release()

    assert running.done.wait(LIMIT_SECONDS)
    assert gate.given <= 2 + (0 if end == "deleted" else 1000)


def test_a_store_that_does_not_answer_is_reported_and_retried(
    listings: Listings, gate: Gate, clock: ManualClock
) -> None:
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


def test_a_store_that_hangs_is_reported_while_it_hangs(listings: Listings, gate: Gate, clock: ManualClock) -> None:
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


def test_a_sweep_begins_once_for_each_listing(listings: Listings, gate: Gate) -> None:
    """The sweep lists the buffer itself, so many reconciles of one listing would only begin the same one."""
    seen(listings, **expired("A", "B"))
    gate.through.release()
    found: list[Any] = []
    wait_until(lambda: isinstance(found.append(seen(listings)) or found[-1], BufferDigest), LIMIT_SECONDS)

    assert found[-1].expired == 2
    assert (seen(listings).expired, seen(listings).promoted) == (0, 2)
    assert listings.last(a_dataset()).expired == 0  # type: ignore[union-attr]


def test_a_buffer_that_nothing_may_clean_up_is_listed_ever_more_rarely(gate: Gate, clock: ManualClock) -> None:
    """While its Dataset is paused, or if the credentials may not delete. Where batches go, the next listing is soon."""
    listings = Listings(clock, patience_seconds=LIMIT_SECONDS, spread=lambda: 1.0)
    old = expired("A", "B", "C")

    def pause_after(*batch_ids: str) -> float:
        gate.batch_ids = batch_ids
        gate.through.release()
        seen(listings, **old)
        pause = listings.pause_seconds("ns/flights")
        assert pause is not None
        clock.now += pause
        return pause

    assert [pause_after("A", "B", "C") for _ in range(4)] == [5, 10, 15, 15]
    assert pause_after("A", "B") == 5


def test_the_end_of_a_listing_that_no_reconcile_waits_for_is_reported(listings: Listings, gate: Gate) -> None:
    """Or what it has found would wait for the next event."""
    reported: list[str] = []
    listings.on_change = lambda meta, _: reported.append(meta.full_name)
    seen(listings)
    gate.through.release()

    wait_until(lambda: reported == ["ns/flights"], LIMIT_SECONDS)


def test_the_end_of_a_listing_that_its_reconcile_waits_for_is_not_reported(gate: Gate, clock: ManualClock) -> None:
    listings, reported = Listings(clock, patience_seconds=LIMIT_SECONDS), []
    listings.on_change = lambda meta, _: reported.append(meta.full_name)
    gate.through.release()

    assert isinstance(seen(listings), BufferDigest)
    wait_until(lambda: bool(listings._threads._idle), LIMIT_SECONDS)
    assert reported == []


def test_a_reconcile_does_not_wait_for_a_listing_whose_turn_has_not_come(gate: Gate, clock: ManualClock) -> None:
    """Thousands of listings may be overdue; the digest of the last one is enough, and news leads to another reconcile."""
    limits = ListingLimits(shortest_seconds=REST_AT_LEAST_SECONDS)
    listings = Listings(clock, patience_seconds=LIMIT_SECONDS, limits=limits, spread=lambda: 1.0)
    reported: list[str] = []
    listings.on_change = lambda meta, _: reported.append(meta.name)
    gate.through.release()
    before = seen(listings)
    assert gate.reached.acquire(timeout=LIMIT_SECONDS)
    clock.now += REST_AT_LEAST_SECONDS
    others = [a_dataset(f"other-{n}", buffer={"uri": f"{ROOT}-{n}"}) for n in range(AT_ONCE)]
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(seen, listings, other) for other in others]
        assert all(gate.reached.acquire(timeout=LIMIT_SECONDS) for _ in others)

        assert pool.submit(seen, listings).result(timeout=LIMIT_SECONDS / 2) == before

        gate.batch_ids = ("A", "B", "C")
        for _ in range(AT_ONCE + 1):
            gate.through.release()
        assert all(isinstance(w.result(timeout=LIMIT_SECONDS), BufferDigest) for w in waiting)
    wait_until(lambda: reported == ["flights"], LIMIT_SECONDS)


def test_how_long_the_last_one_took_is_known(listings: Listings, gate: Gate, clock: ManualClock) -> None:
    seen(listings)
    clock.now += 40
    gate.through.release()

    wait_until(lambda: listings.last_duration("ns/flights") is not None, LIMIT_SECONDS)
    assert listings.last_duration("ns/flights") == (40, 4)

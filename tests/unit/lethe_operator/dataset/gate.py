"""A store whose listing waits until a test lets it continue, and listings that read from it."""

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from lethe.base.objects import BufferedObject, ListedObject
from lethe_operator.dataset import listing
from lethe_operator.dataset.listing import ListingRequest, Listings
from lethe_operator.dataset.listing_schedule import ListingLimits
from lethe_operator.resources.dataset import Dataset

from tests.support.builders import listed
from tests.support.clock import ManualClock
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
        self.after: list[str] = []  # the names from which new batches were looked for

    def list(self, uri: str, hidden: bool = True, after: str = "") -> Iterator[ListedObject]:
        assert not hidden
        if after:
            yield from self._new(uri, after)
            return
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

    def _new(self, uri: str, after: str) -> Iterator[ListedObject]:
        """What is listed from a name on, without waiting."""
        self.after.append(after)
        for id in (i for i in self.batch_ids if f"batch_id={i}" >= after):
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
    monkeypatch.setattr(listing, "open_store", lambda _uri, _properties: gate)
    monkeypatch.setattr(listing.shared_folders, "places_around", lambda _uri: ())
    monkeypatch.setattr(listing.shared_folders, "claim_in", lambda _store, _uri: None)
    return gate


@pytest.fixture
def listings(clock: ManualClock) -> Listings:
    """Reconciles do not wait for a listing."""
    return Listings(clock, patience_seconds=0, limits=ListingLimits(shortest_seconds=5), spread=lambda: 1.0)


def seen(listings: Listings, dataset: Dataset | None = None, run_ended: bool = False, **entries: Any) -> Any:
    return listings.digest(dataset or a_dataset(), entries, {}, ListingRequest(at_once=run_ended))

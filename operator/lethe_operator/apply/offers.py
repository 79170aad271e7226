"""Runs whose intent is stored and that wait for others to share a driver with. In memory, shared by threads.

A restart loses nothing: the next reconcile of a Dataset offers an intent without a Job again.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from lethe_operator.apply.launch import Prepared
from lethe_operator.build.sharing import Company
from lethe_operator.decide.runs.driver_sharing import DriverGroups, WaitingRun, gather
from lethe_operator.settings import SharedRuns


@dataclass(frozen=True)
class Offer:
    """A run that may share a driver."""

    prepared: Prepared
    company: Company  # which runs may share its driver
    since: datetime  # when it was offered first

    @property
    def dataset(self) -> str:
        return self.prepared.wanted.run.dataset.name


@dataclass
class Offers:
    """One per operator. While a Dataset is reconciled, its offered run does not start; while that run starts, the Dataset is not
    reconciled. So a reconcile that starts another run has always seen this run's Job."""

    # Called with the namespace in which a run was offered.
    on_offer: Callable[[str], None] = lambda _: None
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _busy: set[tuple[str, str]] = field(default_factory=set)
    _offers: dict[tuple[str, str], Offer] = field(default_factory=dict)

    @contextmanager
    def reconciling(self, namespace: str, dataset: str) -> Iterator[None]:
        """Wait until no other thread starts the Dataset's run, and keep it so."""
        key = (namespace, dataset)
        with self._changed:
            self._changed.wait_for(lambda: key not in self._busy)
            self._busy.add(key)
            before = self._offers.get(key)
        try:
            yield
        except BaseException:
            if self._offers.get(key) is before:  # not offered again: it is unknown whether it is still wanted
                self.withdraw(namespace, dataset)
            raise
        finally:
            self._release([key])

    def put(self, namespace: str, offer: Offer) -> None:
        """Offer a run. The same run offered again keeps the time of its first offer."""
        key = (namespace, offer.dataset)
        with self._changed:
            before = self._offers.get(key)
            same = before is not None and before.prepared.wanted.run.run_id == offer.prepared.wanted.run.run_id
            since = before.since if before is not None and same else offer.since
            self._offers[key] = Offer(offer.prepared, offer.company, since)
        if not same:
            self.on_offer(namespace)

    def withdraw(self, namespace: str, dataset: str) -> None:
        """Remove the offer: the run is no longer wanted, or was started."""
        with self._changed:
            self._offers.pop((namespace, dataset), None)

    @contextmanager
    def taken(
        self, namespace: str, now: datetime, limits: SharedRuns
    ) -> Iterator[tuple[DriverGroups, Mapping[str, Offer]]]:
        """Which runs start now, and their offers by Dataset. Until the context ends, these Datasets are not reconciled."""
        with self._changed:
            offers = {name: o for (n, name), o in self._offers.items() if n == namespace}
            busy = {name for n, name in self._busy if n == namespace}
            gathered = gather([WaitingRun(o.dataset, o.company, o.since) for o in offers.values()], busy, now, limits)
            keys = [(namespace, name) for group in gathered.groups for name in group]
            self._busy.update(keys)
        try:
            yield gathered, offers
        finally:
            self._release(keys)

    def _release(self, keys: Collection[tuple[str, str]]) -> None:
        with self._changed:
            self._busy.difference_update(keys)
            self._changed.notify_all()

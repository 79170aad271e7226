"""A Dataset is in one hand at a time: whoever reconciles it, or whoever starts the run that it offered."""

import threading

import pytest
from lethe_operator.apply.launch import Prepared
from lethe_operator.apply.offers import Offer, Offers
from lethe_operator.build.sharing import Company
from lethe_operator.build.sizing import size
from lethe_operator.decide.actions import Launch
from lethe_operator.resources.dataset import RunTemplate
from lethe_operator.settings import SharedRuns

from tests.support.builders import NOW, ago
from tests.support.resources import a_buffered, a_consolidation, a_dataset

LIMITS = SharedRuns(enabled=True, gather_seconds=5)


def an_offer(dataset: str = "a", seconds: float = 60, batch: str = "A") -> Offer:
    run = a_consolidation(a_buffered(batch), dataset=a_dataset(dataset))
    prepared = Prepared(Launch(run, 10, 1, "1 batches"), size(0, RunTemplate()), RunTemplate())
    return Offer(prepared, Company("main", ""), ago(seconds=seconds))


def starts(offers: Offers) -> list[str]:
    with offers.taken("ns", NOW, LIMITS) as (gathered, _):
        return [name for group in gathered.groups for name in group]


def test_a_run_does_not_start_while_its_dataset_is_reconciled() -> None:
    """The reconcile may be about to start another run, or have seen no Job of this one."""
    offers = Offers()
    offers.put("ns", an_offer("a"))
    offers.put("ns", an_offer("b"))

    with offers.reconciling("ns", "a"):
        meanwhile = starts(offers)

    assert (meanwhile, starts(offers)) == (["b"], ["a", "b"])


def test_a_dataset_is_not_reconciled_while_its_run_is_being_started() -> None:
    """So that what the reconcile sees of its Jobs holds this one."""
    offers, order = Offers(), list[str]()
    offers.put("ns", an_offer("a"))

    def reconcile() -> None:
        with offers.reconciling("ns", "a"):
            order.append("reconciled")

    thread = threading.Thread(target=reconcile)
    with offers.taken("ns", NOW, LIMITS), offers.reconciling("ns", "b"):
        thread.start()
        thread.join(timeout=0.2)  # as long as it would take if nothing held it back, and more
        order.append("started")
    thread.join(timeout=10)

    assert order == ["started", "reconciled"]


def test_datasets_of_other_namespaces_share_no_driver() -> None:
    offers = Offers()
    offers.put("elsewhere", an_offer("a"))

    with offers.reconciling("ns", "a"):
        assert starts(offers) == []


def test_a_run_that_is_offered_again_has_waited_since_the_first_time_and_another_has_not() -> None:
    """Each reconcile offers it again; only the first offer is reported."""
    told: list[str] = []
    offers = Offers(told.append)
    offers.put("ns", an_offer("a", seconds=6))
    offers.put("ns", an_offer("a", seconds=0))
    first = starts(offers)

    offers.put("ns", an_offer("a", seconds=0, batch="B"))

    assert (first, starts(offers), told) == (["a"], [], ["ns", "ns"])


def test_a_reconcile_that_fails_takes_its_offer_back() -> None:
    """It was decided on an observation that could not be repeated."""
    offers = Offers()
    offers.put("ns", an_offer("a"))

    with pytest.raises(ConnectionError), offers.reconciling("ns", "a"):
        raise ConnectionError

    assert starts(offers) == []


def test_a_reconcile_that_offers_and_then_fails_at_something_else_leaves_its_offer() -> None:
    """Else what fails every time, such as a status that may not be written, would keep the run from ever starting."""
    offers = Offers()
    offers.put("ns", an_offer("a"))

    def reconcile() -> None:
        with offers.reconciling("ns", "a"):
            offers.put("ns", an_offer("a", seconds=0))
            raise ConnectionError

    with pytest.raises(ConnectionError):
        reconcile()

    assert starts(offers) == ["a"]

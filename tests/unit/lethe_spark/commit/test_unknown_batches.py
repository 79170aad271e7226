"""A run lists the buffer only for batches that it found nowhere else, and never refuses a batch that may wait there."""

from lethe.base.errors import Verdict
from lethe.contract.settings import UnknownBatches
from lethe_spark.commit.group_commit import look_for

from tests.support.builders import a_batch, a_ledger, a_request, a_request_entry

LEDGER = a_ledger(batches=[a_batch("A")], requests=[a_request_entry("ns/done/0")])


def no_listing() -> frozenset[str]:
    raise AssertionError("the buffer was listed")


def test_nothing_is_listed_for_known_batches_done_requests_and_those_that_may_be_unknown() -> None:
    requests = [
        a_request("known", batch_ids=("A", "F")),
        a_request("done", batch_ids=("X",)),
        a_request("allowed", batch_ids=("X",), unknown_batches=UnknownBatches.ALLOW),
    ]

    assert look_for(LEDGER, requests, {"F"}, no_listing) == (frozenset(), {})


def test_what_is_in_neither_the_ledger_nor_files_nor_the_buffer_is_absent() -> None:
    requests = [a_request("first", batch_ids=("A", "W", "X")), a_request("second", batch_ids=("F", "Y"))]

    assert look_for(LEDGER, requests, {"F"}, lambda: {"W", "other"}) == ({"X", "Y"}, {})


def test_without_a_listing_the_requests_that_need_it_wait_and_the_others_go_on() -> None:
    needs, other = a_request("needs", batch_ids=("A", "X")), a_request("other", batch_ids=("A",))
    allowed = a_request("allowed", batch_ids=("X",), unknown_batches=UnknownBatches.ALLOW)

    absent, aside = look_for(
        LEDGER, [needs, other, allowed], (), lambda: Verdict("AccessDenied", "denied.", transient=True)
    )

    assert absent == frozenset()
    assert {key: (r.succeeded, r.again, r.reason) for key, r in aside.items()} == {
        needs.key: (False, True, "AccessDenied")
    }

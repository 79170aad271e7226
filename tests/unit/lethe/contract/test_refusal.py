"""A refusal is the same value before and after it is kept as one text in a ledger."""

from dataclasses import replace

import pytest
from lethe.contract.result import RefusedBatch, RequestOutcome, RequestResult
from lethe.contract.settings import Refusal
from lethe.ledger.format import BATCHES
from lethe.ledger.ledger import BatchState

from tests.support.builders import a_batch

REFUSAL = Refusal("SchemaMismatch", "p2: column v: text")


def test_a_refusal_survives_the_ledger_and_the_result() -> None:
    entry = a_batch("A", BatchState.REFUSED, refusal=REFUSAL)
    record = BATCHES.to_record(entry)

    assert record["refusal"] == "SchemaMismatch: p2: column v: text"
    assert BATCHES.of_record(record) == entry
    assert RefusedBatch.of("A", REFUSAL).refusal == REFUSAL


@pytest.mark.parametrize("text", ["nobody knows why", "a reason: with a blank", "", "Reason:without a blank"])
def test_a_text_of_an_earlier_version_is_kept_as_it_is(text: str) -> None:
    found = Refusal.parse(text)

    assert (found.reason, found.message, str(found)) == ("", text, text)
    assert str(replace(found, reason="Why")) == f"Why: {text}"


def test_a_request_succeeded_or_was_postponed_or_refused() -> None:
    def result(succeeded: bool, again: bool = False) -> RequestResult:
        return RequestResult(key="k", name="n", succeeded=succeeded, again=again, reason="R", message="m")

    outcomes = [r.outcome for r in (result(True), result(False, again=True), result(False))]

    assert outcomes == [RequestOutcome.SUCCEEDED, RequestOutcome.POSTPONED, RequestOutcome.REFUSED]
    assert result(False).refusal == Refusal("R", "m")

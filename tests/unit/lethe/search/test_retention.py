"""Which batches are too old, and from which day on."""

from datetime import UTC, date, datetime, timedelta

import pytest
from lethe.base.errors import InputError
from lethe.contract.run import RetentionSpec
from lethe.ledger.ledger import BatchState, Ledger
from lethe.search.retention import Retention, retention_of
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from tests.support.builders import FIELD, a_batch, a_ledger

CUTOFF = date(2024, 6, 1)
START = datetime(2024, 6, 1, tzinfo=UTC)
LATER = START + timedelta(days=900)
OLD = START - timedelta(seconds=1)


def retention(ledger: Ledger, now: datetime = LATER, column: str = "") -> Retention:
    spec = RetentionSpec(column=column, max_age_days=30, cutoff=CUTOFF)
    return retention_of(spec, Schema(NestedField(1, "n", LongType())), {}, ledger, FIELD, now, "air.flights")


def test_promoted_batches_are_too_old_before_the_day_and_those_that_were_taken_back_are_left_to_their_tombstones() -> (
    None
):
    ledger = a_ledger(
        "reverted",
        batches=[
            a_batch("old", time=OLD, partitions=("0/[1]",)),
            a_batch("first moment", time=START),
            a_batch("later", time=START + timedelta(days=5)),
            a_batch("reverted", BatchState.REVERTED, time=OLD),
            a_batch("refused", BatchState.REFUSED, time=OLD),
            a_batch("held", BatchState.HELD, time=OLD),
        ],
    )

    found = retention(ledger)

    assert [(t.id, t.namespace, t.partitions) for t in found.batches] == [("old", FIELD, ("0/[1]",))]
    assert found.next_cutoff == CUTOFF + timedelta(days=1)


def test_a_batch_with_an_active_tombstone_is_not_counted_twice() -> None:
    """Another process may have set it between two reads of a ledger."""
    assert retention(a_ledger("A", batches=[a_batch("A", time=OLD)])).batches == ()


def test_a_run_whose_clock_is_behind_the_operators_removes_no_row_before_its_own_time() -> None:
    assert retention(a_ledger(), now=START + timedelta(days=29, hours=23)).cutoff == CUTOFF - timedelta(days=1)
    assert retention(a_ledger(), now=START + timedelta(days=30)).cutoff == CUTOFF


def test_a_wrong_column_is_named_with_its_table_and_its_type() -> None:
    with pytest.raises(InputError) as refused:
        retention(a_ledger(), column="n")

    assert refused.value.reason == "InvalidRetention"
    assert (
        "air.flights: spec.retention.column of the VacuumPolicy is 'n', which is of type long" in refused.value.message
    )

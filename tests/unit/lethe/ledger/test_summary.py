"""Every key is on every snapshot of ours, so that nobody walks past it to an older ledger."""

import pytest
from lethe.ledger.ledger import Ledger
from lethe.ledger.summary import WrittenLedger, summary

from tests.builders import a_ledger, a_tombstone

ALWAYS = {
    "lethe.ledger",
    "lethe.run-id",
    "lethe.run-kind",
    "tombstone.file",
    "tombstone.metrics.added.count",
    "tombstone.metrics.deleted.count",
    "tombstone.metrics.total.count",
}
WRITTEN = WrittenLedger("root.json", "t.avro")


@pytest.mark.parametrize(
    ("before", "after", "counts"),
    [
        (a_ledger(), a_ledger(), ("0", "0", "0")),
        (a_ledger(), a_ledger("A", "B"), ("2", "0", "2")),
        (a_ledger("A", "B"), a_ledger("B", "C"), ("1", "1", "2")),
        (a_ledger("A"), a_ledger(), ("0", "1", "0")),
        (a_ledger("A"), a_ledger(a_tombstone("A", restatements=["r1", "r2"])), ("0", "0", "1")),
    ],
)
def test_every_key_is_there_even_when_nothing_changed(before: Ledger, after: Ledger, counts: tuple[str, ...]) -> None:
    """An emptied set that left its key out would let a reader find the tombstones of an older snapshot."""
    keys = summary(before, after, WRITTEN, "run", "Restatement")

    assert set(keys) == ALWAYS
    assert (keys["lethe.ledger"], keys["tombstone.file"]) == ("root.json", "t.avro")
    assert counts == tuple(keys[f"tombstone.metrics.{k}.count"] for k in ("added", "deleted", "total"))


def test_a_vacuum_also_names_what_it_applied_which_may_be_more_than_what_it_ended() -> None:
    """A's file was rewritten and A stays active: its rows still have to be found by whoever reads increments."""
    keys = summary(
        a_ledger("A", "B"),
        a_ledger("A"),
        WrittenLedger("root.json", "t.avro", "v.avro"),
        "run",
        "Vacuum",
        [a_tombstone("A"), a_tombstone("B")],
    )

    assert set(keys) == ALWAYS | {"tombstone.vacuum.file", "tombstone.metrics.vacuum.count"}
    assert (keys["tombstone.vacuum.file"], keys["tombstone.metrics.vacuum.count"]) == ("v.avro", "2")
    assert keys["tombstone.metrics.deleted.count"] == "1"


def test_a_vacuum_that_applied_nothing_says_so_with_an_empty_file() -> None:
    keys = summary(a_ledger("A"), a_ledger(), WrittenLedger("root.json", "t.avro", "v.avro"), "run", "Vacuum", [])

    assert keys["tombstone.metrics.vacuum.count"] == "0"


def test_any_other_commit_does_not_copy_the_vacuum_keys() -> None:
    """A re-stamp or a restatement that carried a vacuum's keys on would report its rows as deleted twice."""
    assert not any("vacuum" in k for k in summary(a_ledger("A"), a_ledger("A"), WRITTEN, "run", "Restatement"))

"""Every key is on every snapshot of ours, so that nobody walks past it to an older ledger."""

from lethe.ledger.lineage import WrittenLedger, summary

ALWAYS = {
    "lethe.ledger",
    "lethe.run-id",
    "lethe.run-kind",
    "tombstone.file",
    "tombstone.metrics.added.count",
    "tombstone.metrics.deleted.count",
    "tombstone.metrics.total.count",
}


def test_every_key_is_there_even_when_nothing_changed() -> None:
    """An emptied set that left its key out would let a reader find the tombstones of an older snapshot."""
    keys = summary(WrittenLedger("root.json", "t.avro", added=0, deleted=0, total=0), "run", "Restatement")

    assert set(keys) == ALWAYS
    assert (keys["lethe.ledger"], keys["tombstone.file"]) == ("root.json", "t.avro")
    assert [keys[f"tombstone.metrics.{k}.count"] for k in ("added", "deleted", "total")] == ["0", "0", "0"]


def test_a_vacuum_also_names_what_it_applied_which_may_be_more_than_what_it_ended() -> None:
    """A's file was rewritten and A stays active: its rows still have to be found by whoever reads increments."""
    keys = summary(WrittenLedger("root.json", "t.avro", 0, 1, 1, "v.avro", 2), "run", "Vacuum")

    assert set(keys) == ALWAYS | {"tombstone.vacuum.file", "tombstone.metrics.vacuum.count"}
    assert (keys["tombstone.vacuum.file"], keys["tombstone.metrics.vacuum.count"]) == ("v.avro", "2")
    assert keys["tombstone.metrics.deleted.count"] == "1"


def test_a_vacuum_that_applied_nothing_has_an_empty_file() -> None:
    assert (
        summary(WrittenLedger("root.json", "t.avro", 0, 0, 0, "v.avro", 0), "r", "Vacuum")[
            "tombstone.metrics.vacuum.count"
        ]
        == "0"
    )

"""Each batch is promoted once, whatever was written, staged or remembered by whom."""

from lethe.buffer.promotion import (
    JudgedBatch,
    Promotion,
    Publish,
    WriteAgain,
    WrittenBatch,
    WrittenFiles,
    plan_promotion,
    plan_publication,
)
from lethe.contract.settings import Refusal
from lethe.ledger.ledger import BatchState, Ledger

from tests.support.builders import NOW, RUN, a_batch, a_ledger, an_object

BAD = Refusal.parse("bad")

EVERY_STATE = a_ledger(
    batches=[
        a_batch("promoted"),
        a_batch("reverted", BatchState.REVERTED),
        a_batch("replaced", BatchState.REPLACED),
        a_batch("erased", BatchState.ERASED),
        a_batch("refused", BatchState.REFUSED),
    ]
)


def written(*ids: str, in_table: bool = False) -> WrittenFiles:
    return WrittenFiles({i: WrittenBatch(i, 3, 30, (an_object(i),)) for i in ids}, in_table=in_table)


def test_a_batch_deleted_before_it_arrived_is_withheld_and_reported() -> None:
    """A is replaced while it still waits in the buffer; promoting it afterwards would double its rows."""
    wanted = ["new", "promoted", "reverted", "replaced", "erased", "refused", "new"]

    planned = plan_promotion(EVERY_STATE, wanted)

    assert planned == Promotion(("new", "refused"), ("promoted",), ("reverted", "replaced", "erased"))


def test_a_publication_records_each_object_so_that_retention_deletes_nothing_else() -> None:
    refused = {"X": JudgedBatch(Refusal("CorruptFile", "x.parquet"), (an_object("X"),))}

    planned = plan_publication(a_ledger(), written("A", "B"), refused, RUN, NOW)

    assert isinstance(planned, Publish)
    entries = {b.id: b for b in planned.delta.set_batches}
    assert {i: str(b.state) for i, b in entries.items()} == {"A": "promoted", "B": "promoted", "X": "refused"}
    assert (entries["A"].objects, entries["A"].rows, entries["A"].run) == ((an_object("A"),), 3, RUN)
    assert entries["X"].refusal == Refusal("CorruptFile", "x.parquet")
    assert entries["X"].objects == (an_object("X"),)


def test_files_shared_with_a_batch_that_another_writer_promoted_are_written_again() -> None:
    """Run 1 stages {A, B} in one file and dies, another writer promotes A. Publishing the file doubles A, dropping it
    loses B, and hiding A would hide the good copy too."""
    ledger = a_ledger(batches=[a_batch("A", run="other")])

    assert WriteAgain(("B",)) == plan_publication(ledger, written("A", "B"), {}, RUN, NOW)


def test_files_shared_with_a_deleted_batch_are_written_again() -> None:
    for state in (BatchState.REVERTED, BatchState.REPLACED, BatchState.ERASED):
        ledger = a_ledger(batches=[a_batch("A", state)])

        assert WriteAgain(("B",)) == plan_publication(ledger, written("A", "B"), {}, RUN, NOW)


def test_files_of_batches_that_are_all_promoted_leave_nothing_to_write() -> None:
    ledger: Ledger = a_ledger(batches=[a_batch("A"), a_batch("B")])

    assert WriteAgain(()) == plan_publication(ledger, written("A", "B"), {}, RUN, NOW)


def test_a_refusal_does_not_overwrite_what_became_of_the_batch_meanwhile() -> None:
    ledger = a_ledger(batches=[a_batch("X", BatchState.REVERTED)])

    planned = plan_publication(ledger, written("A"), {"X": JudgedBatch(BAD, ())}, RUN, NOW)

    assert isinstance(planned, Publish)
    assert [b.id for b in planned.delta.set_batches] == ["A"]


def test_a_refused_batch_may_be_promoted_once_its_producer_has_mended_it() -> None:
    ledger = a_ledger(batches=[a_batch("X", BatchState.REFUSED, refusal="bad")])

    planned = plan_publication(ledger, written("X"), {}, RUN, NOW)

    assert isinstance(planned, Publish)
    (entry,) = planned.delta.set_batches
    assert (entry.state, entry.refusal) == (BatchState.PROMOTED, None)


def test_nothing_written_and_nothing_refused_is_no_commit() -> None:
    planned = plan_publication(a_ledger(), written(), {}, RUN, NOW)

    assert isinstance(planned, Publish)
    assert planned.delta.is_empty


def test_a_repeated_refusal_changes_nothing() -> None:
    """A run that died after its commit would otherwise commit the same refusal each time it is repeated."""
    ledger = a_ledger(batches=[a_batch("X", BatchState.REFUSED, refusal="bad", objects=(an_object("X"),))])

    same = plan_publication(ledger, written(), {"X": JudgedBatch(BAD, (an_object("X"),))}, RUN, NOW)
    changed = plan_publication(ledger, written(), {"X": JudgedBatch(BAD, (an_object("X", etag="f"),))}, RUN, NOW)

    assert isinstance(same, Publish)
    assert same.delta.is_empty
    assert isinstance(changed, Publish)
    assert not changed.delta.is_empty


def test_files_that_somebody_else_published_are_recorded_and_not_written_again() -> None:
    """A cherry-pick of the staged snapshot by another tool puts the rows in the table, and no record into the ledger."""
    ledger = a_ledger(batches=[a_batch("B", BatchState.REVERTED)])

    planned = plan_publication(ledger, written("A", "B", in_table=True), {}, RUN, NOW)

    assert isinstance(planned, Publish)
    assert [(b.id, str(b.state)) for b in planned.delta.set_batches] == [("A", "promoted")]

"""Retention deletes what was promoted, exactly as it was, and nothing else."""

import pytest
from lethe.buffer.layout import BufferedBatch
from lethe.buffer.promotion import Sweep, plan_sweep
from lethe.ledger.ledger import BatchState, BufferedObject

from tests.support.builders import NOW, a_batch, a_ledger, ago, an_object

PART, MARKER = an_object("buffer/batch_id=A/p.parquet"), an_object("buffer/batch_id=A/_SUCCESS", 0, "m")


def buffered(*objects: BufferedObject, id: str = "A") -> BufferedBatch:
    return BufferedBatch(id, f"buffer/batch_id={id}", objects, True, 10, ago(days=9))


def sweep(*objects: BufferedObject, state: BatchState = BatchState.PROMOTED, seconds: int = 3600) -> Sweep:
    ledger = a_ledger(batches=[a_batch("A", state, time=ago(hours=2), objects=(PART,))])
    return plan_sweep([buffered(*objects)], ledger, seconds, NOW)


def test_a_promoted_folder_goes_after_its_retention_and_not_before() -> None:
    assert sweep(PART, MARKER) == Sweep((PART, MARKER))
    assert sweep(PART, MARKER, seconds=7200) == Sweep((PART, MARKER))
    assert sweep(PART, MARKER, seconds=7201) == Sweep()


def test_an_object_added_to_a_promoted_folder_is_reported_and_never_deleted() -> None:
    """Its rows were never promoted: deleting it would lose the only copy. The folder stays complete, too."""
    late = an_object("buffer/batch_id=A/late.parquet")

    assert sweep(PART, late, MARKER) == Sweep((PART,), (late,))


@pytest.mark.parametrize(
    "changed",
    [
        BufferedObject(PART.key, PART.size + 1, PART.etag),
        BufferedObject(PART.key, PART.size, "another"),
    ],
    ids=["another size", "another ETag"],
)
def test_an_object_written_over_since_its_promotion_is_reported_and_never_deleted(changed: BufferedObject) -> None:
    assert sweep(changed, MARKER) == Sweep((), (changed,))


def test_an_unexpected_object_is_reported_before_the_retention_has_passed() -> None:
    late = an_object("buffer/batch_id=A/late.parquet")

    assert sweep(PART, late, MARKER, seconds=9999) == Sweep((), (late,))


@pytest.mark.parametrize("state", [BatchState.REVERTED, BatchState.REPLACED, BatchState.ERASED])
def test_a_batch_taken_back_after_its_promotion_goes_as_any_other(state: BatchState) -> None:
    assert sweep(PART, MARKER, state=state).delete == (PART, MARKER)


@pytest.mark.parametrize("state", [BatchState.PROMOTED, BatchState.REVERTED, BatchState.REPLACED, BatchState.ERASED])
def test_the_objects_of_a_registered_batch_never_go(state: BatchState) -> None:
    """They are the table's files; after it was taken back, older snapshots still hold them."""
    late = an_object("buffer/batch_id=A/late.parquet")
    ledger = a_ledger(batches=[a_batch("A", state, time=ago(days=99), objects=(PART,), registered=True)])

    found = plan_sweep([buffered(PART, late, MARKER)], ledger, 0, NOW)

    assert found == Sweep((), (late,))


def test_a_refused_batch_stays_for_its_producer_to_mend() -> None:
    assert sweep(PART, MARKER, state=BatchState.REFUSED) == Sweep()


def test_a_batch_that_was_not_promoted_is_never_deleted() -> None:
    other = buffered(PART, MARKER, id="B")
    unknown_and_reverted = a_ledger(batches=[a_batch("B", BatchState.REVERTED, time=ago(days=99))])

    assert plan_sweep([other], a_ledger(), 0, NOW) == Sweep()
    assert plan_sweep([other], unknown_and_reverted, 0, NOW) == Sweep()


def test_a_folder_half_deleted_is_finished() -> None:
    """A crash between two deletions leaves the marker or a part behind."""
    assert sweep(MARKER) == Sweep((MARKER,))
    assert sweep(PART) == Sweep((PART,))


FILE = an_object("buffer/A.csv")


@pytest.mark.parametrize(
    ("there", "deleted", "reported"),
    [
        (FILE, (FILE,), ()),
        (an_object("buffer/A.csv", etag="another"), (), (an_object("buffer/A.csv", etag="another"),)),
        (an_object("buffer/A.csv.gz"), (), (an_object("buffer/A.csv.gz"),)),  # of the same id, after the first had gone
    ],
)
def test_a_file_that_is_a_batch_goes_only_as_it_was_promoted(
    there: BufferedObject, deleted: tuple[BufferedObject, ...], reported: tuple[BufferedObject, ...]
) -> None:
    """What was written over it is not in the table: it stays and is reported."""
    ledger = a_ledger(batches=[a_batch("A", time=ago(hours=2), objects=(FILE,))])
    batch = BufferedBatch("A", there.key, (there,), True, 10, ago(days=9))

    assert plan_sweep([batch], ledger, 3600, NOW) == Sweep(deleted, reported)

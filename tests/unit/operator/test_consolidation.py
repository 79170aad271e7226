"""When buffered batches are moved into the table, and which."""

from dataclasses import replace
from typing import Any

import pytest
from lethe.ledger.ledger import BatchState
from lethe.run import RunKind
from lethe_operator.decide.consolidation import ConsolidationVerdict, chosen, decide_consolidation, due, promotable
from lethe_operator.decide.retry import GivenUp
from lethe_operator.resources.dataset import ConsolidationSpec, Dataset
from lethe_operator.resources.observed import Attempt, AttemptState, NoTable, Unavailable, World

from tests.builders import NOW, a_batch, a_ledger, ago
from tests.unit.operator.builders import (
    SETTINGS,
    a_buffered,
    a_consolidation,
    a_dataset,
    a_result,
    a_run,
    a_table,
    a_world,
    an_attempt,
)

EAGER = {"consolidation": {"minBatches": 1}}
A, B, C = a_buffered("A", age_seconds=30), a_buffered("B", age_seconds=20), a_buffered("C", age_seconds=10)


def decided(world: World, dataset: Dataset | None = None) -> ConsolidationVerdict:
    return decide_consolidation(dataset or a_dataset(**EAGER), world, NOW, SETTINGS)


def launched(verdict: ConsolidationVerdict) -> tuple[tuple[str, ...], int]:
    """The batches of the run that starts, and its attempt."""
    assert verdict.launch is not None
    assert verdict.launch.run.consolidation is not None
    return verdict.launch.run.consolidation.batch_ids, verdict.launch.run.attempt


def failed(number: int = 1, **changes: Any) -> Attempt:
    return an_attempt(a_consolidation(A), AttemptState.FAILED, number=number, **{"exit_code": 20, **changes})


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({}, ""),
        ({"minBatches": 3}, "minBatches"),
        ({"minBytes": 30}, "minBytes"),
        ({"minBytes": 31}, ""),
        ({"maxAgeSeconds": 30}, "maxAgeSeconds"),
        ({"maxAgeSeconds": 31}, ""),
    ],
)
def test_batches_bytes_or_age_make_a_run_due(limits: dict[str, Any], why: str) -> None:
    reason, _ = due((A, B, C), ConsolidationSpec.model_validate(limits), NOW)

    assert why in reason
    assert bool(why) is bool(reason)


def test_it_is_looked_at_again_when_the_oldest_batch_is_ripe() -> None:
    verdict = decided(a_world(A, B), a_dataset(consolidation={"maxAgeSeconds": 100}))

    assert (None, ago(seconds=-70)) == (verdict.launch, verdict.look_again)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, "ABC"),
        ({"maxBatchesPerRun": 2}, "AB"),
        ({"maxBytesPerRun": 25}, "AB"),
        ({"maxBytesPerRun": 5}, "A"),  # a single larger one is taken alone
    ],
)
def test_a_run_takes_the_oldest_within_its_limits(limits: dict[str, Any], expected: str) -> None:
    taken = chosen((A, B, C), ConsolidationSpec.model_validate(limits))

    assert tuple(expected) == tuple(b.id for b in taken)


def test_only_complete_batches_that_the_ledger_does_not_know_are_promotable() -> None:
    """Promoted, reverted, replaced: never again. Refused: only when its objects changed."""
    states = {"P": BatchState.PROMOTED, "R": BatchState.REVERTED, "X": BatchState.REPLACED, "E": BatchState.ERASED}
    refused = a_buffered("F")
    changed = a_buffered("G", etag="new")
    entries = [a_batch(i, s) for i, s in states.items()]
    entries += [
        a_batch("F", BatchState.REFUSED, objects=refused.data_objects),
        a_batch("G", BatchState.REFUSED, objects=a_buffered("G", etag="old").data_objects),
        a_batch("H", BatchState.REFUSED, objects=()),
    ]
    buffered = [*(a_buffered(i) for i in states), refused, changed, a_buffered("H"), a_buffered("I", complete=False), A]

    assert tuple(b.id for b in promotable(buffered, a_ledger(batches=entries))) == ("G", "A")


def test_the_first_batches_create_the_table() -> None:
    assert launched(decided(a_world(A, table=NoTable()))) == (("A",), 1)


def test_a_run_is_sized_by_what_it_reads() -> None:
    verdict = decided(a_world(a_buffered("A", size=7), a_buffered("B", size=5)))

    assert verdict.launch.bytes == 12  # type: ignore[union-attr]


def test_nothing_starts_while_one_is_under_way() -> None:
    running = a_run(a_consolidation(A), an_attempt(a_consolidation(A)))

    assert None is decided(a_world(A, B, runs=(running,))).launch


def test_suspend_starts_nothing_new_and_nothing_again() -> None:
    suspended = a_dataset(consolidation={"minBatches": 1, "suspend": True})

    assert None is decided(a_world(A), suspended).launch
    assert (
        None is decided(a_world(A, runs=(a_run(a_consolidation(A), failed(finished_seconds=999)),)), suspended).launch
    )


def test_nothing_starts_while_the_buffer_cannot_be_listed() -> None:
    assert None is decided(a_world(buffer=Unavailable("StorageUnavailable", "away"))).launch


def test_a_stored_intent_without_a_job_is_started_as_it_stands() -> None:
    """The operator died between the two: whatever came since waits for the next run."""
    verdict = decided(a_world(A, B, C, runs=(a_run(a_consolidation(A, B)),)))

    assert launched(verdict) == (("A", "B"), 1)
    assert a_consolidation(A, B).run_id == verdict.launch.run.run_id  # type: ignore[union-attr]


def test_a_failed_run_is_repeated_with_the_same_batches_after_its_pause() -> None:
    early = decided(a_world(A, B, runs=(a_run(a_consolidation(A), failed(finished_seconds=5)),)))
    late = decided(a_world(A, B, runs=(a_run(a_consolidation(A), failed(finished_seconds=10)),)))

    assert (None, ago(seconds=-5)) == (early.launch, early.look_again)
    assert launched(late) == (("A",), 2)


def test_a_failed_run_whose_batches_are_all_settled_is_left_alone() -> None:
    """Its driver died after the commit, or somebody else promoted them."""
    table = a_table(a_ledger(batches=[a_batch("A")]))
    run = a_run(a_consolidation(A), failed(finished_seconds=60))

    verdict = decided(a_world(A, B, table=table, runs=(run,)))

    assert (run.run_id,) == verdict.abandoned
    assert launched(verdict) == (("B",), 1)


def test_a_run_that_failed_for_good_is_not_repeated_until_the_dataset_changes() -> None:
    run = a_run(
        a_consolidation(A),
        failed(exit_code=10, result=a_result(a_consolidation(A), "Failed", reason="BatchColumnType")),
    )

    verdict = decided(a_world(A, runs=(run,)))
    edited = a_dataset(meta={"generation": 2}, **EAGER)

    assert None is verdict.launch
    assert isinstance(verdict.latest, GivenUp)
    assert launched(decided(a_world(A, runs=(run,)), edited)) == (("A",), 2)


def test_other_batches_get_their_try_after_the_longest_pause() -> None:
    def after(seconds: float) -> ConsolidationVerdict:
        run = a_run(a_consolidation(A), failed(exit_code=10, finished_seconds=seconds))
        return decided(a_world(A, B, runs=(run,)))

    assert (None, ago(seconds=-60)) == (after(300).launch, after(300).look_again)
    assert launched(after(360)) == (("A", "B"), 1)


def test_a_run_that_ended_without_settling_its_batches_is_repeated_with_a_pause() -> None:
    """It found nothing to do, and the listing still shows the batch: somebody must look again, but not all the time."""

    def after(seconds: float) -> ConsolidationVerdict:
        done = an_attempt(a_consolidation(A), AttemptState.SUCCEEDED, finished_seconds=seconds)
        return decided(a_world(A, runs=(a_run(a_consolidation(A), done, intent=False),)))

    assert None is after(9).launch
    assert launched(after(10)) == (("A",), 2)


def test_changed_objects_of_a_batch_are_another_intent() -> None:
    again = replace(A, objects=a_buffered("A", etag="new").objects)

    assert a_consolidation(A).run_id != a_consolidation(again).run_id
    assert a_consolidation(A, B).run_id == a_consolidation(B, A).run_id
    assert RunKind.CONSOLIDATION is a_consolidation(A).kind

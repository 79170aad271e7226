"""When buffered batches are moved into the table, and which."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from lethe.base.errors import Verdict
from lethe.buffer.layout import BufferedBatch
from lethe.contract.dataset import ConsolidationSettings
from lethe.contract.run import RunKind
from lethe.ledger.ledger import BatchState
from lethe_operator.dataset.consolidation import (
    CHEAP_OBJECTS,
    ConsolidationChoice,
    chosen,
    decide_consolidation,
    triggered,
)
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Attempt, AttemptState, NoTable, NotListed, Observation, Unavailable
from lethe_operator.runs.retry import Exhausted

from tests.support.builders import NOW, a_batch, a_ledger, ago
from tests.support.resources import (
    SETTINGS,
    a_buffer,
    a_buffered,
    a_consolidation,
    a_dataset,
    a_result,
    a_run,
    a_table,
    a_world,
    an_attempt,
)

AT_ONCE = {"minBatches": 1}
EAGER = {"consolidation": AT_ONCE}
A, B, C = a_buffered("A", age_seconds=30), a_buffered("B", age_seconds=20), a_buffered("C", age_seconds=10)


def decided(world: Observation, dataset: Dataset | None = None) -> ConsolidationChoice:
    return decide_consolidation(dataset or a_dataset(**EAGER), world, None, NOW, SETTINGS)


def launched(verdict: ConsolidationChoice) -> tuple[tuple[str, ...], int]:
    """The batches of the run that starts, and its attempt."""
    assert verdict.launch is not None
    assert verdict.launch.run.consolidation is not None
    return verdict.launch.run.consolidation.batch_ids, verdict.launch.run.attempt


def said(verdict: ConsolidationChoice) -> tuple[str, str, str, datetime | None]:
    assert verdict.decision is not None
    return (
        verdict.decision.decision,
        str(verdict.decision.verdict.reason),
        verdict.decision.verdict.message,
        verdict.decision.next_time,
    )


def failed(number: int = 1, **changes: Any) -> Attempt:
    return an_attempt(a_consolidation(A), AttemptState.FAILED, number=number, **{"exit_code": 20, **changes})


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, "Later BelowTriggers 3 of 100 batches, 30 of 128Mi; due by age at 2026-03-01T12:09:30Z."),
        ({"minBatches": 3}, "Due EnoughBatches 3 batches wait, minBatches is 3."),
        ({"minBytes": 30}, "Due EnoughBytes 30 wait, minBytes is 30."),
        ({"minBytes": 31}, "Later BelowTriggers 3 of 100 batches, 30 of 31; due by age at 2026-03-01T12:09:30Z."),
        (
            {"maxAgeSeconds": 30},
            "Due OldEnough The oldest batch has waited since 2026-03-01T11:59:30Z, maxAgeSeconds is 30.",
        ),
        (
            {"maxAgeSeconds": 31},
            "Later BelowTriggers 3 of 100 batches, 30 of 128Mi; due by age at 2026-03-01T12:00:01Z.",
        ),
    ],
)
def test_batches_bytes_or_age_make_a_run_due(limits: dict[str, Any], expected: str) -> None:
    found = triggered(a_buffer(A, B, C), ConsolidationSettings.model_validate(limits), NOW)

    assert expected == f"{found.decision} {found.verdict.reason} {found.verdict.message}"


def test_the_next_decision_is_due_when_the_oldest_batch_reaches_its_age() -> None:
    verdict = decided(a_world(A, B), a_dataset(consolidation={"maxAgeSeconds": 100}))

    assert said(verdict) == (
        "Later",
        "BelowTriggers",
        "2 of 100 batches, 20 of 128Mi; due by age at 2026-03-01T12:01:10Z.",
        ago(seconds=-70),
    )
    assert (None, ago(seconds=-70)) == (verdict.launch, verdict.look_again)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, "ABC"),
        ({"maxBatchesPerRun": 2}, "AB"),
        ({"maxBytesPerRun": 25}, "AB"),
        ({"maxBytesPerRun": 5}, "A"),  # a single larger one is taken alone
        ({"maxBytesPerRun": 30}, "ABC"),
    ],
)
def test_a_run_takes_the_oldest_within_its_limits(limits: dict[str, Any], expected: str) -> None:
    taken = chosen(a_buffer(A, B, C).oldest, ConsolidationSettings.model_validate(limits))

    assert tuple(expected) == tuple(b.id for b in taken)


def test_batches_of_very_different_sizes_all_get_their_turn() -> None:
    """A large batch in the middle ends a run, is the next run alone, and delays no other batch longer."""
    sizes = {"A": 1, "B": 2, "C": 500, "D": 3, "E": 99, "F": 1}
    left = [a_buffered(i, size=n, age_seconds=100 - at) for at, (i, n) in enumerate(sizes.items())]
    limits = ConsolidationSettings.model_validate({"maxBytesPerRun": 100})
    runs: list[str] = []
    while left:
        taken = [b.id for b in chosen(a_buffer(*left).oldest, limits)]
        runs.append("".join(taken))
        left = [b for b in left if b.id not in taken]

    assert runs == ["AB", "C", "D", "EF"]


def test_nothing_is_due_in_an_idle_dataset() -> None:
    """However long ago the last batch came, and whatever lies there for another reason."""
    refused = a_batch("F", BatchState.REFUSED, objects=())
    world = a_world(
        a_buffered("P", age_seconds=9e6),
        a_buffered("F"),
        a_buffered("I", complete=False),
        table=a_table(a_ledger(batches=[a_batch("P"), refused])),
    )

    assert said(decided(world)) == ("Later", "NothingWaits", "No batch waits.", None)
    assert None is decided(world).look_again


def test_a_burst_after_a_silence_is_taken_in_runs_of_the_oldest() -> None:
    """What one run has taken is not counted for the next, and what no listing has told of yet is waited for."""
    burst = a_buffer(*(a_buffered(f"b{n:04}", age_seconds=5000 - n, size=1) for n in range(5000)), names=2000)
    dataset = a_dataset(consolidation={"minBatches": 100, "maxBatchesPerRun": 2000, "maxBytesPerRun": 1500})
    first, _ = launched(decided(a_world(buffer=burst), dataset))
    after_first = burst.as_of({i: a_batch(i) for i in first})
    second, _ = launched(decided(a_world(buffer=after_first), dataset))
    after_both = after_first.as_of({i: a_batch(i) for i in (*first, *second)})

    assert (first[0], first[-1], second[0], second[-1]) == ("b0000", "b1499", "b1500", "b1999")
    assert (after_both.batches, after_both.bytes) == (3000, 3000)
    assert said(decided(a_world(buffer=after_both), dataset)) == (
        "Later",
        "BufferBeingListed",
        "3000 batches wait. The next listing finds the oldest of them.",
        None,
    )


@pytest.mark.parametrize(
    ("last", "took", "ended", "listed", "most", "waits"),
    [
        ("XYZ", 5, 9, True, 50, 1),
        ("XYZ", 5, 11, True, 50, None),
        ("XYZ", 30, 11, True, 50, 19),
        ("XYZ", 300, 11, True, 50, 49),
        ("XYZ", 5, 9, False, 50, None),
        ("XYZ", 5, 9, True, 1, None),
        ("XY", 5, 9, True, 50, None),
    ],
    ids=["waits", "waited", "as long as the run took", "a minute at most", "no listing", "a full run", "half as many"],
)
def test_after_a_run_the_next_one_waits_for_the_listing_that_may_find_more(
    last: str, took: int, ended: int, listed: bool, most: int, waits: int | None
) -> None:
    """A run of the few batches that were known before would cost almost as much as one of thousands."""
    spec = a_consolidation(*map(a_buffered, last))
    result = a_result(spec, batches_promoted=len(last))
    done = an_attempt(spec, AttemptState.SUCCEEDED, ago_seconds=took + ended, finished_seconds=ended, result=result)
    world = a_world(A, runs=(a_run(spec, done, intent=False),), is_listed_now=listed)

    verdict = decided(world, a_dataset(consolidation={"minBatches": 1, "maxBatchesPerRun": most}))

    if waits is None:
        assert launched(verdict)[0] == ("A",)
        return
    until = ago(seconds=-waits)
    text = "1 batches wait. The listing after the last run may find more."
    assert said(verdict) == ("Later", "BufferBeingListed", text, until)
    assert (verdict.launch, verdict.look_again) == (None, until)


def test_the_listing_of_a_large_buffer_is_not_waited_for_if_runs_take_little_of_it() -> None:
    spec = a_consolidation(*map(a_buffered, "XYZ"))
    result = a_result(spec, batches_promoted=3)
    done = an_attempt(spec, AttemptState.SUCCEEDED, finished_seconds=9, result=result)
    world = a_world(A, runs=(a_run(spec, done, intent=False),), is_listed_now=True)

    large = replace(world, buffer=replace(a_buffer(A), objects=CHEAP_OBJECTS + 1))

    assert (decided(world).launch, launched(decided(large))[0]) == (None, ("A",))


@pytest.mark.parametrize(
    ("changes", "dataset", "expected"),
    [
        ({}, {}, ("Due", "EnoughBatches", "1 batches wait, minBatches is 1.")),
        (
            {"buffer": NotListed()},
            {},
            ("Later", "BufferBeingListed", "Waiting for the first listing of the buffer to finish."),
        ),
        (
            {"buffer": Unavailable("StorageUnavailable", "away")},
            {},
            ("Later", "StorageUnavailable", "The buffer cannot be listed: see the condition Ready."),
        ),
        (
            {},
            {"suspend": True},
            ("Later", "Suspended", "spec.consolidation.suspend is true. 1 batches wait, minBatches is 1."),
        ),
    ],
    ids=["due", "being listed", "away", "suspended"],
)
def test_the_decision_names_its_reason(
    changes: dict[str, Any], dataset: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    verdict = decided(a_world(A, **changes), a_dataset(consolidation={"minBatches": 1, **dataset}))

    assert said(verdict)[:3] == expected


def test_runs_show_in_the_decision() -> None:
    """Under way, about to be tried again, done with nothing settled, failed for good."""
    spec = a_consolidation(A)
    tried = failed(finished_seconds=5)
    ended = an_attempt(spec, AttemptState.SUCCEEDED, finished_seconds=9)
    lost = failed(exit_code=10)

    def after(attempt: Attempt, *batches: BufferedBatch) -> tuple[str, str, str, datetime | None]:
        return said(decided(a_world(*(batches or (A,)), runs=(a_run(spec, attempt),))))

    assert after(an_attempt(spec))[:2] == ("Running", "Running")
    again = "ended with exit code 20. See its log. Attempt 2 follows at 2026-03-01T12:00:05Z."
    assert after(tried) == ("Due", "RunFailed", f"{tried.job} {again}", ago(seconds=-5))
    assert after(ended)[1:] == (
        "PauseAfterRun",
        "The last run ended without promoting or refusing these batches. They are retried after a pause.",
        ago(seconds=-1),
    )
    assert after(lost) == (
        "Later",
        "RunFailed",
        "The run for these batches failed permanently. It is retried when the Dataset or its batches change.",
        None,
    )
    assert after(lost, A, B)[2:] == (
        "The last run failed permanently. A run for other batches starts after a pause.",
        ago(seconds=-330),
    )


def test_what_holds_everything_up_holds_the_decision_but_not_what_runs() -> None:
    held = Verdict("Paused", "The annotation is set.", transient=True)
    running = a_world(A, runs=(a_run(a_consolidation(A), an_attempt(a_consolidation(A))),))

    waits = decide_consolidation(a_dataset(**EAGER), a_world(A), held, NOW, SETTINGS)
    goes_on = decide_consolidation(a_dataset(**EAGER), running, held, NOW, SETTINGS)

    assert said(waits)[:2] == ("Later", "DatasetNotReady")
    assert said(goes_on)[0] == "Running"


def test_a_stored_intent_is_sized_also_by_batches_that_are_not_among_the_oldest() -> None:
    """Older ones may have come since it was stored."""
    stored = a_run(a_consolidation(A, B))
    buffer = a_buffer(a_buffered("OLD", size=70, age_seconds=99), replace(A, bytes=20), replace(B, bytes=30), names=2)

    verdict = decided(a_world(buffer=buffer, runs=(stored,)))

    assert verdict.launch.bytes == 20 + (70 + 20 + 30) // 3  # type: ignore[union-attr]


SUSPENDED = {**AT_ONCE, "suspend": True}


@pytest.mark.parametrize(
    ("world", "settings"),
    [
        pytest.param(
            a_world(A, B, runs=(a_run(a_consolidation(A), an_attempt(a_consolidation(A))),)), AT_ONCE, id="one is under way"
        ),
        pytest.param(a_world(A), SUSPENDED, id="suspended, nothing new"),
        pytest.param(
            a_world(A, runs=(a_run(a_consolidation(A), failed(finished_seconds=999)),)), SUSPENDED,
            id="suspended, nothing again",
        ),
        pytest.param(
            a_world(buffer=Unavailable("StorageUnavailable", "away")), AT_ONCE, id="the buffer cannot be listed"
        ),
    ],
)  # fmt: skip
def test_nothing_starts(world: Observation, settings: dict[str, Any]) -> None:
    assert None is decided(world, a_dataset(consolidation=settings)).launch


def test_the_first_batches_create_the_table() -> None:
    assert launched(decided(a_world(A, table=NoTable()))) == (("A",), 1)


def test_a_run_is_sized_by_what_it_reads() -> None:
    verdict = decided(a_world(a_buffered("A", size=7), a_buffered("B", size=5)))

    assert verdict.launch.bytes == 12  # type: ignore[union-attr]


def test_a_stored_intent_without_a_job_is_started_unchanged() -> None:
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
    """Its driver died after the commit, or another run promoted them."""
    table = a_table(a_ledger(batches=[a_batch("A")]))
    run = a_run(a_consolidation(A), failed(finished_seconds=60))

    verdict = decided(a_world(A, B, table=table, runs=(run,)))

    assert (run.run_id,) == verdict.abandoned
    assert launched(verdict) == (("B",), 1)


def test_a_failed_run_that_refused_its_batches_is_left_alone_and_one_of_others_is_not() -> None:
    """Its driver died after the commit. What another run refused may have been written again since."""
    run = a_run(a_consolidation(A), failed(finished_seconds=60))

    def after(run_id: str) -> ConsolidationChoice:
        refused = a_batch("A", BatchState.REFUSED, run=run_id, refusal="BadFile: it is empty")
        return decided(a_world(A, B, table=a_table(a_ledger(batches=[refused])), runs=(run,)))

    assert (after(run.run_id).abandoned, launched(after("another"))) == ((run.run_id,), (("A",), 2))


def test_a_run_that_failed_for_good_is_not_repeated_until_the_dataset_changes() -> None:
    run = a_run(
        a_consolidation(A),
        failed(exit_code=10, result=a_result(a_consolidation(A), "Failed", reason="BatchColumnType")),
    )

    verdict = decided(a_world(A, runs=(run,)))
    edited = a_dataset(meta={"generation": 2}, **EAGER)

    assert None is verdict.launch
    assert isinstance(verdict.latest, Exhausted)
    assert launched(decided(a_world(A, runs=(run,)), edited)) == (("A",), 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"checks": [{"name": "corrected", "notNull": ["v"]}]},
        {"consolidation": {**AT_ONCE, "mode": "Register"}},
        {"schemaEvolution": "AddColumns"},
        {"batchTracking": {"enabled": False}},
    ],
)
def test_a_run_that_is_repeated_does_what_the_dataset_says_now(changes: dict[str, Any]) -> None:
    """Otherwise a correction would never get its batches promoted: the run is repeated before one for others starts."""
    run = a_run(
        a_consolidation(A), failed(exit_code=10, result=a_result(a_consolidation(A), "Failed", reason="InvalidCheck"))
    )
    edited = a_dataset(meta={"generation": 2}, **{**EAGER, **changes})

    launch = decided(a_world(A, runs=(run,)), edited).launch

    assert launch is not None
    assert launch.run == a_consolidation(A, dataset=edited).model_copy(update={"attempt": 2})
    assert launch.run != a_consolidation(A).model_copy(update={"attempt": 2})


def test_other_batches_get_their_try_after_the_longest_pause() -> None:
    def after(seconds: float) -> ConsolidationChoice:
        run = a_run(a_consolidation(A), failed(exit_code=10, finished_seconds=seconds))
        return decided(a_world(A, B, runs=(run,)))

    assert (None, ago(seconds=-60)) == (after(300).launch, after(300).look_again)
    assert launched(after(360)) == (("A", "B"), 1)


def test_a_run_that_ended_without_settling_its_batches_is_repeated_with_a_pause() -> None:
    """It found nothing to do, and the listing still shows the batch: it is retried, but after a pause."""

    def after(seconds: float) -> ConsolidationChoice:
        done = an_attempt(a_consolidation(A), AttemptState.SUCCEEDED, finished_seconds=seconds)
        return decided(a_world(A, runs=(a_run(a_consolidation(A), done, intent=False),)))

    assert None is after(9).launch
    assert launched(after(10)) == (("A",), 2)


def test_changed_objects_of_a_batch_are_another_intent() -> None:
    again = replace(A, objects=a_buffered("A", etag="new").objects)

    assert a_consolidation(A).run_id != a_consolidation(again).run_id
    assert a_consolidation(A, B).run_id == a_consolidation(B, A).run_id
    assert RunKind.CONSOLIDATION is a_consolidation(A).kind


@pytest.mark.parametrize("mode", ["Register", "Rewrite"])
def test_a_run_that_registers_is_sized_by_what_it_reads_also_when_it_is_repeated(mode: str) -> None:
    """Executors would wait for nothing but footers."""
    dataset = a_dataset(consolidation={"minBatches": 1, "mode": mode})
    run = a_consolidation(A, dataset=dataset)
    died = a_run(run, an_attempt(run, AttemptState.FAILED, exit_code=20, finished_seconds=9999))

    first, again = decided(a_world(A), dataset).launch, decided(a_world(A, runs=(died,)), dataset).launch

    assert first is not None
    assert again is not None
    assert (first.bytes, again.bytes) == ((0, 0) if mode == "Register" else (A.bytes, A.bytes))
    assert again.run.consolidation is not None
    assert (again.run.attempt, again.run.consolidation.mode) == (2, mode)

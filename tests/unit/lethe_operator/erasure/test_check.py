"""Erasures are looked at when that can come to something, told of as the ledger has them, and awaited before a deletion."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from lethe.contract.result import ErasureOutcome
from lethe.contract.run import RunKind, RunSpec
from lethe.ledger.ledger import RequestEntry
from lethe.ledger.tombstone import BlockerKind, Erasure, ErasureBlocker
from lethe_operator.actions import Actions
from lethe_operator.metrics import numbers_of
from lethe_operator.resources.observed import AttemptState, ObservedRun, TableView, Unavailable
from lethe_operator.resources.restatement import Restatement
from lethe_operator.runs import spec as run_specs

from tests.support.builders import FIELD, NOW, a_ledger, a_request_entry, ago
from tests.support.resources import (
    SETTINGS,
    a_dataset,
    a_policy,
    a_restatement,
    a_result,
    a_run,
    a_table,
    a_vacuum,
    a_world,
    an_attempt,
    condition,
    message,
)
from tests.support.statuses import a_dataset_status, decide

DATASET = a_dataset()
ERASE = a_restatement("erase", operation="Erase", evictBySeconds=60)
TAG = ErasureBlocker(BlockerKind.TAG, "audit", None, "snapshot 3")
SNAPSHOT = ErasureBlocker(BlockerKind.SNAPSHOT, "3", NOW + timedelta(hours=9), "spec.snapshots keeps it")
LOCK = ErasureBlocker(BlockerKind.OBJECT_LOCK, "s3://lake/t/data/f", NOW + timedelta(hours=9))
HOLD = ErasureBlocker(BlockerKind.LEGAL_HOLD, "s3://lake/t/data/f")
SOON, LATER = NOW + timedelta(hours=23), NOW + timedelta(hours=25)  # of a deadline, with the lead of a day


def open_(evict_by: datetime | None = None, *blockers: ErasureBlocker, purged: bool = True, **changes: Any) -> Erasure:
    """Purged with snapshot 5, unless it says otherwise."""
    found = Erasure(ERASE.key, FIELD, evict_by)
    if purged:
        found = replace(found, purged_by=5, purged_at=5, purged_time=ago(hours=1))
    return replace(found, blockers=blockers, blockers_count=len(blockers), **changes)


def a_view(
    *erasures: Erasure, tombstones: Iterable[str] = (), result: RequestEntry | None = None, **changes: Any
) -> TableView:
    entry = result or a_request_entry(ERASE.key, operation="Erase", batch_ids=("A",))
    ledger = a_ledger(*tombstones, requests=[entry], erasures=erasures)
    return a_table(ledger, **{"refs": {"main": 9}, "snapshot_ids": frozenset({9}), **changes})


def decided(table: TableView | Unavailable, *restatements: Restatement, now: datetime = NOW, **world: Any) -> Actions:
    return decide(DATASET, a_world(table=table, restatements=restatements, **world), now, SETTINGS)


def looks(actions: Actions) -> list[RunSpec]:
    return [x.run for x in actions.launches if x.run.vacuum is not None and x.run.vacuum.erasures_only]


def a_look(table: TableView) -> RunSpec:
    (run,) = looks(decided(table))
    return run


def a_try(run: RunSpec, state: AttemptState, **changes: Any) -> ObservedRun:
    return a_run(run, an_attempt(run, state, for_uid="erasures", **changes), intent=False)


# --- when they are looked at ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("erasure", "table", "looked_at"),
    [
        pytest.param(open_(), {}, True, id="a vacuum that died before its look"),
        pytest.param(open_(purged=False), {}, True, id="one that died before it noted what it purged"),
        pytest.param(open_(purged=False), {"tombstones": "A"}, False, id="rows wait for a vacuum"),
        pytest.param(open_(SOON, purged=False, field_id=4), {"tombstones": "A"}, True, id="records, due"),
        pytest.param(open_(LATER, purged=False, field_id=4), {"tombstones": "A"}, False, id="records, not yet due"),
        pytest.param(open_(purged=False, field_id=4), {}, True, id="records that left with their Erase"),
        pytest.param(open_(purged=False, field_id=4), {"format_version": 3}, False, id="records under vectors"),
        pytest.param(open_(None, TAG), {"refs": {"audit": 3}}, False, id="a tag"),
        pytest.param(open_(SOON, TAG), {"refs": {"audit": 3}}, False, id="a tag, though it is due"),
        pytest.param(open_(None, TAG), {}, True, id="a tag that was dropped"),
        pytest.param(open_(None, SNAPSHOT), {"snapshot_ids": frozenset({3})}, False, id="a snapshot"),
        pytest.param(open_(SOON, SNAPSHOT), {"snapshot_ids": frozenset({3})}, True, id="a snapshot, due"),
        pytest.param(open_(None, SNAPSHOT), {}, True, id="a snapshot that was expired"),
        pytest.param(open_(SOON, SNAPSHOT, TAG), {"refs": {"audit": 3}}, False, id="a snapshot, due, and a tag"),
        pytest.param(open_(SOON, LOCK, look_again=LOCK.until), {}, False, id="an object lock"),
        pytest.param(open_(None, replace(LOCK, until=ago(seconds=1))), {}, True, id="an object lock that is over"),
        pytest.param(open_(None, HOLD, look_again=SOON), {}, False, id="a legal hold"),
        pytest.param(open_(None, HOLD, look_again=ago(seconds=1)), {}, True, id="a legal hold, after a while"),
        pytest.param(open_(verified=True), {}, False, id="one that is over and only remembered"),
    ],
)
def test_erasures_are_looked_at_when_that_may_come_to_something(
    erasure: Erasure, table: dict[str, Any], looked_at: bool
) -> None:
    assert bool(looks(decided(a_view(erasure, **table)))) is looked_at


def test_a_look_purges_nothing_and_is_one_of_the_policy() -> None:
    policy = a_policy(expireSnapshots=False, triggers={"activeTombstones": 4, "evictByLeadSeconds": 86400})

    (launch,) = decided(a_view(open_()), policies=(policy,)).launches

    spec = launch.run.vacuum
    assert spec is not None
    assert (launch.run.kind, spec.erasures_only, spec.policy) == (RunKind.ERASURE_CHECK, True, "ns/air")
    assert (spec.expire_snapshots, spec.evict_by_lead_seconds) == (False, 86_400)
    assert (launch.for_uid, launch.why) == ("erasures", "1 erasures are ready to be checked")


def test_a_look_waits_for_a_vacuum_which_looks_itself() -> None:
    going = a_run(a_vacuum(), an_attempt(a_vacuum(), AttemptState.ACTIVE))

    beside = decided(a_view(open_()), runs=(going,))
    instead = decided(a_view(open_(), tombstones="ABCD"), policies=(a_policy(),))

    assert looks(beside) == []
    (vacuum,) = (x.run.vacuum for x in instead.launches)
    assert vacuum is not None
    assert not vacuum.erasures_only


def test_a_look_that_found_nothing_new_is_not_repeated_until_there_is_something_to_see() -> None:
    table = a_view(open_(None, HOLD, look_again=ago(seconds=1)))
    ended = a_try(a_look(table), AttemptState.SUCCEEDED)

    assert looks(decided(table, runs=(ended,))) == []
    (again,) = looks(decided(a_view(open_(None, HOLD, look_again=ago(seconds=2))), runs=(ended,)))
    assert again.run_id != a_look(table).run_id


@pytest.mark.parametrize(
    ("outcome", "is_repeated"),
    [
        ({"vacuum_snapshot_id": 5}, True),
        ({"vacuum_snapshot_id": 5, "blocked_by_count": 1}, False),
        ({"vacuum_snapshot_id": 5, "verified_time": NOW}, False),
        ({}, False),
    ],
    ids=["neither", "blocked", "verified", "rows are left"],
)
def test_a_look_during_which_others_committed_is_repeated_after_a_pause(
    outcome: dict[str, Any], is_repeated: bool
) -> None:
    """It ends after a few rounds, and has neither closed an erasure nor found what blocks it."""
    table = a_view(open_())
    run = a_look(table)
    result = a_result(run, "NothingToDo", erasures=(ErasureOutcome(restatement=ERASE.key, **outcome),), erasures_open=1)
    ended = a_try(run, AttemptState.SUCCEEDED, finished_seconds=1, result=result)

    waits, later = (decided(table, runs=(ended,), now=NOW + timedelta(hours=h)) for h in (0, 1))

    assert looks(waits) == []
    assert waits.look_again is not None or not is_repeated
    assert [(r.run_id, r.attempt) for r in looks(later)] == ([(run.run_id, 2)] if is_repeated else [])


def test_a_look_that_failed_is_repeated_after_a_pause_and_is_no_vacuum_that_failed() -> None:
    table = a_view(open_())
    run = a_look(table)
    failed = a_try(run, AttemptState.FAILED, exit_code=20, finished_seconds=1)

    waits = decided(table, runs=(failed,))
    (again,) = looks(decided(table, runs=(failed,), now=NOW + timedelta(hours=1)))

    assert (looks(waits), waits.look_again is not None) == ([], True)
    assert (again.run_id, again.attempt) == (run.run_id, 2)


def test_a_vacuum_is_not_taken_for_tried_because_a_look_was() -> None:
    table = a_view(open_(purged=False), tombstones="ABCD")
    ended = a_try(run_specs.erasures(DATASET, "ns/air", True, 1, "x"), AttemptState.FAILED, exit_code=10)

    (launch,) = decided(table, policies=(a_policy(),), runs=(ended,)).launches

    assert launch.run.run_id == a_vacuum().run_id


def test_the_operator_wakes_up_when_time_alone_changes_something() -> None:
    held = open_(LATER, replace(LOCK, until=NOW + timedelta(hours=30)), look_again=NOW + timedelta(hours=30))

    found = decided(a_view(held))

    assert (looks(found), found.look_again) == ([], LATER - timedelta(days=1))


# --- what is told of them -------------------------------------------------------------------------------------------


def status_of(table: TableView | Unavailable, restatement: Restatement = ERASE, **world: Any) -> Any:
    return decided(table, restatement, **world).restatement_statuses[restatement.meta.name]


def verified(**changes: Any) -> RequestEntry:
    outcome = ErasureOutcome(
        restatement=ERASE.key, vacuum_snapshot_id=5, verified_time=NOW, record="s3://r.json", record_sha256="ab"
    )
    return a_request_entry(ERASE.key, operation="Erase", batch_ids=("A",), erasure=outcome, **changes)


def test_rows_that_wait_for_a_vacuum() -> None:
    status = status_of(a_view(open_(LATER, purged=False), tombstones="A"))

    assert condition(status, "Erased") == ("False", "RowsInTable")
    assert status["erasure"] == {"dueTime": "2026-03-02T13:00:00Z"}
    assert condition(status, "Succeeded") == ("True", "Succeeded")


def test_what_holds_them_is_named_with_its_end() -> None:
    tags = [replace(TAG, name=f"t{n}") for n in range(3)]
    status = status_of(a_view(open_(None, LOCK, *tags, look_again=LOCK.until)))

    assert condition(status, "Erased") == ("False", "ErasureBlocked")
    assert message(status, "Erased") == (
        "Snapshot 5 removed the rows from the table's data files. Old files that contain them are kept by object lock on "
        "s3://lake/t/data/f until "
        "2026-03-01T21:00:00Z, tag t0 (snapshot 3), tag t1 (snapshot 3) and 1 more (status.erasure.blockedBy)."
    )
    assert (status["erasure"]["vacuumSnapshotId"], status["erasure"]["blockedByCount"]) == (5, 4)
    assert status["erasure"]["blockedBy"][3] == "tag t2 (snapshot 3)"


def test_what_is_late_says_so_on_the_restatement_the_dataset_and_in_the_metrics() -> None:
    actions = decided(a_view(open_(ago(hours=1), TAG), refs={"audit": 3}), ERASE)
    status, dataset = actions.restatement_statuses["erase"], actions.dataset_status
    assert dataset is not None

    numbers = numbers_of(a_dataset_status(**dataset), None, None, None, NOW)

    assert condition(status, "Erased") == ("False", "ErasureOverdue")
    assert message(status, "Erased").startswith(
        "The erasure was due at 2026-03-01T11:00:00Z. Snapshot 5 removed the rows"
    )
    assert condition(dataset, "EvictionOnTime") == ("False", "EvictByMissed")
    assert "to erase the rows of Restatement ns/erase" in message(dataset, "EvictionOnTime")
    assert dataset["erasures"] == {"open": 1, "blocked": 1, "overdue": 1, "nextDueTime": "2026-03-01T11:00:00Z"}
    assert (numbers["lethe_open_erasures"], numbers["lethe_overdue_erasures"]) == (1, 1)
    late = [(e.kind, e.name, e.verdict.reason) for e in actions.events if e.warning]
    assert late == [("Dataset", "flights", "EvictByMissed"), ("Restatement", "erase", "ErasureOverdue")]


def test_nothing_is_said_of_a_dataset_without_erasures_but_that_there_are_none() -> None:
    status = decided(a_view()).dataset_status
    assert status is not None

    assert status["erasures"] == {"open": 0, "blocked": 0, "overdue": 0}
    assert not any(c["type"] == "EvictionOnTime" for c in status["conditions"])


def test_what_is_purged_is_on_time_until_it_should_have_been_seen_and_told_so_while_nobody_can_ask() -> None:
    status = decided(a_view(open_(SOON, TAG), refs={"audit": 3})).dataset_status
    assert status is not None

    assert condition(status, "EvictionOnTime") == ("True", "OnTime")
    assert "the rows are purged" in message(status, "EvictionOnTime")

    dataset = a_dataset(status=status)
    later = decide(dataset, a_world(table=Unavailable("CatalogUnavailable", "no")), NOW, SETTINGS).dataset_status
    assert later is not None
    assert message(later, "EvictionOnTime") == message(status, "EvictionOnTime")


def test_a_verified_erasure_names_its_record_also_to_whoever_is_created_anew() -> None:
    """The ledger tells; the object that asked for it may have been deleted long ago."""
    status = status_of(a_view(result=verified()))

    assert condition(status, "Erased") == ("True", "Erased")
    assert status["erasure"] == {
        "dueTime": "2026-03-01T12:01:00Z",
        "vacuumSnapshotId": 5,
        "verifiedTime": "2026-03-01T12:00:00Z",
        "record": "s3://r.json",
        "recordSha256": "ab",
    }


def test_one_that_was_undone_says_that_its_rows_stay() -> None:
    revert = a_restatement(evictBySeconds=60)
    entry = a_request_entry(revert.key, operation="Revert", batch_ids=("A",), undone_by="ns/undo/0")

    status = status_of(a_view(result=entry), revert)

    assert condition(status, "Erased") == ("False", "ErasureUndone")
    assert "Restatement ns/undo undid this Restatement" in message(status, "Erased")


def test_what_was_told_stays_while_the_ledger_cannot_be_asked() -> None:
    told = status_of(a_view(open_(None, TAG), refs={"audit": 3}))
    edited = a_restatement("erase", operation="Erase", evictBySeconds=60, status=told, meta={"generation": 2})

    status = status_of(Unavailable("CatalogUnavailable", "away", transient=True), edited)

    assert (status["observedGeneration"], status["erasure"]) == (2, told["erasure"])
    assert condition(status, "Erased") == ("False", "ErasureBlocked")


# --- what waits for them --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("entry", "deleted"), [(None, ()), (verified(), ("erase",))])
def test_a_restatement_is_not_deleted_before_its_erasure_is_verified(
    entry: RequestEntry | None, deleted: tuple[str, ...]
) -> None:
    spec: dict[str, Any] = {"operation": "Erase", "evictBySeconds": 60, "ttlSecondsAfterFinished": 0}
    table = a_view(*([open_(None, TAG)] if entry is None else []), refs={"audit": 3}, result=entry)
    told = status_of(table, a_restatement("erase", **spec))

    later = decided(table, a_restatement("erase", status=told, **spec), now=NOW + timedelta(days=9))

    assert later.delete_restatements == deleted

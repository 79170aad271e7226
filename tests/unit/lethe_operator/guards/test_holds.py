"""Holds: runs get those that are in force, one that does not know them is stopped, and what waits for one goes on at its end."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from lethe.contract.dataset import HoldSpec, named
from lethe.contract.result import RequestResult, RunOutcome
from lethe.contract.run import RunSpec
from lethe.contract.status import RestatementStatus, stored_status
from lethe.ledger.tombstone import BlockerKind, Erasure, ErasureBlocker
from lethe_operator.dataset.decide import is_idle
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import AttemptState, ObservedRun, TableView, Unavailable
from lethe_operator.runs import spec as run_specs

from tests.support.builders import FIELD, NOW, a_ledger, a_request_entry, ago
from tests.support.resources import (
    SETTINGS,
    a_dataset,
    a_policy,
    a_restatement,
    a_restatement_run,
    a_result,
    a_run,
    a_table,
    a_vacuum,
    a_world,
    an_attempt,
    condition,
    message,
)
from tests.support.statuses import Decided, a_condition, a_dataset_status, decide

END = NOW + timedelta(hours=2)
AFTER = END + timedelta(seconds=1)
SECRET = "name = 'a secret'"
CASE: dict[str, Any] = {"name": "case-7", "filter": SECRET, "until": END.isoformat(), "reason": "case 7"}
OLD = {"name": "old", "filter": "v = 1", "until": ago(days=1).isoformat()}
HELD = a_dataset(holds=[CASE, OLD])
BY_BATCH = a_restatement("erase-a", operation="Erase")
FULL = a_table(a_ledger("A", "B", "C", "D"))


def decided(dataset: Dataset, *runs: ObservedRun, now: datetime = NOW, **world: Any) -> Decided:
    found = decide(dataset, a_world(runs=runs, **world), now, SETTINGS)
    assert "a secret" not in repr((found.dataset_status, found.restatement_statuses, found.events))
    return found


def under(spec: RunSpec, *holds: dict[str, Any]) -> RunSpec:
    return spec.model_copy(update={"holds": tuple(HoldSpec.model_validate(h) for h in holds)})


def holds_of(actions: Decided) -> dict[str, tuple[bool, str]]:
    """Whether each hold is in force, and why not."""
    assert actions.dataset_status is not None
    return {h["name"]: (h["active"], h.get("message", "")) for h in actions.dataset_status["holds"]}


def test_runs_that_may_remove_rows_get_the_holds_that_have_not_ended() -> None:
    """Also one whose document was stored before the hold was there. A consolidation gets none."""
    stored = a_run(a_restatement_run(BY_BATCH))
    vacuumed = decided(HELD, table=FULL, policies=(a_policy(),))
    restated = decided(HELD, stored, restatements=(BY_BATCH,))

    for actions in (vacuumed, restated):
        (launch,) = actions.launches
        assert [(h.name, h.filter, h.until, h.reason) for h in launch.run.holds] == [("case-7", SECRET, END, "")]
    assert holds_of(vacuumed) == {
        "case-7": (True, ""),
        "old": (False, f"It ended at {ago(days=1):%Y-%m-%dT%H:%M:%SZ}. Remove it from spec.holds."),
    }
    assert vacuumed.look_again is not None
    assert vacuumed.look_again <= END


@pytest.mark.parametrize("engine_knows", [False, True])
def test_a_run_that_began_without_a_hold_is_stopped_and_the_hold_is_in_force_when_it_has_ended(
    engine_knows: bool,
) -> None:
    spec = under(a_vacuum(), CASE) if engine_knows else a_vacuum()
    going = an_attempt(spec)
    ended = replace(going, state=AttemptState.FAILED, exit_code=20, finished=NOW)

    before = decided(HELD, a_run(spec, going), table=FULL)
    stopping = decided(HELD, a_run(spec, replace(going, deleting=True)), table=FULL)
    after = decided(HELD, a_run(spec, ended), table=FULL)

    assert before.delete_jobs == (() if engine_knows else (going.job,))
    assert stopping.delete_jobs == ()
    assert [holds_of(a)["case-7"][0] for a in (before, stopping, after)] == [engine_knows, engine_knows, True]
    if not engine_knows:
        assert f"The run {going.job} began before the hold" in holds_of(before)["case-7"][1]


KEYED = a_restatement(
    "fix",
    operation="Replay",
    batchIds=[],
    replacement={"batchId": "A2", "uri": "s3://lake/a2/", "keyColumns": ["id"]},
)


@pytest.mark.parametrize(
    ("spec", "is_stopped"),
    [
        (a_vacuum(), True),
        (a_vacuum(plan_only=True), False),
        (a_restatement_run(KEYED), True),
        (a_restatement_run(BY_BATCH), False),
        (run_specs.erasures(a_dataset(), "ns/air", True, 60, "k"), False),
    ],
    ids=["vacuum", "plan", "replay by keys", "erase of batches", "erasure check"],
)
def test_only_runs_that_may_remove_rows_from_data_files_are_stopped(spec: RunSpec, is_stopped: bool) -> None:
    attempt = an_attempt(spec)

    actions = decided(HELD, a_run(spec, attempt), table=FULL)

    assert actions.delete_jobs == ((attempt.job,) if is_stopped else ())
    assert holds_of(actions)["case-7"][0] is not is_stopped


# --- an Erase that waits ----------------------------------------------------------------------------------------------


def waiting(dataset: Dataset, *holds: dict[str, Any], now: datetime = NOW) -> Decided:
    """Of an Erase whose run has found covered rows, under these holds."""
    spec = under(a_restatement_run(KEYED), *holds)
    text = "Restatement ns/fix: rows that it would replace are covered by hold case-7 until then. Nothing was changed."
    answer = RequestResult(key=KEYED.key, name="ns/fix", succeeded=False, again=True, reason="LegalHold", message=text)
    result = a_result(spec, RunOutcome.FAILED, requests=(answer,), reason="LegalHold", message=text)
    attempt = an_attempt(spec, AttemptState.SUCCEEDED, for_uid=KEYED.meta.uid, result=result)
    return decided(dataset, a_run(spec, attempt), restatements=(KEYED,), now=now)


def test_an_erase_under_a_hold_waits_visibly_and_starts_no_run_until_the_hold_ends_or_changes() -> None:
    same = waiting(HELD, CASE)
    status = same.restatement_statuses["fix"]

    assert same.launches == ()
    assert condition(status, "Succeeded") == ("Unknown", "LegalHold")
    assert "covered by hold case-7" in message(status, "Succeeded")
    assert same.look_again == END
    assert [len(waiting(HELD, CASE, now=NOW + timedelta(days=d)).launches) for d in (0, 1)] == [0, 1]
    ended, removed = waiting(HELD, CASE, now=AFTER), waiting(a_dataset(), CASE)
    narrowed = waiting(a_dataset(holds=[{**CASE, "filter": "v = 2"}]), CASE)
    assert [len(a.launches) for a in (ended, removed, narrowed)] == [1, 1, 1]
    (launch,) = ended.launches
    assert (launch.run.holds, launch.run.attempt) == ((), 2)


def test_while_only_a_hold_is_waited_for_nothing_has_to_be_looked_at() -> None:
    """A hold may last for years."""
    held, queued = (
        replace(KEYED, stored=stored_status(RestatementStatus, {"status": {"conditions": [told]}}))
        for told in (
            {"type": "Succeeded", "status": "Unknown", "reason": "LegalHold"},
            {"type": "Succeeded", "status": "Unknown", "reason": "Queued"},
        )
    )
    ready = a_dataset_status(conditions=[a_condition("Ready", "True")])

    assert is_idle(HELD, a_world(restatements=(held,)), ready)
    assert not is_idle(HELD, a_world(restatements=(queued,)), ready)


# --- a vacuum ---------------------------------------------------------------------------------------------------------


def test_a_vacuum_that_left_held_rows_rests_and_starts_again_when_the_hold_ends() -> None:
    dataset, policy = a_dataset(holds=[CASE]), a_policy()
    first = decided(dataset, table=FULL, policies=(policy,))
    (launch,) = first.launches
    attempt = an_attempt(launch.run, AttemptState.SUCCEEDED, result=a_result(launch.run, RunOutcome.NOTHING_TO_DO))
    run = a_run(launch.run, attempt)

    resting = decided(dataset, run, table=FULL, policies=(policy,))
    kept = a_dataset(holds=[CASE], status=resting.dataset_status)
    later = [
        decided(kept, run, table=FULL, policies=(policy,), now=NOW + timedelta(minutes=m)).launches for m in (1, 30)
    ]
    ended = decided(kept, run, table=FULL, policies=(policy,), now=AFTER)

    assert (resting.launches, later) == ((), [(), ()])
    (again,) = ended.launches
    assert (again.run.run_id != launch.run.run_id, again.run.holds) == (True, ())


# --- an invalid filter ------------------------------------------------------------------------------------------------


def test_an_invalid_filter_stops_vacuums_and_erases_and_nothing_else() -> None:
    invalid = replace(FULL, invalid_hold="spec.holds: the filter of hold case-7 is not a condition on the columns.")
    revert = a_restatement("revert-b", batchIds=["B"])

    policy = a_policy(retention={"by": "BatchAge", "maxAgeDays": 30})

    actions = decided(HELD, table=invalid, policies=(policy,), restatements=(BY_BATCH, KEYED, revert))

    assert condition(actions.dataset_status, "Stalled") == ("True", "InvalidHold")
    assert condition(actions.dataset_status, "Ready") == ("False", "InvalidHold")
    assert "hold case-7" in message(actions.dataset_status, "Ready")
    for name in ("erase-a", "fix"):
        assert condition(actions.restatement_statuses[name], "Stalled") == ("True", "InvalidHold")
        assert condition(actions.restatement_statuses[name], "Succeeded")[0] == "Unknown"
    (launch,) = actions.launches
    assert launch.run.restatement is not None
    assert [r.name for r in launch.run.restatement.requests] == ["ns/revert-b"]


# --- an erasure that is held ------------------------------------------------------------------------------------------


def an_erasure(evict_by: datetime | None, until: datetime | None) -> TableView:
    blocker = ErasureBlocker(BlockerKind.HOLD, "case-7", until, "it covers rows in the table's data files")
    erasure = Erasure(BY_BATCH.key, FIELD, evict_by, blockers=(blocker,), blockers_count=1)
    entry = a_request_entry(BY_BATCH.key, operation="Erase", batch_ids=("A",))
    return a_table(a_ledger("A", requests=[entry], erasures=(erasure,)))


@pytest.mark.parametrize(
    ("evict_by", "until", "on_time"),
    [
        (ago(hours=1), END, ("False", "LegalHold")),
        (NOW + timedelta(days=9), None, ("False", "LegalHold")),
        (NOW + timedelta(days=9), END, ("True", "OnTime")),
    ],
    ids=["overdue", "the hold has no end", "the hold ends before"],
)
def test_a_held_erasure_is_shown_as_blocked_by_the_hold(
    evict_by: datetime, until: datetime | None, on_time: tuple[str, str]
) -> None:
    table = an_erasure(evict_by, until)

    actions = decided(HELD, table=table, policies=(a_policy(),), restatements=(BY_BATCH,))

    status = actions.restatement_statuses["erase-a"]
    assert condition(status, "Erased") == ("False", "LegalHold")
    assert "hold case-7" in message(status, "Erased")
    (blocker,) = status["erasure"]["blockedBy"]
    assert blocker.startswith(f"hold case-7{f' until {until:%Y-%m-%dT%H:%M:%SZ}' if until else ''}")
    assert actions.dataset_status is not None
    assert actions.dataset_status["erasures"]["blocked"] == 1
    assert condition(actions.dataset_status, "EvictionOnTime") == on_time


def test_while_the_table_cannot_be_read_the_holds_are_still_shown() -> None:
    actions = decided(HELD, table=Unavailable("CatalogUnavailable", "it does not answer."))

    assert holds_of(actions)["case-7"][0] is True


def test_a_run_does_not_show_the_filter_of_a_hold_in_a_traceback() -> None:
    assert "a secret" not in repr(under(a_vacuum(), CASE))


def test_an_end_with_an_offset_is_shown_in_utc() -> None:
    hold = {"name": "east", "until": "2026-01-01T00:00:00+02:00"}

    shown = decided(a_dataset(holds=[hold]), now=datetime.fromisoformat("2026-01-01T00:00:00Z"))

    assert holds_of(shown) == {"east": (False, "It ended at 2025-12-31T22:00:00Z. Remove it from spec.holds.")}
    assert named([HoldSpec.model_validate(hold)]) == "hold east until 2025-12-31T22:00:00Z"


@pytest.mark.parametrize(
    ("until", "active"), [("9999-12-31T23:59:59-05:00", True), ("0001-01-01T00:00:00+05:00", False)]
)
def test_an_end_beyond_the_times_of_utc_stops_nothing(until: str, active: bool) -> None:
    """The API server takes these times, and the first one is how people write "for ever"."""
    shown = decided(a_dataset(holds=[{"name": "always", "until": until}]))

    assert holds_of(shown)["always"][0] is active

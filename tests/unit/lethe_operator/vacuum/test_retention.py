"""Rows that are too old make a vacuum due: once a day at most, with the approval, the window and the day of its plan."""

from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest
from lethe.contract.result import RetentionOutcome
from lethe.contract.run import RetentionSpec
from lethe.ledger.ledger import Ledger
from lethe_operator.resources.common import RUN_KEY
from lethe_operator.resources.observed import AttemptState, Unavailable

from tests.support.builders import NOW, a_ledger
from tests.support.resources import (
    SETTINGS,
    a_dataset,
    a_policy,
    a_result,
    a_run,
    a_table,
    a_vacuum,
    a_world,
    an_attempt,
)
from tests.support.statuses import decide
from tests.unit.lethe_operator.vacuuming import VacuumStory, a_plan

DAYS = 30
RULE = {"column": "booked_at", "maxAgeDays": DAYS}
TODAY = NOW.date() - timedelta(days=DAYS)


def aging(ledger: Ledger | None = None, retention: dict[str, Any] | None = None, **spec: Any) -> VacuumStory:
    """A Dataset without tombstones, whose policy removes rows after 30 days."""
    policy = a_policy(retention=retention or RULE, triggers={"evictByLeadSeconds": 0}, **spec)
    return VacuumStory((policy,), ledger or a_ledger())


def found(story: VacuumStory, next_in_days: int | None = None, **changes: Any) -> RetentionOutcome:
    """What a run has found today, on the current head."""
    today = story.now.date() - timedelta(days=DAYS)
    following = None if next_in_days is None else today + timedelta(days=next_in_days)
    facts = {"rule": f"booked_at, {DAYS} days", "cutoff": today, "next_cutoff": following, "snapshot_id": story.head}
    return RetentionOutcome(**{**facts, **changes})


def settled(story: VacuumStory, next_in_days: int | None = None) -> VacuumStory:
    """The first vacuum has run, and left nothing."""
    story.start()
    story.end("NothingToDo", retention=found(story, next_in_days))
    return story


def test_the_first_vacuum_is_due_at_once_and_is_told_the_day() -> None:
    story = aging()

    spec = story.start()

    assert spec.retention is not None
    assert (spec.retention.column, spec.retention.cutoff) == ("booked_at", TODAY)
    assert story.told == ("Due", "RowsTooOld")
    assert f"before {TODAY} are too old" in story.message


def test_an_unchanged_table_is_looked_at_again_when_its_oldest_rows_are_too_old() -> None:
    story = settled(aging(), next_in_days=3)

    launched = [story.now for _ in story.every(60, until=NOW + timedelta(days=5)) if story.decide().launch is not None]

    assert launched[0].date() == NOW.date() + timedelta(days=3)
    assert launched[0] - timedelta(hours=1) < (NOW + timedelta(days=3)).replace(hour=0, minute=0)


def test_a_table_without_times_is_not_looked_at_again() -> None:
    story = settled(aging())

    assert all(story.decide().launch is None for _ in story.every(60, until=NOW + timedelta(days=3)))
    assert story.told == ("Later", "BelowTriggers")


def test_a_table_that_changes_all_the_time_is_vacuumed_once_a_day() -> None:
    story = aging()
    days = []
    for _ in story.every(30, until=NOW + timedelta(days=4)):
        story.commit()
        if story.decide().launch is not None:
            days.append(story.now.date())
            story.end("NothingToDo", retention=found(story))

    assert len(days) == len(set(days)) >= 4


def test_what_the_limit_left_is_removed_by_the_next_vacuum_without_waiting_for_a_day() -> None:
    story = aging()
    story.start()
    story.end(retention=found(story, snapshot_id=2, left=True), files_left=3)

    assert story.start().retention is not None
    assert story.told == ("Due", "RowsTooOld")


def test_a_vacuum_for_other_reasons_removes_them_too_and_one_of_named_batches_does_not() -> None:
    story = aging(a_ledger("A"))
    story.annotations["lethe.dev/vacuum-now"] = "1"
    assert story.start().retention is not None

    story = aging(a_ledger("A"))
    story.annotations["lethe.dev/vacuum-now"] = "1 batches=A"
    assert story.start().retention is None


def test_another_rule_is_followed_at_once() -> None:
    story = settled(aging(), next_in_days=3)
    story.policies = (a_policy(retention={"by": "BatchAge", "maxAgeDays": 7}, triggers={"evictByLeadSeconds": 0}),)

    spec = story.start()

    assert spec.retention is not None
    assert (spec.retention.column, spec.retention.max_age_days) == ("", 7)


def test_a_column_that_the_table_does_not_have_is_told_and_not_tried_again_the_same_day() -> None:
    story = aging()
    story.start()
    story.end(
        "NothingToDo", retention=found(story, problem="spec.retention.column is 'x', but there is no such column.")
    )

    assert story.decide().launch is None
    assert story.told == ("Later", "InvalidRetention")
    assert "spec.retention.column" in story.message


# --- holds ------------------------------------------------------------------------------------------------------------

A_HOLD = {"name": "case-7", "filter": "v = 1"}


def held(story: VacuumStory, **facts: Any) -> VacuumStory:
    """A vacuum under a hold has found that it keeps 2 files, and changed nothing."""
    story.holds = [A_HOLD]
    story.start()
    story.end("NothingToDo", files_held=2, holds=("case-7",), retention=found(story, files_held=2, **facts))
    return story


def test_a_plan_says_how_many_files_holds_may_keep() -> None:
    story = aging(approval="Manual")
    story.start()
    story.end("Planned", plan=a_plan("d1", files_held=2), retention=found(story, left=True))

    story.decide()

    assert "Holds may keep 2 of these files. To approve it" in story.message
    assert story.status["vacuum"]["plan"]["filesHeld"] == 2


def test_files_that_a_hold_keeps_make_no_vacuum_due() -> None:
    """Neither at once nor on the next days, as long as the table does not change."""
    story = held(aging())

    assert all(story.decide().launch is None for _ in story.every(60, until=NOW + timedelta(days=3)))
    assert story.told == ("Later", "BelowTriggers")
    assert "holds keep 2 data files with such rows" in story.message.lower()
    assert story.status["vacuum"]["retention"]["filesHeld"] == 2


def test_a_table_that_changes_while_a_hold_keeps_files_is_looked_at_once_a_day() -> None:
    story = held(aging())
    story.commit()

    assert story.decide().launch is None
    story.wait(hours=24)
    assert story.start().retention is not None


CHANGES: dict[str, list[dict[str, Any]]] = {
    "it is removed": [],
    "it ended": [{**A_HOLD, "until": (NOW + timedelta(minutes=1)).isoformat()}],
    "it covers other rows": [{**A_HOLD, "filter": "v = 2"}],
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_rows_that_a_hold_kept_are_due_when_it_does_not_cover_them_any_more(change: str) -> None:
    """One vacuum looks for them, and no second one."""
    story = held(aging())
    story.holds = CHANGES[change]
    story.wait(minutes=2)

    assert story.start().retention is not None
    assert story.told == ("Due", "RowsTooOld")
    assert "the holds that kept 2 data files have changed" in story.message
    story.end("NothingToDo", retention=found(story))
    assert story.decide().launch is None


def test_a_hold_that_kept_no_file_changes_nothing_when_it_ends() -> None:
    story = settled(aging())
    story.holds = [A_HOLD]

    assert story.decide().launch is None
    story.holds = []
    assert story.decide().launch is None


def test_a_vacuum_is_due_although_one_of_the_same_day_and_head_had_ended_before_the_hold() -> None:
    """It left rows, the one under the hold found them held, and then the hold ended: both keys would be the same."""
    story = aging()
    story.start()
    story.end("NothingToDo", retention=found(story, left=True))
    held(story)
    story.holds = []

    assert story.start().retention is not None


# --- windows and approvals -------------------------------------------------------------------------------------------


def test_it_waits_for_the_window() -> None:
    story = aging(window={"schedule": "0 1 * * *", "timeZone": "UTC", "durationSeconds": 3600})
    story.now = NOW.replace(hour=5)

    assert story.decide().launch is None
    assert story.told == ("Due", "WindowClosed")


def planned(story: VacuumStory) -> None:
    assert story.start().plan_only
    plan = a_plan(
        "d1", retention_cutoff=TODAY, retention_whole_files=3, retention_bytes=2048, retention_rows=70, tombstones=0
    )
    story.end("Planned", plan=plan, retention=found(story, left=True))


def test_a_plan_waits_for_its_approval_and_shows_what_is_too_old_first() -> None:
    story = aging(approval="Manual")
    planned(story)

    story.decide()

    assert story.told == ("NeedsApproval", "NeedsApproval")
    assert f"The plan removes rows with a time before {TODAY}: it drops 3 whole files (2Ki, 70 rows)." in story.message
    assert story.status["vacuum"]["plan"]["retentionCutoff"] == TODAY.isoformat()


@pytest.mark.parametrize("hours", [1, 30], ids=["the same day", "the next day"])
def test_an_approved_plan_is_carried_out_with_its_own_day(hours: int) -> None:
    """Otherwise an approval would not outlive midnight."""
    story = aging(approval="Manual")
    planned(story)
    story.decide()
    story.annotations["lethe.dev/approve"] = "d1"
    story.wait(hours=hours)

    spec = story.start()

    assert spec.retention is not None
    assert (spec.approved_plan, spec.retention.cutoff) == ("d1", TODAY)


def test_a_plan_that_nobody_approves_is_made_again_for_the_next_day() -> None:
    story = aging(approval="Manual")
    planned(story)
    story.decide()
    story.wait(hours=24)

    spec = story.start()

    assert spec.retention is not None
    assert (spec.plan_only, spec.retention.cutoff) == (True, TODAY + timedelta(days=1))


def test_a_plan_that_finds_nothing_too_old_needs_no_approval() -> None:
    story = aging(approval="Manual")
    assert story.start().plan_only
    story.end("NothingToDo", retention=found(story))

    assert story.decide().launch is None
    assert story.told == ("Later", "BelowTriggers")


def test_the_day_is_that_of_utc() -> None:
    story = aging()
    story.now = NOW.replace(hour=23, minute=59)

    spec = story.start()

    assert spec.retention is not None
    assert spec.retention.cutoff == date.fromordinal(NOW.date().toordinal() - DAYS)


def test_a_vacuum_that_ends_while_the_table_cannot_be_read_keeps_its_document_until_its_end_is_recorded() -> None:
    """Without the document it is unknown how long rows are kept, and so when the next ones are too old."""
    policy, dataset = a_policy(retention=RULE, triggers={"evictByLeadSeconds": 0}), a_dataset()
    cutoff = TODAY - timedelta(days=1)
    rule = RetentionSpec(column="booked_at", max_age_days=DAYS, cutoff=cutoff)
    run = a_vacuum(retention=rule)
    outcome = RetentionOutcome(
        rule=rule.rule, cutoff=cutoff, next_cutoff=TODAY + timedelta(days=3), snapshot_id=a_table().head_id
    )
    result = a_result(run, "NothingToDo", retention=outcome)
    ended = a_run(run, an_attempt(run, AttemptState.SUCCEEDED, result=result))
    away = a_world(table=Unavailable("CatalogUnavailable", "no answer"), policies=(policy,), runs=(ended,))
    for _ in range(2):
        actions = decide(dataset, away, NOW, SETTINGS)
        assert actions.dataset_status is not None
        assert actions.dataset_status["runs"][0]["phase"] == "Succeeded"
        dataset = a_dataset(status=actions.dataset_status)
        intent = None if any(k.endswith(RUN_KEY) for k in actions.drop_keys) else run
        away = replace(away, runs=(replace(ended, intent=intent),))

    back = decide(dataset, replace(away, table=a_table()), NOW, SETTINGS)

    assert back.dataset_status is not None
    assert back.dataset_status["vacuum"]["retention"]["nextTime"] == "2026-03-04T00:00:00Z"

"""A vacuum that somebody has to approve is planned, shown, and purges what was approved and nothing else."""

from datetime import timedelta
from typing import Any

import pytest
from lethe_operator.resources.vacuum_policy import VacuumPolicy

from tests.support.builders import a_ledger, ago
from tests.support.resources import a_policy
from tests.unit.lethe_operator.vacuuming import GIB, VacuumStory, a_plan

MANUAL = a_policy(approval="Manual")
MORE = a_ledger("A", "B", "C", "D", "E")


def planned(policy: VacuumPolicy = MANUAL, **changes: Any) -> VacuumStory:
    """One whose plan d1 waits for approval."""
    story = VacuumStory((policy,), **changes)
    assert story.start().plan_only
    story.wait(minutes=1)
    story.end("Planned", plan=a_plan("d1", files_left=1, bytes_left=GIB))
    story.decide()
    return story


def approve(story: VacuumStory, digest: str) -> None:
    story.annotations = {**story.annotations, "lethe.dev/approve": digest}


def test_a_due_vacuum_is_only_planned() -> None:
    spec = VacuumStory((MANUAL,)).start()

    assert (spec.plan_only, spec.approved_plan) == (True, "")


@pytest.mark.parametrize("shown", [{"bytes_to_copy": 7, "bytes_to_encode": 8}, {}])
def test_the_status_keeps_the_bytes_to_copy_and_to_encode_if_the_plan_knows_them(shown: dict[str, int]) -> None:
    story = VacuumStory((MANUAL,))
    story.start()
    story.wait(minutes=1)
    story.end("Planned", plan=a_plan("d1", **shown))
    story.decide()
    story.decide()

    plan = story.status["vacuum"]["plan"]
    assert (plan.get("bytesToCopy"), plan.get("bytesToEncode")) == ((7, 8) if shown else (None, None))


def test_the_plan_is_shown_with_the_command_that_approves_it() -> None:
    story = planned()

    verdict = story.decide()

    assert (story.told, verdict.launch) == (("NeedsApproval", "NeedsApproval"), None)
    assert "kubectl annotate datasets.lethe.dev flights -n ns --overwrite lethe.dev/approve=d1" in story.message
    assert (
        "rewrites 2 files (1Gi) and deletes 0 whole files, and leaves 1 files (1Gi) for the next vacuum"
        in story.message
    )
    entry = verdict.entries["air"]
    assert (entry["decision"], entry["plannedBytes"], entry["plannedFiles"], entry["planDigest"]) == (
        "NeedsApproval",
        GIB,
        2,
        "d1",
    )
    assert story.status["vacuum"]["plan"]["digest"] == "d1"


def test_the_annotation_starts_the_purge_of_that_plan() -> None:
    story = planned()
    approve(story, "d1")

    spec = story.start()

    assert (spec.plan_only, spec.approved_plan) == (False, "d1")


@pytest.mark.parametrize("digest", ["d2", "", "yes"])
def test_any_other_value_starts_nothing(digest: str) -> None:
    story = planned()
    approve(story, digest)

    assert story.decide().launch is None
    assert story.told == ("NeedsApproval", "NeedsApproval")


def test_a_purge_uses_its_approval_up() -> None:
    """A partial one leaves tombstones, and what is to go next is another plan."""
    story = planned()
    approve(story, "d1")
    story.start()
    story.end(ledger=a_ledger("A", "B", "C", "D"))

    again = story.start()
    story.end("Planned", plan=a_plan("d2"))
    story.decide()

    assert again.plan_only
    assert "lethe.dev/approve=d2" in story.message


def test_a_run_with_another_plan_than_the_approved_one_shows_it_and_needs_another_approval() -> None:
    story = planned()
    approve(story, "d1")
    story.start()
    story.end("Planned", plan=a_plan("d2"))

    story.decide()
    shown = story.told, "lethe.dev/approve=d2" in story.message
    approve(story, "d2")

    assert shown == (("NeedsApproval", "NeedsApproval"), True)
    assert story.start().approved_plan == "d2"


@pytest.mark.parametrize("asked", [{}, {"lethe.dev/vacuum-now": "monday"}], ids=["by a trigger", "by the annotation"])
def test_a_run_that_finds_the_approved_plan_to_be_another_of_the_same_name_is_not_repeated(
    asked: dict[str, str],
) -> None:
    """That cannot be, and if it is it must not go on for ever."""
    story = planned(annotations=asked)
    approve(story, "d1")
    for _ in story.every(1, until=story.now + timedelta(minutes=30)):
        if story.decide().launch is not None:
            story.end("Planned", plan=a_plan("d1"))

    assert len(story.launched) == 2


def test_new_tombstones_lead_to_a_new_plan_but_not_each_of_them() -> None:
    """Each plan is a Job, and people need time to read one."""
    story = planned()
    story.commit(MORE)
    story.decide()
    early = story.told, "makes a new plan at" in story.message, len(story.launched)
    story.wait(minutes=10)

    spec = story.start()

    assert early == (("NeedsApproval", "NeedsApproval"), True, 1)
    assert spec.plan_only


def test_commits_that_change_no_tombstone_leave_the_plan_as_it_is() -> None:
    story = planned()
    for _ in range(5):
        story.commit()
        story.wait(minutes=30)
        assert story.decide().launch is None

    assert story.told == ("NeedsApproval", "NeedsApproval")


def test_a_plan_that_is_approved_although_it_is_out_of_date_is_for_the_run_to_judge() -> None:
    """It looks whether the plan is still the same, on the head that it finds."""
    story = planned()
    story.commit(MORE)
    approve(story, "d1")

    assert story.start().approved_plan == "d1"


def test_a_restarted_operator_knows_the_plan() -> None:
    story = planned()
    story.forget_jobs()

    assert story.decide().launch is None
    assert story.told == ("NeedsApproval", "NeedsApproval")


def test_what_is_not_due_any_more_needs_no_approval_and_its_plan_is_shown_no_longer() -> None:
    """An Undo took the tombstones back."""
    story = planned()
    story.commit(a_ledger())

    story.decide()

    assert story.told == ("Later", "BelowTriggers")
    assert "plan" not in story.status["vacuum"]


def test_a_plan_that_finds_nothing_is_not_made_again_and_again() -> None:
    story = VacuumStory((MANUAL,))
    for _ in story.every(10, until=story.now + timedelta(hours=12)):
        story.commit()
        if story.decide().launch is not None:
            story.end("NothingToDo")

    assert len(story.launched) <= 5


@pytest.mark.parametrize("found_under_the_hold", ["another plan", "nothing"])
def test_a_hold_that_is_set_and_ends_leads_to_the_plan_without_it_again(found_under_the_hold: str) -> None:
    """The head and the day are the same as of the first plan, whose run is known."""
    story = planned()
    story.holds = [{"name": "case-7", "filter": "id = 1"}]
    story.wait(minutes=11)
    assert story.start().plan_only
    if found_under_the_hold == "nothing":
        story.end("NothingToDo")
    else:
        story.end("Planned", plan=a_plan("d2", files_held=2))
    story.decide()

    story.holds = []
    story.wait(minutes=11)
    assert story.start().plan_only
    story.end("Planned", plan=a_plan("d1"))
    story.decide()

    assert story.told == ("NeedsApproval", "NeedsApproval")
    assert story.status["vacuum"]["plan"]["digest"] == "d1"
    approve(story, "d1")
    assert story.start().approved_plan == "d1"


def test_planning_does_not_wait_for_the_window_but_purging_does() -> None:
    """So that people can approve by day what is purged by night."""
    night = a_policy(approval="Manual", window={"schedule": "0 1 * * *", "timeZone": "UTC", "durationSeconds": 3600})
    story = planned(night)
    approve(story, "d1")

    verdict = story.decide()

    assert (story.told, verdict.launch) == (("Due", "WindowClosed"), None)
    assert story.status["vacuum"]["nextTime"] == "2026-03-02T01:00:00Z"
    story.now = ago(hours=-13)
    assert story.start().approved_plan == "d1"


def test_a_failed_purge_is_tried_again_with_the_same_approval() -> None:
    story = planned()
    approve(story, "d1")
    story.start()
    story.fail()
    story.decide()
    story.wait(minutes=5)

    spec = story.start()

    assert (spec.approved_plan, story.launched[-1].attempt) == ("d1", 2)
    assert story.launched[-1].run_id == story.launched[-2].run_id


def test_an_approval_that_is_taken_back_stops_the_retries_and_can_be_given_again() -> None:
    story = planned()
    approve(story, "d1")
    story.start()
    story.fail()
    approve(story, "")
    story.wait(minutes=5)
    taken_back = story.decide().launch, story.told
    approve(story, "d1")

    spec = story.start()

    assert taken_back == (None, ("NeedsApproval", "NeedsApproval"))
    assert (spec.approved_plan, [r.attempt for r in story.launched]) == ("d1", [1, 1, 2])
    assert story.launched[1].run_id == story.launched[2].run_id


def test_a_vacuum_that_was_started_before_an_approval_was_asked_for_is_not_tried_again_without_one() -> None:
    story = VacuumStory((a_policy(),))
    story.start()
    story.fail()
    story.policies = (MANUAL,)
    story.wait(minutes=5)

    assert story.start().plan_only


def test_what_the_annotation_asks_for_has_to_be_approved_too() -> None:
    """Who may annotate could approve as well, but then knows what goes."""
    story = VacuumStory((MANUAL,), a_ledger("A"), annotations={"lethe.dev/vacuum-now": "batches=A"})
    first = story.start()
    story.end("Planned", plan=a_plan("d7"))
    story.decide()
    asked = story.told
    approve(story, "d7")
    second = story.start()
    story.end(ledger=a_ledger("A"))

    story.decide()

    assert (first.plan_only, first.batch_ids) == (True, ("A",))
    assert asked == ("NeedsApproval", "NeedsApproval")
    assert (second.approved_plan, second.batch_ids) == ("d7", ("A",))
    assert story.told == ("Later", "BelowTriggers")
    assert story.status["vacuum"]["requested"]["outcome"] == "Succeeded"


def test_a_plan_of_which_a_part_is_committed_is_made_again_although_the_jobs_are_gone() -> None:
    """Somebody deletes failed Jobs. The approval has led to its run, so it cannot be asked for once more."""
    story = planned()
    approve(story, "d1")
    run = story.decide().launch
    assert run is not None
    story.committed.add(run.run.run_id)
    story.commit()
    story.fail(exit_code=137)
    story.forget_jobs()

    assert story.start().plan_only
    story.end("Planned", plan=a_plan("d2"))
    story.decide()
    assert story.status["vacuum"]["plan"]["digest"] == "d2"
    approve(story, "d2")
    assert story.start().approved_plan == "d2"

"""When a vacuum has to start for an evictBy, and that what cannot be done by then is told while it can still be helped."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from lethe.contract.result import VacuumResult
from lethe.contract.run import AllowedOperation
from lethe.contract.settings import RunFamily
from lethe.contract.status import VacuumSpeed
from lethe.ledger.ledger import Erasure, Ledger
from lethe_operator.resources.boundaries import Boundaries, Boundary
from lethe_operator.resources.vacuum_policy import VacuumPolicy
from lethe_operator.vacuum.decide import decide_vacuum
from lethe_operator.vacuum.triggers import UNMEASURED, bytes_per_second, deadline, measured_after

from tests.support.builders import NOW, a_ledger, a_tombstone
from tests.support.resources import SETTINGS, a_dataset, a_policy, a_table, a_world
from tests.unit.lethe_operator.vacuuming import GIB, VacuumStory, a_plan

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
SHUT = {"schedule": "0 1 1 1 *", "timeZone": "UTC", "durationSeconds": 60}


def due_in(time: timedelta) -> Ledger:
    return a_ledger(a_tombstone("A", evict_by=NOW + time))


def a_result(**changes: Any) -> VacuumResult:
    return VacuumResult(run_id="r", family=RunFamily.VACUUM, outcome="Committed", finished_time=NOW, **changes)


def starts(measured: VacuumSpeed, bytes: int, lead: int = 0, **limits: Any) -> timedelta:
    """How long before the evictBy a vacuum is due."""
    policy = a_policy(triggers={"evictByLeadSeconds": lead}, limits=limits)
    return NOW - deadline(NOW, bytes, measured, policy.spec).starts_by


# --- the latest start --------------------------------------------------------------------------------------------------


def test_the_latest_start_follows_from_what_earlier_vacuums_took() -> None:
    """100 GiB at 1 GiB a minute, five minutes to start, two for the expiry, an hour for what goes wrong."""
    measured = measured_after(UNMEASURED, "j", a_result(bytes_rewritten=5 * GIB, purge_seconds=300, expiry_seconds=120))

    assert starts(measured, 100 * GIB) == timedelta(minutes=100 + 5 + 2 + 60)


def test_a_longer_lead_counts_more() -> None:
    assert starts(UNMEASURED, GIB, lead=7 * 86_400) == 7 * DAY


def test_before_anything_was_measured_it_is_assumed_to_take_long() -> None:
    """20 MiB a second, ten minutes for the expiry."""
    assert starts(UNMEASURED, 72_000 * 1024**2) == timedelta(hours=1) + timedelta(minutes=5 + 10 + 60)


def test_each_of_several_runs_has_to_start() -> None:
    whole, by_bytes = starts(UNMEASURED, 100 * GIB), starts(UNMEASURED, 100 * GIB, maxBytesPerRun="10Gi")

    assert by_bytes - whole == 9 * timedelta(minutes=5)
    assert starts(UNMEASURED, 20 * 1024**2 * 7200, maxRunSeconds=3600) - starts(
        UNMEASURED, 20 * 1024**2 * 7200
    ) == timedelta(minutes=5)


def test_a_run_of_a_few_seconds_is_not_measured() -> None:
    """Reading a megabyte takes as long as starting to."""
    measured = measured_after(UNMEASURED, "j", a_result(bytes_rewritten=1000, purge_seconds=9, expiry_seconds=3))

    assert (bytes_per_second(measured), measured.expiry_seconds) == (bytes_per_second(UNMEASURED), 3)


def test_a_run_is_measured_once_and_older_ones_count_for_less() -> None:
    one = measured_after(UNMEASURED, "j", a_result(bytes_rewritten=6000, purge_seconds=100))

    assert measured_after(one, "j", a_result(bytes_rewritten=6000, purge_seconds=100)) == one
    assert bytes_per_second(measured_after(one, "k", a_result(bytes_rewritten=12_000, purge_seconds=100))) == 100


def test_the_longest_expiry_is_remembered_for_a_while() -> None:
    measured = measured_after(UNMEASURED, "a", a_result(expiry_seconds=100))
    measured = measured_after(measured, "b", a_result(expiry_seconds=20))

    assert measured.expiry_seconds == 60
    assert measured_after(measured, "c", a_result(expiry_seconds=300)).expiry_seconds == 300


def test_what_was_measured_outlives_jobs_and_operator() -> None:
    story = VacuumStory((a_policy(),))
    story.start()
    story.end(bytes_rewritten=600 * GIB, purge_seconds=600, expiry_seconds=30)
    story.decide()
    story.forget_jobs()

    story.decide()

    measured = story.status["vacuum"]["measured"]
    assert (measured["bytes"], measured["seconds"], measured["expirySeconds"]) == (600 * GIB, 600, 30)
    assert story.status["vacuum"]["lastRun"]["message"].startswith("4 tombstones purged")


def test_bytes_beyond_all_measure_break_nothing() -> None:
    slow = VacuumSpeed(bytes=1, seconds=100_000)

    assert starts(slow, 10**18) > 3000 * DAY


# --- what is told ------------------------------------------------------------------------------------------------------


def test_a_feasible_evict_by_shows_when_the_vacuum_starts() -> None:
    story = VacuumStory((a_policy(),), due_in(30 * DAY))

    story.decide()

    assert story.on_time == ("True", "OnTime")
    assert story.status["vacuum"]["evictBy"] == {
        "time": "2026-03-31T12:00:00Z",
        "startsByTime": "2026-03-30T12:00:00Z",
        "possibleUntilTime": "2026-03-31T11:45:00Z",
    }


def test_an_evict_by_whose_start_has_passed_shows_due_and_no_past_time() -> None:
    """As with an evictBy that is nearer than the lead from the beginning."""
    story, early = VacuumStory((a_policy(),), due_in(HOUR)), VacuumStory((a_policy(),), due_in(30 * DAY))

    due, later = story.decide().on_time, early.decide().on_time

    assert due is not None
    assert due.message.endswith("bytes must be gone by 2026-03-01T13:00:00Z. A vacuum is due.")
    assert later is not None
    assert later.message.endswith("A vacuum starts by 2026-03-30T12:00:00Z.")


def test_an_infeasible_evict_by_is_reported_at_once() -> None:
    """Long before the time has come: 100 TiB take 60 days."""
    story = VacuumStory((a_policy(),), due_in(30 * DAY), {"total_bytes": 100 * 1024 * GIB})

    verdict = story.decide()

    assert story.on_time == ("False", "EvictByInfeasible")
    assert "100Ti at 20Mi per second" in verdict.on_time.message  # type: ignore[union-attr]
    assert ("EvictByInfeasible", True) in {(e.verdict.reason, e.warning) for e in story.events()}
    assert story.told == ("Due", "EvictByNear")


def test_it_is_reported_once() -> None:
    story = VacuumStory((a_policy(),), due_in(30 * DAY), {"total_bytes": 100 * 1024 * GIB})
    story.start()
    story.fail()
    story.decide()
    first = story.on_time

    story.decide()

    assert first == story.on_time == ("False", "EvictByInfeasible")
    assert "EvictByInfeasible" not in {e.verdict.reason for e in story.events()}


def test_the_next_decision_is_due_when_it_becomes_infeasible() -> None:
    """An approval that does not come, say."""
    triggers = {"activeTombstones": 1, "evictByLeadSeconds": 0}
    story = VacuumStory((a_policy(approval="Manual", triggers=triggers),), due_in(2 * HOUR))
    story.start()
    story.end("Planned", plan=a_plan(bytes=0))
    story.decide()
    soon = story.decide().look_again

    assert soon == NOW + 2 * HOUR - timedelta(minutes=15 + 60)
    story.wait(minutes=50)
    assert story.decide().look_again == NOW + 2 * HOUR - timedelta(minutes=15)


def test_a_missed_evict_by_is_shown_until_the_bytes_are_gone() -> None:
    story = VacuumStory((a_policy(),), due_in(-HOUR))
    story.decide()
    missed = story.on_time
    story.end()

    verdict = story.decide()

    assert missed == ("False", "EvictByMissed")
    assert verdict.on_time is None
    assert ("OnTime", "Nothing in the table has an evictBy any more.") in {
        (e.verdict.reason, e.verdict.message) for e in story.events()
    }


def test_a_run_under_way_is_in_time_until_the_time_is_over() -> None:
    story = VacuumStory((a_policy(),), due_in(HOUR), {"total_bytes": 100 * 1024 * GIB})
    story.start()
    story.decide()
    assert story.on_time == ("True", "OnTime")

    story.wait(hours=2)
    story.decide()

    assert story.on_time == ("False", "EvictByMissed")


def test_an_erasure_that_a_tag_blocks_is_checked_again_without_a_commit() -> None:
    """The tag is removed, and no snapshot shows it."""
    owed = a_ledger(erasures=(Erasure("ns/erase/1", 3, NOW + HOUR),))
    story = VacuumStory((a_policy(),), owed)
    for _ in story.every(30, until=NOW + DAY):
        if story.decide().launch is not None:
            story.end("NothingToDo", erasures_open=1)

    assert 4 <= len({r.run_id for r in story.launched}) <= 6


def test_a_vacuum_that_has_to_start_early_puts_what_is_due_first() -> None:
    """A run takes first what is due within its lead, which has to reach as far as the deadline that it was started for."""
    story = VacuumStory(
        (a_policy(triggers={"evictByLeadSeconds": 60}),), due_in(5 * DAY), {"total_bytes": 10_000 * GIB}
    )

    assert story.start().evict_by_lead_seconds > 5 * 86_400


def test_a_vacuum_that_failed_permanently_is_not_on_time() -> None:
    """No other one starts before somebody acts, so the condition must not say that one is due."""
    story = VacuumStory((a_policy(),), due_in(20 * HOUR))
    story.start()
    story.fail(exit_code=10)

    for _ in story.every(30, until=NOW + 4 * HOUR):
        assert story.decide().launch is None
        assert story.on_time == ("False", "RunFailed")
        assert story.told == ("Later", "RunFailed")
        assert "ended with exit code 10" in story.message


def test_a_boundary_without_vacuums_is_not_on_time() -> None:
    settings = replace(SETTINGS, boundaries=Boundaries(default=Boundary(operations=(AllowedOperation.REVERT,))))
    world = a_world(table=a_table(due_in(HOUR)), policies=(a_policy(),))

    on_time = decide_vacuum(a_dataset(), world, None, NOW, settings).on_time

    assert on_time is not None
    assert (on_time.status, on_time.reason) == ("False", "OutsideBoundary")


# --- what it overrides ---------------------------------------------------------------------------------------------------


def test_a_due_evict_by_overrides_the_window() -> None:
    """And a run that was started for it is not stopped by it."""
    story = VacuumStory((a_policy(window=SHUT),), due_in(HOUR))

    assert story.start().stop_by is None


@pytest.mark.parametrize("schedule", ["0 0 31 2 *", "nonsense * * * *"])
def test_it_overrides_a_window_that_never_opens(schedule: str) -> None:
    shut = {**SHUT, "schedule": schedule}
    early, due = (
        VacuumStory((a_policy(window=shut, triggers={"activeTombstones": 1}),)),
        VacuumStory((a_policy(window=shut),)),
    )
    due.ledger = due_in(HOUR)

    assert early.decide().launch is None
    assert early.told in {("Due", "WindowNeverOpens"), ("Due", "InvalidWindow")}
    assert due.start() is not None


def test_it_does_not_override_the_approval_but_alerts() -> None:
    story = VacuumStory((a_policy(approval="Manual"),), due_in(HOUR))
    story.start()
    story.end("Planned", plan=a_plan())

    assert story.decide().launch is None
    assert story.on_time == ("False", "NeedsApproval")
    assert ("NeedsApproval", True) in {(e.verdict.reason, e.warning) for e in story.events()}


# --- nobody purges -------------------------------------------------------------------------------------------------------


def a_gone(policy: VacuumPolicy) -> VacuumPolicy:
    return a_policy(policy.meta.name, meta={"deletionTimestamp": NOW.isoformat()})


@pytest.mark.parametrize(
    "policies",
    [
        pytest.param((), id="none"),
        pytest.param((a_policy(datasetSelector={"matchLabels": {"team": "sea"}}),), id="one for others"),
        pytest.param((a_gone(a_policy()),), id="one that is being deleted"),
    ],
)
def test_without_a_policy_an_evict_by_stalls_the_dataset(policies: tuple[VacuumPolicy, ...]) -> None:
    story = VacuumStory(policies, due_in(30 * DAY))

    story.decide()

    assert story.on_time == ("False", "NoVacuumPolicy")
    assert [e.warning for e in story.events() if e.verdict.reason == "NoVacuumPolicy"] == [True]


def test_without_an_evict_by_no_policy_is_needed() -> None:
    story = VacuumStory((), a_ledger("A"))

    assert story.decide().on_time is None
    assert {e.verdict.reason for e in story.events()} <= {"Available"}

"""What makes a vacuum due, when that is looked at again, and that no threshold or clock leads to endless vacuums or to none."""

from dataclasses import replace
from datetime import timedelta

import pytest
from lethe.ledger.ledger import BatchState, Ledger
from lethe_operator.vacuum.triggers import hidden_percent

from tests.support.builders import NOW, a_batch, a_ledger, a_tombstone, ago
from tests.support.resources import a_policy, a_table
from tests.unit.lethe_operator.vacuuming import VacuumStory

HOUR = timedelta(hours=1)
NIGHTLY = {"schedule": "0 1 * * *", "timeZone": "UTC", "durationSeconds": 3600}


def triggered(ledger: Ledger, total_records: int | None = None, **triggers: int) -> VacuumStory:
    """What is decided about a table whose policy has just these triggers."""
    view = {} if total_records is None else {"total_records": total_records}
    story = VacuumStory((a_policy(triggers=triggers),), ledger, view)
    story.look_again = story.decide().look_again  # type: ignore[attr-defined]
    return story


def hidden(rows: int) -> Ledger:
    return a_ledger("A", batches=[a_batch("A", BatchState.REVERTED, rows=rows), a_batch("B", rows=1000)])


@pytest.mark.parametrize(("rows", "due"), [(99, "Later"), (100, "Due"), (101, "Due")])
def test_a_share_of_hidden_rows_makes_it_due(rows: int, due: str) -> None:
    """Of the rows that the data files hold, hidden ones included."""
    story = triggered(hidden(rows), total_records=1000, tombstonedRowsPercent=10)

    assert story.told == (due, "TooManyHiddenRows" if due == "Due" else "BelowTriggers")
    assert f"{rows / 10:.1f}% of the rows hidden, the limit is 10%" in story.message


def test_an_unknown_share_of_hidden_rows_makes_no_vacuum_due() -> None:
    """Such as while the head is of a writer that says nothing of its rows."""
    story = triggered(hidden(500), tombstonedRowsPercent=1)

    assert story.told == ("Later", "BelowTriggers")
    assert "unknown share of the rows hidden" in story.message.lower()


def test_a_share_is_never_more_than_all() -> None:
    """Rows of which a vacuum has purged a part still count until their tombstone goes."""
    assert hidden_percent(a_table(hidden(2000), total_records=1000)) == 100
    assert hidden_percent(a_table(a_ledger(), total_records=0)) == 0


def test_an_old_tombstone_makes_it_due_at_the_moment_it_is_old() -> None:
    ledger = a_ledger(a_tombstone("A", added_on=ago(minutes=10)))

    young, old = (triggered(ledger, oldestTombstoneAgeSeconds=s) for s in (601, 600))

    assert (young.told, young.look_again) == (("Later", "BelowTriggers"), NOW + timedelta(seconds=1))  # type: ignore[attr-defined]
    assert old.told == ("Due", "TombstoneTooOld")


def test_an_evict_by_makes_it_due_by_its_lead() -> None:
    ledger = a_ledger(a_tombstone("A", evict_by=NOW + 30 * HOUR))

    later, due = (triggered(ledger, evictByLeadSeconds=s * 3600) for s in (29, 30))

    assert (later.told, later.look_again) == (("Later", "BelowTriggers"), NOW + HOUR)  # type: ignore[attr-defined]
    assert due.told == ("Due", "EvictByNear")


def test_the_first_trigger_that_fires_is_named_an_evict_by_before_the_others() -> None:
    ledger = a_ledger(a_tombstone("A", added_on=ago(hours=9), evict_by=NOW + HOUR), "B", "C", "D")

    story = triggered(ledger, activeTombstones=1, oldestTombstoneAgeSeconds=0, evictByLeadSeconds=86_400)

    assert story.told == ("Due", "EvictByNear")


def test_a_policy_without_a_trigger_waits_for_an_evict_by() -> None:
    assert triggered(a_ledger("A"), evictByLeadSeconds=0).told == ("Later", "BelowTriggers")
    assert triggered(a_ledger(a_tombstone("A", evict_by=NOW)), evictByLeadSeconds=0).told == ("Due", "EvictByNear")


# --- never endless, never none -----------------------------------------------------------------------------------------

ZERO = {"activeTombstones": 1, "tombstonedRowsPercent": 1, "oldestTombstoneAgeSeconds": 0, "evictByLeadSeconds": 0}


def test_thresholds_of_zero_purge_once_and_then_rest() -> None:
    """A clean table has nothing that any threshold could be about."""
    story = VacuumStory((a_policy(triggers=ZERO),), view={"total_records": 1000})
    for _ in story.every(10, until=NOW + 24 * HOUR):
        story.commit()
        if story.decide().launch is not None:
            story.wait(minutes=1)
            story.end()

    assert len(story.launched) == 1
    assert story.told == ("Later", "BelowTriggers")


def test_what_no_vacuum_can_purge_is_tried_more_and_more_seldom() -> None:
    """While commits keep coming and thresholds of zero stay reached: not with each of them, and not never again."""
    story = VacuumStory((a_policy(triggers=ZERO),))
    for _ in story.every(10, until=NOW + 7 * 24 * HOUR):
        story.commit()
        if story.decide().launch is not None:
            story.end("NothingToDo")

    assert 8 <= len(story.launched) <= 12
    assert story.told == ("Later", "NothingLeft")


def test_the_tombstones_show_what_runs_without_a_result_did() -> None:
    """Their results are lost, and the tombstones stay."""
    story = VacuumStory((a_policy(triggers=ZERO),))
    for _ in story.every(10, until=NOW + 24 * HOUR):
        story.commit()
        if story.decide().launch is not None:
            story.end_silently()

    assert 4 <= len(story.launched) <= 7


def test_new_tombstones_are_not_kept_waiting_by_a_vacuum_that_found_nothing() -> None:
    story = VacuumStory((a_policy(triggers=ZERO),))
    story.start()
    story.end("NothingToDo")
    story.decide()
    assert story.told == ("Later", "NothingLeft")

    story.commit(a_ledger("A", "B", "C", "D", "E"))

    assert story.start() is not None


@pytest.mark.parametrize("off", [-HOUR, HOUR], ids=["an hour behind", "an hour ahead"])
def test_an_operator_whose_clock_is_off_purges_an_hour_earlier_or_later(off: timedelta) -> None:
    """Not never, and no more often."""
    ledger = a_ledger(a_tombstone("A", added_on=NOW, evict_by=NOW + 48 * HOUR))
    policy = a_policy(triggers={"oldestTombstoneAgeSeconds": 7200, "evictByLeadSeconds": 0})
    story = VacuumStory((policy,), ledger, clock_off=off)
    began = None
    for _ in story.every(10, until=NOW + 24 * HOUR):
        story.commit()
        if story.decide().launch is not None:
            began = began or story.now
            story.wait(minutes=1)
            story.end()

    assert (began, len(story.launched)) == (NOW + 2 * HOUR - off, 1)


@pytest.mark.parametrize("off", [-HOUR, HOUR], ids=["an hour behind", "an hour ahead"])
def test_an_operator_whose_clock_is_off_keeps_an_evict_by(off: timedelta) -> None:
    story = VacuumStory(
        (a_policy(triggers={"evictByLeadSeconds": 0}),), a_ledger(a_tombstone("A", evict_by=NOW + 48 * HOUR))
    )
    story.clock_off = off
    for _ in story.every(10, until=NOW + 48 * HOUR):
        if story.decide().launch is not None:
            story.end()

    assert len(story.launched) == 1
    assert story.runs[0].attempts[0].created < NOW + 48 * HOUR


def test_a_run_whose_clock_differs_gets_a_duration_instead_of_a_time() -> None:
    """An hour ahead, in a window of an hour: it would see it closed each night, and never purge."""
    story = VacuumStory((a_policy(window=NIGHTLY),), now=NOW.replace(hour=1, minute=0))
    assert story.start().stop_by == NOW.replace(hour=2, minute=0)
    story.wait(minutes=5)
    story.end("NothingToDo", stopped="WindowClosed", files_left=2)

    again = story.start()

    assert (again.stop_by, again.max_seconds) == (None, 55 * 60)
    assert len({r.run_id for r in story.launched}) == 2


def test_a_run_that_came_too_late_for_the_window_waits_for_the_next_night() -> None:
    """Its pod waited for a node; its clock is right."""
    story = VacuumStory((a_policy(window=NIGHTLY),), now=NOW.replace(hour=1, minute=59))
    story.start()
    story.wait(minutes=5)
    story.end("NothingToDo", stopped="WindowClosed", files_left=2)

    for _ in story.every(10, until=NOW.replace(day=3, hour=1, minute=30)):
        if story.decide().launch is not None:
            break

    assert story.now == NOW.replace(day=2, hour=1, minute=4)
    assert story.launched[-1].vacuum.stop_by == NOW.replace(day=2, hour=2, minute=0)  # type: ignore[union-attr]


@pytest.mark.parametrize("stopped", [True, False], ids=["its Job is deleted for the hold", "its first attempt fails"])
def test_what_a_hold_kept_that_came_between_two_attempts_is_purged_when_it_ends(stopped: bool) -> None:
    """The second attempt has the hold, and the run of this head has ended with it."""
    story = VacuumStory((a_policy(),))
    story.start()
    story.holds = [{"name": "case-7"}]
    if stopped:
        story.runs = [replace(r, attempts=()) for r in story.runs]
    else:
        story.fail()
    story.wait(hours=1)
    assert story.decide().launch is not None
    assert [h.name for h in story.launched[-1].holds] == ["case-7"]
    story.end("NothingToDo", files_held=1)
    assert story.decide().launch is None

    story.holds = []
    story.start()

    assert story.launched[-1].holds == ()
    story.end("NothingToDo")
    story.wait(days=3)
    assert story.decide().launch is None, "nothing has changed since"

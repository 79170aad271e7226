"""What becomes of the members of a run when it has ended, and of those that are tried again."""

from datetime import timedelta

import pytest
from lethe.contract.result import RequestResult
from lethe_operator.actions import Actions
from lethe_operator.resources.observed import AttemptState
from lethe_operator.resources.restatement import Restatement

from tests.support.builders import NOW, a_ledger, a_request_entry
from tests.support.resources import a_group, a_restatement, a_result, a_run, a_table, condition
from tests.support.statuses import showing
from tests.unit.lethe_operator.queueing import R, came, decided, ended, members


def test_each_member_has_the_end_that_the_run_told_of_it() -> None:
    """The ledger tells of those that were committed; the result of those that were refused."""
    refused = RequestResult(key=R[1].key, name="ns/r1", succeeded=False, reason="AlreadyReplaced", message="by X")
    done = [RequestResult(key=r.key, name=r.meta.full_name, succeeded=True, group_size=2) for r in (R[0], R[2])]
    run = ended(30, *R[:3], result=a_result(a_group(*R[:3]), requests=[done[0], refused, done[1]]))
    entries = [a_request_entry(r.key, group_size=2) for r in (R[0], R[2])]

    actions = decided(*R[:4], runs=(run,), world={"table": a_table(a_ledger(requests=entries))})

    ends = {n: (s["phase"], condition(s, "Succeeded")[0]) for n, s in actions.restatement_statuses.items()}
    assert ends == {
        "r0": ("Succeeded", "True"),
        "r1": ("Failed", "False"),
        "r2": ("Succeeded", "True"),
        "r3": ("Queued", "Unknown"),
    }
    assert condition(actions.restatement_statuses["r1"], "Stalled") == ("True", "AlreadyReplaced")
    (told,) = actions.dataset_status["runs"]  # type: ignore[index]
    assert told["message"] == "2 of 3 Restatements carried out, 0 rows deleted, 0 rows added."
    assert actions.restatement_statuses["r0"]["result"]["groupSize"] == 2
    assert members(actions) == ["r3"]


def test_it_is_said_when_other_engines_see_a_restatement() -> None:
    """Once they have seen it, later tombstones of others change nothing."""
    ledger, named = a_ledger(requests=[a_request_entry(R[0].key)]), "VisibleToAllEngines"
    run = ended(30, R[0], result=a_result(a_group(R[0]), requests=[], files_without_deletes=7))

    def after(restatement: Restatement, is_masked: bool) -> Actions:
        return decided(restatement, runs=(run,), world={"table": a_table(ledger, is_masked=is_masked)})

    first = after(R[0], False).restatement_statuses["r0"]
    later = after(showing(R[0], first), True).restatement_statuses["r0"]
    once_more = after(showing(R[0], later), False).restatement_statuses

    assert condition(first, named) == ("False", "NativeDeletesFollow")
    assert "7 data files are left" in next(c["message"] for c in first["conditions"] if c["type"] == named)
    assert condition(later, named) == ("True", "NativeDeletesWritten")
    assert once_more == {}


@pytest.mark.parametrize(("attempt", "pause_seconds"), [(1, 10), (2, 20), (3, 40)])
def test_one_that_the_run_kept_out_for_now_is_tried_again_after_growing_pauses(
    attempt: int, pause_seconds: float
) -> None:
    """Its replacement could not be read, say; the others of its group are done."""
    kept_out = RequestResult(
        key=R[1].key, name="ns/r1", succeeded=False, again=True, reason="StorageAway", message="It is away."
    )
    ledger = {"table": a_table(a_ledger(requests=[a_request_entry(R[0].key)]))}

    def after(seconds: float) -> Actions:
        result = a_result(a_group(*R[:2]), requests=[kept_out], attempt=attempt)
        run = ended(seconds, *R[:2], number=attempt, result=result)
        return decided(*R[:2], runs=(run,), world=dict(ledger))

    early, in_time = after(pause_seconds - 1), after(pause_seconds)

    assert (members(early), members(in_time)) == ([], ["r1"])
    assert early.look_again == NOW + timedelta(seconds=1)
    assert condition(early.restatement_statuses["r1"], "Ready") == ("False", "StorageAway")
    assert condition(early.restatement_statuses["r1"], "Succeeded")[0] == "Unknown"


def test_those_that_a_run_failed_with_are_tried_together_again_without_what_came_since() -> None:
    failed = ended(30, *R[:3], state=AttemptState.FAILED, exit_code=None)

    first = decided(*R[:3], came("new", 15, batchIds=["n"]), runs=(failed,))
    behind = decided(*R[:3], came("old", 28, batchIds=["n"]), runs=(failed,))

    (launch,) = first.launches
    assert members(first) == ["r0", "r1", "r2"]
    assert (launch.run.run_id, launch.run.attempt) == (failed.run_id, 2)
    assert members(behind) == ["old"]  # which waits for longer than their pause is over


def test_while_they_pause_others_go() -> None:
    failed = ended(9, *R[:3], state=AttemptState.FAILED, exit_code=20)

    actions = decided(*R[:5], runs=(failed,))

    assert members(actions) == ["r3", "r4"]
    assert actions.restatement_statuses["r0"].get("queuePosition") is None
    assert condition(actions.restatement_statuses["r0"], "Ready") == ("False", "RunFailed")


def test_a_stored_intent_goes_as_it_was_stored_and_the_rest_afterwards() -> None:
    """Its Job may be there already, though nobody has seen it yet."""
    stored = a_run(a_group(*R[:3]))

    actions = decided(*R[:5], runs=(stored,))

    assert [x.run.run_id for x in actions.launches] == [stored.run_id]
    assert actions.drop_keys == ()


def test_a_stored_intent_of_a_group_that_has_changed_is_dropped() -> None:
    stored = a_run(a_group(*R[:3]))

    actions = decided(R[0], a_restatement("r1", batchIds=["b1"], suspend=True), R[2], runs=(stored,))

    assert members(actions) == ["r0", "r2"]
    assert actions.drop_keys == stored.keys


def test_what_a_group_was_told_stays_until_each_of_its_members_has_ended() -> None:
    """Who was in it is known from nothing else."""
    over = ended(30, *R[:3], state=AttemptState.FAILED, exit_code=10)
    told = decided(*R[:3], runs=(over,))
    shown = {"runs": told.dataset_status["runs"]}  # type: ignore[index]

    def left(*names: str) -> tuple[str, ...]:
        seen = [showing(r, told.restatement_statuses[r.meta.name]) for r in R[:3] if r.meta.name in names]
        rest = [r for r in R[:3] if r.meta.name not in names]
        return decided(*seen, *rest, runs=(over,), status=shown).drop_keys

    assert left("r0", "r1") == ()
    assert left("r0", "r1", "r2") == over.keys


def test_a_member_that_was_created_anew_starts_anew() -> None:
    failed = ended(30, *R[:2], state=AttemptState.FAILED, exit_code=10)
    again = came("r0", 5, batchIds=["b0"])

    actions = decided(again, R[1], runs=(failed,))

    assert again.key == R[0].key
    assert members(actions) == ["r0"]
    assert actions.restatement_statuses["r1"]["phase"] == "Failed"

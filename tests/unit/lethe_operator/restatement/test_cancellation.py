"""A Restatement that is cancelled, or whose time is over: the ledger says whether that came too late."""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from lethe.contract.status import RestatementStatus
from lethe_operator.resources.observed import AttemptState, ObservedRun, Unavailable
from lethe_operator.resources.restatement import Restatement
from lethe_operator.restatement import status as restatement_status

from tests.support.builders import NOW, a_ledger, a_request_entry, ago
from tests.support.resources import a_group, a_restatement, a_run, a_table, an_attempt, condition, message
from tests.support.statuses import without_dataset
from tests.unit.lethe_operator.queueing import R, decided, ended, members, seen

# One hour old, as everything here.
OVER = {"deadlineSeconds": 3600}
NOT_OVER = {"deadlineSeconds": 3601}


@dataclass(frozen=True)
class Way:
    """Fields of the spec, and what the status says of them: the reason until it has ended, then the phase and the reason."""

    spec: dict[str, Any]
    under_way: str
    phase: str
    reason: str


WITHDRAWN = pytest.mark.parametrize(
    "way",
    [
        Way({"cancel": True}, "Cancelling", "Cancelled", "Cancelled"),
        Way(OVER, "DeadlineExceeded", "Failed", "DeadlineExceeded"),
    ],
    ids=["cancelled", "over its deadline"],
)


def one(name: str = "r0", **how: Any) -> Restatement:
    return a_restatement(name, batchIds=[f"b{name[1:]}"], **how)


def running(*members: Restatement) -> ObservedRun:
    spec = a_group(*members)
    return a_run(spec, an_attempt(spec, for_uid=members[0].meta.uid if len(members) == 1 else ""))


def holding(*committed: Restatement, **result: Any) -> dict[str, Any]:
    return {"table": a_table(a_ledger(requests=[a_request_entry(r.key, **result) for r in committed]))}


@WITHDRAWN
def test_before_any_run_it_ends_at_once_and_nothing_is_started(way: Way) -> None:
    actions = decided(one(**way.spec), R[1])

    status = actions.restatement_statuses["r0"]
    assert (status["phase"], condition(status, "Succeeded")) == (way.phase, ("False", way.reason))
    assert "It was not committed. Nothing was changed." in message(status, "Succeeded")
    assert members(actions) == ["r1"]


@WITHDRAWN
def test_alone_in_its_run_it_stops_that_and_ends_when_that_is_gone(way: Way) -> None:
    r = one(**way.spec)
    run = running(r)

    during, after = decided(r, runs=(run,)), decided(r, runs=(ended(1, r, state=AttemptState.FAILED, exit_code=143),))

    assert during.delete_jobs == (run.attempts[0].job,)
    assert condition(during.restatement_statuses["r0"], "Succeeded") == ("Unknown", way.under_way)
    assert (during.launches, after.launches) == ((), ())
    assert condition(after.restatement_statuses["r0"], "Succeeded") == ("False", way.reason)


@WITHDRAWN
@pytest.mark.parametrize("landed", [True, False])
def test_the_others_of_its_group_go_on_and_the_ledger_says_whether_it_came_too_late(way: Way, landed: bool) -> None:
    r = one(**way.spec)
    over = ended(30, r, R[1], state=AttemptState.FAILED, exit_code=20)

    during = decided(r, R[1], runs=(running(r, R[1]),))
    after = decided(r, R[1], runs=(over,), world=holding(*((r, R[1]) if landed else ())))

    assert (during.delete_jobs, during.launches) == ((), ())
    assert condition(during.restatement_statuses["r0"], "Ready") == ("False", way.under_way)
    assert condition(during.restatement_statuses["r0"], "Reconciling")[0] == "True"
    assert condition(during.restatement_statuses["r1"], "Ready")[1] == "Running"
    status = after.restatement_statuses["r0"]
    assert condition(status, "Succeeded") == (("True", "Succeeded") if landed else ("False", way.reason))
    assert members(after) == ([] if landed else ["r1"])


@WITHDRAWN
def test_a_run_that_nobody_wants_any_more_is_stopped(way: Way) -> None:
    """The second may be wanted no more for another cause."""
    both = (one("r0", **way.spec), one("r1", cancel=True))
    run = running(*both)

    assert decided(*both, runs=(run,)).delete_jobs == (run.attempts[0].job,)
    assert decided(both[0], R[1], runs=(run,)).delete_jobs == ()


@WITHDRAWN
def test_nothing_is_said_for_good_while_the_table_cannot_be_asked(way: Way) -> None:
    """Its run may have committed before it died. A catalog that nobody has configured never had a table."""
    r = one(**way.spec)
    over = ended(30, r, state=AttemptState.FAILED, exit_code=None)
    away = Unavailable("CatalogUnavailable", "The catalog is away.")
    unknown = Unavailable("UnknownCatalog", "There is none.", transient=False)

    def told(table: Unavailable, *runs: ObservedRun) -> dict[str, Any]:
        return dict(decided(r, runs=runs, world={"table": table}).restatement_statuses["r0"])

    for unsure in (told(away, over), told(away), told(unknown, over)):
        assert condition(unsure, "Succeeded") == ("Unknown", way.under_way)
    assert message(told(away), "Succeeded").endswith("once the operator can read the table: The catalog is away.")
    assert condition(told(unknown), "Succeeded") == ("False", way.reason)


def test_a_cancel_that_came_too_late_says_so_even_after_the_end() -> None:
    done = seen(decided(R[0], world=holding(R[0])), [R[0]])[0]
    assert condition(done.status, "Succeeded")[0] == "True"
    edited = one(cancel=True, status=done.status, meta={"generation": 2})

    status = decided(edited, world=holding(edited)).restatement_statuses["r0"]

    assert (status["phase"], status["observedGeneration"]) == ("Succeeded", 2)
    assert message(status, "Succeeded").endswith("spec.cancel came too late: the Restatement was already committed.")


def test_one_that_was_committed_after_its_time_has_succeeded_and_says_so() -> None:
    late, in_time = one(deadlineSeconds=3000), one(**OVER)

    def told(r: Restatement) -> str:  # committed a second ago
        entry = replace(
            a_request_entry(r.key),
            result={**a_request_entry(r.key).result, "committedTime": ago(seconds=1).isoformat()},
        )
        table = {"table": a_table(a_ledger(requests=[entry]))}
        return message(decided(r, world=table).restatement_statuses["r0"], "Succeeded")

    assert "It was committed at" in told(late)
    assert "It was committed at" not in told(in_time)


def test_it_is_looked_at_again_when_its_time_is_over_whatever_it_waits_for() -> None:
    at = NOW + timedelta(seconds=1)
    paused = {"annotations": {"lethe.dev/paused": "true"}}

    assert decided(one(**NOT_OVER), runs=(running(one(**NOT_OVER)),)).look_again == at
    assert decided(one(suspend=True, **NOT_OVER)).look_again == at
    assert decided(one(**NOT_OVER), meta=paused).look_again == at
    assert without_dataset("flights", [one(**NOT_OVER)], NOW).look_again == at
    assert decided(one(suspend=True, **OVER)).restatement_statuses["r0"]["phase"] == "Failed"


def test_time_that_is_over_is_a_failure_that_stays_one() -> None:
    """Somebody wanted it done; of one that was cancelled nobody does."""
    failed = seen(decided(one(**OVER)), [one(**OVER)])[0]

    again = decided(failed)

    assert condition(failed.status, "Stalled") == ("True", "DeadlineExceeded")
    (event,) = restatement_status.events("r0", RestatementStatus(), failed.status)
    assert (event.verdict.reason, event.warning) == ("DeadlineExceeded", True)
    assert (again.restatement_statuses, again.launches) == ({}, ())


@WITHDRAWN
def test_without_its_dataset_it_ends_as_well(way: Way) -> None:
    status = without_dataset("flights", [one(**way.spec)], NOW).restatement_statuses["r0"]

    assert (status["phase"], condition(status, "Succeeded")) == (way.phase, ("False", way.reason))


def test_one_that_cannot_be_done_can_be_cancelled() -> None:
    assert decided(one(operation="Erase", cancel=True)).restatement_statuses["r0"]["phase"] == "Cancelled"


def test_suspended_in_a_group_under_way_it_goes_on_and_is_not_repeated() -> None:
    r = one(suspend=True)
    failed = ended(30, r, R[1], state=AttemptState.FAILED, exit_code=20)

    during, after = decided(r, R[1], runs=(running(r, R[1]),)), decided(r, R[1], runs=(failed,))

    assert during.delete_jobs == ()
    assert "no further run of it starts" in message(during.restatement_statuses["r0"], "Ready")
    assert after.restatement_statuses["r0"]["phase"] == "Suspended"
    assert members(after) == ["r1"]

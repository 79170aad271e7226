"""Restatements that have ended are deleted when their time is over, however many, some at a time."""

from datetime import datetime, timedelta
from typing import Any

from lethe.base.errors import Verdict
from lethe.contract.status import RestatementStatus
from lethe_operator.actions import Actions
from lethe_operator.resources.restatement import Restatement
from lethe_operator.restatement.observe import RestatementCache
from lethe_operator.restatement.outcome import Assessment, RestatementPhase
from lethe_operator.restatement.status import DELETED_AT_ONCE, ExpiredRestatements, expired, expires

from tests.support.builders import NOW, a_ledger, a_request_entry, ago
from tests.support.resources import a_restatement, a_restatement_body, a_table
from tests.support.statuses import a_condition, a_restatement_status, document, without_dataset
from tests.unit.lethe_operator.queueing import decided


def status(seconds_ago: float, succeeded: str = "True") -> RestatementStatus:
    condition = a_condition(status=succeeded, at=ago(seconds=seconds_ago))
    return a_restatement_status(condition, phase="P", observedGeneration=1)


def one(ttl: int | None, seconds_ago: float = 100, name: str = "r", **changes: Any) -> Restatement:
    spec = {} if ttl is None else {"ttlSecondsAfterFinished": ttl}
    return a_restatement(name, status=status(seconds_ago), **spec, **changes)


def ended(r: Restatement, succeeded: str = "True") -> Assessment:
    at = document(r.status)["conditions"][0]["lastTransitionTime"] if r.status.conditions else None
    return Assessment(
        RestatementPhase.SUCCEEDED,
        succeeded,
        Verdict("R", ""),
        finished_time=datetime.fromisoformat(at) if at else None,
    )


def test_the_time_counts_from_the_end_and_only_when_it_is_set() -> None:
    for ttl, at in ((None, None), (60, ago(seconds=40)), (160, NOW + timedelta(seconds=60))):
        assert expires(one(ttl), ended(one(ttl)), NOW) == at
    assert (
        expires(
            a_restatement(ttlSecondsAfterFinished=0),
            Assessment(RestatementPhase.QUEUED, "Unknown", Verdict("Queued", "")),
            NOW,
        )
        is None
    )


def test_one_whose_end_is_being_written_has_all_its_time_before_it() -> None:
    changed = one(0)

    assert expires(changed, ended(changed, "False"), NOW) is None


def test_thousands_whose_time_is_over_go_some_at_a_time_the_first_to_end_first() -> None:
    """The Dataset is not left alone for as long as all of them take."""
    many = [one(0, seconds_ago=n + 1, name=f"r{n:04}") for n in range(3 * DELETED_AT_ONCE // 2)]

    first = expired([(r, ended(r)) for r in many], NOW)
    left = [r for r in many if r.meta.name not in first.names]
    second = expired([(r, ended(r)) for r in left], NOW)

    assert first.names == tuple(r.meta.name for r in many[: DELETED_AT_ONCE // 2 - 1 : -1])
    assert first.look_again == NOW + timedelta(seconds=5)
    assert second == ExpiredRestatements(tuple(r.meta.name for r in left[::-1]), None)


def test_it_is_looked_at_when_the_next_ones_time_is_over() -> None:
    table = {"table": a_table(a_ledger(requests=[a_request_entry(one(110).key)]))}

    def found(ttl: int) -> Actions:
        return decided(one(ttl), world=dict(table))

    assert (found(100).delete_restatements, found(100).look_again) == (("r",), None)
    assert (found(110).delete_restatements, found(110).look_again) == ((), NOW + timedelta(seconds=10))
    without = without_dataset("flights", [one(110)], NOW)
    assert (without.delete_restatements, without.look_again) == ((), NOW + timedelta(seconds=10))


def test_no_more_are_unpacked_at_one_look_than_are_deleted() -> None:
    """Of a hundred thousand that have succeeded, what is kept of each is small because it is packed."""
    known = RestatementCache()
    for n in range(DELETED_AT_ONCE + 50):
        known.put(a_restatement_body(f"r{n:04}", status=status(n + 1), ttlSecondsAfterFinished=0))

    found = known.of("ns", "flights", NOW)

    assert sorted(r.meta.name for r in found.restatements) == [f"r{n:04}" for n in range(50, DELETED_AT_ONCE + 50)]
    assert found.next_expiry is None

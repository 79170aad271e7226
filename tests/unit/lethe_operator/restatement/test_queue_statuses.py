"""What is written of Restatements when thousands of them wait or end."""

from datetime import timedelta

from lethe_operator.resources.observed import AttemptState

from tests.support.builders import NOW, a_ledger, a_request_entry
from tests.support.resources import a_group, a_restatement, a_run, a_table, an_attempt
from tests.unit.lethe_operator.queueing import R, decided, ended, seen


def test_a_queue_position_is_written_again_when_it_has_halved() -> None:
    many = [a_restatement(f"r{n:03}", batchIds=[f"b{n}"]) for n in range(100)]
    spec = a_group(a_restatement("other"))
    run = a_run(spec, an_attempt(spec))
    many = seen(decided(*many, runs=(run,)), many)

    def told_after(gone: int) -> dict[str, int]:
        statuses = decided(*many[gone:], runs=(run,)).restatement_statuses
        return {name: s["queuePosition"] for name, s in statuses.items()}

    assert told_after(0) == {}
    assert told_after(1) == {"r001": 1}
    assert told_after(10) == {f"r{n:03}": n - 9 for n in range(10, 20)}


def test_statuses_of_waiting_restatements_are_written_gradually_and_those_of_ended_ones_at_once() -> None:
    many = [a_restatement(f"r{n:03}", batchIds=[f"b{n}"]) for n in range(900)]
    ledger = {"table": a_table(a_ledger(requests=[a_request_entry(r.key, group_size=300) for r in many[600:]]))}
    spec = a_group(*many[:10])
    run = a_run(spec, an_attempt(spec))
    rounds: list[int] = []
    while rounds[-1:] != [0]:
        actions = decided(*many, runs=(run,), world=dict(ledger))
        rounds.append(len(actions.restatement_statuses))
        many = seen(actions, many)
        assert actions.look_again == (NOW + timedelta(seconds=5) if len(rounds) < 3 else None)

    assert rounds == [200 + 300, 200, 200, 0]


def test_an_event_for_each_member_is_posted_for_small_groups_only() -> None:
    def told(size: int) -> list[str]:
        ledger = a_ledger(requests=[a_request_entry(r.key, group_size=size) for r in R[:2]])
        return [
            e.verdict.reason
            for e in decided(*R[:2], world={"table": a_table(ledger)}).events
            if e.kind == "Restatement"
        ]

    assert told(20) == ["Succeeded", "Succeeded"]
    assert told(21) == []


def test_of_very_many_changes_at_once_only_some_get_events() -> None:
    many = [a_restatement(f"r{n:03}", batchIds=[f"b{n}"]) for n in range(300)]
    failed = ended(30, *many, state=AttemptState.FAILED, exit_code=10)

    actions = decided(*many, runs=(failed,))

    assert len(actions.restatement_statuses) == 300
    assert len([e for e in actions.events if e.kind == "Restatement"]) == 100

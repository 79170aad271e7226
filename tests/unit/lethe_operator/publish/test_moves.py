"""Which ledger comes next, from where, and what kind of move that is."""

from lethe.ledger.lineage import Resolution, resolve
from lethe_operator.publish.cursor import (
    Carried,
    HeadHistory,
    Move,
    NextLedger,
    PublishedPosition,
    line_of,
    move_to,
    next_candidate,
)

from tests.support.builders import a_carrier, a_history, a_snapshot

NOTHING = PublishedPosition()


def a_line(*snapshots, head: int) -> HeadHistory:  # type: ignore[no-untyped-def]
    history = a_history(*snapshots)
    return line_of(history, head, resolve(history, head, [a_carrier(90, head, ledger="L90")]))


def at(snapshot_id: int, version: int = 1, root: str = "") -> PublishedPosition:
    return PublishedPosition(root or f"L{snapshot_id}", version, snapshot_id, snapshot_id)


def following(position: PublishedPosition, line: HeadHistory) -> tuple[str | None, bool] | None:
    found = next_candidate(position, line)
    return None if found is None else (found.to.root if found.to else None, found.rolled_back)


def test_the_next_ledger_of_the_line_comes_next_over_bare_snapshots() -> None:
    line = a_line(a_snapshot(1, ledger="L1"), a_snapshot(2, 1), a_snapshot(3, 2, ledger="L3"), a_snapshot(4, 3), head=4)

    assert following(NOTHING, line) == ("L1", False)
    assert following(at(1), line) == ("L3", False)
    assert following(at(3), line) is None


def test_a_ledger_that_a_person_named_again_is_the_same() -> None:
    line = a_line(a_snapshot(1, ledger="L1"), a_snapshot(2, 1), a_snapshot(3, 2, ledger="L1"), head=3)

    assert line.carried == (Carried("L1", 1, 1, line.carried[0].time_ms),)
    assert following(at(1), line) is None


def test_an_older_ledger_that_a_person_named_again_is_a_rollback() -> None:
    snapshots = [a_snapshot(1, ledger="L1"), a_snapshot(2, 1, ledger="L2"), a_snapshot(3, 2, ledger="L1")]
    line = a_line(*snapshots, head=3)

    assert [following(at(n, root=root), line) for n, root in ((1, "L1"), (2, "L2"), (3, "L1"))] == [
        ("L2", False),
        ("L1", False),
        None,
    ]
    assert move_to(NextLedger(line.carried[2]), at(2, 2), 1, readable=True) is Move.ROLL_BACK


def test_a_rollback_leads_to_the_newest_common_ledger() -> None:
    history = [a_snapshot(1, ledger="L1"), a_snapshot(2, 1, ledger="L2"), a_snapshot(3, 2, ledger="L3")]
    other_line = [a_snapshot(4, 1, ledger="L4"), a_snapshot(5, 4, ledger="L5")]

    assert following(at(3), a_line(*history, *other_line, head=5)) == ("L1", True)
    assert following(at(1), a_line(*history, *other_line, head=5)) == ("L4", False)


def test_a_rollback_of_an_expired_snapshot_leads_to_the_head() -> None:
    line = a_line(a_snapshot(1, ledger="L1"), a_snapshot(4, 1, ledger="L4"), head=4)

    assert following(at(3), line) == ("L4", True)


def test_a_history_without_a_common_ledger_begins_with_nothing() -> None:
    line = a_line(a_snapshot(1, ledger="L1"), a_snapshot(2, ledger="L2"), head=2)

    assert following(at(1), line) == (None, True)
    assert next_candidate(NOTHING, line) == NextLedger(line.carried[0])


def test_after_an_expiry_the_oldest_retained_ledger_comes_next() -> None:
    line = a_line(a_snapshot(7, 6, ledger="L7"), a_snapshot(8, 7, ledger="L8"), head=8)

    assert following(at(5), line) == ("L7", False)


def test_a_bare_head_whose_carrier_expired_has_the_listed_ledger() -> None:
    line = a_line(a_snapshot(95, 94), head=95)

    assert [c.root for c in line.carried] == ["L90"]
    assert following(at(80), line) == ("L90", False)


def test_a_table_without_a_ledger_has_an_empty_line() -> None:
    assert line_of({}, None, Resolution(None, None)).carried == ()
    assert next_candidate(NOTHING, line_of({}, None, Resolution(None, None))) is None


def test_only_the_version_after_is_no_gap() -> None:
    step, back = NextLedger(Carried("L9", 9)), NextLedger(Carried("L9", 9), rolled_back=True)

    assert move_to(step, at(5, 3), 4, readable=True) is Move.NEXT
    assert move_to(step, at(5, 3), 5, readable=True) is Move.SKIP
    assert move_to(step, at(5, 3), 3, readable=True) is Move.ROLL_BACK
    assert move_to(back, at(5, 3), 4, readable=True) is Move.ROLL_BACK
    assert move_to(back, at(5, 3), 4, readable=False) is Move.RECOVER

"""A ledger after a delta, and its own snapshot's id filled in by whoever reads it."""

from dataclasses import replace

from lethe.ledger.ledger import EMPTY, BatchState, Delta, apply, settle

from tests.builders import RUN, a_batch, a_carrier, a_ledger, a_request_entry, a_tombstone


def test_apply_adds_removes_and_sets_and_leaves_the_ledger_before_as_it_was() -> None:
    before = a_ledger("A", "B", batches=[a_batch("A"), a_batch("B")], version=4)
    delta = Delta(
        "run-5",
        add_tombstones=(a_tombstone("C"),),
        remove_tombstones=frozenset({(7, "A")}),
        set_batches=(a_batch("B", BatchState.REVERTED), a_batch("D")),
        set_requests=(a_request_entry("ns/r/1"),),
    )

    after = apply(before, delta, (a_carrier(3, 4),))

    assert (after.version, after.pending_run) == (5, "run-5")
    assert after.ids(7) == {"B", "C"}
    assert {i: b.state for i, b in after.batches.items()} == {"A": "promoted", "B": "reverted", "D": "promoted"}
    assert set(after.requests) == {"ns/r/1"}
    assert after.carriers == (a_carrier(3, 4),)
    assert before == a_ledger("A", "B", batches=[a_batch("A"), a_batch("B")], version=4)


def test_a_tombstone_that_one_delta_removes_and_adds_is_active_afterwards() -> None:
    """A vacuum that purges A on a head whose bare commits brought A in again must end with A hidden."""
    again = a_tombstone("A", restatements=["again"])

    after = apply(a_ledger("A"), Delta(RUN, add_tombstones=(again,), remove_tombstones=frozenset({(7, "A")})))

    assert dict(after.tombstones) == {(7, "A"): again}


def test_apply_merges_a_tombstone_that_is_active_already() -> None:
    after = apply(a_ledger("A"), Delta(RUN, add_tombstones=(a_tombstone("A", restatements=["r2"]),)))

    assert after.tombstones[(7, "A")].restatements == ("ns/r/1", "r2")


def test_ids_are_those_of_one_column_only() -> None:
    ledger = a_ledger("A", a_tombstone("B", namespace=8))

    assert (ledger.ids(7), ledger.ids(8), ledger.ids(9)) == ({"A"}, {"B"}, frozenset())


def test_settle_fills_its_own_snapshot_into_what_its_commit_wrote_and_nothing_else() -> None:
    ledger = a_ledger(
        batches=[a_batch("new", run="r2"), a_batch("old", run="r1", snapshot_id=11), a_batch("lost", run="r1")],
        requests=[replace(a_request_entry("k"), run="r2"), replace(a_request_entry("j", snapshot_id=11), run="r1")],
        pending_run="r2",
    )

    settled = settle(ledger, 22)

    assert {i: b.snapshot_id for i, b in settled.batches.items()} == {"new": 22, "old": 11, "lost": None}
    assert {k: r.result["snapshotId"] for k, r in settled.requests.items()} == {"k": 22, "j": 11}
    assert settle(settled, 99) == settled


def test_a_batch_taken_back_keeps_the_snapshot_that_promoted_it() -> None:
    ledger = a_ledger(batches=[a_batch("A", BatchState.REVERTED, run="r2", snapshot_id=11)], pending_run="r2")

    assert settle(ledger, 22).batches["A"].snapshot_id == 11


def test_the_empty_ledger_settles_to_itself() -> None:
    assert settle(EMPTY, None) is EMPTY


def test_a_run_is_known_by_what_it_left() -> None:
    ledger = a_ledger(batches=[a_batch(run="r1")], requests=[replace(a_request_entry("k"), run="r2")], pending_run="r3")

    assert [ledger.knows_run(r) for r in ("r1", "r2", "r3", "r4")] == [True, True, True, False]


def test_a_delta_of_nothing_is_empty() -> None:
    assert Delta(RUN).is_empty
    assert not Delta(RUN, remove_tombstones=frozenset({(7, "A")})).is_empty

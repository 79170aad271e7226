"""The ledger of a snapshot is that of its nearest ancestor with one, and never a later or a guessed one."""

from dataclasses import replace

import pytest
from lethe.base.errors import LedgerError
from lethe.ledger.lineage import (
    ERASED,
    Resolution,
    Snapshot,
    is_ancestor,
    is_gapless,
    is_published,
    is_rolled_back,
    knows_files_up_to,
    last_ledger,
    ledgers_begin_after,
    needed_carriers,
    parent_of,
    resolve,
    shown_again_since,
)

from tests.support.builders import a_carrier, a_history, a_snapshot

#   1 (foreign) - 2 (L2) - 3 (foreign) - 4 (foreign) - 5 (L5) - 6 (foreign, head)
#                    \- 7 (foreign branch)
HISTORY = a_history(
    a_snapshot(1),
    a_snapshot(2, 1, ledger="L2"),
    a_snapshot(3, 2),
    a_snapshot(4, 3),
    a_snapshot(5, 4, ledger="L5"),
    a_snapshot(6, 5),
    a_snapshot(7, 2),
)


@pytest.mark.parametrize(
    ("start", "wanted"),
    [
        (6, Resolution("L5", 5, (6,))),
        (5, Resolution("L5", 5)),
        (4, Resolution("L2", 2, (4, 3))),
        (2, Resolution("L2", 2)),
        (7, Resolution("L2", 2, (7,))),
        (None, Resolution(None, None)),
    ],
)
def test_the_walk_ends_at_the_nearest_carrier(start: int | None, wanted: Resolution) -> None:
    assert wanted == resolve(HISTORY, start)


def test_a_snapshot_older_than_the_first_ledger_has_the_empty_ledger_and_not_todays() -> None:
    """Else a read in the past would hide rows that were there."""
    assert Resolution(None, None, (1,)) == resolve(HISTORY, 1)


def without(*gone: int) -> dict[int, object]:
    return {k: v for k, v in HISTORY.items() if k not in gone}


def test_a_tagged_snapshot_whose_carrier_expired_is_read_with_that_carriers_ledger() -> None:
    """Falling back to today's ledger would show rows at the tag that were deleted then."""
    found = resolve(without(1, 2, 3), 4, [a_carrier(2, 3, 4), a_carrier(5, 6)])  # type: ignore[arg-type]

    assert Resolution("L2", 2, (4,)) == found


@pytest.mark.parametrize(
    "carriers",
    [
        pytest.param([], id="none was kept"),
        pytest.param([a_carrier(5, 6)], id="only a later one was kept"),
        pytest.param([a_carrier(2, 7)], id="only that of another lineage was kept"),
    ],
)
def test_a_lost_ledger_is_refused_and_never_guessed(carriers: list[object]) -> None:
    with pytest.raises(LedgerError, match="ancestor 3") as refused:
        resolve(without(1, 2, 3), 4, carriers, "air.flights")  # type: ignore[arg-type]

    assert refused.value.reason == "LedgerLost"
    assert refused.value.message.startswith("air.flights: snapshot 4 has no ledger of its own")


def test_what_was_there_before_the_first_ledger_needs_no_ancestors() -> None:
    """A table of years, its old snapshots long expired, is adopted: its head's parent is gone and never had a ledger."""
    history = a_history(a_snapshot(40, 39), a_snapshot(41, 40))

    assert Resolution(None, None, (41, 40)) == resolve(history, 41, ledger_since=41)


@pytest.mark.parametrize("since", [None, 0, 39])
def test_a_snapshot_younger_than_the_first_ledger_does_need_its_ancestors(since: int | None) -> None:
    with pytest.raises(LedgerError, match="LedgerLost"):
        resolve(a_history(a_snapshot(40, 39)), 40, ledger_since=since)


def test_the_carriers_to_keep_are_those_of_retained_bare_snapshots() -> None:
    assert needed_carriers(HISTORY) == (a_carrier(2, 3, 4, 7), a_carrier(5, 6))


def test_an_expired_ancestor_is_not_taken_for_one() -> None:
    assert not is_ancestor(without(4), 2, 6)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("history", "wanted"),
    [
        pytest.param([a_snapshot(9, 1)], False, id="staged and no more"),
        pytest.param([a_snapshot(9, 1), a_snapshot(10, 9), a_snapshot(11, 10)], True, id="became the head as it is"),
        pytest.param([a_snapshot(10, 1, source_snapshot_id="9"), a_snapshot(11, 10)], True, id="copied, then expired"),
        pytest.param([a_snapshot(10, 1, source_snapshot_id="8"), a_snapshot(11, 10)], False, id="another was copied"),
    ],
)
def test_a_staged_snapshot_published_by_another_tool_is_recognised(history: list[Snapshot], wanted: bool) -> None:
    """Its rows are in the table: publishing it once more would double them."""
    known = a_history(a_snapshot(1), *history)

    assert wanted is is_published(known, 11 if 11 in known else 1, 9)


#   1 - 2 - 3 - 4 - 8 (head after a rollback to 4)
#                \- 5 - 6 (seen before it)      5 - 7 (tagged)
ROLLED_BACK = a_history(
    a_snapshot(1),
    *(a_snapshot(i, i - 1) for i in (2, 3, 4, 5, 6)),
    a_snapshot(7, 5),
    a_snapshot(8, 4),
)


@pytest.mark.parametrize(
    ("gone", "head", "seen", "sequence", "rolled_back"),
    [
        pytest.param((), 6, None, None, False, id="nothing was seen yet"),
        pytest.param((), 6, 6, 6, False, id="the head itself"),
        pytest.param((), 6, 3, 3, False, id="an ancestor"),
        pytest.param((), 4, 6, 6, True, id="rolled back, the seen one still retained"),
        pytest.param((5, 6, 7), 4, 6, 6, True, id="rolled back, the seen one expired: it is newer than the head"),
        pytest.param((), 8, 6, 6, True, id="rolled back, and then another commit"),
        pytest.param(
            (6,), 8, 6, 6, True, id="then another commit, the seen one expired: the line is known to its root"
        ),
        pytest.param((1, 2, 6), 8, 6, 6, True, id="the line covers its number and does not hold it"),
        pytest.param((1, 2, 3), 6, 2, 2, False, id="expired below the oldest retained ancestor"),
        pytest.param((1, 2, 3), 6, 3, 3, False, id="the very parent was expired"),
        pytest.param((1, 2, 4), 6, 3, 3, False, id="retained, but the line to it was expired"),
        pytest.param((1, 2), 6, 2, None, False, id="expired, its number not known"),
        pytest.param((), 6, 99, None, True, id="not retained, its number not known, the line known to its root"),
        pytest.param((), 6, 7, 7, True, id="a tag or a branch is not the head's line"),
        pytest.param((), None, 6, 6, True, id="the table was emptied of its history"),
    ],
)
def test_a_head_that_was_seen_must_be_an_ancestor_of_the_head(
    gone: tuple[int, ...], head: int | None, seen: int | None, sequence: int | None, rolled_back: bool
) -> None:
    """Else what was promoted, deleted and reported since then may be untrue."""
    snapshots = {k: v for k, v in ROLLED_BACK.items() if k not in gone}

    assert is_rolled_back(snapshots, head, seen, sequence) is rolled_back


@pytest.mark.parametrize(
    ("summary", "parent"),
    [
        ({"operation": "append", "added-data-files": "2", "total-data-files": "2"}, None),
        ({"operation": "append", "total-data-files": "0"}, None),
        ({"operation": "append"}, None),
        ({"operation": "append", "added-data-files": "1", "total-data-files": "2"}, ERASED),
        ({"operation": "append", "total-data-files": "2"}, ERASED),
        ({"operation": "replace", "added-data-files": "1", "total-data-files": "1"}, ERASED),
        (
            {"operation": "overwrite", "added-data-files": "1", "deleted-data-files": "1", "total-data-files": "1"},
            ERASED,
        ),
    ],
)
def test_a_snapshot_that_holds_more_than_it_added_had_a_parent(summary: dict[str, str], parent: int | None) -> None:
    """PyIceberg's expiry says of a snapshot whose parent goes that it has none: it is no root of history for that."""
    assert parent_of(None, summary) == parent
    assert parent_of(7, summary) == 7


@pytest.mark.parametrize(
    ("sequence_number", "begins_after", "parent"),
    [
        pytest.param(5, 4, ERASED, id="after the first ledger"),
        pytest.param(4, 4, None, id="the last before the first ledger"),
        pytest.param(5, None, None, id="the table never had a ledger"),
    ],
)
def test_a_snapshot_without_a_parent_is_a_root_only_if_it_comes_before_the_first_ledger(
    sequence_number: int, begins_after: int | None, parent: int | None
) -> None:
    """CREATE OR REPLACE TABLE starts a new history in a table that keeps its UUID, its properties and its batches."""
    summary = {"operation": "append", "added-data-files": "2", "total-data-files": "2"}

    assert parent_of(None, summary, sequence_number, begins_after) == parent
    assert parent_of(None, {**summary, "lethe.ledger": "L"}, sequence_number, begins_after) is None
    assert parent_of(None, {**summary, "lethe.stage": "S"}, sequence_number, begins_after) is None


@pytest.mark.parametrize(
    ("properties", "carriers", "wanted"),
    [
        pytest.param({"lethe.ledger-since": "3", "lethe.ledger-begun": "u"}, [9], 3, id="the table says it"),
        pytest.param({"lethe.ledger-since": "3", "lethe.ledger-begun": "other"}, [], None, id="copied properties"),
        pytest.param({"lethe.ledger-since": "3"}, [], None, id="prepared, not committed to"),
        pytest.param({"lethe.ledger-since": "3"}, [9, 7], 7, id="only its snapshots tell it"),
    ],
)
def test_since_when_a_table_has_ledgers(properties: dict[str, str], carriers: list[int], wanted: int | None) -> None:
    assert ledgers_begin_after(properties, "u", carriers) == wanted


def test_below_an_erased_parent_a_ledger_is_lost_unless_the_carriers_list_knows_it() -> None:
    history = a_history(a_snapshot(3, ERASED), a_snapshot(4, 3))

    with pytest.raises(LedgerError, match="snapshot 4 has no ledger of its own, and its ancestor 3 has no parent"):
        resolve(history, 4)
    assert resolve(history, 4, (a_carrier(2, 3),)) == Resolution("L2", 2, (4, 3))
    assert needed_carriers(history, (a_carrier(2, 3),)) == (a_carrier(2, 3, 4),)


UNDO = {"ledger": "L", "tombstone__metrics__deleted__count": "2"}


@pytest.mark.parametrize(
    ("after", "shown"),
    [
        ({"ledger": "L", "tombstone__metrics__deleted__count": "0"}, False),
        ({}, False),
        (UNDO, True),
        ({**UNDO, "tombstone__vacuum__file": "v"}, False),
        ({**UNDO, "tombstone__vacuum__file": "v", "lethe__deletes": "DeletionVectors"}, True),
    ],
    ids=["a revert", "another writer", "an undo", "a vacuum", "an undo that lifts native deletes"],
)
def test_only_an_undo_after_a_head_shows_again_what_was_hidden_from_it(after: dict[str, str], shown: bool) -> None:
    history = a_history(
        a_snapshot(1, **UNDO), a_snapshot(2, 1, ledger="L2"), a_snapshot(3, 2, **after), a_snapshot(4, 3)
    )

    assert shown_again_since(history, 4, 2) is shown
    assert not shown_again_since(history, 4, 4)
    assert shown_again_since(history, 4, 1) is shown
    assert shown_again_since(history, 4, None)


def test_for_a_head_that_is_not_an_ancestor_it_is_unknown_what_became_visible_since() -> None:
    assert shown_again_since(HISTORY, 6, 7)
    assert shown_again_since(HISTORY, None, 2)
    assert not shown_again_since({}, None, None)


BY_LETHE = {"ledger": "L1", "lethe__run_id": "r"}


@pytest.mark.parametrize(
    ("history", "found", "gapless", "up_to"),
    [
        pytest.param([a_snapshot(1, **BY_LETHE)], Resolution("L1", 1), True, 1, id="the head is the carrier"),
        pytest.param(
            [a_snapshot(1, **BY_LETHE), a_snapshot(2, 1)], Resolution("L1", 1, (2,)), True, 1, id="all retained"
        ),
        pytest.param([a_snapshot(3, 2)], Resolution("L1", 1, (3,)), False, 1, id="one expired, and the carrier"),
        pytest.param(
            [a_snapshot(1, **BY_LETHE), a_snapshot(3, 2)], Resolution("L1", 1, (3,)), False, 1, id="one expired"
        ),
        pytest.param([a_snapshot(2, ERASED)], Resolution("L1", 1, (2,)), False, 1, id="the parent's id is gone"),
        pytest.param([a_snapshot(1, ledger="L1")], Resolution("L1", 1), False, None, id="a person made the carrier"),
        pytest.param([a_snapshot(1)], Resolution(None, None, (1,)), True, None, id="there is no ledger"),
    ],
)
def test_whether_retained_snapshots_name_all_files_that_came_without_a_ledger(
    history: list[Snapshot], found: Resolution, gapless: bool, up_to: int | None
) -> None:
    known = a_history(*history)
    found = replace(found, carrier_sequence_number=found.carrier_id)

    assert (is_gapless(known, found), knows_files_up_to(known, found)) == (gapless, up_to)


#   1 (L1) - 2 (L2) - 3 (foreign)      4 (a replacement, without a parent)
#      \- 5 (L5, after a rollback)
REPLACED = a_history(
    a_snapshot(1, ledger="L1"),
    a_snapshot(2, 1, ledger="L2"),
    a_snapshot(3, 2),
    a_snapshot(4, ERASED),
    a_snapshot(5, 1, ledger="L5"),
)


@pytest.mark.parametrize(
    ("gone", "seen", "number", "wanted"),
    [
        pytest.param((5,), None, None, "L2", id="nothing was seen: the newest"),
        pytest.param((5,), "L1", 1, "L2", id="a later one of the line that was seen"),
        pytest.param((), "L2", 3, "L2", id="not one of another line"),
        pytest.param((1, 2, 3, 5), "L2", 3, "L2", id="all have expired"),
        pytest.param((2, 3, 5), "L2", 3, "L2", id="an older one is retained by a tag"),
        pytest.param((1, 2, 3), "L2", 3, "L5", id="a later one came after the look"),
        pytest.param((1, 2, 3, 5), None, None, None, id="nothing tells it"),
    ],
)
def test_a_head_that_lost_its_ledger_continues_with_the_last_one_of_the_line_that_was_seen(
    gone: tuple[int, ...], seen: str | None, number: int | None, wanted: str | None
) -> None:
    assert last_ledger({i: s for i, s in REPLACED.items() if i not in gone}, seen, number) == wanted

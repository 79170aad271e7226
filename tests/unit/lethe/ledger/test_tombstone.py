"""Merging two tombstones of one id loses neither a deadline nor a holder."""

import pytest
from lethe.ledger.tombstone import META_RESTATEMENTS, merge, merged

from tests.support.builders import NOW, a_tombstone, ago

EARLY, LATE = ago(days=-1), ago(days=-9)


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [(EARLY, LATE, EARLY), (LATE, EARLY, EARLY), (None, LATE, LATE), (LATE, None, LATE), (None, None, None)],
)
def test_a_merge_never_postpones_or_forgets_an_eviction(old: object, new: object, kept: object) -> None:
    """A revert without a deadline after one with it must not make the bytes stay."""
    result = merge(a_tombstone(evict_by=old), a_tombstone(evict_by=new, restatements=["ns/s/2"]))  # type: ignore[arg-type]

    assert kept == result.evict_by


def test_a_merge_keeps_every_restatement_once_and_the_older_origin() -> None:
    old = a_tombstone(added_on=ago(days=1), restatements=["r1", "r2"], meta={"reason": "old"})
    new = a_tombstone(added_on=NOW, restatements=["r2", "r3"], meta={"reason": "new", "run": "x"})

    result = merge(old, new)

    assert result.restatements == ("r1", "r2", "r3")
    assert result.added_on == ago(days=1)
    assert dict(result.meta) == {META_RESTATEMENTS: "r1\nr2\nr3", "reason": "old", "run": "x"}


def test_merged_leaves_what_it_was_given_as_it_was() -> None:
    before = {a_tombstone("A").key: a_tombstone("A")}

    after = merged(before, [a_tombstone("A", restatements=["r9"]), a_tombstone("B")])

    assert list(before) == [(7, "A")]
    assert before[(7, "A")].restatements == ("ns/r/1",)
    assert {k: t.restatements for k, t in after.items()} == {(7, "A"): ("ns/r/1", "r9"), (7, "B"): ("ns/r/1",)}


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (a_tombstone(), True),
        (a_tombstone(evict_by=EARLY), True),
        (a_tombstone(added_on=ago(seconds=1)), False),  # undone, and set again
        (a_tombstone(restatements=["ns/r/2"]), False),
        (a_tombstone("B"), False),
        (a_tombstone(namespace=8), False),
    ],
)
def test_a_tombstone_set_again_after_an_undo_is_of_another_origin(other: object, same: bool) -> None:
    assert same is a_tombstone().same_origin(other)  # type: ignore[arg-type]

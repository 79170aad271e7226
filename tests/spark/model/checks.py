"""Compares the table with the model.

Each time it checks: the rows in the data files, a read of the head, batches and tombstones, snapshots that are new or may
have changed, one increment, and the marks of erased rows in all files. Older snapshots, reads of one day, and reads by Spark are
checked in rotation.
"""

from typing import TYPE_CHECKING, Final

import pytest
from lethe.base import names
from lethe.base.errors import InputError, LetheError

from tests.model.rows import Rows, of_day, without
from tests.spark.model.readings import Seen

if TYPE_CHECKING:
    from tests.spark.model.play import Play

EVERYTHING_EACH: Final = 20  # acts between complete checks
SPARK_EACH: Final = 5  # acts between reads by Spark


def check(play: "Play", everything: bool = False) -> None:
    """Check that all readers return the model's rows, at the head and at retained snapshots, and that files contain no others.

    Args:
        everything: Check all snapshots, and read by Spark.
    """
    seen, model, turn = play.world.look(), play.model, len(play.past)
    everything = everything or turn % EVERYTHING_EACH == 0
    _same("the data files", seen.physical() & (model.files + model.dead), seen.physical())
    _same("the data files", model.files & seen.physical(), model.files)
    assert seen.tombstones() == model.tombstones
    assert seen.states == model.states
    assert seen.refs == play.refs, "a tag or a branch is not where it was"
    _check_erased(play, seen)
    _check_head(play, seen, turn)
    _check_snapshots(play, seen, turn, everything)
    _check_increment(play, seen, turn, everything)
    if everything or turn % SPARK_EACH == 0:
        _check_spark(play, seen, turn, everything)


def _check_head(play: "Play", seen: Seen, turn: int) -> None:
    if seen.has_foreign_equality_deletes():
        _same("Spark", play.world.read_by_spark(), play.model.visible)
        return
    _same("lethe.scan", play.world.read(seen), play.model.visible)
    day = 1 + turn % 3
    _same(f"lethe.scan of day {day}", play.world.read(seen, day=day), of_day(play.model.visible, day))
    if play.model.dead or play.model.setup.native:
        plain = play.world.read_plainly(seen)
        _same(
            "engines that know no ledger, but for tombstones", without(plain, play.model.tombstones), play.model.visible
        )
        if seen.head is not None and seen.keys(seen.head).get(names.MASKED) == "true":
            _same("engines that know no ledger", plain, play.model.visible)


def _check_snapshots(play: "Play", seen: Seen, turn: int, everything: bool) -> None:
    retained = [i for i in (*seen.lineage, *seen.others) if i not in play.lost]
    assert set(play.refs.values()).issubset(retained)
    chosen = [i for i in retained if everything or i not in play.checked]
    chosen += [retained[turn % len(retained)]] if retained else []
    for i in dict.fromkeys(chosen):
        if i == seen.head or seen.has_foreign_equality_deletes(i):
            continue
        shown = play.at[i].visible
        day = 1 + turn % 3 if i in play.checked else None
        wanted = shown if day is None else of_day(shown, day)
        _same(f"lethe.scan of day {day} of snapshot {i}", play.world.read(seen, i, day), wanted)
        play.checked.add(i)


def _check_increment(play: "Play", seen: Seen, turn: int, everything: bool) -> None:
    """Check increments: the rows of the later snapshot are those of the earlier one, plus the appended, minus the deleted."""
    if len(seen.lineage) < 2:
        return
    at = turn % (len(seen.lineage) - 1)
    pairs = [(seen.lineage[at + 1], seen.lineage[at // 2])]
    if everything:
        pairs.append((seen.lineage[-1], seen.lineage[0]))
    for since, until in pairs:
        if any(map(seen.has_foreign_equality_deletes, (since, until))):
            continue
        if play.breaks(seen, since, until):
            with pytest.raises(LetheError):
                play.world.increment(seen, since, until, "appended")
            continue
        came = play.world.increment(seen, since, until, "appended")
        went = play.world.increment(seen, since, until, "deleted")
        where = f"the increment from {since} to {until}, appended {dict(came)}, deleted {dict(went)}"
        _same(where, play.at[since].visible + came, play.at[until].visible + went)
        if turn % (2 * SPARK_EACH) == 0 and seen.has_dropped_columns_of(until):
            with pytest.raises(InputError, match="ColumnGone"):
                play.world.increment_by_spark(since, until, "appended")
        elif turn % (2 * SPARK_EACH) == 0:
            _same(f"Spark's appended, {where}", play.world.increment_by_spark(since, until, "appended"), came)
            _same(f"Spark's deleted, {where}", play.world.increment_by_spark(since, until, "deleted"), went)


def _check_spark(play: "Play", seen: Seen, turn: int, everything: bool) -> None:
    retained = [i for i in (*seen.lineage[1:], *seen.others) if i not in play.lost]
    if everything or turn % (2 * SPARK_EACH) == 0 or not retained:
        _same("Spark", play.world.read_by_spark(), play.model.visible)
    if retained:
        i = retained[turn // SPARK_EACH % len(retained)]
        day = 1 + turn % 3 if turn % 2 else None
        shown = play.at[i].visible
        wanted = shown if day is None else of_day(shown, day)
        _same(f"Spark, day {day} of snapshot {i}", play.world.read_by_spark(i, day), wanted)


def _check_erased(play: "Play", seen: Seen) -> None:
    """Check that no file below the table contains the mark of a row whose erasure was verified."""
    if not play.model.gone:
        return
    for path, marks in play.world.files.marks_below(seen.location()).items():
        left = marks & play.model.gone
        assert not left, f"rows whose erasure is verified are in {path}: {sorted(left)}"


def _same(where: str, found: Rows, wanted: Rows) -> None:
    assert found == wanted, f"{where}: too many {dict(found - wanted)}, missing {dict(wanted - found)}"

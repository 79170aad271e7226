"""Plays acts of other writers on the table and on the model."""

from copy import deepcopy
from typing import TYPE_CHECKING

import lethe
import pytest
from lethe.base.errors import LedgerError

from tests.model.foreign_acts import (
    CherryPick,
    DropAndCreate,
    DropRefs,
    Expire,
    FastForward,
    Foreign,
    ForeignAppend,
    ForeignColumn,
    ForeignCompaction,
    ForeignDelete,
    ForeignRepartition,
    ForeignTag,
    RemoveOrphans,
    Rename,
    ReplaceTable,
    Rollback,
)
from tests.model.model import Model
from tests.model.rows import Rows, foreign_rows, mark_of

if TYPE_CHECKING:
    from tests.spark.model.play import Play


def visit(play: "Play", act: Foreign) -> None:
    """Play an act, and update the model."""
    strangers = play.world.strangers
    match act:
        case ForeignAppend(ids, day, branch):
            _append(play, _new_rows(play, ids, day), branch)
        case ForeignDelete():
            _delete(play, act)
        case ForeignCompaction():
            strangers.compact()
        case ForeignRepartition(by):
            strangers.repartition(by)
        case ForeignColumn(change):
            strangers.change_column(change)
        case ForeignTag():
            if (head := strangers.tag_the_head()) is not None:
                play.refs[f"tag_{head}"] = head
        case DropRefs():
            strangers.drop_refs()
            play.refs.clear()
        case FastForward(branch):
            _fast_forward(play, branch)
        case Rollback(back):
            _roll_back(play, back)
        case CherryPick(nth):
            _cherry_pick(play, nth)
        case Expire():
            _expire(play, act)
        case RemoveOrphans():
            strangers.remove_orphans()
            play.checked.clear()
        case ReplaceTable():
            _replace_table(play)
        case Rename():
            _rename(play)
        case DropAndCreate():
            _create_again(play)
    _note_head(play)


def _note_head(play: "Play") -> None:
    seen = play.world.look()
    for i in play.news(seen):
        assert seen.is_bare(i)
        play.model.observed(seen.physical(i))
        play.remember(i)


def _new_rows(play: "Play", ids: tuple[str | None, ...], day: int) -> Rows:
    play.foreign_appends += 1
    rows = foreign_rows(ids, day, play.foreign_appends)
    play.written |= {mark_of(r): len(play.sequence) for r in rows}
    return rows


def _append(play: "Play", rows: Rows, branch: str) -> None:
    if not branch:
        play.world.strangers.append(rows)
        play.model.appended(rows)
        return
    if not play.world.strangers.branch_the_head(branch):
        return
    parent = play.world.look().refs[branch]
    play.world.strangers.append(rows, branch)
    seen = play.world.look()
    there = seen.refs[branch]
    made = deepcopy(play.at[parent])
    made.appended(rows)
    made.observed(seen.physical(there))
    play.at[there] = made
    play.refs[branch] = there


def _delete(play: "Play", act: ForeignDelete) -> None:
    """Other engines find only rows that native deletes do not hide. The delete may also remove hidden rows from data files."""
    seen = play.world.look()
    if act.how == "equality" and not (play.world.setup.format_version == 2 and seen.was_unpartitioned):
        return
    plain = play.world.read_plainly(seen)
    play.world.strangers.delete(act.v, act.how)
    play.model.deleted(Rows({row: n for row, n in plain.items() if row[1] == act.v}))


def _fast_forward(play: "Play", branch: str) -> None:
    seen = play.world.look()
    there = seen.refs.get(branch)
    at, line = there, set[int | None]()
    while at is not None and at in play.at:
        line.add(at)
        snapshot = seen.table.snapshot_by_id(at)
        at = snapshot.parent_snapshot_id if snapshot is not None else None
    if there is None or seen.head not in line or there == seen.head:
        return
    play.world.strangers.fast_forward(branch)
    play.go_back(there)


def _roll_back(play: "Play", back: int) -> None:
    lineage = play.world.look().lineage
    if len(lineage) > 1:
        target = lineage[min(back, len(lineage) - 1)]
        play.world.strangers.set_head(target)
        play.go_back(target)


def _cherry_pick(play: "Play", nth: int) -> None:
    seen = play.world.look()
    appends = [i for i in seen.others if seen.operation(i) == "append" and i not in play.cherry_picked]
    if not appends or seen.head is None:
        return
    chosen = appends[nth % len(appends)]
    rows = seen.physical(chosen, added_by=chosen)
    if seen.parent(chosen) == seen.head:
        play.world.strangers.cherry_pick(chosen)
        play.go_back(chosen)
        return
    play.cherry_picked.add(chosen)
    play.world.strangers.cherry_pick(chosen)
    play.model.appended(rows)


def _expire(play: "Play", act: Expire) -> None:
    # The format forbids other writers to expire the ledger that a bare head depends on.
    seen = play.world.look()
    if not seen.may_expire:
        return
    keep = max(act.keep, seen.bare + 1)
    if act.by == "Spark":
        play.world.strangers.expire_by_spark(keep)
        play.kept(keep)
        return
    held = {*play.refs.values(), *seen.lineage[:keep]}
    gone = [i for i in seen.lineage if i not in held]
    if gone:
        play.world.strangers.expire_by_pyiceberg(gone)
        play.kept(keep)


def _replace_table(play: "Play") -> None:
    """Replace the table, check that it cannot be read, and set the head back."""
    seen = play.world.look()
    if seen.head is None or not play.model.states:
        return
    play.world.strangers.replace_table(foreign_rows(("A", None), 1, 0))
    play.checked.clear()
    with pytest.raises(LedgerError):
        lethe.scan(play.world.name).to_arrow()
    play.world.strangers.set_head(seen.head)
    made = play.world.look().others
    play.at |= {i: Model(play.world.setup) for i in made if i not in play.at}
    play.lost |= {i for i in made if i not in seen.others}


def _rename(play: "Play") -> None:
    dataset = play.world.dataset
    elsewhere = f"{dataset.name}_elsewhere"
    play.world.strangers.rename(elsewhere)
    found = play.world.read_named(elsewhere)
    play.world.strangers.rename(elsewhere, back=True)
    assert found == play.model.visible


def _create_again(play: "Play") -> None:
    play.world.strangers.drop()
    play.world.create()
    play.model = Model(play.world.setup)
    for kept in (play.at, play.refs, play.written):
        kept.clear()
    play.history.clear()
    play.checked.clear()
    seen = play.world.look()
    for i in reversed(seen.lineage):
        play.remember(i)

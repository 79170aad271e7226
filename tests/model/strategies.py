"""Hypothesis strategies for the next act on a table, depending on its past and on what its world can play."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, get_args

from hypothesis import strategies as st

from tests.model.acts import (
    Act,
    Append,
    Change,
    Crash,
    During,
    Erase,
    EraseRows,
    Group,
    Job,
    Redact,
    Register,
    Replay,
    Request,
    Revert,
    Setup,
    Undo,
    Vacuum,
    steps_of,
)
from tests.model.foreign_acts import (
    DropAndCreate,
    DropRefs,
    Expire,
    FastForward,
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
from tests.model.rows import Row, mark_of

IDS: Final = "ABCDEFGHIJKLMNOPQRST"
Kinds: TypeAlias = frozenset[type]
EVERY_KIND: Final[Kinds] = frozenset(get_args(Act))


@dataclass(frozen=True)
class Known:
    """The state that strategies choose from."""

    setup: Setup
    batches: tuple[str, ...] = ()  # in the ledger
    requests: tuple[Revert | Replay, ...] = ()  # that were carried out
    runs: tuple[Job, ...] = ()  # all past runs
    rows: tuple[Row, ...] = ()  # in live data files
    kinds: Kinds = EVERY_KIND  # of acts that the world can play
    ids: str = IDS  # of all batches, each a letter


# How often a kind of act is chosen, relative to the others of the world.
Weighted: TypeAlias = tuple[int, type, Callable[[Known], st.SearchStrategy]]


def one_of(known: Known, *weighted: Weighted) -> st.SearchStrategy:
    """An act of one of these kinds, if the world can play it. Builds only the strategy that is chosen."""
    choices = [choose for weight, kind, choose in weighted if kind in known.kinds for _ in range(weight)]
    return st.integers(0, len(choices) - 1).flatmap(lambda n: choices[n](known))


def ids(known: Known, most: int = 3) -> st.SearchStrategy[tuple[str, ...]]:
    """Batch ids, usually of batches in the ledger."""
    one = st.sampled_from(known.ids)
    if known.batches:
        one = st.sampled_from(known.batches) | st.sampled_from(known.batches) | one
    return st.lists(one, min_size=1, max_size=most, unique=True).map(tuple)


def _some(known: Known, least: int, most: int) -> st.SearchStrategy[tuple[str, ...]]:
    """Any batch ids."""
    return st.lists(st.sampled_from(known.ids), min_size=least, max_size=most, unique=True).map(tuple)


def first_appends(known: Known) -> st.SearchStrategy[Append]:
    return _some(known, 2, 4).map(Append)


def appends(known: Known) -> st.SearchStrategy[Append]:
    return _some(known, 1, 4).map(Append)


def registers(known: Known) -> st.SearchStrategy[Register]:
    return _some(known, 1, 2).map(Register)


# --- requests ---------------------------------------------------------------------------------------------------------


def reverts(known: Known) -> st.SearchStrategy[Revert]:
    return st.builds(Revert, ids(known), st.sampled_from((0, 0, 0, 1)))


def erases(known: Known) -> st.SearchStrategy[Erase]:
    return st.builds(Erase, ids(known, 2))


def _rows(known: Known) -> st.SearchStrategy[Row]:
    """Rows, usually existing ones; otherwise those of any batch."""
    some = st.sampled_from(known.ids).flatmap(lambda i: st.sampled_from(sorted(known.setup.rows_of(i), key=str)))
    return some if not known.rows else st.sampled_from(known.rows) | st.sampled_from(known.rows) | some


def _marks(known: Known) -> st.SearchStrategy[tuple[str, ...]]:
    marks = st.lists(_rows(known).map(mark_of), min_size=1, max_size=2, unique=True)
    return marks.map(lambda found: tuple(sorted(found)))


def row_erases(known: Known) -> st.SearchStrategy[EraseRows]:
    return _marks(known).map(EraseRows)


def redacts(known: Known) -> st.SearchStrategy[Redact]:
    return _marks(known).map(Redact)


def replays(known: Known) -> st.SearchStrategy[Replay]:
    return st.builds(Replay, ids(known, 2), st.sampled_from(known.ids))


def changes(known: Known) -> st.SearchStrategy[Change]:
    keys = st.lists(_rows(known).map(lambda row: row[1]), min_size=1, max_size=3, unique=True)
    some = keys.flatmap(lambda found: st.tuples(*(st.tuples(st.sampled_from("UUD"), st.just(v)) for v in found)))
    return st.builds(Change, some, st.sampled_from(known.ids))


def undos(known: Known) -> st.SearchStrategy[Undo]:
    return st.builds(Undo, st.sampled_from(known.requests) if known.requests else reverts(known))


REQUESTS: Final[tuple[Weighted, ...]] = (
    (1, Revert, reverts),
    (1, Replay, replays),
    (1, Undo, undos),
    (1, Erase, erases),
)
SEARCHES: Final[tuple[Weighted, ...]] = ((1, EraseRows, row_erases), (1, Redact, redacts), (1, Change, changes))


def groups(known: Known) -> st.SearchStrategy[Group]:
    """Groups of requests that depend on one another, some with an Undo of one of them. With native deletes, requests that search
    for rows are left out: an Undo may have to wait for an Erase by records, and the model does not know when."""
    one: st.SearchStrategy[Request] = one_of(known, *REQUESTS, *(() if known.setup.native else SEARCHES))
    several = st.lists(one, min_size=2, max_size=4, unique=True)
    with_undo = several.map(lambda found: [*found, Undo(found[0])])
    return (several | with_undo).map(lambda found: Group(tuple(found)))


# --- runs -------------------------------------------------------------------------------------------------------------


def vacuums(_: Known) -> st.SearchStrategy[Vacuum]:
    care = st.lists(st.sampled_from(("compact", "manifests", "orphans")), max_size=2, unique=True)
    maintenance = care.map(lambda found: tuple(sorted(found)))
    return st.builds(Vacuum, st.sampled_from((None, None, 1, 6000)), st.sampled_from((None, 1, 1, 3)), maintenance)


def jobs(known: Known) -> st.SearchStrategy[Job]:
    others: tuple[Weighted, ...] = (
        (1, Append, appends),
        (1, Register, registers),
        (1, Group, groups),
        (1, Vacuum, vacuums),
    )
    return one_of(known, *others, *REQUESTS, *SEARCHES)


def again(known: Known) -> st.SearchStrategy[Job]:
    return st.sampled_from(known.runs) if known.runs else appends(known)


def crashes(known: Known) -> st.SearchStrategy[Crash]:
    return jobs(known).flatmap(lambda j: st.builds(Crash, st.just(j), st.sampled_from(steps_of(j))))


def races(known: Known) -> st.SearchStrategy[During]:
    """Acts during a run, often on the batches that it promotes. Rollbacks and expiries by other writers are left out, since the
    tests of races cover them."""
    foreign: tuple[Weighted, ...] = (
        (1, ForeignAppend, appends_to_main),
        (1, ForeignCompaction, compactions),
        (1, ForeignRepartition, repartitions),
        (1, ForeignTag, lambda _: st.just(ForeignTag())),
    )

    def during(job: Job) -> st.SearchStrategy[During]:
        near = replace(known, batches=job.ids) if isinstance(job, Append | Register) and job.ids else known
        other = jobs(near) | jobs(near) | one_of(near, *foreign)
        return st.builds(During, st.just(job), st.sampled_from(steps_of(job)), other)

    return jobs(known).flatmap(during)


# --- other writers ----------------------------------------------------------------------------------------------------


def appends_to_main(known: Known) -> st.SearchStrategy[ForeignAppend]:
    one = st.none() | st.sampled_from(known.ids)
    if known.batches:
        one = one | st.sampled_from(known.batches)
    return st.builds(ForeignAppend, st.lists(one, min_size=1, max_size=3).map(tuple), st.integers(1, 3))


def appends_to_a_branch(known: Known) -> st.SearchStrategy[ForeignAppend]:
    return appends_to_main(known).map(lambda act: ForeignAppend(act.ids, act.day, "audit"))


def deletes(known: Known) -> st.SearchStrategy[ForeignDelete]:
    hows = st.sampled_from(("copy-on-write", "merge-on-read"))
    return st.builds(ForeignDelete, _rows(known).map(lambda row: row[1]), hows)


def compactions(_: Known) -> st.SearchStrategy[ForeignCompaction]:
    return st.just(ForeignCompaction())


def repartitions(_: Known) -> st.SearchStrategy[ForeignRepartition]:
    return st.sampled_from(("day", None, "v", "extra")).map(ForeignRepartition)


def expiries(_: Known) -> st.SearchStrategy[Expire]:
    return st.builds(Expire, st.sampled_from((1, 2, 4)), st.sampled_from(("Spark", "PyIceberg", "PyIceberg")))


# Acts that often reveal errors have more weight. An Append without batches only gives the head a ledger. CherryPick is only for
# fixed sequences: the model does not follow the states of batches whose staged snapshot another writer publishes.
ACTS: Final[tuple[Weighted, ...]] = (
    (6, Append, appends),
    (2, Register, registers),
    (6, Revert, reverts),
    (3, Erase, erases),
    (4, EraseRows, row_erases),
    (4, Redact, redacts),
    (4, Replay, replays),
    (4, Change, changes),
    (4, Undo, undos),
    (6, Group, groups),
    (8, Vacuum, vacuums),
    (6, Append, again),
    (6, Crash, crashes),
    (8, During, races),
    (4, ForeignAppend, appends_to_main),
    (2, FastForward, appends_to_a_branch),
    (2, ForeignDelete, deletes),
    (2, ForeignCompaction, compactions),
    (2, ForeignRepartition, repartitions),
    (1, ForeignColumn, lambda _: st.sampled_from((ForeignColumn("add"), ForeignColumn("drop")))),
    (2, ForeignTag, lambda _: st.just(ForeignTag())),
    (2, DropRefs, lambda _: st.just(DropRefs())),
    (2, FastForward, lambda _: st.just(FastForward("audit"))),
    (3, Rollback, lambda _: st.integers(1, 3).map(Rollback)),
    (4, Expire, expiries),
    (1, RemoveOrphans, lambda _: st.just(RemoveOrphans())),
    (1, ReplaceTable, lambda _: st.just(ReplaceTable())),
    (1, Rename, lambda _: st.just(Rename())),
    (1, DropAndCreate, lambda _: st.just(DropAndCreate())),
    (2, Append, lambda _: st.just(Append(()))),
)


def acts(known: Known) -> st.SearchStrategy[Act]:
    return one_of(known, *ACTS)

"""Hypothesis strategies for the next act on a table, depending on its past."""

from dataclasses import dataclass

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
from tests.model.rows import Row, mark_of, rows_of

IDS = tuple("ABCDEFGHIJKLMNOPQRST")


@dataclass(frozen=True)
class Known:
    """The state that strategies choose from."""

    setup: Setup
    batches: tuple[str, ...] = ()  # in the ledger
    requests: tuple[Revert | Replay, ...] = ()  # that were carried out
    runs: tuple[Job, ...] = ()  # all past runs
    rows: tuple[Row, ...] = ()  # in live data files


def ids(known: Known, most: int = 3) -> st.SearchStrategy[tuple[str, ...]]:
    """Batch ids, usually of batches in the ledger."""
    one = st.sampled_from(IDS)
    if known.batches:
        one = st.sampled_from(known.batches) | st.sampled_from(known.batches) | one
    return st.lists(one, min_size=1, max_size=most, unique=True).map(tuple)


def appends(at_least: int = 1) -> st.SearchStrategy[Append]:
    return st.builds(Append, st.lists(st.sampled_from(IDS), min_size=at_least, max_size=4, unique=True).map(tuple))


def registers() -> st.SearchStrategy[Register]:
    return st.builds(Register, st.lists(st.sampled_from(IDS), min_size=1, max_size=2, unique=True).map(tuple))


def reverts(known: Known) -> st.SearchStrategy[Revert]:
    return st.builds(Revert, ids(known), st.sampled_from((0, 0, 0, 1)))


def erases(known: Known) -> st.SearchStrategy[Erase]:
    return st.builds(Erase, ids(known, 2))


def _rows(known: Known) -> st.SearchStrategy[Row]:
    """Rows, usually existing ones; otherwise those of any batch."""
    some = st.sampled_from(IDS).flatmap(lambda i: st.sampled_from(sorted(rows_of(i), key=str)))
    return some if not known.rows else st.sampled_from(known.rows) | st.sampled_from(known.rows) | some


def row_erases(known: Known) -> st.SearchStrategy[EraseRows]:
    marks = st.lists(_rows(known).map(mark_of), min_size=1, max_size=2, unique=True)
    return st.builds(EraseRows, marks.map(lambda found: tuple(sorted(found))))


def replays(known: Known) -> st.SearchStrategy[Replay]:
    return st.builds(Replay, ids(known, 2), st.sampled_from(IDS))


def changes(known: Known) -> st.SearchStrategy[Change]:
    keys = st.lists(_rows(known).map(lambda row: row[1]), min_size=1, max_size=3, unique=True)
    some = keys.flatmap(lambda found: st.tuples(*(st.tuples(st.sampled_from("UUD"), st.just(v)) for v in found)))
    return st.builds(Change, some, st.sampled_from(IDS))


def undos(known: Known) -> st.SearchStrategy[Undo]:
    return st.builds(Undo, st.sampled_from(known.requests) if known.requests else reverts(known))


def groups(known: Known) -> st.SearchStrategy[Group]:
    """Groups of requests that depend on one another, some with an Undo of one of them. With native deletes, requests that search
    for rows are left out: an Undo may have to wait for an Erase by records, and the model does not know when."""
    one: st.SearchStrategy[Request] = reverts(known) | replays(known) | undos(known) | erases(known)
    if not known.setup.native:
        one = one | row_erases(known) | changes(known)
    several = st.lists(one, min_size=2, max_size=4, unique=True)
    with_undo = several.map(lambda found: [*found, Undo(found[0])])
    return (several | with_undo).map(lambda found: Group(tuple(found)))


def vacuums() -> st.SearchStrategy[Vacuum]:
    care = st.lists(st.sampled_from(("compact", "manifests", "orphans")), max_size=2, unique=True)
    maintenance = care.map(lambda found: tuple(sorted(found)))
    return st.builds(Vacuum, st.sampled_from((None, None, 1, 6000)), st.sampled_from((None, 1, 1, 3)), maintenance)


def foreign_appends(known: Known, branches: tuple[str, ...] = ("", "", "audit")) -> st.SearchStrategy[ForeignAppend]:
    one = st.none() | st.sampled_from(IDS)
    if known.batches:
        one = one | st.sampled_from(known.batches)
    some = st.lists(one, min_size=1, max_size=3).map(tuple)
    return st.builds(ForeignAppend, some, st.integers(1, 3), st.sampled_from(branches))


def foreign_deletes(known: Known) -> st.SearchStrategy[ForeignDelete]:
    hows = st.sampled_from(("copy-on-write", "merge-on-read"))
    return st.builds(ForeignDelete, _rows(known).map(lambda row: row[1]), hows)


def repartitions() -> st.SearchStrategy[ForeignRepartition]:
    return st.builds(ForeignRepartition, st.sampled_from(("day", None, "v")))


def expiries() -> st.SearchStrategy[Expire]:
    return st.builds(Expire, st.sampled_from((1, 2, 4)), st.sampled_from(("Spark", "PyIceberg", "PyIceberg")))


def jobs(known: Known) -> st.SearchStrategy[Job]:
    requests = reverts(known) | replays(known) | undos(known) | erases(known) | row_erases(known) | changes(known)
    return appends() | registers() | requests | groups(known) | vacuums()


def crashes(job: st.SearchStrategy[Job]) -> st.SearchStrategy[Crash]:
    return job.flatmap(lambda j: st.builds(Crash, st.just(j), st.sampled_from(steps_of(j))))


def races(job: st.SearchStrategy[Job], known: Known) -> st.SearchStrategy[During]:
    """Acts during a run. They do not include rollbacks and expiries by other writers, which the tests of races cover."""
    foreign: st.SearchStrategy[Foreign] = st.one_of(
        foreign_appends(known, ("",)), st.just(ForeignCompaction()), repartitions(), st.just(ForeignTag())
    )
    return job.flatmap(lambda j: st.builds(During, st.just(j), st.sampled_from(steps_of(j)), job | foreign))


def acts(known: Known) -> st.SearchStrategy[Act]:
    """Any act; acts that often reveal errors have more weight. An Append without batches only gives the head a ledger."""
    job = jobs(known)
    again: st.SearchStrategy[Act] = st.sampled_from(known.runs) if known.runs else appends()
    weighted: tuple[tuple[int, st.SearchStrategy[Act]], ...] = (
        (6, appends()),
        (2, registers()),
        (6, reverts(known)),
        (3, erases(known)),
        (4, row_erases(known)),
        (4, replays(known)),
        (4, changes(known)),
        (4 if known.requests else 0, undos(known)),
        (6, groups(known)),
        (8, vacuums()),
        (6, again),
        (6, crashes(job)),
        (8, races(job, known)),
        (6, foreign_appends(known)),
        (2, foreign_deletes(known)),
        (2, st.just(ForeignCompaction())),
        (2, repartitions()),
        (1, st.sampled_from((ForeignColumn("add"), ForeignColumn("drop")))),
        (2, st.just(ForeignTag())),
        (2, st.just(DropRefs())),
        (2, st.just(FastForward("audit"))),
        (3, st.builds(Rollback, st.integers(1, 3))),
        (4, expiries()),
        (1, st.just(RemoveOrphans())),
        (1, st.just(Rename())),
        (1, st.just(DropAndCreate())),
        (2, st.just(Append(()))),
    )
    # Not `one_of`: it removes duplicate strategies, so it cannot express weights.
    kinds = [kind for weight, kind in weighted for _ in range(weight)]
    return st.integers(0, len(kinds) - 1).flatmap(lambda n: kinds[n])


__all__ = ["CherryPick", "ReplaceTable"]

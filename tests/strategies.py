"""Hypothesis strategies: what may happen next to a table, given what happened to it."""

from collections.abc import Sequence

from hypothesis import strategies as st

from tests.model.acts import (
    Act,
    Append,
    Crash,
    During,
    Expire,
    ForeignAppend,
    ForeignCompaction,
    ForeignRepartition,
    ForeignTag,
    Group,
    Job,
    Replay,
    Request,
    Revert,
    Undo,
    Vacuum,
    steps_of,
)

IDS = tuple("ABCDEFGHIJKLMNOPQRST")


def ids(known: Sequence[str], most: int = 3) -> st.SearchStrategy[tuple[str, ...]]:
    """Some batch ids, more often than not of batches that the table knows."""
    one = st.sampled_from(IDS)
    if known:
        one = st.sampled_from(sorted(known)) | st.sampled_from(sorted(known)) | one
    return st.lists(one, min_size=1, max_size=most, unique=True).map(tuple)


def appends(at_least: int = 1) -> st.SearchStrategy[Append]:
    return st.builds(Append, st.lists(st.sampled_from(IDS), min_size=at_least, max_size=4, unique=True).map(tuple))


def reverts(known: Sequence[str]) -> st.SearchStrategy[Revert]:
    return st.builds(Revert, ids(known), st.sampled_from((0, 0, 0, 1)))


def replays(known: Sequence[str]) -> st.SearchStrategy[Replay]:
    return st.builds(Replay, ids(known, 2), st.sampled_from(IDS))


def undos(requests: Sequence[Revert | Replay]) -> st.SearchStrategy[Undo]:
    return st.builds(Undo, st.sampled_from(requests) if requests else reverts(()))


def groups(known: Sequence[str], requests: Sequence[Revert | Replay]) -> st.SearchStrategy[Group]:
    """Of requests that have much to do with one another, an Undo of one of them included."""
    one: st.SearchStrategy[Request] = reverts(known) | replays(known) | undos(requests)
    several = st.lists(one, min_size=2, max_size=4, unique=True)
    with_undo = several.map(lambda found: [*found, Undo(found[0])])
    return (several | with_undo).map(lambda found: Group(tuple(found)))


def vacuums() -> st.SearchStrategy[Vacuum]:
    return st.builds(Vacuum, st.sampled_from((None, 1, 2500)), st.sampled_from((None, 1, 3)))


def foreign_appends(known: Sequence[str]) -> st.SearchStrategy[ForeignAppend]:
    one = st.none() | st.sampled_from(IDS)
    if known:
        one = one | st.sampled_from(sorted(known))
    return st.builds(ForeignAppend, st.lists(one, min_size=1, max_size=3).map(tuple), st.integers(1, 3))


def repartitions() -> st.SearchStrategy[ForeignRepartition]:
    return st.builds(ForeignRepartition, st.sampled_from(("day", None, "v")))


def expiries() -> st.SearchStrategy[Expire]:
    return st.builds(Expire, st.sampled_from((1, 2, 4)))


def jobs(known: Sequence[str], requests: Sequence[Revert | Replay]) -> st.SearchStrategy[Job]:
    found: st.SearchStrategy[Job] = appends() | reverts(known) | replays(known) | groups(known, requests) | vacuums()
    return found | undos(requests) if requests else found


def crashes(job: st.SearchStrategy[Job]) -> st.SearchStrategy[Crash]:
    return job.flatmap(lambda j: st.builds(Crash, st.just(j), st.sampled_from(steps_of(j))))


def races(job: st.SearchStrategy[Job], known: Sequence[str]) -> st.SearchStrategy[During]:
    other = job | foreign_appends(known) | st.just(ForeignCompaction()) | repartitions() | st.just(ForeignTag())
    return job.flatmap(lambda j: st.builds(During, st.just(j), st.sampled_from(steps_of(j)), other))


def acts(known: Sequence[str], requests: Sequence[Revert | Replay], runs: Sequence[Job]) -> st.SearchStrategy[Act]:
    """Anything, the troublesome more often than not. Of no batches: a run that only gives the head a ledger."""
    job = jobs(known, requests)
    again: st.SearchStrategy[Act] = st.sampled_from(runs) if runs else appends()
    weighted: tuple[tuple[int, st.SearchStrategy[Act]], ...] = (
        (3, appends()),
        (3, reverts(known)),
        (2, replays(known)),
        (2 if requests else 0, undos(requests)),
        (3, groups(known, requests)),
        (3, vacuums()),
        (3, again),
        (3, crashes(job)),
        (4, races(job, known)),
        (3, foreign_appends(known)),
        (2, st.just(ForeignCompaction())),
        (1, repartitions()),
        (1, st.just(ForeignTag())),
        (2, expiries()),
        (1, st.just(Append(()))),
    )
    # Not `one_of`, which takes the same strategy once, however often it is named.
    kinds = [kind for weight, kind in weighted for _ in range(weight)]
    return st.integers(0, len(kinds) - 1).flatmap(lambda n: kinds[n])

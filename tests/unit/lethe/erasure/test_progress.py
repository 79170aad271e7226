"""When the rows of an erasure have left the head, which files held them, and what holds those still."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from lethe.contract.dataset import HoldSpec
from lethe.erasure.progress import (
    DATA,
    DELETES,
    HeldFile,
    History,
    OpenErasure,
    has_unseen,
    hold_blockers,
    mark,
    open_erasures_of,
    plan_closing,
    remembered_of_records,
)
from lethe.erasure.record import Ref, holders, losing_ledger, snapshot_blockers, to_expire, with_blockers
from lethe.ledger.ledger import Carrier, Ledger
from lethe.ledger.lineage import Snapshot
from lethe.ledger.tombstone import BlockerKind, Erasure, ErasureBlocker, PurgedFile
from lethe.vacuum.plan import KeptFile

from tests.support.builders import FIELD, NOW, a_history, a_ledger, a_request_entry, a_snapshot, ago

ERASE = "ns/erase/0"
NAME = 4  # the field id of another column


def a_held(path: str, bounds: str = "", at: int = 1, **changes: Any) -> HeldFile:
    """Bounds `A-C`, or none that are known."""
    lower, _, upper = bounds.partition("-")
    return HeldFile(path, 100, DATA, at, lower or None, (upper or lower) or None, **changes)


def a_story(files: Iterable[HeldFile], named: Mapping[int, Iterable[str]], head: int, *snapshots: Snapshot) -> History:
    """Each snapshot is the next one's parent, unless given; each lists one manifest, of the files with these paths."""
    line = [a_snapshot(i, i - 1 if i - 1 in named else None, ledger=f"L{i}") for i in named]
    history = {**a_history(*line), **a_history(*snapshots)}
    return History(
        history,
        head,
        {f.path: f for f in files},
        frozenset(named[head]),
        {i: (f"m{i}",) for i in named},
        {f"m{i}": tuple(paths) for i, paths in named.items()},
    )


def a_claim(
    *ids: str, hidden: bool = False, records: bool = False, since: int | None = None, **changes: Any
) -> OpenErasure:
    ledger = a_ledger(
        *(ids if hidden else ()),
        requests=[a_request_entry(ERASE, operation="Erase", batch_ids=ids, snapshot_id=since)],
        erasures=(replace(Erasure(ERASE, NAME if records else FIELD, None), **changes),),
    )
    snapshots = a_history(a_snapshot(since)) if since is not None else {}
    (claim,) = open_erasures_of(ledger, snapshots, FIELD)
    return claim


def purged(*ids: str, at: int = 2, **changes: Any) -> OpenErasure:
    return a_claim(*ids, purged_by=at, purged_at=at, purged_time=NOW, **changes)


# --- whether the rows have left -------------------------------------------------------------------------------------
def test_batches_are_in_the_head_as_long_as_one_of_their_tombstones_is_active() -> None:
    history = a_story([a_held("f", "A")], {1: ["f"], 2: []}, 2)

    still, left = mark([a_claim("A", hidden=True)], history, {}, NOW), mark([a_claim("A")], history, {}, NOW)

    assert still.erasures == ()
    (erasure,) = left.erasures
    assert (erasure.purged_at, erasure.purged_time, erasure.is_purged) == (2, NOW, True)


def test_records_are_in_the_head_as_long_as_an_older_file_has_native_deletes() -> None:
    """Files that came with the Erase or later cannot hold what it took out of the others; unknown times rule nothing out."""
    old, new = a_held("old", at=1, deletes=True), a_held("new", at=3, deletes=True)
    claim, at_unknown_time = a_claim(records=True, since=3), a_claim(records=True)

    still = mark([claim], a_story([old, new], {1: ["old"], 2: ["old", "new"]}, 2), {}, NOW)
    left = mark([claim], a_story([old, new], {1: ["old"], 2: ["new"]}, 2), {}, NOW)
    unknown = mark([at_unknown_time], a_story([new], {9: ["new"]}, 9), {}, NOW)

    assert (still.erasures, [e.is_purged for e in left.erasures], unknown.erasures) == ((), [True], ())


def test_the_snapshot_that_purged_is_the_newest_vacuum_since_or_the_commit_itself() -> None:
    vacuum = a_snapshot(3, 2, ledger="L3", tombstone__vacuum__file="v")
    masking = a_snapshot(4, 3, ledger="L4", tombstone__vacuum__file="v", lethe__deletes="DeletionVectors")
    committed = a_snapshot(2, None, ledger="L2")
    history = a_story([], {2: [], 3: [], 4: []}, 4, committed, vacuum, masking)
    at_once = a_story([], {2: []}, 2, committed)
    claim = a_claim(records=True, since=2)

    by = [mark([claim], h, {}, NOW).erasures[0].purged_by for h in (history, at_once)]

    assert by == [3, 2]


def test_a_batch_that_came_in_again_by_another_writer_is_in_the_head_again() -> None:
    claim = a_claim("A", hidden=True, purged_by=2, purged_at=2, purged_time=NOW)

    found = mark([claim], a_story([], {2: [], 3: []}, 3), {}, NOW)

    assert [(e.is_purged, e.purged_by) for e in found.erasures] == [(False, None)]


def wide(path: str, at: int) -> HeldFile:
    return a_held(path, "A-C", at)


COMPACTED = a_story(
    [wide("compacted", 1), wide("purged", 1), a_held("other", "X"), wide("live", 2)],
    {1: ["compacted", "other"], 2: ["purged", "live"], 3: ["live"]},
    3,
)
BEFORE_AND_AFTER = a_story(
    [a_held("before", "X", at=1), a_held("live", at=1), a_held("after", at=5)],
    {1: ["before", "live"], 5: ["live", "after"], 6: ["live"]},
    6,
)
WITH_DELETES = a_story(
    [
        a_held("gone", "A"),
        HeldFile("vector", 9, DELETES, 2, data_path="gone"),
        HeldFile("other", 9, DELETES, 2, data_path="elsewhere"),
        HeldFile("values", 9, DELETES, 1, values=True),
        # Of a partition, whose values it holds: another engine deleted more after the Erase.
        HeldFile("paths", 9, DELETES, 4, in_partition=True),
    ],
    {1: ["gone", "vector", "other", "values"], 4: ["paths"], 5: []},
    5,
)
ON_A_BRANCH = a_story(
    [wide("clean", 3), wide("copied", 5), wide("old", 1)],
    {1: ["old"], 3: ["clean"], 4: [], 5: ["copied", "old"]},
    4,
    a_snapshot(5, 1),
)
ON_A_CLEAN_SNAPSHOT = a_story(
    [wide("clean", 3), wide("own", 5), wide("staged", 6), a_held("other", "X", at=5)],
    {3: ["clean"], 4: [], 5: ["own", "clean", "other"], 6: ["staged"]},
    4,
    a_snapshot(5, 3),
    a_snapshot(6, 4, wap__id="r"),
)
STAGED_ON_THE_HEAD = a_story(
    [wide("staged", 3), wide("live", 2)],
    {2: ["live"], 3: ["staged", "live"]},
    2,
    a_snapshot(3, 2, wap__id="r", lethe__stage="s"),
)
STAGED_LATER = a_story([wide("staged", 6)], {4: [], 6: ["staged"]}, 4, a_snapshot(6, 4, wap__id="r", lethe__stage="s"))
TAGGED = a_story([wide("f", 3)], {3: ["f"], 6: []}, 6, a_snapshot(3, 2, ledger="L3"))
ON_AN_OLD_BRANCH = a_story([a_held("copied", "X", at=5)], {1: [], 3: [], 4: [], 5: ["copied"]}, 4, a_snapshot(5, 1))
NOTED: dict[str, tuple[OpenErasure, History, list[str]]] = {
    # Those of snapshots before a compaction, too; not the live files, nor those that cannot hold it.
    "older files that may hold the batch": (a_claim("B"), COMPACTED, ["compacted", "purged"]),
    "of records whatever the bounds": (a_claim(records=True, since=4), BEFORE_AND_AFTER, ["before"]),
    "deletes of a noted file": (a_claim("A"), WITH_DELETES, ["gone", "vector"]),
    "of records deletes with values": (
        a_claim(records=True, since=3),
        WITH_DELETES,
        ["gone", "paths", "values", "vector"],
    ),
    # Compactions of the head's line move rows that were clean already, whatever their bounds.
    "once purged only what comes on a branch": (purged("B"), ON_A_BRANCH, ["copied"]),
    # Whoever wrote it may have read a tag, or have read the batch before it was erased.
    "what a branch or a stage adds to a clean snapshot": (purged("B"), ON_A_CLEAN_SNAPSHOT, ["own", "staged"]),
    "of records all that it adds": (purged("B", records=True), ON_A_CLEAN_SNAPSHOT, ["other", "own", "staged"]),
    # Also when the erasure is marked as purged at that moment.
    "a batch that is staged on the very head that lost it": (a_claim("B"), STAGED_ON_THE_HEAD, ["staged"]),
    # It reads the buffer, and the Erase has waited for the batches that lay there.
    "of records nothing that a run of Lethe stages later": (purged("B", records=True), STAGED_LATER, []),
    # A snapshot with a ledger of its own, made since the purge, was the head once.
    "nothing of a tag on a clean head": (purged("B"), TAGGED, []),
    "of records nothing of a tag on a clean head": (purged("B", records=True), TAGGED, []),
    "of records all of a branch of an old snapshot": (
        purged(records=True, since=2, at=3),
        ON_AN_OLD_BRANCH,
        ["copied"],
    ),
}


@pytest.mark.parametrize(("claim", "history", "paths"), NOTED.values(), ids=NOTED)
def test_every_file_that_may_hold_erased_rows_and_is_not_live_is_noted(
    claim: OpenErasure, history: History, paths: list[str]
) -> None:
    assert [f.path for f in mark([claim], history, {}, NOW).files] == paths


def test_a_file_that_was_staged_when_it_was_noted_and_is_live_now_holds_no_batch_that_was_purged() -> None:
    """Its run published it, without the batch: else the erasure would wait for the head itself."""
    history = a_story([a_held("f", "A-C", at=2)], {4: ["f"]}, 4)
    alone, shared = (PurgedFile("f", 100, DATA, keys) for keys in ((ERASE,), (ERASE, "ns/other/0")))
    purged, still = a_claim("B"), a_claim("B", hidden=True)

    found = [mark([c], history, {"f": f}, NOW) for c, f in ((purged, alone), (purged, shared), (still, alone))]

    assert [m.clean for m in found] == [{"f"}, set(), set()]
    assert [m.files for m in found] == [(), (PurgedFile("f", 100, DATA, ("ns/other/0",)),), ()]


def test_what_is_noted_already_is_not_noted_again_unless_another_erasure_needs_it() -> None:
    history = a_story([a_held("f", "A")], {1: ["f"], 2: []}, 2)
    mine = {"f": PurgedFile("f", 100, DATA, (ERASE,))}
    others = {"f": PurgedFile("f", 100, DATA, ("ns/other/0",))}

    again, more = (mark([a_claim("A")], history, known, NOW).files for known in (mine, others))

    assert (again, more) == ((), (PurgedFile("f", 100, DATA, (ERASE, "ns/other/0")),))


# --- what holds them ------------------------------------------------------------------------------------------------
def held_by(history: History, *paths: str) -> dict[int, frozenset[str]]:
    return holders(history, {p: PurgedFile(p, 1, DATA, (ERASE,)) for p in paths})


def test_snapshots_that_hold_a_due_erasure_go_whatever_the_limits_but_for_tags_branches_and_the_head() -> None:
    history = a_story([a_held("f")], {1: ["f"], 2: ["f"], 3: ["f"], 4: ["f"]}, 4)
    refs = [Ref("audit", BlockerKind.TAG, 2)]
    held = held_by(history, "f")

    assert to_expire(history, held, refs, {ERASE}, NOW) == (1, 3)
    assert to_expire(history, held, refs, {"ns/other/0"}, NOW) == ()


@pytest.mark.parametrize(
    ("hours", "published", "gone"),
    [(1, [], ()), (25, [], (2,)), (0, [a_snapshot(3, 1, ledger="L3", lethe__run_id="r")], (2, 3))],
)
def test_a_staged_snapshot_stays_as_long_as_its_run_may_publish_it(
    hours: int, published: list[Snapshot], gone: tuple[int, ...]
) -> None:
    """One that was published goes at once."""
    staged = a_snapshot(2, 1, at=ago(hours=hours), wap__id="r")
    named = {2: ["f"], **{s.id: ["f"] for s in published}, 4: []}
    history = a_story([a_held("f")], named, 4, staged, *published)

    assert to_expire(history, held_by(history, "f"), [], {ERASE}, NOW) == gone


def test_blockers_name_tags_and_branches_first_and_when_each_lets_go() -> None:
    kept = a_snapshot(1, at=ago(hours=1), ledger="L1")
    staged = a_snapshot(5, 4, at=ago(hours=2), wap__id="r")
    history = a_story([a_held("f")], {1: ["f"], 2: ["f"], 3: ["f"], 4: [], 5: ["f"]}, 4, kept, staged)
    refs = [Ref("audit", BlockerKind.TAG, 2, NOW + timedelta(days=7)), Ref("dev", BlockerKind.BRANCH, 3)]

    found = snapshot_blockers(history, held_by(history, "f"), refs, 86_400, NOW)

    assert [str(b) for b in found[ERASE]] == [
        "tag audit until 2026-03-08T12:00:00Z (snapshot 2)",
        "branch dev (snapshot 3)",
        "snapshot 1 until 2026-03-02T11:00:00Z (spec.snapshots keeps it)",
        "staged snapshot 5 until 2026-03-02T10:00:00Z (its run may publish it)",
    ]


def test_a_tagged_snapshot_without_a_ledger_must_not_lose_its_carrier() -> None:
    """Unless the newest ledger names the carrier, which every commit sees to."""
    bare = a_snapshot(3, 2)
    history = a_story([], {1: [], 2: [], 3: [], 4: []}, 4, bare, a_snapshot(4, 3, ledger="L4"))

    assert losing_ledger(history, {2}, ())
    assert not losing_ledger(history, {2}, (Carrier(2, 2, "L2", (3,)),))
    assert not losing_ledger(history, {1}, ())


def test_an_erasure_is_checked_again_when_the_first_blocker_ends_or_after_an_interval() -> None:
    """That a tag is gone is seen without one."""
    erasure = Erasure(ERASE, FIELD, None, 2, 2, NOW)
    lock = ErasureBlocker(BlockerKind.OBJECT_LOCK, "s3://b/f", NOW + timedelta(days=3))
    tag, hold = ErasureBlocker(BlockerKind.TAG, "audit"), ErasureBlocker(BlockerKind.LEGAL_HOLD, "s3://b/f")

    tagged, locked, held = (with_blockers(erasure, [*b], NOW, 60) for b in ([tag], [tag, lock], [hold, lock]))

    assert (tagged.look_again, locked.look_again) == (None, lock.until)
    assert held.look_again == NOW + timedelta(seconds=60)
    assert with_blockers(held, [hold, lock], NOW + timedelta(seconds=30), 60) is held
    assert with_blockers(held, [hold, lock], NOW + timedelta(seconds=90), 60) != held
    assert with_blockers(tagged, [tag], NOW + timedelta(days=9), 60) is tagged


# --- what stays remembered ------------------------------------------------------------------------------------------
def a_ledger_of(*erasures: Erasure, **hours_ago: float) -> Ledger:
    entries = [replace(a_request_entry(f"ns/{n}/0"), time=ago(hours=h)) for n, h in hours_ago.items()]
    return a_ledger(requests=entries, erasures=erasures)


def test_of_verified_erasures_by_records_the_newest_is_kept_for_its_time() -> None:
    """An Undo of a Revert from before it must not let in a batch that nobody has searched."""
    old, new = Erasure("ns/old/0", NAME, None), Erasure("ns/new/0", NAME, NOW)
    batches = Erasure("ns/batches/0", FIELD, None)
    ledger = a_ledger_of(replace(old, verified=True), new, batches, old=9, new=5, batches=1)

    kept = remembered_of_records(ledger, {new.restatement, batches.restatement}, FIELD)

    assert kept == replace(new, verified=True)
    # By ledger versions, where they are known, whatever the clocks of their runs said.
    versions = {"ns/old/0": 7, "ns/new/0": 8}
    skewed = [
        replace(e, time=ago(hours=-versions[k]), result={**e.result, "ledgerVersion": 15 - versions[k]})
        for k, e in ledger.requests.items()
        if k in versions
    ]
    skewed_ledger = replace(ledger, requests={e.key: e for e in skewed})
    assert remembered_of_records(skewed_ledger, {new.restatement}, FIELD) == replace(old, verified=True)
    assert remembered_of_records(a_ledger_of(batches, batches=1), {batches.restatement}, FIELD) is None


# --- closing --------------------------------------------------------------------------------------------------------
def noted(**of: str) -> dict[str, PurgedFile]:
    """Files of the erasures that are called so, one letter each."""
    return {p: PurgedFile(p, 1, DATA, tuple(f"ns/{n}/0" for n in names)) for p, names in of.items()}


def owing(*names: str, files: Mapping[str, PurgedFile]) -> Ledger:
    erasures = tuple(Erasure(f"ns/{n}/0", FIELD, None, 2, 2, NOW) for n in names)
    return a_ledger(requests=[a_request_entry(e.restatement) for e in erasures], erasures=erasures, purged_files=files)


def test_closing_forgets_the_files_that_no_other_erasure_is_of() -> None:
    files = noted(f="a", g="ab", h="b", i="x")  # x was undone

    found = plan_closing(owing("a", "b", files=files), ["ns/a/0"], files, FIELD)

    assert (found.keys, found.close, found.set_erasures) == (("ns/a/0",), {"ns/a/0"}, ())
    assert (found.set_files, found.forget_files) == ((PurgedFile("g", 1, DATA, ("ns/b/0",)),), {"f", "i"})


def test_an_erasure_stays_open_if_another_run_has_noted_a_file_since_the_check() -> None:
    """Nobody has looked for it."""
    seen, now = noted(f="a", g="b"), noted(f="a", g="ab")

    found = plan_closing(owing("a", "b", files=now), ["ns/a/0", "ns/b/0"], seen, FIELD)

    assert (found.keys, found.forget_files) == (("ns/b/0",), set())
    assert found.set_files == (PurgedFile("g", 1, DATA, ("ns/a/0",)),)


def test_what_another_run_has_closed_meanwhile_is_not_closed_twice() -> None:
    found = plan_closing(owing(files={}), ["ns/a/0"], noted(f="a"), FIELD)

    assert (found.keys, found.close, found.set_files, found.forget_files) == ((), set(), (), set())


# --- what came since the look ---------------------------------------------------------------------------------------
def test_a_snapshot_added_since_the_check_is_unseen_unless_an_ancestor_of_the_head_has_its_ledger() -> None:
    seen = a_story([], {1: [], 2: []}, 2)
    ours, bare, branch = a_snapshot(3, 2, ledger="L3"), a_snapshot(3, 2), a_snapshot(4, 1, ledger="L4")

    def unseen(head: int, *new: Snapshot) -> bool:
        return has_unseen(seen, {**seen.snapshots, **a_history(*new)}, head)

    assert [unseen(2), unseen(3, ours)] == [False, False]
    assert [unseen(3, bare), unseen(2, branch), unseen(3, ours, branch)] == [True, True, True]


# --- holds ----------------------------------------------------------------------------------------------------------


def a_kept(*ids: str, holds: Iterable[str] = ("case-7",), has_deletes: bool = False) -> KeptFile:
    return KeptFile("f", frozenset(holds), frozenset(ids), True, has_deletes)


HOLDS = (HoldSpec(name="case-7", until=NOW + timedelta(days=9)), HoldSpec(name="case-8"))
HELD: dict[str, tuple[OpenErasure, tuple[KeptFile, ...], list[str]]] = {
    "a batch of it is in a kept file": (a_claim("A", "B", hidden=True), (a_kept("B", "C"),), ["case-7"]),
    "several holds keep its files": (
        a_claim("A", hidden=True),
        (a_kept("A", holds=["case-8"]), a_kept("A")),
        ["case-7", "case-8"],
    ),
    "other batches are in the kept file": (a_claim("A", hidden=True), (a_kept("B", has_deletes=True),), []),
    "deletes hide rows in the kept file": (a_claim(records=True), (a_kept(has_deletes=True),), ["case-7"]),
    "nothing is deleted from the kept file": (a_claim(records=True), (a_kept("A"),), []),
    "its rows have left the head": (a_claim("A", purged_at=3), (a_kept("A"),), []),
}


@pytest.mark.parametrize(("claim", "kept", "names"), HELD.values(), ids=HELD)
def test_an_erasure_is_blocked_by_the_holds_on_the_files_with_its_rows(
    claim: OpenErasure, kept: tuple[KeptFile, ...], names: list[str]
) -> None:
    found = hold_blockers([claim], kept, HOLDS).get(claim.key, ())

    ends = {"case-7": NOW + timedelta(days=9), "case-8": None}
    assert [(b.kind, b.name, b.until) for b in found] == [(BlockerKind.HOLD, n, ends[n]) for n in names]


def test_an_erasure_whose_rows_have_left_the_head_is_not_blocked_by_a_hold_any_more() -> None:
    """The hold was the reason why they were there."""
    blocker = ErasureBlocker(BlockerKind.HOLD, "case-7")
    claim = a_claim("A", blockers=(blocker,), blockers_count=1, look_again=NOW)
    history = a_story([a_held("f", "B")], {1: ["f"]}, 1)

    (marked,) = mark([claim], history, {}, NOW).erasures

    assert marked.is_purged
    assert (marked.blockers, marked.blockers_count, marked.look_again) == ((), 0, None)

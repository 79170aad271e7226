"""When the rows of an erasure have left the head, which files held them, and what holds those still."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from lethe.erasure.holders import Ref, holders, losing_ledger, snapshot_blockers, to_expire, with_blockers
from lethe.erasure.progress import (
    DATA,
    DELETES,
    HeldFile,
    History,
    OpenErasure,
    has_unseen,
    mark,
    open_erasures_of,
    plan_closing,
    remembered_of_records,
)
from lethe.ledger.erasure import BlockerKind, Erasure, ErasureBlocker, PurgedFile
from lethe.ledger.ledger import Carrier, Ledger
from lethe.ledger.lineage import Snapshot

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


def marked_paths(claim: OpenErasure, history: History) -> list[str]:
    return [f.path for f in mark([claim], history, {}, NOW).files]


# --- whether the rows have left -------------------------------------------------------------------------------------


def test_batches_are_in_the_head_as_long_as_one_of_their_tombstones_is_active() -> None:
    history = a_story([a_held("f", "A")], {1: ["f"], 2: []}, 2)

    still, left = mark([a_claim("A", hidden=True)], history, {}, NOW), mark([a_claim("A")], history, {}, NOW)

    assert still.erasures == ()
    (erasure,) = left.erasures
    assert (erasure.purged_at, erasure.purged_time, erasure.is_purged) == (2, NOW, True)


def test_records_are_in_the_head_as_long_as_an_older_file_has_native_deletes() -> None:
    """Files that came with the Erase or later cannot hold what it took out of the others."""
    old, new = a_held("old", at=1, deletes=True), a_held("new", at=3, deletes=True)
    claim = a_claim(records=True, since=3)

    still = mark([claim], a_story([old, new], {1: ["old"], 2: ["old", "new"]}, 2), {}, NOW)
    left = mark([claim], a_story([old, new], {1: ["old"], 2: ["new"]}, 2), {}, NOW)

    assert (still.erasures, [e.is_purged for e in left.erasures]) == ((), [True])


def test_if_the_time_of_an_erase_is_unknown_every_file_with_deletes_may_hold_its_records() -> None:
    claim = a_claim(records=True)

    found = mark([claim], a_story([a_held("f", at=9, deletes=True)], {9: ["f"]}, 9), {}, NOW)

    assert found.erasures == ()


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


# --- which files held them ------------------------------------------------------------------------------------------


def test_every_older_file_that_may_hold_the_batch_and_is_not_live_is_noted() -> None:
    """Those of snapshots before a compaction, too; not the files that the head has still, nor those that cannot hold it."""
    files = [a_held("compacted", "A-C"), a_held("purged", "A-C"), a_held("other", "X"), a_held("live", "A-C", at=2)]
    history = a_story(files, {1: ["compacted", "other"], 2: ["purged", "live"], 3: ["live"]}, 3)

    assert marked_paths(a_claim("B"), history) == ["compacted", "purged"]


def test_of_records_every_older_file_that_is_not_live_is_noted_whatever_its_bounds() -> None:
    files = [a_held("before", "X", at=1), a_held("live", at=1), a_held("after", at=5)]
    history = a_story(files, {1: ["before", "live"], 5: ["live", "after"], 6: ["live"]}, 6)

    assert marked_paths(a_claim(records=True, since=4), history) == ["before"]


def test_deletes_of_a_noted_file_are_noted_and_of_records_those_that_hold_values() -> None:
    """Those of a partition hold its values."""
    gone, vector = a_held("gone", "A"), HeldFile("vector", 9, DELETES, 2, of="gone")
    other = HeldFile("other", 9, DELETES, 2, of="elsewhere")
    values = HeldFile("values", 9, DELETES, 1, values=True)
    paths = HeldFile("paths", 9, DELETES, 4, in_partition=True)  # another engine deleted more after the Erase
    files = [gone, vector, other, values, paths]
    history = a_story(files, {1: ["gone", "vector", "other", "values"], 4: ["paths"], 5: []}, 5)

    assert marked_paths(a_claim("A"), history) == ["gone", "vector"]
    assert marked_paths(a_claim(records=True, since=3), history) == ["gone", "paths", "values", "vector"]


def test_once_purged_only_what_comes_on_a_branch_is_new() -> None:
    """Compactions of the head's line move rows that were clean already, whatever their bounds."""
    files = [a_held("clean", "A-C", at=3), a_held("copied", "A-C", at=5), a_held("old", "A-C", at=1)]
    branch = a_snapshot(5, 1)
    named = {1: ["old"], 3: ["clean"], 4: [], 5: ["copied", "old"]}
    claim = a_claim("B", purged_by=2, purged_at=2, purged_time=NOW)

    assert marked_paths(claim, a_story(files, named, 4, branch)) == ["copied"]


@pytest.mark.parametrize(("records", "paths"), [(False, ["own", "staged"]), (True, ["other", "own", "staged"])])
def test_what_a_branch_or_a_stage_adds_to_a_clean_snapshot_may_be_a_copy(records: bool, paths: list[str]) -> None:
    """Whoever wrote it may have read a tag, or have read the batch before it was erased."""
    files = [a_held("clean", "A-C", at=3), a_held("own", "A-C", at=5), a_held("staged", "A-C", at=6)]
    files.append(a_held("other", "X", at=5))
    branch, staged = a_snapshot(5, 3), a_snapshot(6, 4, wap__id="r")
    named = {3: ["clean"], 4: [], 5: ["own", "clean", "other"], 6: ["staged"]}
    claim = a_claim("B", records=records, purged_by=2, purged_at=2, purged_time=NOW)

    assert marked_paths(claim, a_story(files, named, 4, branch, staged)) == paths


def test_a_batch_that_is_staged_on_the_very_head_that_lost_it_is_noted() -> None:
    """Also when the erasure is marked as purged at that moment."""
    files = [a_held("staged", "A-C", at=3), a_held("live", "A-C", at=2)]
    staged = a_snapshot(3, 2, wap__id="r", lethe__stage="s")

    assert marked_paths(a_claim("B"), a_story(files, {2: ["live"], 3: ["staged", "live"]}, 2, staged)) == ["staged"]


def test_of_records_what_a_run_of_lethe_stages_later_holds_nothing() -> None:
    """It reads the buffer, and the Erase has waited for the batches that lay there."""
    staged = a_snapshot(6, 4, wap__id="r", lethe__stage="s")
    history = a_story([a_held("staged", "A-C", at=6)], {4: [], 6: ["staged"]}, 4, staged)
    claim = a_claim("B", records=True, purged_by=2, purged_at=2, purged_time=NOW)

    assert marked_paths(claim, history) == []


@pytest.mark.parametrize("records", [False, True])
def test_a_tag_on_a_clean_head_holds_nothing_when_the_snapshots_in_between_are_gone(records: bool) -> None:
    """A snapshot with a ledger of its own, made since the purge, was the head once."""
    tagged = a_snapshot(3, 2, ledger="L3")
    history = a_story([a_held("f", "A-C", at=3)], {3: ["f"], 6: []}, 6, tagged)
    claim = a_claim("B", records=records, purged_by=2, purged_at=2, purged_time=NOW)

    assert marked_paths(claim, history) == []


def test_of_records_everything_that_a_branch_of_an_old_snapshot_adds_may_be_a_copy() -> None:
    branch = a_snapshot(5, 1)
    history = a_story([a_held("copied", "X", at=5)], {1: [], 3: [], 4: [], 5: ["copied"]}, 4, branch)
    claim = a_claim(records=True, since=2, purged_by=3, purged_at=3, purged_time=NOW)

    assert marked_paths(claim, history) == ["copied"]


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


def test_a_snapshot_holds_an_erasure_that_names_one_of_its_files() -> None:
    history = a_story([a_held("f"), a_held("g")], {1: ["f", "g"], 2: ["g"], 3: []}, 3)

    assert held_by(history, "f") == {1: {ERASE}}
    assert held_by(history, "g") == {1: {ERASE}, 2: {ERASE}}
    assert held_by(history, "elsewhere") == {}


def test_snapshots_that_hold_a_due_erasure_go_whatever_the_limits_but_for_tags_branches_and_the_head() -> None:
    history = a_story([a_held("f")], {1: ["f"], 2: ["f"], 3: ["f"], 4: ["f"]}, 4)
    refs = [Ref("audit", BlockerKind.TAG, 2)]
    held = held_by(history, "f")

    assert to_expire(history, held, refs, {ERASE}, NOW) == (1, 3)
    assert to_expire(history, held, refs, {"ns/other/0"}, NOW) == ()


@pytest.mark.parametrize(("hours", "gone"), [(1, ()), (25, (2,))])
def test_a_staged_snapshot_stays_as_long_as_its_run_may_publish_it(hours: int, gone: tuple[int, ...]) -> None:
    staged = a_snapshot(2, 1, at=ago(hours=hours), wap__id="r")
    history = a_story([a_held("f")], {2: ["f"], 3: []}, 3, staged)

    assert to_expire(history, held_by(history, "f"), [], {ERASE}, NOW) == gone


def test_a_staged_snapshot_that_was_published_goes_at_once() -> None:
    staged, published = a_snapshot(2, 1, wap__id="r"), a_snapshot(3, 1, ledger="L3", lethe__run_id="r")
    history = a_story([a_held("f")], {2: ["f"], 3: ["f"], 4: []}, 4, staged, published)

    assert to_expire(history, held_by(history, "f"), [], {ERASE}, NOW) == (2, 3)


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


def test_only_the_first_blockers_are_kept_and_how_many_there_are() -> None:
    tags = [ErasureBlocker(BlockerKind.TAG, f"t{n}") for n in range(30)]

    found = with_blockers(Erasure(ERASE, FIELD, None, 2, 2, NOW), tags, NOW, 60)

    assert (found.blockers, found.blockers_count) == (tuple(tags[:20]), 30)


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

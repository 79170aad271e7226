"""What goes besides rows: snapshots, files of ledgers, orphans and small manifests. In doubt it stays."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from lethe.base.errors import LedgerError
from lethe.base.objects import ListedObject
from lethe.contract.run import SnapshotLimits
from lethe.files.bounds import FileBounds
from lethe.ledger.lineage import Snapshot
from lethe.vacuum.housekeeping import (
    Cleanup,
    DataManifest,
    Folders,
    ManifestPlan,
    Orphans,
    OrphanScope,
    SnapshotTree,
    just_superseded,
    key_of,
    named_files,
    needed_roots,
    plan_cleanup,
    plan_expiry,
    plan_manifests,
    plan_orphans,
    shown,
    too_many,
)

from tests.support.builders import NOW, RUN, a_carrier, a_file, a_history, a_snapshot, ago, listed

TABLE = "s3://lake/wh/air/flights"
BUFFER = "s3://lake/buffer/flights"
FOLDERS = Folders(f"{TABLE}/data", f"{TABLE}/metadata")
LIMIT = timedelta(days=3)
OLD = ago(days=4)
OTHER_RUN = "f" * 32


def old(path: str, modified: datetime = OLD, size: int = 10) -> ListedObject:
    return listed(f"{TABLE}/{path}", size=size, modified=modified)


def orphans(
    *found: ListedObject, needed: tuple[str, ...] = (), limit: timedelta = LIMIT, buffer: str = BUFFER
) -> set[str]:
    """Their paths below the table."""
    keys = {key_of(uri) for uri in needed}
    return {
        f.removeprefix(f"{TABLE}/") for f in plan_orphans(found, keys, OrphanScope(FOLDERS, buffer), NOW, limit).files
    }


@pytest.mark.parametrize(
    "path",
    [
        "data/day=1/00000-1-a.parquet",
        f"data/{RUN}/day=1/00000-1-a.parquet",
        f"data/{RUN}/00000-1-deletes.puffin",
        "data/a.orc",
        "metadata/snap-1-1-a.avro",
        "metadata/a-m0.avro",
        "metadata/00007-a.metadata.json",
        "metadata/a.stats",
    ],
)
def test_old_unneeded_files_of_writers_are_orphans(path: str) -> None:
    assert orphans(old(path)) == {path}
    assert orphans(old(path), needed=(f"{TABLE}/{path}",)) == set()
    assert orphans(old(path, ago(days=2))) == set()


@pytest.mark.parametrize(
    "path",
    [
        "_tombstones/00000001-a-root.json",
        "_runs/a.json",
        "data/_tombstones/a.avro",
        "data/_refused/a.parquet",
        "data/.hidden/a.parquet",
        "metadata/version-hint.text",
        "metadata/v7.metadata.json",
        "metadata/v7.gz.metadata.json",
        "metadata/folder/a.avro",
        "metadata/notes.txt",
        "data/README",
        "other/a.parquet",
        "a.parquet",
        "checkpoints/a.avro",
    ],
)
def test_what_no_writer_of_the_table_puts_there_is_not_judged(path: str) -> None:
    assert orphans(old(path)) == set()


def test_nothing_of_a_run_goes_while_it_still_writes() -> None:
    """What it wrote first may be older than the limit."""
    first, latest = old(f"data/{OTHER_RUN}/day=1/a.parquet"), old(f"data/{OTHER_RUN}/day=2/b.parquet", ago(hours=1))
    of_another = old(f"data/{RUN}/day=1/a.parquet")

    assert orphans(first, latest, of_another) == {f"data/{RUN}/day=1/a.parquet"}


def test_the_files_of_the_own_run_stay() -> None:
    mine = old(f"data/{RUN}/day=1/a.parquet")

    assert plan_orphans([mine], (), OrphanScope(FOLDERS, BUFFER, own_run=RUN), NOW, LIMIT) == Orphans()


def test_a_young_file_in_a_partition_keeps_nothing_else_there() -> None:
    """Only a run's folder tells that one writer is at work."""
    assert orphans(old("data/day=1/a.parquet"), old("data/day=1/b.parquet", NOW)) == {"data/day=1/a.parquet"}


def test_batches_and_replacements_are_never_orphans() -> None:
    batch = [
        old("data/restated/A2/_SUCCESS"),
        old("data/restated/A2/part-0.parquet"),
        old("data/restated/A2/x/1.parquet"),
    ]
    in_buffer = old("data/buffer/B.parquet")

    assert orphans(*batch, old("data/restated/b.parquet")) == {"data/restated/b.parquet"}
    assert orphans(in_buffer, buffer=f"{TABLE}/data/buffer/") == set()


def test_a_table_of_a_namespace_of_the_same_name_is_not_swept_with_this_one() -> None:
    """Catalogs put the table `air.flights.data` right into the data folder of `air.flights`."""
    theirs = [old("data/metadata/00001-a.metadata.json"), old("data/metadata/snap-1.avro"), old("data/data/a.parquet")]
    nested = [old("data/day=1/b.parquet"), old("data/x/metadata/v1.metadata.json"), old("data/x/data/a.parquet")]

    assert orphans(*theirs) == set()
    assert orphans(*nested) == {"data/day=1/b.parquet"}


@pytest.mark.parametrize("uri", [f"s3a{TABLE[2:]}/data/a.parquet", "s3://lake//wh/air/flights/data/a.parquet"])
def test_a_file_that_is_named_in_another_way_is_the_same_file(uri: str) -> None:
    assert orphans(old("data/a.parquet"), needed=(uri,)) == set()


@pytest.mark.parametrize(
    ("data_path", "wanted"),
    [
        (None, f"{TABLE}/data"),
        (f"{TABLE}/elsewhere/", f"{TABLE}/elsewhere"),
        ("s3://lake/wh/air/flights_2/data", None),
        ("s3://other/data", None),
        (TABLE, None),
    ],
)
def test_a_folder_that_is_not_below_the_table_is_left_alone(data_path: str | None, wanted: str | None) -> None:
    """Files of other tables may lie there as well."""
    assert Folders.of(f"{TABLE}/", data_path, None) == Folders(wanted, f"{TABLE}/metadata")


def test_the_listing_for_people_is_short_and_without_the_values_of_partitions() -> None:
    found = plan_orphans(
        [old(f"data/name=Jane Doe/{n:03}.parquet") for n in range(30)], (), OrphanScope(FOLDERS, BUFFER), NOW, LIMIT
    )

    assert shown(found, TABLE) == tuple(f"data/name=…/{n:03}.parquet" for n in range(20))
    assert (len(found.files), found.bytes) == (30, 300)


def a_line(*days_ago: int) -> list[Snapshot]:
    """Snapshots 1, 2, … of ours, each the next one's parent."""
    return [a_snapshot(i, i - 1 or None, ledger=f"L{i}", at=ago(days=d)) for i, d in enumerate(days_ago, 1)]


def limits(days: float = 5, keep: int = 1, count: int = 1000) -> SnapshotLimits:
    return SnapshotLimits(max_age_seconds=int(days * 86400), min_to_keep=keep, max_count=count)


@pytest.mark.parametrize(
    ("given", "gone"),
    [
        (limits(days=5), (1, 2)),
        (limits(days=5, keep=3), (1,)),
        (limits(days=5, keep=9), ()),
        (limits(days=5, count=1), (1, 2, 3)),
        (limits(days=100, count=2), (1, 2)),
        (limits(days=100, count=1, keep=3), (1,)),
        (limits(days=0), (1, 2, 3)),
        (limits(days=0, keep=0), (1, 2, 3)),
    ],
)
def test_age_number_kept_and_number_allowed(given: SnapshotLimits, gone: tuple[int, ...]) -> None:
    """The oldest first; the head never."""
    assert gone == plan_expiry(SnapshotTree(a_history(*a_line(9, 8, 4, 1)), 4, {"main": 4}), given, NOW)


def bare(id: int, days: float) -> Snapshot:
    return a_snapshot(id, id - 1, at=ago(days=days))


def ours(id: int, parent: int, days: float, **summary: str) -> Snapshot:
    return a_snapshot(id, parent, ledger=f"L{id}", at=ago(days=days), **summary)


def staged(id: int, parent: int, **age: float) -> Snapshot:
    return a_snapshot(id, parent, at=ago(**age), wap__id="r", lethe__run_id="r")


WITH_TAGGED_BARE = [*a_line(9), bare(2, 8), bare(3, 8), ours(4, 3, 7), ours(5, 4, 1)]
EXPIRED: dict[str, tuple[list[Snapshot], int | None, dict[str, int], SnapshotLimits, tuple[int, ...]]] = {
    # the history, its head, other refs; the limits, and what goes
    "the head stays however old it is": (a_line(99), 1, {}, limits(days=0, keep=0), ()),
    "a table without snapshots": ([], None, {}, limits(), ()),
    "a tag holds its snapshot and not those before it": (a_line(9, 8, 7, 1), 4, {"audit": 2}, limits(), (1, 3)),
    # How long a branch lives is its owner's to say.
    "a branch of its own keeps its whole history": (
        [*a_line(9, 8, 1), a_snapshot(7, 1, at=ago(days=8)), a_snapshot(8, 7, at=ago(days=8))],
        3,
        {"side": 8},
        limits(),
        (2,),
    ),
    # A tagged foreign commit whose carrier went would be read without its tombstones, or not at all.
    "the carrier of a bare snapshot that stays does stay too": (WITH_TAGGED_BARE, 5, {"audit": 3}, limits(), (4,)),
    "a bare snapshot whose carrier expired does not stop expiry": (
        WITH_TAGGED_BARE[2:],
        5,
        {"audit": 3},
        limits(),
        (4,),
    ),
    "a bare head keeps everything down to its ledger": (
        [*a_line(9, 8), bare(3, 7), bare(4, 6), bare(5, 6)],
        5,
        {},
        limits(),
        (1,),
    ),
    # Expiring what was staged a minute ago would delete the files that a consolidation is about to commit.
    "what a run under way has staged stays": ([*a_line(9, 1), staged(3, 2, minutes=1)], 2, {}, limits(days=0), (1,)),
    "what a dead run has staged goes when it is old": ([*a_line(9, 1), staged(3, 1, days=8)], 2, {}, limits(), (1, 3)),
    # It names every file that was live then: kept for its age, it would hold back what a vacuum has purged.
    "what was staged and published goes at once": (
        [*a_line(2, 1), staged(3, 2, minutes=1), ours(4, 2, 0, lethe__run_id="r")],
        4,
        {},
        limits(),
        (3,),
    ),
    # The same run id may stage again: a batch that was incomplete the first time has come.
    "what was staged since the last commit of its run stays": (
        [*a_line(2, 1), ours(3, 2, 0.01, lethe__run_id="r"), staged(4, 3, minutes=1)],
        3,
        {},
        limits(),
        (),
    ),
}


@pytest.mark.parametrize(("history", "head", "refs", "given", "gone"), EXPIRED.values(), ids=EXPIRED)
def test_expiry_keeps_what_a_reader_a_ref_a_bare_snapshot_or_a_run_under_way_needs(
    history: list[Snapshot], head: int | None, refs: dict[str, int], given: SnapshotLimits, gone: tuple[int, ...]
) -> None:
    refs = refs if head is None else {"main": head, **refs}

    assert plan_expiry(SnapshotTree(a_history(*history), head, refs), given, NOW) == gone


@pytest.mark.parametrize(("count", "gone"), [(3, (1,)), (4, ())])
def test_without_age_only_what_is_too_much_goes_however_old_the_rest_is(count: int, gone: tuple[int, ...]) -> None:
    """Old snapshots within the number allowed are somebody's time travel, on a table that no policy vacuums."""
    tree = SnapshotTree(a_history(*a_line(99, 98, 97, 1)), 4, {"main": 4})

    assert plan_expiry(tree, limits(days=5, count=count), NOW, by_age=False) == gone


def test_a_history_is_cut_when_it_is_longer_than_allowed_by_a_tenth() -> None:
    """At every commit would be one expiry for each."""
    lengths = {n: too_many(n, limits(count=10)) for n in range(9, 14)}

    assert lengths == {9: False, 10: False, 11: False, 12: True, 13: True}


LEDGERS = "s3://lake/t/_tombstones"
TWO_DAYS_AGO = ago(days=2)


def a_ledger_file(
    version: int, what: str = "root.json", modified: datetime = TWO_DAYS_AGO, nonce: str = "0a1b2c3d"
) -> ListedObject:
    return listed(f"{LEDGERS}/{version:08d}-0123456789ab-{nonce}-{what}", modified=modified)


def name(o: ListedObject) -> str:
    return o.key.rpartition("/")[2]


def test_old_unneeded_files_are_removed_and_roots_first() -> None:
    root, part, needed = a_ledger_file(1), a_ledger_file(1, "batches.avro"), a_ledger_file(2, "tombstones.avro")

    assert plan_cleanup([part, root, needed], {name(needed)}, NOW) == Cleanup((root.key,), (part.key,))


@pytest.mark.parametrize(
    "key",
    [f"{LEDGERS}/notes.json", f"{LEDGERS}/backup/{'0' * 8}-a-0a1b2c3d-root.json", "s3://lake/t/data/00000001-a.avro"],
)
def test_names_that_lethe_does_not_give_are_none_of_its_business(key: str) -> None:
    assert plan_cleanup([listed(key, modified=TWO_DAYS_AGO)], (), NOW) == Cleanup()


def test_stage_documents_are_removed_with_their_snapshot_and_run_files_after_a_week() -> None:
    runs = "s3://lake/t/_runs"
    staged, dead = f"{runs}/r1-stage-0a1b2c3d.json", f"{runs}/r2-stage-0a1b2c3d.json"
    recent_run_file, old_run_file = f"{runs}/r3.json", f"{runs}/r4.json"
    files = [
        *(listed(k, modified=TWO_DAYS_AGO) for k in (staged, dead, recent_run_file)),
        listed(old_run_file, modified=ago(days=8)),
    ]

    plan = plan_cleanup(files, named_files([a_snapshot(1, lethe__stage=staged)]), NOW)

    assert plan == Cleanup((), (dead, old_run_file))


def test_every_file_that_a_retained_snapshot_names_is_needed() -> None:
    keys = {"tombstone__file": "f/t.avro", "tombstone__vacuum__file": "f/v.avro", "lethe__stage": "f/s.json"}

    assert named_files([a_snapshot(1, ledger="f/root.json", **keys)]) == {"root.json", "t.avro", "v.avro", "s.json"}


# --- which roots are needed -----------------------------------------------------------------------------------------
def test_every_ledger_that_a_retained_snapshot_leads_to_is_needed() -> None:
    """Its own; that of a bare snapshot's ancestor; and one known from the carriers list only."""
    history = a_history(
        a_snapshot(3, 2, at=ago(days=9)),  # bare, tagged; its carrier 2 is gone
        a_snapshot(6, 5, ledger="L6"),
        a_snapshot(7, 6),  # staged by a run under way, or a foreign writer's
        a_snapshot(8, 6, ledger="L8"),
    )

    assert needed_roots(history, (a_carrier(2, 3),), "t", None) == {"L2", "L6", "L8"}


def test_nothing_is_known_to_be_superfluous_when_a_snapshot_has_lost_its_ledger() -> None:
    history = a_history(a_snapshot(3, 2), a_snapshot(6, 5, ledger="L6"))

    with pytest.raises(LedgerError, match="LedgerLost"):
        needed_roots(history, (), "t", None)


def test_snapshots_from_before_the_first_ledger_need_none() -> None:
    assert needed_roots(a_history(a_snapshot(3, 2), a_snapshot(6, 5, ledger="L6")), (), "t", 3) == {"L6"}


# --- readers at a ledger whose snapshot has just gone ---------------------------------------------------------------


def test_an_old_failed_attempt_supersedes_no_root() -> None:
    """Version 2 was tried in vain two days ago and made a minute ago: until then, version 1 was read."""
    first, failed = a_ledger_file(1, modified=ago(days=3)), a_ledger_file(2, nonce="ffffffff")
    second = a_ledger_file(2, modified=ago(minutes=1))

    assert first.key in just_superseded([first, failed, second], NOW)


def test_a_listing_of_long_ago_has_no_reader() -> None:
    files = [a_ledger_file(n, modified=NOW - timedelta(days=10 - n)) for n in range(5)]

    assert just_superseded(files, NOW) == ()


TARGET = 8_000
OF_ONE = 100  # bytes of an entry


def of_day(day: int | None, batch: str = "A") -> FileBounds:
    partition = None if day is None else f"0/[{day}]"
    return replace(a_file(batch, path=f"day={day}/{batch}"), partition=partition)


def a_manifest(name: str, *files: FileBounds, spec_id: int = 0, removed: int = 0) -> DataManifest:
    entries = len(files) + removed
    return DataManifest(name, spec_id, entries * OF_ONE, entries, files)


def after(plan: ManifestPlan, manifests: Sequence[DataManifest]) -> list[DataManifest]:
    """The manifests as they are once the plan is carried out."""
    by_number: dict[int, list[FileBounds]] = {}
    for f in (f for m in manifests if m.path in plan.replaced for f in m.files):
        by_number.setdefault(plan.manifest_of[f.path], []).append(f)
    kept = [m for m in manifests if m.path not in plan.replaced]
    return [*kept, *(a_manifest(f"new-{n}", *files) for n, files in sorted(by_number.items()))]


def test_every_live_file_is_listed_once_and_neighbouring_days_together() -> None:
    """Values are compared as such: as texts, day 10 would come before day 9."""
    manifests = [a_manifest(f"m{n}", *(of_day(d, f"{n:03}") for d in range(8, 12))) for n in range(50)]

    found = after(plan_manifests(manifests, TARGET), manifests)

    assert sorted(f.path for m in found for f in m.files) == sorted(f.path for m in manifests for f in m.files)
    assert [sorted({f.partition for f in m.files}) for m in found] == [
        ["0/[8]", "0/[9]"],
        ["0/[10]", "0/[9]"],
        ["0/[10]", "0/[11]"],
    ]


IN_ORDER = [a_manifest(f"m{n}", *(of_day(n, f"{b:03}") for b in range(70))) for n in range(20)]
LARGE = [a_manifest(f"large{n}", *(of_day(n, f"{b:03}") for b in range(79))) for n in range(60)]
SMALL = [a_manifest(f"small{n}", of_day(100 + n)) for n in range(20)]
EMPTY = [a_manifest(f"m{n}", removed=1) for n in range(9)]
REPLACED: dict[str, tuple[list[DataManifest], list[DataManifest]]] = {
    "manifests in good order are left alone": (IN_ORDER, []),
    "small ones are merged without the large ones": ([*LARGE, *SMALL], SMALL),
    "a handful is not worth a commit": (SMALL[:8], []),
    "no manifests": ([], []),
    "those of nothing but removed files go": (EMPTY, EMPTY),
}


@pytest.mark.parametrize(("manifests", "replaced"), REPLACED.values(), ids=REPLACED)
def test_manifests_are_written_again_where_readers_open_fewer_of_them_afterwards(
    manifests: list[DataManifest], replaced: list[DataManifest]
) -> None:
    assert plan_manifests(manifests, TARGET).replaced == {m.path for m in replaced}


def test_manifests_that_mix_all_days_are_rewritten_although_they_are_large() -> None:
    manifests = [a_manifest(f"m{n}", *(of_day(d, f"{n:03}") for d in range(70))) for n in range(20)]

    plan = plan_manifests(manifests, TARGET)

    assert len(plan.replaced) == 20
    assert max(len({f.partition for f in m.files}) for m in after(plan, manifests)) <= 6


def test_rewritten_manifests_are_not_rewritten_again() -> None:
    manifests = [a_manifest(f"m{n}", *(of_day(d, f"{n:03}") for d in range(30))) for n in range(40)]
    first = plan_manifests(manifests, TARGET)
    assert not first.is_empty

    assert plan_manifests(after(first, manifests), TARGET).is_empty


def test_files_of_two_partition_specs_never_share_a_manifest() -> None:
    old = [a_manifest(f"old{n}", of_day(n)) for n in range(20)]
    new = [a_manifest(f"new{n}", replace(of_day(n, "B"), partition=f"1/[{n}]"), spec_id=1) for n in range(20)]

    plan = plan_manifests([*old, *new], TARGET)

    numbers = [{plan.manifest_of[f.path] for m in of_spec for f in m.files} for of_spec in (old, new)]
    assert numbers == [{0}, {1}]


def test_files_whose_partitions_have_no_text_are_kept_together_by_their_folders() -> None:
    manifests = [a_manifest(f"m{n}", replace(of_day(None, f"{n:03}"), path=f"x={n % 2}/{n}")) for n in range(100)]

    found = after(plan_manifests(manifests, TARGET), manifests)

    assert [{f.path[:3] for f in m.files} for m in found] == [{"x=0"}, {"x=1"}]

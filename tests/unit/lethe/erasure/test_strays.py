"""Files that no snapshot names and metadata of the table: which may tell what erased rows held, and what becomes of them."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from lethe.erasure.progress import (
    DATA,
    DELETES,
    HeldFile,
    History,
    OpenErasure,
    Writer,
    mark,
    note_name,
    open_erasures_of,
    run_of_note,
    writer_blockers,
)
from lethe.erasure.record import holders
from lethe.erasure.strays import (
    OTHER,
    UNKNOWN,
    Locations,
    Stray,
    StrayContent,
    Strays,
    UnfinishedUpload,
    UploadOrigin,
    assess_stray,
    assess_upload,
    blocker_if_young,
    clean_from,
    find_strays,
    late,
    may_hold,
    mentioned_in,
    named_in_summaries,
    names_partitions,
    replacement_folders,
    upload_origin,
    with_versions_before,
)
from lethe.ledger.tombstone import BlockerKind, Erasure, ErasureBlocker
from lethe.uri import place

from tests.support.builders import FIELD, NOW, a_history, a_ledger, a_request_entry, a_snapshot, ago

TABLE, BUFFER = "s3://lake/air/flights", "s3://lake/buffer"
RUN, OTHER_RUN = "0" * 32, "1" * 32
LOCATIONS = Locations(
    (TABLE,), ("s3://lake/shared",), (f"{TABLE}/metadata",), (f"{TABLE}/data", f"{TABLE}/old", "s3://lake/shared")
)


def a_claim(*ids: str, records: bool = False, purged_hours_ago: float = 0, purged_at: int | None = 7) -> OpenErasure:
    key = "ns/erase/0"
    erasure = Erasure(key, 4 if records else FIELD, None, 6, purged_at, ago(hours=purged_hours_ago))
    ledger = a_ledger(requests=[a_request_entry(key, operation="Erase", batch_ids=ids)], erasures=(erasure,))
    (claim,) = open_erasures_of(ledger, {}, FIELD)
    return claim


def listed(*paths: str, named: tuple[str, ...] = (), writers: tuple[Writer, ...] = ()) -> Strays:
    return find_strays([(p, NOW) for p in paths], {place(n) for n in named}, LOCATIONS, BUFFER, writers)


def found(*paths: str, named: tuple[str, ...] = (), writers: tuple[Writer, ...] = ()) -> dict[str, str]:
    return {s.path: s.run for s in listed(*paths, named=named, writers=writers).strays}


def a_writer(*ids: str, since: int = 5, run: str = RUN, folder: str = "") -> Writer:
    return Writer(run, folder, since, frozenset(ids) or None)


# --- which there are ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "path",
    [
        f"{TABLE}/data/f.orc",
        f"{TABLE}/old/{RUN}/f.avro",
        f"{TABLE}/data/_day=1/f.parquet",
        f"{TABLE}/data/.f.parquet.crc",
        f"{TABLE}/data/.hidden.parquet",
        f"{TABLE}/data/_temporary/0/task/part-0.parquet",
        f"{TABLE}/data/.tmp/f.parquet",
        f"{TABLE}/data/v.puffin",
        f"{TABLE}/data/_SUCCESS",
        f"{TABLE}/data/no-extension",
        f"{TABLE}/copy.zip",
        f"{TABLE}/_tombstones/00000001-x-batches.avro",
        f"{TABLE}/_runs/{RUN}-1-00000000-writing.json",
        f"{TABLE}/_erasures/copy.parquet",
        f"{TABLE}/metadata/version-hint.text",
        f"{TABLE}/metadata/notes",
    ],
)
def test_an_object_anywhere_below_a_location_that_no_snapshot_names_is_read_whatever_its_name(path: str) -> None:
    """A marker of a batch beside it changes nothing."""
    marker = f"{path.rpartition('/')[0]}/_SUCCESS"

    assert path in found(path)
    assert path in found(path, marker)
    assert path not in found(path, named=(path.replace("s3:", "s3a:"),))
    assert {s.in_batch for s in listed(path, marker).strays} == {True}


@pytest.mark.parametrize("name", ["m.avro", "v.puffin", "x.parquet", "1.metadata.json", "sub/1.gz.metadata.json"])
def test_what_icebergs_writers_put_into_a_metadata_folder_is_left_to_the_check_of_metadata(name: str) -> None:
    assert listed(f"{TABLE}/metadata/{name}") == Strays()


def test_objects_of_another_table_or_of_the_buffer_are_named_and_neither_read_nor_removed() -> None:
    other, batch = f"{TABLE}/data/nested", f"{BUFFER}/batch_id=A/f.parquet"
    metadata, data = f"{other}/metadata/v1.metadata.json", f"{other}/data/day=1/f.parquet"

    strays = listed(metadata, data, batch, f"{TABLE}/data/mine.parquet")

    assert [s.path for s in strays.strays] == [f"{TABLE}/data/mine.parquet"]
    assert [str(u) for u in strays.uncovered] == [
        f"{metadata}: another table has its metadata in this folder",
        f"{other}/data/day=*/f.parquet: another table has its metadata in this folder",
        f"{BUFFER}/batch_id=*/f.parquet: an object of the buffer",
    ]


def test_in_a_folder_that_tables_share_only_the_folders_of_known_runs_are_checked() -> None:
    ours, others = f"s3://lake/shared/{RUN}/f.parquet", f"s3://lake/shared/{OTHER_RUN}/f.parquet"
    known = (a_writer(folder=f"s3://lake/shared/{RUN}"),)

    assert found(ours, others) == {}
    assert found(ours, others, writers=known) == {ours: RUN}
    assert [str(u) for u in listed(ours, others, writers=known).uncovered] == [
        f"{others}: other tables may use this folder"
    ]


# --- which may hold rows --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("content", "holds"),
    [
        (StrayContent(True, "A", "C"), True),
        (StrayContent(True, "X", "Z"), False),
        (StrayContent(True), True),
        (StrayContent(no_rows=True), False),
        (UNKNOWN, True),
    ],
)
def test_for_batches_the_footer_decides_whenever_the_file_was_written(content: StrayContent, holds: bool) -> None:
    """A run that had read before the purge may write after it."""
    for hours in (-1, 0, 30):
        assert may_hold(Stray("f.parquet", ago(hours=-hours)), content, a_claim("B"), ()) is (
            holds and (hours <= 24 or content.lower is not None)
        )


def test_of_records_every_file_may_that_a_writer_from_before_the_purge_can_have_written() -> None:
    claim, content = a_claim(records=True, purged_hours_ago=48), StrayContent(True, "A", "C")

    assert may_hold(Stray("f", ago(hours=50)), content, claim, ())
    assert may_hold(Stray("f", ago(hours=25)), content, claim, ())
    assert not may_hold(Stray("f", ago(hours=23)), content, claim, ())


def test_what_a_run_writes_that_began_after_the_purge_holds_none() -> None:
    file, content = Stray("f", NOW, RUN), StrayContent(True, "A", "C")
    rewriting, early = a_writer(since=7), a_writer(since=6)

    assert not may_hold(file, content, a_claim("B"), [rewriting])
    assert may_hold(file, content, a_claim("B"), [early])
    assert may_hold(file, content, a_claim("B"), [early, rewriting])
    assert not may_hold(file, content, a_claim("B"), [a_writer("X", "Y", since=3)])
    assert not may_hold(file, UNKNOWN, a_claim(records=True), [a_writer("X", since=7)])
    assert may_hold(file, UNKNOWN, a_claim(records=True), [a_writer("X", since=3)])


UNNAMED, OF_TABLE = "no snapshot names it, and", StrayContent(True, "A", "A")
COSTLY = StrayContent(costly="it ends the decoder (SIGABRT)")
BY_NAME = replace(OF_TABLE, by_name=True)
HELD, REMOVED = "held until", "removed"
ASSESSED: dict[str, tuple[float, str, bool, StrayContent, str]] = {
    # the file's age in hours, its run, whether it is beside a marker; its content
    "a young file, until its writer can no longer commit it": (23, "", False, OF_TABLE, f"{HELD} 13:00"),
    "a young file of a run": (23, RUN, False, OF_TABLE, f"{HELD} 13:00"),
    "an old file of a run": (25, RUN, False, UNKNOWN, REMOVED),
    "a file of another writer for this table": (71, "", False, OF_TABLE, f"{HELD} 13:00"),
    "an old file of another writer for this table": (73, "", False, OF_TABLE, REMOVED),
    "an old file of another writer for an unknown table": (999, "", False, UNKNOWN, f"{HELD} somebody acts: "),
    "a new object without a format of data files": (1, "", False, OTHER, f"{UNNAMED} it is not known what"),
    "an old object without a format of data files": (999, "", False, OTHER, f"{UNNAMED} it is not known what"),
    # It neither ends the check again, nor holds the erasure for ever. In the folder of a run it is removed unread.
    "a young object that ends its reader": (23, "", False, COSTLY, f"{HELD} 13:00"),
    "an object that ends its reader": (25, "", False, COSTLY, f"{UNNAMED} it ends the decoder (SIGABRT)"),
    "an object of a run that ends its reader": (25, RUN, False, COSTLY, REMOVED),
    # The files of a batch in a buffer have no field ids.
    "a file beside a marker without field ids": (99, "", True, BY_NAME, UNNAMED),
    "a file beside a marker with field ids": (99, "", True, OF_TABLE, REMOVED),
    "a file without field ids": (99, "", False, BY_NAME, REMOVED),
}


@pytest.mark.parametrize(("hours", "run", "in_batch", "content", "expected"), ASSESSED.values(), ids=ASSESSED)
def test_a_stray_holds_the_erasure_until_nobody_can_commit_it_and_then_is_removed_or_named(
    hours: float, run: str, in_batch: bool, content: StrayContent, expected: str
) -> None:
    found = assess_stray(Stray("s3://b/day=1/f.parquet", ago(hours=hours), run, in_batch=in_batch), content, NOW)

    match found:
        case None:
            told = REMOVED
        case ErasureBlocker(until=None):
            told = f"{found.name}: {HELD} somebody acts: {found.why}"
        case ErasureBlocker():
            told = f"{found.name}: {HELD} {found.until:%H:%M}"
        case _:
            told = str(found)
    assert told.removeprefix("s3://b/day=*/f.parquet: ").startswith(expected)


def test_replacement_folders_are_those_that_rows_of_the_erasures_came_from() -> None:
    requests = [
        {"replacementUri": "s3://b/one", "replacementBatchId": "A"},
        {"replacementUri": "s3://b/two", "replacementBatchId": "C"},
        {"operation": "Revert"},
    ]

    assert replacement_folders(requests, [a_claim("A", "B")]) == ("s3://b/one",)
    assert replacement_folders(requests, [a_claim("D")]) == ()
    assert replacement_folders(requests, [a_claim("D"), a_claim(records=True)]) == ("s3://b/one", "s3://b/two")


def test_what_only_its_time_clears_of_an_erasure_is_named() -> None:
    stray, whole = Stray("f", ago(hours=23)), StrayContent(True, "A", "C")
    batches, records = a_claim("X", purged_hours_ago=48), a_claim(records=True, purged_hours_ago=48)

    assert [late(stray, whole, [c]) is None for c in (batches, records)] == [True, False]
    assert [late(stray, UNKNOWN, [c]) is None for c in (batches, records)] == [False, False]
    assert late(stray, StrayContent(no_rows=True), [records]) is None


@pytest.mark.parametrize(
    ("hours", "origin", "expected"),
    [
        (2, UploadOrigin.RUN, NOW + timedelta(hours=22)),
        (25, UploadOrigin.RUN, True),
        (25, UploadOrigin.OTHER, NOW + timedelta(hours=47)),
        (73, UploadOrigin.OTHER, True),
        # A run that is killed while it writes its note leaves a file without rows.
        (2, UploadOrigin.RECORD, False),
        (25, UploadOrigin.RECORD, True),
        (0, UploadOrigin.RUN, False),  # begun after the purge
    ],
)
def test_an_unfinished_upload_holds_the_erasure_until_it_is_old_enough_to_be_aborted(
    hours: float, origin: UploadOrigin, expected: object
) -> None:
    claim = a_claim("B", purged_hours_ago=10 if hours else 25)

    found = assess_upload(UnfinishedUpload("s3://b/f", "id", ago(hours=hours)), claim, origin, NOW)

    assert (found.until if isinstance(found, ErasureBlocker) else found) == expected


@pytest.mark.parametrize(
    ("path", "origin"),
    [
        (f"{TABLE}/data/{RUN}/f.parquet", UploadOrigin.RUN),
        (f"{TABLE}/data/f.parquet", UploadOrigin.OTHER),
        ("s3://lake/shared/x/f.parquet", UploadOrigin.RUN),
        (f"{TABLE}/_runs/{RUN}-writing.json", UploadOrigin.RECORD),
        (f"{TABLE}/_tombstones/00001-{RUN}.avro", UploadOrigin.RECORD),
        (f"{TABLE}/_erasures/{RUN}.json", UploadOrigin.RECORD),
        (f"{TABLE}/metadata/{RUN}-m0.avro", UploadOrigin.OTHER),
        (f"{TABLE}/data/_runs/f.parquet", UploadOrigin.OTHER),
    ],
)
def test_the_folder_of_an_upload_says_who_began_it(path: str, origin: UploadOrigin) -> None:
    assert upload_origin(path, LOCATIONS, [a_writer(folder="s3://lake/shared/x")]) is origin


# --- runs that write ------------------------------------------------------------------------------------------------
def test_a_run_that_brings_in_a_batch_may_write_it_and_one_that_reads_the_table_what_was_there() -> None:
    batches, records, both = a_claim("A", "B"), a_claim(records=True), a_claim("A", "B", records=True)
    open_ = replace(batches, erasure=replace(batches.erasure, purged_at=None))

    def may(writer: Writer) -> list[bool]:
        return [writer.may_write(c) for c in (batches, records, both, open_)]

    assert may(a_writer("B", "X", since=99)) == [True, False, True, True]
    assert may(a_writer("X")) == [False, False, False, False]
    assert may(a_writer(since=6)) == [True, True, True, True]
    assert may(a_writer(since=7)) == [False, False, False, True]


def test_a_run_that_may_write_keeps_the_erasure_open_for_a_day_after_it_noted_itself() -> None:
    noted = [(a_writer("B"), ago(hours=3)), (a_writer("B", run=OTHER_RUN), ago(hours=25)), (a_writer("X"), NOW)]

    found = writer_blockers(noted, a_claim("B"), NOW)

    assert found == [ErasureBlocker(BlockerKind.RUN, RUN, NOW + timedelta(hours=21), "it may write such rows")]


def test_a_note_round_trips_and_an_unreadable_one_is_of_a_run_that_may_do_anything() -> None:
    for writer in (a_writer("B", "A", folder="s3://b/d"), a_writer(), replace(a_writer("B"), attempt=3)):
        assert Writer.of_json(writer.to_json(), "x") == writer
    endless = b'{"run": 1, "folder": "", "sequence-number": 1e999, "batch-ids": []}'
    for content in (b"", b"{}", b"[1]", endless.replace(b"1e999", b"null"), endless, b"[" * 100_000):
        assert Writer.of_json(content, note_name(RUN, 2, "0a1b2c3d")) == Writer(RUN, "", 0, None)


def test_each_process_of_an_attempt_has_a_note_of_its_own_whose_name_begins_with_the_run() -> None:
    names = {note_name(RUN, attempt, token) for attempt in (1, 2) for token in ("00000000", "0000000f")}

    assert len(names) == 4
    assert {run_of_note(n) for n in names} == {RUN}
    assert run_of_note(f"{RUN}-writing.json") == RUN


def test_the_note_of_each_attempt_holds_the_erasure() -> None:
    noted = [(replace(a_writer("B"), attempt=2), ago(hours=1)), (replace(a_writer("B"), attempt=1), ago(hours=3))]

    found = writer_blockers(noted, a_claim("B"), NOW)

    assert [(b.why, b.until) for b in found] == [
        ("attempt 1 may write such rows", NOW + timedelta(hours=21)),
        ("attempt 2 may write such rows", NOW + timedelta(hours=23)),
    ]


ERASE = "ns/erase/0"
PURGED = 3


def a_story(**gone: HeldFile) -> History:
    """Four snapshots, one on the other, each with a manifest of its own; of each, a file that was removed."""
    line = a_history(*(a_snapshot(i, i - 1 if i > 1 else None, ledger=f"L{i}") for i in range(1, 5)))
    manifests = {i: (f"m{i}",) for i in line}
    return History(line, 4, {}, frozenset(), manifests, {f"m{i}": () for i in line}, {m: (f,) for m, f in gone.items()})


def a_file(bounds: str = "A", at: int | None = 1, content: str = DATA, **changes: Any) -> HeldFile:
    return HeldFile("f", 9, content, at, bounds or None, bounds or None, **changes)


@pytest.mark.parametrize(
    ("claim", "file", "tells"),
    [
        (a_claim("A", purged_at=PURGED), a_file("A"), True),
        (a_claim("A", purged_at=PURGED), a_file("B"), False),
        (a_claim("A", purged_at=PURGED), a_file(""), True),
        (a_claim("A", purged_at=PURGED), a_file("A", at=PURGED), True),
        (a_claim("A", purged_at=PURGED), a_file("A", at=PURGED + 1), False),
        (a_claim("A", purged_at=PURGED), a_file("A", at=None), True),
        (a_claim("A", purged_at=PURGED), a_file("B", content=DELETES), True),
        (a_claim(records=True, purged_at=PURGED), a_file("B"), True),
        (a_claim(records=True, purged_at=PURGED), a_file("B", at=PURGED + 1), False),
        (a_claim("A", purged_at=None), a_file("A"), False),
    ],
)
def test_a_manifest_mentions_removed_files_that_may_have_held_rows(
    claim: OpenErasure, file: HeldFile, tells: bool
) -> None:
    """Not of those that came when the rows had left, nor of batches that by their bounds they cannot have held."""
    history = a_story(m2=file)

    assert mentioned_in([claim], history) == ({"m2": frozenset({ERASE})} if tells else {})
    assert holders(history, {}, [claim]) == ({2: frozenset({ERASE})} if tells else {})


def test_a_summary_that_names_partitions_holds_its_snapshot_if_it_was_made_before_the_rows_left() -> None:
    history = a_story()
    reported = {
        i: replace(s, summary={**s.summary, "partitions.name=x": "added-records=1"})
        for i, s in history.snapshots.items()
    }
    history = replace(history, snapshots=reported)

    assert named_in_summaries([a_claim("A", purged_at=PURGED)], history).keys() == {1, 2, 3}
    assert holders(history, {}, [a_claim("A", purged_at=PURGED)]).keys() == {1, 2, 3}
    assert (
        named_in_summaries([a_claim("A", purged_at=None)], history),
        clean_from(a_claim("A", purged_at=PURGED), history),
    ) == ({}, 4)


def test_table_metadata_reveals_values_only_by_partitions_of_snapshots_before_the_purge() -> None:
    def state(at: int, **summary: str) -> dict[str, Any]:
        return {"snapshots": [{"sequence-number": at, "summary": summary}]}

    claim = a_claim("A", purged_at=PURGED)
    assert names_partitions(state(PURGED, **{"partitions.name=x": ""}), claim)
    assert not names_partitions(state(PURGED + 1, **{"partitions.name=x": ""}), claim)
    assert not names_partitions(state(PURGED, **{"changed-partition-count": "1"}), claim)
    assert not names_partitions({}, claim)


def test_numbered_versions_go_from_the_oldest_on() -> None:
    going = {"t/m-m0.avro": {"a"}, "t/v3.metadata.json": {"b"}}
    there = ["t/v10.metadata.json", "t/v2.metadata.json", "t/v3.metadata.json", "t/v1.gz.metadata.json", "t/m-m1.avro"]

    found = with_versions_before(going, there)

    assert list(found) == ["t/m-m0.avro", "t/v1.gz.metadata.json", "t/v2.metadata.json", "t/v3.metadata.json"]
    assert found["t/v2.metadata.json"] == {"a", "b"}


def test_a_young_file_that_no_snapshot_names_is_waited_for_and_named_without_the_value_of_a_partition() -> None:
    blocker = blocker_if_young("s3://b/t/name=x/m.avro", ago(hours=1), NOW)

    assert blocker is not None
    assert (blocker.name, blocker.until) == ("s3://b/t/name=*/m.avro", ago(hours=-23))
    assert blocker_if_young("s3://b/t/m.avro", ago(hours=24), NOW) is None


def test_records_are_in_the_head_as_long_as_an_older_delete_file_with_values_is() -> None:
    """Of whatever partition: it may delete by an erased value, although no data file is left that it is of."""
    old, new = a_file(at=1, content=DELETES, values=True), a_file(at=4, content=DELETES, values=True)
    claim = replace(a_claim(records=True, purged_at=None), since=3)

    for file, left in ((old, False), (new, True), (replace(old, values=False), True)):
        history = replace(a_story(), files={"f": file}, live=frozenset({"f"}))
        assert [e.is_purged for e in mark([claim], history, {}, NOW).erasures] == ([True] if left else [])

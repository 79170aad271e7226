"""Files that no snapshot names: which may hold rows of an erasure, and what becomes of them."""

from dataclasses import replace
from datetime import timedelta

import pytest
from lethe.erasure.progress import OpenErasure, Writer, note_name, open_erasures_of, run_of_note, writer_blockers
from lethe.erasure.strays import (
    OTHER,
    UNKNOWN,
    Locations,
    Stray,
    StrayContent,
    Strays,
    Uncovered,
    UnfinishedUpload,
    UploadOrigin,
    assess_stray,
    assess_upload,
    find_strays,
    late,
    may_hold,
    replacement_folders,
    upload_origin,
)
from lethe.ledger.erasure import BlockerKind, Erasure, ErasureBlocker
from lethe.uri import place

from tests.support.builders import FIELD, NOW, a_ledger, a_request_entry, ago

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


def test_what_is_listed_once_is_below_no_other() -> None:
    assert set(LOCATIONS.roots) == {TABLE, "s3://lake/shared"}


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


# --- what becomes of them -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [RUN, ""])
def test_a_young_file_holds_the_erasure_until_its_writer_can_no_longer_commit_it(run: str) -> None:
    blocker = assess_stray(Stray("s3://b/day=1/f.parquet", ago(hours=23), run), StrayContent(True), NOW)

    assert isinstance(blocker, ErasureBlocker)
    assert (blocker.name, blocker.until) == ("s3://b/day=*/f.parquet", NOW + timedelta(hours=1))


def test_an_old_file_of_a_run_is_removed() -> None:
    assert assess_stray(Stray("f", ago(hours=25), RUN), UNKNOWN, NOW) is None


def test_an_old_file_of_another_writer_is_removed_only_if_it_was_written_for_this_table() -> None:
    of_table = StrayContent(True, "A", "A")
    young, old, unknown = (
        assess_stray(Stray("f", ago(hours=h)), c, NOW) for h, c in ((48, of_table), (73, of_table), (999, UNKNOWN))
    )

    assert isinstance(young, ErasureBlocker)
    assert young.until == NOW + timedelta(hours=24)
    assert old is None
    assert isinstance(unknown, ErasureBlocker)
    assert (unknown.until, "Delete it" in unknown.why) == (None, True)


@pytest.mark.parametrize("hours", [1, 999])
def test_what_has_no_format_of_a_data_file_is_named_at_any_age(hours: int) -> None:
    assessed = assess_stray(Stray("s3://b/day=1/notes", ago(hours=hours)), OTHER, NOW)

    assert isinstance(assessed, Uncovered)
    assert str(assessed) == "s3://b/day=*/notes: no snapshot names it, and it is not known what it contains"


def test_an_object_that_ends_its_reader_is_named_when_no_writer_can_commit_it_any_more() -> None:
    """It neither ends the check again, nor holds the erasure for ever. What is in the folder of a run is removed unread."""
    costly = StrayContent(costly="it ends the decoder (SIGABRT)")

    young = assess_stray(Stray("s3://b/f.parquet", ago(hours=23)), costly, NOW)
    old = assess_stray(Stray("s3://b/f.parquet", ago(hours=25)), costly, NOW)

    assert isinstance(young, ErasureBlocker)
    assert str(old) == "s3://b/f.parquet: no snapshot names it, and it ends the decoder (SIGABRT)"
    assert assess_stray(Stray("f", ago(hours=25), RUN), costly, NOW) is None


def test_replacement_folders_are_those_that_rows_of_the_erasures_came_from() -> None:
    requests = [
        {"replacementUri": "s3://b/one", "replacementBatchId": "A"},
        {"replacementUri": "s3://b/two", "replacementBatchId": "C"},
        {"operation": "Revert"},
    ]

    assert replacement_folders(requests, [a_claim("A", "B")]) == ("s3://b/one",)
    assert replacement_folders(requests, [a_claim("D")]) == ()
    assert replacement_folders(requests, [a_claim("D"), a_claim(records=True)]) == ("s3://b/one", "s3://b/two")


def test_of_the_files_beside_a_marker_those_without_field_ids_are_named_and_others_removed() -> None:
    """The files of a batch in a buffer have no field ids."""
    batch, beside = Stray("f", ago(hours=99), in_batch=True), StrayContent(True, "A", "A", by_name=True)

    assert isinstance(assess_stray(batch, beside, NOW), Uncovered)
    assert assess_stray(batch, replace(beside, by_name=False), NOW) is None
    assert assess_stray(replace(batch, in_batch=False), beside, NOW) is None


def test_what_only_its_time_clears_of_an_erasure_is_named() -> None:
    stray, whole = Stray("f", ago(hours=23)), StrayContent(True, "A", "C")
    batches, records = a_claim("X", purged_hours_ago=48), a_claim(records=True, purged_hours_ago=48)

    assert [late(stray, whole, [c]) is None for c in (batches, records)] == [True, False]
    assert [late(stray, UNKNOWN, [c]) is None for c in (batches, records)] == [False, False]
    assert late(stray, StrayContent(no_rows=True), [records]) is None


def test_an_unfinished_upload_holds_the_erasure_until_it_is_old_enough_to_be_aborted() -> None:
    claim = a_claim("B", purged_hours_ago=10)

    def assessed(hours: float, origin: UploadOrigin) -> object:
        blocker = assess_upload(UnfinishedUpload("s3://b/f", "id", ago(hours=hours)), claim, origin, NOW)
        return blocker.until if isinstance(blocker, ErasureBlocker) else blocker

    run, other = UploadOrigin.RUN, UploadOrigin.OTHER
    assert [assessed(2, run), assessed(25, run)] == [NOW + timedelta(hours=22), True]
    assert [assessed(25, other), assessed(73, other)] == [NOW + timedelta(hours=47), True]
    assert assess_upload(UnfinishedUpload("s3://b/f", "id", NOW), a_claim("B", purged_hours_ago=25), run, NOW) is False


def test_an_upload_of_a_file_without_rows_holds_no_erasure_and_is_aborted_after_a_day() -> None:
    """A run that is killed while it writes its note leaves one."""
    claim = a_claim("B", purged_hours_ago=10)

    young, old = (
        assess_upload(UnfinishedUpload("s3://b/f", "id", ago(hours=h)), claim, UploadOrigin.RECORD, NOW)
        for h in (2, 25)
    )

    assert (young, old) == (False, True)


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
    batches, records = a_claim("A", "B"), a_claim(records=True)
    open_ = replace(batches, erasure=replace(batches.erasure, purged_at=None))

    def may(writer: Writer) -> list[bool]:
        return [writer.may_write(c) for c in (batches, records, open_)]

    assert may(a_writer("B", "X", since=99)) == [True, False, True]
    assert may(a_writer("X")) == [False, False, False]
    assert may(a_writer(since=6)) == [True, True, True]
    assert may(a_writer(since=7)) == [False, False, True]


def test_a_run_that_may_write_keeps_the_erasure_open_for_a_day_after_it_noted_itself() -> None:
    noted = [(a_writer("B"), ago(hours=3)), (a_writer("B", run=OTHER_RUN), ago(hours=25)), (a_writer("X"), NOW)]

    found = writer_blockers(noted, a_claim("B"), NOW)

    assert found == [ErasureBlocker(BlockerKind.RUN, RUN, NOW + timedelta(hours=21), "it may write such rows")]


def test_a_note_round_trips_and_an_unreadable_one_is_of_a_run_that_may_do_anything() -> None:
    for writer in (a_writer("B", "A", folder="s3://b/d"), a_writer(), replace(a_writer("B"), attempt=3)):
        assert Writer.of_json(writer.to_json(), "x") == writer
    for content in (b"", b"{}", b"[1]", b'{"run": 1, "folder": "", "sequence-number": null, "batch-ids": []}'):
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

"""Uploads into a buffer on local files, with a real table: every step repeated, interrupted and raced."""

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from lethe.base import names
from lethe.base.errors import InputError
from lethe.base.objects import BufferedObject
from lethe.contract.settings import BufferLayout
from lethe.guards.claim import Owner
from lethe.ingest.references import read_references
from lethe.ingest.shared_folders import take_claim
from lethe.ledger.ledger import BatchState
from lethe.storage.local_store import LocalStore
from lethe_gateway.problems import Kind
from lethe_gateway.settings import UploadSettings
from lethe_gateway.uploads import check
from lethe_gateway.uploads.buffers import problem_of
from lethe_gateway.uploads.manifest import FileEntry, FileState, UploadState
from lethe_operator.resources.boundaries import Boundaries, Boundary

from tests.support.buffers import batches_in
from tests.support.builders import a_batch
from tests.support.clock import wait_until
from tests.support.tables import commit
from tests.support.upload_site import GOOD, ID, UPLOAD, Site, entries, parquet, problem, states

# --- the usual way ---


def test_a_batch_is_complete_when_its_upload_is_and_not_before(site: Site) -> None:
    view, new = site.open()
    assert (new, view.state, states(view)) == (True, UploadState.OPEN, [FileState.MISSING] * 2)
    site.send()
    (waiting,) = batches_in(site.uri)
    assert not waiting.complete

    done = site.complete()

    assert (done.state, done.checked) == (UploadState.COMPLETE, True)
    (batch,) = batches_in(site.uri)
    assert (batch.id, batch.complete, len(batch.data_objects)) == (ID, True, 2)


def test_the_same_request_again_finds_the_same_upload(site: Site) -> None:
    first, _ = site.open()
    site.uploads.put(site.buffer(), UPLOAD, 1, GOOD["day-1/part-1.parquet"])

    second, new = site.open(list(reversed(entries())))

    assert (second.id, new, states(second)) == (first.id, False, [FileState.MISSING, FileState.UPLOADED])
    problem(Kind.UPLOAD_CONFLICT, lambda: site.open(entries({"other.parquet": parquet(1)})))
    assert site.uploads.view(site.buffer(), UPLOAD).batch_id == ID


def test_a_batch_of_one_file_appears_at_once(site: Site) -> None:
    site.spec = {"buffer": {"uri": site.uri, "layout": "File"}}
    content = {"part-0.parquet": parquet(1)}
    site.open(entries(content))
    site.send(content)
    assert batches_in(site.uri, layout=BufferLayout.FILE) == []

    site.complete()
    site.complete()

    (batch,) = batches_in(site.uri, layout=BufferLayout.FILE)
    assert (batch.id, batch.complete) == (ID, True)
    assert [f for f in site.files() if f.endswith(".data")] == []


def test_a_batch_of_one_file_overwrites_none(site: Site) -> None:
    site.spec = {"buffer": {"uri": site.uri, "layout": "File"}}
    content = {"part-0.parquet": parquet(1)}
    site.open(entries(content))
    site.send(content)
    theirs = site.folder / "2026%2F03%2F03.parquet"
    theirs.write_bytes(b"of another producer")

    problem(Kind.UPLOAD_CONFLICT, site.complete)

    assert theirs.read_bytes() == b"of another producer"


def test_an_upload_without_a_table_is_not_checked(site: Site) -> None:
    site.catalog.drop_table("air.flights")
    bad = {"part-0.parquet": parquet(1, column="unknown")}
    site.open(entries(bad))
    site.send(bad)

    assert site.complete().checked is False


def test_an_upload_names_the_run_that_delivers_the_batch(site: Site) -> None:
    site.uploads.open(site.buffer(), ID, entries(), reference="dag-7")
    site.send()

    site.complete()

    (batch,) = batches_in(site.uri)
    assert read_references(LocalStore(), [batch]).references == {ID: "dag-7"}
    open_again = lambda reference: site.uploads.open(site.buffer(), ID, entries(), reference=reference)  # noqa: E731
    assert open_again("dag-7")[0].state is UploadState.COMPLETE
    problem(Kind.UPLOAD_CONFLICT, lambda: open_again("dag-8"))


@pytest.mark.parametrize(("layout", "reference"), [("File", "dag-7"), ("Directory", " dag-7")])
def test_an_upload_whose_reference_has_no_place_is_refused_at_once(site: Site, layout: str, reference: str) -> None:
    site.spec = {"buffer": {"uri": site.uri, "layout": layout}}
    content = {"part-0.parquet": parquet(1)}

    with pytest.raises(InputError) as caught:
        site.uploads.open(site.buffer(), ID, entries(content), reference=reference)

    assert (caught.value.reason, site.files()) == ("InvalidReference", [])


# --- what is wrong is said at once ---


def test_missing_and_different_files_are_named(site: Site) -> None:
    site.open()
    at = site.folder / "batch_id=2026%2F03%2F03"
    at.mkdir()
    (at / "part-0.parquet").write_bytes(b"short")

    found = problem(Kind.UPLOAD_INCOMPLETE, site.complete)

    assert [(e.field, e.message.partition(",")[0]) for e in found.errors] == [
        ("part-0.parquet", "has 5 bytes"),
        ("day-1/part-1.parquet", "is missing"),
    ]
    assert not (at / "_SUCCESS").exists()


def test_content_that_was_not_announced_is_refused(site: Site) -> None:
    site.open()

    problem(Kind.CONTENT_DIFFERS, lambda: site.uploads.put(site.buffer(), UPLOAD, 0, b"too short"))
    other = parquet(8, 9)
    assert len(other) == len(GOOD["part-0.parquet"])
    problem(Kind.CONTENT_DIFFERS, lambda: site.uploads.put(site.buffer(), UPLOAD, 0, other))

    assert [f for f in site.files() if f.endswith("parquet")] == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (parquet(1, column="w"), "column v (int64) is missing"),
        (parquet("a", kind=pa.string()), "column v is string, expected int64"),
        (b"no parquet at all", "it is not readable as Parquet"),
    ],
)
def test_what_a_consolidation_would_refuse_is_refused_with_the_file_and_the_column(
    site: Site, content: bytes, expected: str
) -> None:
    files = {"ok.parquet": parquet(1), "bad.parquet": content}
    site.open(entries(files))
    site.send(files)

    found = problem(Kind.BATCH_REFUSED, site.complete)

    assert "bad.parquet" in found.detail
    assert expected in found.detail
    assert site.uploads.view(site.buffer(), UPLOAD).state is UploadState.OPEN
    assert not batches_in(site.uri)[0].complete


def test_checks_of_the_dataset_refuse_an_upload(site: Site) -> None:
    wanted = {"name": "key", "unique": ["v"]}
    files = {"a.parquet": parquet(1, 2), "b.parquet": parquet(2)}
    site.spec = {"checks": [wanted]}
    site.open(entries(files))
    site.send(files)

    assert "check key (unique): 1 of 3 rows fail, first row 0 of" in problem(Kind.BATCH_REFUSED, site.complete).detail
    site.spec = {"checks": [{**wanted, "unique": ["w"]}]}
    assert site.complete().checked is False, "the run says that the check names no column"


def test_a_batch_that_a_check_would_hold_is_complete(site: Site) -> None:
    site.spec = {"checks": [{"name": "low", "condition": "v < 0", "onFailure": "Hold"}]}
    site.open()
    site.send()

    assert (site.complete().state, batches_in(site.uri)[0].complete) == (UploadState.COMPLETE, True)


def test_a_large_file_is_judged_by_its_columns_alone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "WHOLE_BYTES", 10)
    bad = {"bad.parquet": parquet(1, column="w")}
    site.open(entries(bad))
    site.send(bad)

    assert "column v (int64) is missing" in problem(Kind.BATCH_REFUSED, site.complete).detail


def test_an_id_that_was_taken_back_is_not_used_again(site: Site) -> None:
    commit(site.table, a_batch(ID, BatchState.REVERTED))

    assert "is reverted since" in problem(Kind.BATCH_ID_USED, site.open).detail

    assert site.files() == []


def test_an_id_that_is_used_meanwhile_is_found_at_the_end(sent: Site) -> None:
    commit(sent.table, a_batch(ID, BatchState.REVERTED))

    problem(Kind.BATCH_ID_USED, sent.complete)

    assert not batches_in(sent.uri)[0].complete


def test_files_of_another_producer_in_the_folder_are_found(sent: Site) -> None:
    (sent.folder / "batch_id=2026%2F03%2F03" / "theirs.parquet").write_bytes(parquet(9))

    assert "theirs.parquet" in problem(Kind.UPLOAD_CONFLICT, sent.complete).detail


def test_a_file_that_is_too_large_for_the_gateway_is_refused_at_once(site: Site) -> None:
    huge = [FileEntry(path="a.parquet", size=site.settings.through_bytes + 1)]

    assert "smaller files" in problem(Kind.INVALID_REQUEST, lambda: site.open(huge)).detail


# --- after the end ---


def test_a_complete_upload_stays_as_it_is(completed: Site) -> None:
    assert completed.complete().state is UploadState.COMPLETE
    problem(Kind.UPLOAD_ENDED, lambda: completed.uploads.put(completed.buffer(), UPLOAD, 0, GOOD["part-0.parquet"]))
    problem(Kind.UPLOAD_ENDED, lambda: completed.uploads.abandon(completed.buffer(), UPLOAD))
    again, new = completed.open()
    assert (again.state, new, states(again)) == (UploadState.COMPLETE, False, [FileState.UPLOADED] * 2)


def test_completing_a_batch_that_was_promoted_and_removed_brings_nothing_back(completed: Site) -> None:
    objects = batches_in(completed.uri)[0].objects
    commit(completed.table, a_batch(ID, objects=objects))
    for listed in objects:
        LocalStore(completed.uri).remove(listed.key)

    assert completed.complete().state is UploadState.COMPLETE

    assert batches_in(completed.uri) == []


def test_the_same_batch_again_after_its_promotion_is_complete_at_once(site: Site) -> None:
    folder = f"{site.uri}/batch_id=2026%2F03%2F03"
    objects = [BufferedObject(f"{folder}/{p}", len(c), "e") for p, c in GOOD.items()]
    commit(site.table, a_batch(ID, objects=tuple(objects)))
    site.open()

    assert site.complete().state is UploadState.COMPLETE
    assert batches_in(site.uri) == []


def test_an_abandoned_upload_leaves_nothing_and_its_id_is_free(sent: Site) -> None:
    sent.uploads.abandon(sent.buffer(), UPLOAD)

    assert sent.files() == []
    problem(Kind.NOT_FOUND, sent.complete)
    problem(Kind.NOT_FOUND, lambda: sent.uploads.abandon(sent.buffer(), UPLOAD))
    other = {"other.parquet": parquet(5)}
    sent.open(entries(other))
    sent.send(other)
    assert sent.complete().state is UploadState.COMPLETE


# --- pages ---


@pytest.mark.parametrize(("limit", "pages"), [(1, 2), (2, 1), (3, 1)])
def test_the_last_page_of_uploads_says_that_there_are_no_more(site: Site, limit: int, pages: int) -> None:
    """Also if it is full."""
    for batch in ("A", "B"):
        site.uploads.open(site.buffer(), batch, entries())

    found, after, more, number = [], "", True, 0
    while more:
        views, more = site.uploads.page(site.buffer(), after, limit)
        found += views
        after, number = views[-1].id, number + 1

    assert ({v.batch_id for v in found}, len(found), number) == ({"A", "B"}, 2, pages)


# --- old ones ---


def test_uploads_that_are_open_for_too_long_are_removed_and_complete_ones_forgotten(completed: Site) -> None:
    completed.uploads.open(completed.buffer(), "late", entries())
    now = datetime.now(UTC)

    assert completed.uploads.remove_old(completed.buffer(), now) == 0
    assert {v.batch_id for v in completed.uploads.page(completed.buffer(), "", 10)[0]} == {ID, "late"}
    assert completed.uploads.remove_old(completed.buffer(), now + timedelta(hours=2)) == 0
    assert [v.batch_id for v in completed.uploads.page(completed.buffer(), "", 10)[0]] == ["late"]
    assert completed.uploads.remove_old(completed.buffer(), now + timedelta(days=2)) == 1
    assert completed.uploads.page(completed.buffer(), "", 10) == ([], False)
    assert batches_in(completed.uri)[0].complete


def test_the_next_opening_removes_old_ones_and_says_so(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.settings = UploadSettings(openSeconds=60)
    site.__post_init__()
    site.open()
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    manifest = site.folder / "_uploads" / UPLOAD / "manifest.json"
    text = manifest.read_text()
    opened = text.partition('"opened_time":"')[2].partition('"')[0]
    manifest.write_text(text.replace(opened, long_ago.isoformat()))
    os.utime(manifest, (long_ago.timestamp(), long_ago.timestamp()))
    site.__post_init__()  # another replica

    site.uploads.open(site.buffer(), "another", entries())

    wait_until(lambda: "default/flights: removed 1 uploads that were open for too long" in caplog.text, 30)
    assert [v.batch_id for v in site.uploads.page(site.buffer(), "", 10)[0]] == ["another"]


def test_a_forgotten_upload_of_a_batch_that_waits_is_complete_again(completed: Site) -> None:
    completed.uploads.remove_old(completed.buffer(), datetime.now(UTC) + timedelta(hours=2))

    view, new = completed.open()

    assert (new, states(view)) == (True, [FileState.UPLOADED] * 2)
    assert completed.complete().state is UploadState.COMPLETE


def test_a_page_continues_after_an_id(site: Site) -> None:
    for n in range(5):
        site.uploads.open(site.buffer(), f"b{n}", entries())
    first, more = site.uploads.page(site.buffer(), "", 3)
    rest, end = site.uploads.page(site.buffer(), first[-1].id, 3)

    assert (len(first), more, len(rest), end) == (3, True, 2, False)
    assert {v.batch_id for v in (*first, *rest)} == {f"b{n}" for n in range(5)}


# --- which buffers ---


def test_a_buffer_of_another_dataset_is_not_written_to(site: Site) -> None:
    take_claim(site.uri, {}, Owner("default", "other", "u-2", "t"), BufferLayout.DIRECTORY)

    assert "belongs to Dataset default/other" in problem(Kind.BUFFER_UNUSABLE, site.buffer).detail


READY = {"type": "Ready", "status": "True", "reason": "Available"}


@pytest.mark.parametrize(
    ("status", "cluster", "is_ours"),
    [
        ({"observedGeneration": 1, "buffer": {}, "conditions": [READY]}, "c-1", True),
        ({"observedGeneration": 1, "buffer": {}, "conditions": [READY]}, "", False),
        ({"observedGeneration": 1, "conditions": [READY]}, "c-1", False),
        ({"observedGeneration": 0, "buffer": {}, "conditions": [READY]}, "c-1", False),
        ({"observedGeneration": 1, "buffer": {}, "conditions": [{**READY, "status": "False"}]}, "c-1", False),
        ({}, "c-1", False),
    ],
    ids=["accepted", "a claim without a cluster", "not listed", "edited since", "refused", "not seen"],
)
def test_the_operator_says_whether_a_dataset_that_was_created_again_has_its_buffer(
    site: Site, status: dict[str, Any], cluster: str, is_ours: bool
) -> None:
    """Only it knows the cluster. The claim names the deleted Dataset until the next run, which begins with an upload."""
    former = Owner("default", "flights", "u-0", str(site.table.metadata.table_uuid), cluster)
    take_claim(site.uri, {}, former, BufferLayout.DIRECTORY)
    again = replace(site, status=status)

    if is_ours:
        again.open()
        again.send()
        assert again.complete().state is UploadState.COMPLETE
    else:
        assert "belongs to Dataset default/flights (UID u-0" in problem(Kind.BUFFER_UNUSABLE, again.buffer).detail


def test_a_table_of_another_dataset_is_not_looked_at(site: Site) -> None:
    with site.table.transaction() as change:
        change.set_properties({names.CLAIM: "default/other"})

    problem(Kind.BUFFER_UNUSABLE, site.buffer)


def test_a_buffer_outside_of_the_boundary_is_not_written_to(site: Site) -> None:
    outside = replace(site, boundaries=Boundaries(default=Boundary(uris=("s3://lake/team-a",))))

    assert "is outside the boundary uris of namespace default" in problem(Kind.BUFFER_UNUSABLE, outside.buffer).detail


def test_a_folder_of_a_table_is_not_written_to(site: Site) -> None:
    of_table = replace(site, uri=f"{site.table.location()}/data")

    assert "BufferHoldsTable" in problem(Kind.BUFFER_UNUSABLE, of_table.buffer).detail


def test_a_catalog_that_is_not_configured_is_named_without_the_others(site: Site) -> None:
    site.spec = {"catalog": "elsewhere"}
    with pytest.raises(Exception, match="elsewhere") as raised:
        site.buffer()

    assert "lite" not in problem_of(raised.value).detail

"""What completing an upload compares, how many uploads may be open, and what the removal of old ones leaves."""

import base64
import hashlib
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from lethe.base import names
from lethe_gateway.problems import Kind, Problem
from lethe_gateway.settings import UploadSettings
from lethe_gateway.uploads import check
from lethe_gateway.uploads.manifest import FileEntry, FileState, UploadOutcome, UploadState

from tests.support.buffers import batches_in
from tests.support.clock import ManualClock
from tests.support.upload_kills import Sweepless
from tests.support.upload_site import GOOD, UPLOAD, Site, entries, parquet, problem, states

FIRST = "part-0.parquet"
OTHER = parquet(8, 9)  # as long as the first file
SHA256 = {path: hashlib.sha256(content).hexdigest() for path, content in GOOD.items()}
LATER = timedelta(days=2)


@pytest.fixture
def site(site: Site) -> Site:
    site.uploads = Sweepless(site.settings)
    return site


def with_settings(site: Site, **settings: object) -> Site:
    site.settings = UploadSettings(**settings)  # type: ignore[arg-type]
    site.uploads = Sweepless(site.settings)
    return site


def write(site: Site, path: str, content: bytes) -> None:
    """As somebody does who can write to the store."""
    file = site.folder / "batch_id=2026%2F03%2F03" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


# --- checksums ---


def test_a_file_with_another_content_than_announced_is_named_and_the_upload_stays_open(site: Site) -> None:
    site.open()
    write(site, FIRST, OTHER)
    write(site, "day-1/part-1.parquet", GOOD["day-1/part-1.parquet"])

    found = problem(Kind.CONTENT_DIFFERS, site.complete)

    assert [e.field for e in found.errors] == [FIRST]
    assert FIRST in found.detail
    assert not batches_in(site.uri)[0].complete
    assert site.uploads.view(site.buffer(), UPLOAD).state is UploadState.OPEN


@pytest.mark.parametrize("layout", ["Directory", "File"])
def test_checksums_may_come_with_the_request_that_completes(site: Site, layout: str) -> None:
    site.spec = {"buffer": {"uri": site.uri, "layout": layout}}
    files = {FIRST: GOOD[FIRST]}
    site.open(entries(files, hashed=False))
    site.send(files)
    buffer = site.buffer()

    different = problem(
        Kind.CONTENT_DIFFERS, lambda: site.uploads.complete(buffer, UPLOAD, {FIRST: hashlib.sha256(OTHER).hexdigest()})
    )
    unknown = problem(Kind.INVALID_REQUEST, lambda: site.uploads.complete(buffer, UPLOAD, {"other": "0" * 64}))

    assert [e.field for e in different.errors] == [FIRST]
    assert "other" in unknown.detail
    assert site.uploads.complete(buffer, UPLOAD, {FIRST: SHA256[FIRST]}).state is UploadState.COMPLETE


def test_files_without_a_checksum_are_not_read_for_one(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lethe_gateway.uploads.opening._read", lambda *_: pytest.fail("it was read"))
    site.open(entries(hashed=False))
    site.send()

    assert site.complete().state is UploadState.COMPLETE


def test_a_comparison_that_takes_too_long_continues_when_it_is_repeated(site: Site) -> None:
    clock = ManualClock()
    site.uploads = Sweepless(UploadSettings(seconds=10), clock)
    site.open()
    site.send()
    read = []

    def slow(_: object, listed: object, in_time: object) -> str:
        read.append(listed)
        clock.now += 11
        in_time()  # type: ignore[operator]
        return SHA256[FIRST]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lethe_gateway.uploads.opening.AT_ONCE", 1)
        patch.setattr("lethe_gateway.uploads.opening._read", slow)
        found = problem(Kind.TIMED_OUT, site.complete)

    assert len(read) == 1
    assert found.retry_after_seconds is not None
    assert site.complete().state is UploadState.COMPLETE


def test_large_files_in_parts_with_a_checksum_of_the_whole_are_limited(site: Site) -> None:
    site.spec = {}
    large = FileEntry(path="a.parquet", size=20, sha256="0" * 64, part_bytes=10)
    uploads = Sweepless(UploadSettings(hashedBytes=19))

    assert "each part" in problem(Kind.INVALID_REQUEST, lambda: uploads._require_hashable([large])).detail
    uploads._require_hashable([large.model_copy(update={"sha256": ""}), large.model_copy(update={"part_bytes": 0})])


def digest(content: bytes, algorithm: str = "sha-256") -> str:
    found = hashlib.new(algorithm.replace("-", ""), content).digest()
    return f"{algorithm}=:{base64.b64encode(found).decode()}:"


@pytest.mark.parametrize("name", ["content-digest", "repr-digest"])
@pytest.mark.parametrize("algorithm", ["sha-256", "sha-512"])
def test_a_file_that_is_sent_with_the_digest_of_another_is_not_written(site: Site, name: str, algorithm: str) -> None:
    site.open(entries(hashed=False))

    def put(headers: Mapping[str, str]) -> None:
        site.uploads.put(site.buffer(), UPLOAD, 0, GOOD[FIRST], headers)

    found = problem(Kind.CONTENT_DIFFERS, lambda: put({name: digest(OTHER, algorithm)}))
    malformed = problem(Kind.INVALID_REQUEST, lambda: put({name: "sha-256=abc"}))

    assert FIRST in found.detail
    assert name.title() in malformed.detail
    assert [f for f in site.files() if f.endswith("parquet")] == []
    put({name: f"{digest(OTHER, 'md5').replace('md5', 'md-5')}, {digest(GOOD[FIRST], algorithm)}"})
    assert [f for f in site.files() if f.endswith("parquet")] != []


# --- how many are open ---


def opened(site: Site, batch_id: str, caller: str) -> Kind | None:
    try:
        site.uploads.open(site.buffer(), batch_id, entries(), caller)
    except Problem as e:
        return e.kind if e.retry_after_seconds is not None else None
    return None


def test_one_caller_cannot_use_up_the_open_uploads_of_others(site: Site) -> None:
    with_settings(site, openPerCaller=2, openPerDataset=3)

    found = [opened(site, f"a{n}", "ana") for n in range(4)]

    assert found == [None, None, Kind.TOO_MANY_REQUESTS, Kind.TOO_MANY_REQUESTS]
    assert opened(site, "b0", "ben") is None
    assert opened(site, "c0", "cleo") is Kind.TOO_MANY_REQUESTS  # of the Dataset
    assert {v.batch_id for v in site.uploads.page(site.buffer(), "", 10)[0]} == {"a0", "a1", "b0"}
    assert opened(site, "a0", "ana") is None  # it is open already


def test_an_upload_that_ended_makes_room_also_if_another_replica_ended_it(site: Site) -> None:
    with_settings(site, openPerCaller=1)
    clock = ManualClock()
    site.uploads = Sweepless(site.settings, clock)
    assert opened(site, "2026/03/03", "ana") is None
    assert opened(site, "b", "ana") is Kind.TOO_MANY_REQUESTS
    replica = Sweepless(site.settings)

    replica.abandon(site.buffer(), UPLOAD)
    clock.now += 60

    assert opened(site, "b", "ana") is None
    site.uploads.abandon(site.buffer(), site.uploads.page(site.buffer(), "", 1)[0][0].id)
    assert opened(site, "c", "ana") is None


def test_a_new_replica_counts_what_is_open(site: Site) -> None:
    with_settings(site, openPerCaller=2)
    assert [opened(site, f"a{n}", "ana") for n in range(2)] == [None, None]

    site.uploads = Sweepless(site.settings)

    assert opened(site, "a2", "ana") is Kind.TOO_MANY_REQUESTS


# --- what nobody finished ---


def decided(site: Site) -> None:
    """All files are sent, and a gateway ended right after it decided."""
    site.open()
    site.send()
    site.uploads.find(site.buffer(), UPLOAD).decide(UploadOutcome.COMPLETE)


def test_a_list_says_that_an_upload_is_completing_until_its_batch_is_in_the_buffer(site: Site) -> None:
    decided(site)
    assert [v.state for v in site.uploads.page(site.buffer(), "", 10)[0]] == [UploadState.COMPLETING]

    assert site.uploads.view(site.buffer(), UPLOAD).state is UploadState.COMPLETE

    assert batches_in(site.uri)[0].complete
    assert [v.state for v in site.uploads.page(site.buffer(), "", 10)[0]] == [UploadState.COMPLETE]


def test_an_upload_whose_files_somebody_deleted_is_not_complete_and_can_be_made_again(site: Site) -> None:
    decided(site)
    (site.folder / "batch_id=2026%2F03%2F03" / FIRST).unlink()

    view = site.uploads.view(site.buffer(), UPLOAD)
    found = problem(Kind.UPLOAD_INCOMPLETE, site.complete)

    assert (view.state, states(view)) == (UploadState.COMPLETING, [FileState.MISSING, FileState.UPLOADED])
    assert [e.field for e in found.errors] == [FIRST]
    site.uploads.abandon(site.buffer(), UPLOAD)
    site.open()
    site.send()
    assert site.complete().state is UploadState.COMPLETE


def test_a_complete_upload_that_was_not_finished_cannot_be_abandoned(site: Site) -> None:
    decided(site)

    problem(Kind.UPLOAD_ENDED, lambda: site.uploads.abandon(site.buffer(), UPLOAD))

    assert batches_in(site.uri)[0].complete


def test_the_removal_of_old_uploads_finishes_what_was_decided_however_new(site: Site) -> None:
    decided(site)

    assert site.uploads.remove_old(site.buffer(), datetime.now(UTC)) == 0

    assert batches_in(site.uri)[0].complete


def test_objects_of_earlier_openings_are_removed_and_promised_data_stays(site: Site) -> None:
    site.spec = {"buffer": {"uri": site.uri, "layout": "File"}}
    content = {FIRST: GOOD[FIRST]}
    site.open(entries(content))
    folder = site.folder / names.UPLOADS_FOLDER / UPLOAD
    opening = site.uploads.find(site.buffer(), UPLOAD).manifest.opening
    late, promised, done = "1" * 16, "2" * 16, "3" * 16
    for name, text in (
        (f"{opening}.data", "x"),
        (f"{late}.data", "by a URL that was used after the upload was abandoned"),
        (f"{late}.0.multipart", "x"),
        (f"{promised}.data", "the only copy"),
        (f"{promised}.outcome", UploadOutcome.COMPLETE),
        (f"{done}.data", "x"),
        (f"{done}.outcome", UploadOutcome.COMPLETE),
        (f"{done}.published", ""),
    ):
        (folder / name).write_text(text)
    uploads = Sweepless(UploadSettings(openSeconds=10 * 86_400))

    uploads.remove_old(site.buffer(), datetime.now(UTC) + LATER)
    assert (folder / f"{late}.data").exists()
    uploads.remove_old(site.buffer(), datetime.now(UTC) + timedelta(days=9, hours=23))
    assert (folder / f"{late}.data").exists()
    _age(folder, timedelta(days=1))
    uploads.remove_old(site.buffer(), datetime.now(UTC) + timedelta(days=9, hours=12))

    assert {p.name.partition(".")[0] for p in folder.iterdir()} == {"manifest", opening, promised}


def _age(folder: Path, by: timedelta) -> None:
    for path in folder.iterdir():
        written = path.stat().st_mtime - by.total_seconds()
        os.utime(path, (written, written))


def test_a_removal_that_was_overtaken_deletes_nothing_of_the_next_upload(sent: Site) -> None:
    """Two requests remove an abandoned upload; the first one ends, and the batch is uploaded again, before the second goes on."""
    slow = sent.uploads.find(sent.buffer(), UPLOAD)
    sent.uploads.abandon(sent.buffer(), UPLOAD)
    sent.open()
    sent.send()

    sent.uploads._remove(slow)

    assert sent.complete().state is UploadState.COMPLETE
    assert batches_in(sent.uri)[0].complete


def test_an_upload_that_is_checked_stays_open_while_the_gateway_reads_its_files(
    sent: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody learns that an upload is complete before it is decided."""
    seen = []
    original = check.rejection

    def looked(*args: object) -> object:
        seen.append(sent.uploads.view(sent.buffer(), UPLOAD).state)
        return original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(check, "rejection", looked)
    sent.complete()

    assert seen == [UploadState.OPEN]

"""What a `_SUCCESS` says about the run that delivered a batch."""

import json

import pytest
from lethe.base.errors import InputError
from lethe.buffer.reference import MARKER_BYTES_AT_MOST, marker_of, reference_of
from lethe.buffer.upload import LocalFile, plan_upload
from lethe.contract.settings import BufferLayout

FILES = [LocalFile("a.parquet", 7)]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no JSON",
        b"\xff\xfe",
        b"[" * 10_000,
        b'["reference"]',
        b'{"name": "org.apache.hadoop.fs.s3a.commit.files.SuccessData/1", "jobId": "7"}',
        b'{"reference": null}',
        json.dumps({"reference": "x", "more": "y" * MARKER_BYTES_AT_MOST}).encode(),
    ],
)
def test_a_marker_with_the_content_of_other_programs_names_no_run(content: bytes) -> None:
    assert reference_of(content) is None


@pytest.mark.parametrize("reference", ["scheduled__2026-11-28T00:00:00+00:00", "läuft 7", "x" * 256])
def test_a_marker_names_the_run_that_was_written_into_it(reference: str) -> None:
    assert reference_of(marker_of(reference)) == reference


@pytest.mark.parametrize("reference", ["", " x", "x\n", "a\tb", "x" * 257, "x\ud800", 7, ["x"]])
def test_a_reference_that_cannot_be_typed_later_is_refused(reference: object) -> None:
    with pytest.raises(InputError) as caught:
        reference_of(json.dumps({"reference": reference}).encode())

    assert caught.value.reason == "InvalidReference"


def test_an_upload_writes_the_reference_into_its_marker() -> None:
    upload = plan_upload("s3://lake/in", BufferLayout.DIRECTORY, "batch_id", "A", FILES, "run-7")

    assert reference_of(upload.marker_content) == "run-7"
    assert plan_upload("s3://lake/in", BufferLayout.DIRECTORY, "batch_id", "A", FILES).marker_content == b""


def test_a_batch_that_is_a_file_has_no_place_for_a_reference() -> None:
    with pytest.raises(InputError) as caught:
        plan_upload("s3://lake/in", BufferLayout.FILE, "batch_id", "A", FILES, "run-7")

    assert caught.value.reason == "InvalidReference"

"""An object of sent and copied parts has exactly the bytes that were appended, whatever their sizes, and S3 accepts its parts."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st
from lethe.storage.object_store import StoreError
from lethe.storage.s3 import ComposedObject, CopySource, PartSizes

CONTENT = bytes(n % 251 for n in range(400))
SIZES = PartSizes(at_least=5, sent=16, copied=40)


@dataclass
class FakeS3:
    """One upload of one object, as boto3's client names its requests."""

    # From this request on, the server answers with this code.
    fails_with: str = ""
    fails_after: int = 10**9
    failing: str = "upload_part_copy"
    parts: dict[int, bytes] = field(default_factory=dict)
    content: bytes | None = None
    aborted: bool = False
    requests: int = 0

    def create_multipart_upload(self, **_: Any) -> dict[str, Any]:
        return {"UploadId": "u"}

    def upload_part(self, PartNumber: int, Body: bytes, **_: Any) -> dict[str, Any]:
        self._answer("upload_part")
        self.parts[PartNumber] = Body
        return {"ETag": f"{PartNumber}"}

    def upload_part_copy(self, PartNumber: int, CopySourceRange: str, **_: Any) -> dict[str, Any]:
        self._answer("upload_part_copy")
        first, last = CopySourceRange.removeprefix("bytes=").split("-")
        self.parts[PartNumber] = CONTENT[int(first) : int(last) + 1]
        return {"CopyPartResult": {"ETag": f"{PartNumber}"}}

    def complete_multipart_upload(self, MultipartUpload: dict[str, Any], **_: Any) -> None:
        self._answer("complete_multipart_upload")
        numbers = [p["PartNumber"] for p in MultipartUpload["Parts"]]
        assert numbers == list(range(1, len(numbers) + 1))
        assert all(len(self.parts[n]) >= SIZES.at_least for n in numbers[:-1])
        assert all(len(self.parts[n]) <= SIZES.copied for n in numbers)
        self.content = b"".join(self.parts[n] for n in numbers)

    def abort_multipart_upload(self, **_: Any) -> None:
        self.aborted = True

    def _answer(self, request: str) -> None:
        if request == self.failing:
            self.requests += 1
            if self.fails_with and self.requests > self.fails_after:
                raise ClientError({"Error": {"Code": self.fails_with}}, request)


def read(start: int, size: int) -> bytes:
    return CONTENT[start : start + size]


def composed(client: FakeS3) -> ComposedObject:
    return ComposedObject(client, "s3://b/new", CopySource("s3://b/old", len(CONTENT), '"e"', read), SIZES)


ranges = st.tuples(st.integers(0, 300), st.integers(1, 100))
pieces = st.lists(st.one_of(st.binary(max_size=30), ranges), max_size=12)


def fill(made: ComposedObject, wanted: list[bytes | tuple[int, int]]) -> bytes:
    expected = b""
    for piece in wanted:
        if isinstance(piece, bytes):
            made.write(piece)
            expected += piece
        else:
            made.copy(*piece)
            expected += read(*piece)
    return expected


@given(pieces, st.sampled_from(["", "NotImplemented"]), st.integers(0, 3))
def test_any_pieces_become_the_object_also_if_the_store_refuses_to_copy(
    wanted: list[bytes | tuple[int, int]], refusal: str, after: int
) -> None:
    client = FakeS3(fails_with=refusal, fails_after=after)
    with composed(client) as made:
        expected = fill(made, wanted)

    assert client.content == expected
    assert made.sent + made.copied == len(expected)
    assert not client.aborted
    assert client.requests <= after + 1 if refusal else made.refused == ""


def test_ranges_that_follow_one_another_are_copied_together() -> None:
    client = FakeS3()
    with composed(client) as made:
        made.copy(10, 3)
        made.copy(13, 4)
        made.copy(17, 20)
        made.write(b"end")

    assert (made.copied, made.sent, client.requests) == (27, 3, 1)


def test_only_the_beginning_of_a_range_is_sent_after_few_bytes() -> None:
    with composed(FakeS3()) as made:
        made.write(b"PAR1")
        made.copy(4, 30)

    assert (made.sent, made.copied) == (5, 29)


def test_of_many_bytes_enough_wait_to_be_a_part_before_a_range() -> None:
    with composed(FakeS3()) as made:
        made.write(b"x" * SIZES.sent)
        made.write(b"x" * 3)
        made.copy(4, 30)

    assert (made.sent, made.copied) == (SIZES.sent + 3, 30)


@pytest.mark.parametrize("failing", ["upload_part", "complete_multipart_upload"])
def test_a_refused_part_or_completion_aborts_the_upload(failing: str) -> None:
    client = FakeS3("SlowDown", 0, failing)

    with pytest.raises(StoreError, match="SlowDown"), composed(client) as made:
        fill(made, [(0, 100), b"x" * 20])

    assert client.aborted
    assert client.content is None


def test_a_source_that_is_another_object_now_aborts_the_upload() -> None:
    client = FakeS3("PreconditionFailed", 0)

    with pytest.raises(StoreError), composed(client) as made:
        fill(made, [(0, 100), b"x"])

    assert client.aborted


def test_an_error_of_the_caller_aborts_the_upload() -> None:
    client = FakeS3()

    def failed() -> None:
        with composed(client) as made:
            fill(made, [(0, 100), b"x"])
            raise KeyError

    with pytest.raises(KeyError):
        failed()
    assert (client.aborted, client.content) == (True, None)

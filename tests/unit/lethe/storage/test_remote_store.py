"""Clients of remote stores and queues: shared by service and credentials. Objects that are composed of parts, on S3."""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st
from lethe.base.errors import InputError
from lethe.base.objects import BufferedObject, ListedObject
from lethe.storage import object_store
from lethe.storage.object_store import DENIED, StoreError, open_store
from lethe.storage.remote_store import S3Store
from lethe.storage.s3 import ComposedObject, CopySource, PartSizes, Queue, S3Requests

PROPERTIES = {"s3.endpoint": "http://127.0.0.1:9", "s3.access-key-id": "a", "s3.secret-access-key": "b"}


def test_a_store_is_opened_once_for_the_same_service_and_credentials() -> None:
    assert open_store("s3://lake/a", PROPERTIES) is open_store("s3a://sea/b", dict(PROPERTIES))


def test_a_lock_that_may_not_be_seen_is_no_missing_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a record that is there, locked, would be said to have no lock, whenever it is written again."""

    class Refusing:
        def get_object_retention(self, **_: str) -> None:
            answer: Any = {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
            raise ClientError(answer, "GetObjectRetention")

    requests = S3Requests(PROPERTIES)
    monkeypatch.setattr(requests, "_client", lambda *_: Refusing())

    with pytest.raises(InputError, match="grant s3:GetObjectRetention"):
        requests.retained_until("s3://lake/t/_erasures/r.json")


def test_an_object_that_may_not_be_seen_does_not_keep_others_from_being_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It comes first in each sweep, so nothing of the buffer would ever be deleted."""
    store = S3Store(PROPERTIES)
    removed: list[str] = []

    def head(uri: str) -> ListedObject:
        if uri.endswith("/denied"):
            raise StoreError(uri, DENIED)
        if uri.endswith("/away"):
            raise StoreError(uri, "503")
        return ListedObject(uri, 1, "e", datetime.now(UTC))

    def remove_all(uris: Sequence[str]) -> int:
        removed.extend(uris)
        return len(uris)

    monkeypatch.setattr(store, "_pages", lambda *_: iter(()))
    monkeypatch.setattr(store, "head", head)
    monkeypatch.setattr(store, "_remove_all", remove_all)
    of = [BufferedObject(f"s3://lake/b/{name}", 1, "e") for name in ("denied", "p", "q")]

    assert store.delete(of) == 2
    assert removed == ["s3://lake/b/p", "s3://lake/b/q"]
    with pytest.raises(StoreError):  # each of thousands of requests would wait for a store that is away
        store.delete([*of, BufferedObject("s3://lake/b/away", 1, "e")])


@pytest.mark.parametrize("changed", [{"s3.access-key-id": "other"}, {"s3.endpoint": "http://127.0.0.1:8"}])
def test_other_credentials_and_other_servers_have_their_own_store(changed: dict[str, str]) -> None:
    """Also if the caller changes the properties that it has given."""
    mine = dict(PROPERTIES)
    store = open_store("s3://lake", mine)
    mine |= changed

    assert open_store("s3://lake", mine) is not store
    assert open_store("s3://lake", PROPERTIES) is store


def test_another_environment_has_its_own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials in the properties, clients take those of the environment."""
    before = open_store("s3://lake", {})
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")

    assert open_store("s3://lake", {}) is not before


def test_a_store_is_replaced_after_some_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials outside of the properties and the environment may have changed."""
    now = [0.0]
    monkeypatch.setattr(object_store.time, "monotonic", lambda: now[0])
    stores = object_store._RemoteStores()
    backend = object_store.Backend.S3
    first = stores.get(backend, PROPERTIES)

    now[0] = object_store.STORE_KEPT_SECONDS - 1
    assert stores.get(backend, PROPERTIES) is first
    now[0] = object_store.STORE_KEPT_SECONDS
    assert stores.get(backend, PROPERTIES) is not first


def _its_own(_: int) -> int:
    return id(open_store("s3://lake", PROPERTIES))


def test_a_forked_process_has_its_own_store() -> None:
    mine = id(open_store("s3://lake", PROPERTIES))
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        assert pool.submit(_its_own, 0).result(30) != mine


def test_keys_of_the_queue_go_before_those_of_the_store() -> None:
    """As a whole: a session token of the one with a key of the other opens neither."""
    of_s3 = {"s3.region": "eu-west-1", "s3.access-key-id": "a", "s3.secret-access-key": "b", "s3.session-token": "t"}
    own = {**of_s3, "sqs.region": "us-east-1", "sqs.access-key-id": "c", "sqs.secret-access-key": "d"}

    shared, apart = (Queue("http://queue/1/q", p)._sqs for p in (of_s3, own))

    def keys_of(client: Any) -> tuple[str, str, str | None]:
        found = client._request_signer._credentials
        return found.access_key, found.secret_key, found.token

    assert (keys_of(shared), shared.meta.region_name) == (("a", "b", "t"), "eu-west-1")
    assert (keys_of(apart), apart.meta.region_name) == (("c", "d", None), "us-east-1")
    assert shared.meta.endpoint_url == "https://sqs.eu-west-1.amazonaws.com"


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


@pytest.mark.parametrize(
    ("pieces", "sent", "copied"),
    [
        ([(10, 3), (13, 4), (17, 20), b"end"], 3, 27),
        ([b"PAR1", (4, 30)], 5, 29),
        ([b"x" * SIZES.sent, b"xxx", (4, 30)], SIZES.sent + 3, 30),
    ],
    ids=[
        "ranges that follow one another are copied together",
        "after few bytes only the beginning of a range is sent",
        "of many bytes enough wait to be a part before a range",
    ],
)
def test_as_much_is_copied_as_the_sizes_of_parts_allow(
    pieces: list[bytes | tuple[int, int]], sent: int, copied: int
) -> None:
    client = FakeS3()
    with composed(client) as made:
        fill(made, pieces)

    assert (made.sent, made.copied, client.requests) == (sent, copied, 1)


@pytest.mark.parametrize(
    ("code", "failing"),
    [
        ("SlowDown", "upload_part"),
        ("SlowDown", "complete_multipart_upload"),
        ("PreconditionFailed", "upload_part_copy"),  # the source is another object now
    ],
)
def test_a_refused_part_or_completion_aborts_the_upload(code: str, failing: str) -> None:
    client = FakeS3(code, 0, failing)

    with pytest.raises(StoreError, match=code), composed(client) as made:
        fill(made, [(0, 100), b"x" * 20])

    assert (client.aborted, client.content) == (True, None)


def test_an_error_of_the_caller_aborts_the_upload() -> None:
    client = FakeS3()

    def failed() -> None:
        with composed(client) as made:
            fill(made, [(0, 100), b"x"])
            raise KeyError

    with pytest.raises(KeyError):
        failed()
    assert (client.aborted, client.content) == (True, None)

"""Lists of batch ids on a real S3 server: read, or waited for when they cannot be read."""

import uuid

from lethe.contract.result import RequestResult
from lethe.contract.run import RestatementRequest
from lethe_spark.commit.replacement_files import with_ids

from tests.support.builders import a_request
from tests.support.servers.s3 import OWNER, READER, S3


def read(s3: S3, uri: str, user: tuple[str, str] = OWNER) -> RestatementRequest | RequestResult:
    request = a_request("r", batch_ids=(), batch_ids_uri=uri)
    ((found,), aside) = with_ids([request], s3.properties(user), "s3://lake/t")
    return aside.get(request.key, found)


def test_a_list_on_s3_is_read_and_one_that_cannot_be_had_is_waited_for(s3: S3) -> None:
    bucket = s3.bucket(f"lists-{uuid.uuid4().hex[:8]}")
    s3.put(bucket, "ids", "a\n航班".encode())

    found = read(s3, f"s3://{bucket}/ids")
    away = [
        read(s3, f"s3://{bucket}/missing"),
        read(s3, f"s3://{bucket}/ids", READER),
        read(s3, "s3://no-such-bucket/ids"),
    ]

    assert isinstance(found, RestatementRequest)
    assert found.batch_ids == ("a", "航班")
    outcomes = [(r.reason, r.again) for r in away if isinstance(r, RequestResult)]
    assert outcomes == [("ListNotFound", True), ("AccessDenied", True), ("ListNotFound", True)]

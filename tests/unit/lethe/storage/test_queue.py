"""The credentials that a queue is read with."""

from typing import Any

from lethe.storage.queue import Queue


def test_keys_of_the_queue_go_before_those_of_the_store() -> None:
    """As a whole: a session token of the one with a key of the other opens neither."""
    of_s3 = {"s3.region": "eu-west-1", "s3.access-key-id": "a", "s3.secret-access-key": "b", "s3.session-token": "t"}
    own = {**of_s3, "sqs.region": "us-east-1", "sqs.access-key-id": "c", "sqs.secret-access-key": "d"}

    shared, apart = (Queue("http://queue/1/q", p)._sqs for p in (of_s3, own))

    def keys(client: Any) -> tuple[str, str, str | None]:
        found = client._request_signer._credentials
        return found.access_key, found.secret_key, found.token

    assert (keys(shared), shared.meta.region_name) == (("a", "b", "t"), "eu-west-1")
    assert (keys(apart), apart.meta.region_name) == (("c", "d", None), "us-east-1")
    assert shared.meta.endpoint_url == "https://sqs.eu-west-1.amazonaws.com"

"""Messages of a real queue server: hidden once received, gone once deleted, back again otherwise."""

import time
from typing import Any

import pytest
from botocore.exceptions import ClientError
from lethe.base.errors import TransientError
from lethe.storage.s3 import Queue, QueueMessage

from tests.support.servers.postgres import free_port
from tests.support.servers.sqs import Sqs

SECONDS = 30


def all_of(queue: Queue, count: int, hidden_seconds: int = 60) -> list[QueueMessage]:
    """So many messages, each as often as it comes."""
    found: list[QueueMessage] = []
    until = time.monotonic() + SECONDS
    while len(found) < count:
        assert time.monotonic() < until, f"{len(found)} of {count} messages came"
        found += queue.receive(10, 1, hidden_seconds)
    return found


def test_a_message_that_is_not_deleted_comes_again(queues: Sqs) -> None:
    """Its time hidden is the receiver's to say, whatever the queue's own is."""
    theirs = queues.queue()
    theirs.send("a", "b")
    queue = Queue(theirs.url, queues.properties)

    first = all_of(queue, 2, hidden_seconds=1)
    kept, left = sorted(first, key=lambda m: m.body)
    assert queue.delete([kept.receipt]) == 1
    (again,) = all_of(queue, 1)

    assert (again.body, again.id, again.receives) == ("b", left.id, 2)
    assert [m.receives for m in first] == [1, 1]
    assert theirs.counts() == (0, 1)


def test_any_number_is_deleted(queues: Sqs) -> None:
    """The protocol takes ten at a time."""
    theirs = queues.queue()
    theirs.send(*map(str, range(23)))
    queue = Queue(theirs.url, queues.properties)

    found = all_of(queue, 23)

    assert queue.delete(m.receipt for m in found) == 23
    assert theirs.counts() == (0, 0)
    assert queue.delete([]) == 0


def test_a_queue_that_is_not_there_is_named(queues: Sqs) -> None:
    url = f"{queues.endpoint}/000000000000/nowhere"

    with pytest.raises(TransientError, match=r"there is no queue .*/nowhere") as caught:
        Queue(url, queues.properties).receive(10, 0, 60)

    assert caught.value.reason == "QueueNotFound"


def test_the_error_for_an_unreachable_server_contains_no_secrets(queues: Sqs) -> None:
    properties = {**queues.properties, "sqs.endpoint": f"http://127.0.0.1:{free_port()}"}

    with pytest.raises(TransientError) as caught:
        Queue("http://queue/1/q", properties).receive(10, 0, 60)

    assert caught.value.reason == "QueueUnavailable"
    assert caught.value.message == "the queue http://queue/1/q does not answer (EndpointConnectionError)"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("AccessDenied", "QueueAccessDenied"),
        ("com.amazonaws.sqs#OverLimit", "QueueOverLimit"),
        ("AWS.SimpleQueueService.NonExistentQueue", "QueueNotFound"),
        ("InternalError", "QueueUnavailable"),
    ],
)
def test_an_answer_that_a_test_server_never_gives_has_its_reason(
    queues: Sqs, monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    queue = Queue("http://queue/1/q", queues.properties)

    def refuse(**_: Any) -> None:
        raise ClientError({"Error": {"Code": code, "Message": "AKIAsecret"}}, "ReceiveMessage")

    monkeypatch.setattr(queue._sqs, "receive_message", refuse)

    with pytest.raises(TransientError) as caught:
        queue.receive(10, 0, 60)

    assert caught.value.reason == reason
    assert "AKIA" not in caught.value.message

"""Receives and deletes messages of a queue with the SQS protocol. I/O.

A received message is hidden from other receivers for a while. It is delivered again afterwards, unless it was deleted.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from lethe.base.errors import TransientError
from lethe.storage import s3

AT_A_TIME: Final = 10
"""Messages per request to receive or delete; a limit of SQS."""
LONGEST_POLL_SECONDS: Final = 20
_NOT_FOUND: Final = frozenset({"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", "NonExistentQueue"})
_DENIED: Final = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "ExpiredToken",
        "MissingAuthenticationToken",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)


@dataclass(frozen=True)
class QueueMessage:
    """A received message."""

    id: str
    body: str
    receipt: str
    """Needed to delete the message; valid while the message is hidden."""
    receives: int
    """How often the message was received, including this time."""
    sent: datetime


class Queue:
    """One queue. Safe to use from one thread at a time."""

    def __init__(self, url: str, properties: Mapping[str, str]) -> None:
        self.url = url
        # A long poll without messages answers only after its whole wait time.
        self._sqs = s3.client("sqs", properties, attempts=2, read_timeout_seconds=LONGEST_POLL_SECONDS + 10)

    def receive(self, at_most: int, wait_seconds: float, hidden_seconds: int) -> tuple[QueueMessage, ...]:
        """Receive messages. Returns as soon as there is one.

        Args:
            at_most: The maximum number of messages; values above 10 count as 10.
            wait_seconds: How long to wait for the first message, rounded down to whole seconds, at most 20.
            hidden_seconds: For how long other receivers do not get the messages.

        Raises:
            TransientError: QueueNotFound, QueueAccessDenied, QueueOverLimit, QueueUnavailable.
        """
        with self._said():
            answer = self._sqs.receive_message(
                QueueUrl=self.url,
                MaxNumberOfMessages=max(1, min(at_most, AT_A_TIME)),
                WaitTimeSeconds=max(0, min(int(wait_seconds), LONGEST_POLL_SECONDS)),
                VisibilityTimeout=hidden_seconds,
                AttributeNames=["ApproximateReceiveCount", "SentTimestamp"],
            )
        return tuple(_message(m) for m in answer.get("Messages", ()))

    def delete(self, receipts: Iterable[str]) -> int:
        """Delete messages and return how many were deleted. A message that is no longer hidden is delivered again.

        Raises:
            Exception: As `receive`.
        """
        gone = 0
        receipt_list = list(receipts)
        for i in range(0, len(receipt_list), AT_A_TIME):
            entries = [{"Id": str(n), "ReceiptHandle": r} for n, r in enumerate(receipt_list[i : i + AT_A_TIME])]
            with self._said():
                answer = self._sqs.delete_message_batch(QueueUrl=self.url, Entries=entries)
            gone += len(answer.get("Successful", ()))
        return gone

    @contextmanager
    def _said(self) -> Iterator[None]:
        """Turn errors of boto3 into errors whose text may be shown to users."""
        try:
            yield
        except ClientError as e:
            raise _meaning(str(e.response.get("Error", {}).get("Code", "")), self.url) from e
        except BotoCoreError as e:
            raise TransientError(
                "QueueUnavailable", f"the queue {self.url} does not answer ({type(e).__name__})"
            ) from e


def _message(m: Mapping[str, Any]) -> QueueMessage:
    attributes = m.get("Attributes") or {}
    sent = datetime.fromtimestamp(int(attributes.get("SentTimestamp", 0)) / 1000, UTC)
    receives = int(attributes.get("ApproximateReceiveCount", 1))
    return QueueMessage(m["MessageId"], m["Body"], m["ReceiptHandle"], receives, sent)


def _meaning(code: str, url: str) -> TransientError:
    name = code.rpartition("#")[2]
    if name in _NOT_FOUND:
        return TransientError("QueueNotFound", f"there is no queue {url}")
    if name in _DENIED:
        needed = "the operator's credentials need sqs:ReceiveMessage and sqs:DeleteMessage on it"
        return TransientError("QueueAccessDenied", f"the queue {url} may not be read ({name}): {needed}")
    if "OverLimit" in name:
        return TransientError("QueueOverLimit", f"too many messages of the queue {url} are in flight")
    return TransientError("QueueUnavailable", f"the queue {url} answers {name or 'an error'}")

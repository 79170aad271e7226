"""Messages of Kafka, and what becomes of them. Pure values."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from lethe_inlet.epochs import KafkaPartition


class TopicMessage(NamedTuple):
    """One message of a partition. A tuple, because there are hundreds of thousands each second."""

    offset: int
    # Milliseconds since 1970, by the clock of the producer or the broker; 0: unknown.
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    """None: a message without a value, which deletes its key in a compacted topic."""


@dataclass(frozen=True, slots=True)
class RefusedMessage:
    """A message that is not a row of the table."""

    message: TopicMessage
    reason: str
    """Without values of the message."""


@dataclass(frozen=True)
class Decoded:
    """The rows of messages."""

    # With the columns of the table, without the batch column.
    rows: pa.Table
    refused: Sequence[RefusedMessage]


def refusals(partition: KafkaPartition, refused: Sequence[RefusedMessage]) -> bytes:
    """The file of the messages of a batch that were refused: a line of JSON for each."""
    lines = (
        {
            "topic": partition.topic,
            "partition": partition.number,
            "offset": r.message.offset,
            "timestampMs": r.message.timestamp_ms,
            "reason": r.reason,
            "key": _text(r.message.key),
            "value": _text(r.message.value),
        }
        for r in refused
    )
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def _text(content: bytes | None) -> str | None:
    """In Base64, because it may be anything."""
    return None if content is None else base64.b64encode(content).decode()

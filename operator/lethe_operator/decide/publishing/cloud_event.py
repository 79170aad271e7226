"""An event as CloudEvents 1.0 defines it, in both content modes of HTTP and Kafka. Pure.

Written here because the official SDK (a dependency of the tests, which compare both) would be the only part of it that the
operator needs.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import quote

from lethe_operator.resources.publishing import ContentMode

SPEC_VERSION: Final = "1.0"
JSON: Final = "application/json"
STRUCTURED: Final = "application/cloudevents+json"
# Printable ASCII without the characters that a header of a CloudEvent must encode: space, double quote and percent.
_AS_IS: Final = "".join(c for c in map(chr, range(0x21, 0x7F)) if c not in '"%')


@dataclass(frozen=True)
class CloudEvent:
    """One event."""

    id: str  # the same whenever the event is sent again
    source: str  # the Dataset
    type: str  # an EventType, or another specification's
    subject: str  # what it is about, such as a batch id; "": the whole table
    time: datetime | None  # of the commit; None: unknown
    sequence: str  # orders the events of one source; sorts as text
    partition_key: str  # all events of a Dataset have the same
    data: str  # JSON

    def attributes(self) -> Iterator[tuple[str, str]]:
        """All context attributes, except for the content type."""
        yield "specversion", SPEC_VERSION
        yield "id", self.id
        yield "source", self.source
        yield "type", self.type
        if self.subject:
            yield "subject", self.subject
        if self.time is not None:
            yield "time", self.time.isoformat().replace("+00:00", "Z")
        yield "sequence", self.sequence
        yield "partitionkey", self.partition_key


def structured(event: CloudEvent) -> bytes:
    """The whole event as JSON."""
    envelope = {**dict(event.attributes()), "datacontenttype": JSON}
    head = json.dumps(envelope, ensure_ascii=False, separators=(",", ":"))
    return f'{head[:-1]},"data":{event.data}}}'.encode()


def http_message(event: CloudEvent, mode: ContentMode) -> tuple[dict[str, str], bytes]:
    """Headers and body of an HTTP request."""
    if mode is ContentMode.STRUCTURED:
        return {"content-type": f"{STRUCTURED}; charset=utf-8"}, structured(event)
    headers = {f"ce-{name}": quote(value, safe=_AS_IS) for name, value in event.attributes()}
    return {"content-type": JSON, **headers}, event.data.encode()


def kafka_message(event: CloudEvent, mode: ContentMode) -> tuple[list[tuple[str, bytes]], bytes]:
    """Headers and value of a Kafka record; its key is `partition_key`."""
    if mode is ContentMode.STRUCTURED:
        return [("content-type", f"{STRUCTURED}; charset=utf-8".encode())], structured(event)
    headers = [(f"ce_{name}", value.encode()) for name, value in event.attributes()]
    return [("content-type", JSON.encode()), *headers], event.data.encode()

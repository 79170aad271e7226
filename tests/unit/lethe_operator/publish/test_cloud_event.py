"""Messages are CloudEvents 1.0: its official SDK reads from them what was put in, and writes the same."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings import http, kafka
from cloudevents.core.formats.json import JSONFormat
from hypothesis import given
from hypothesis import strategies as st
from lethe_operator.publish.events import CloudEvent, EventType, http_message, kafka_message
from lethe_operator.resources.observed import ContentMode

EVENT = CloudEvent(
    id="6b5a3f0c-0000-4000-8000-000000000001/1767225600000/7/0",
    source="/apis/lethe.dev/v1beta1/namespaces/ns/datasets/flights",
    type=EventType.BATCH_PROMOTED,
    subject="2013-01-01.AA",
    time=datetime(2026, 3, 1, 12, 0, 0, 123000, UTC),
    sequence="0001767225600000-0000000007-00000000",
    partition_key="ns/flights",
    data='{"batchId":"2013-01-01.AA"}',
)
HOSTILE = '<script>alert("1")</script> 100% \r\nce-id: x ‮ü\u0000😀'


def both(event: CloudEvent, mode: ContentMode) -> Iterator[BaseCloudEvent]:
    headers, body = http_message(event, mode)
    yield http.from_http(http.HTTPMessage(headers, body), JSONFormat())
    fields, value = kafka_message(event, mode)
    message = kafka.KafkaMessage(dict(fields), event.partition_key.encode(), value)
    yield kafka.from_kafka(message, JSONFormat())


@pytest.mark.parametrize("mode", ContentMode)
@pytest.mark.parametrize("subject", ["2013-01-01.AA", HOSTILE])
def test_the_official_sdk_reads_every_attribute(mode: ContentMode, subject: str) -> None:
    event = replace(EVENT, subject=subject, data=json.dumps({"batchId": subject}))

    for read in both(event, mode):
        assert read.get_specversion() == "1.0"
        assert (read.get_id(), read.get_source(), read.get_type()) == (event.id, event.source, event.type)
        assert (read.get_subject(), read.get_time()) == (subject, event.time)
        assert read.get_datacontenttype() == "application/json"
        assert read.get_extension("sequence") == event.sequence
        assert read.get_extension("partitionkey") == "ns/flights"
        assert read.get_data() == {"batchId": subject}


def test_an_event_about_the_whole_table_of_an_unknown_time_has_neither_subject_nor_time() -> None:
    event = replace(EVENT, subject="", time=None)

    assert not {"subject", "time"} & dict(event.attributes()).keys()
    assert [read.get_subject() for mode in ContentMode for read in both(event, mode)] == [None] * 4


@given(st.text(min_size=1, max_size=256))
def test_headers_are_plain_ascii_whatever_a_batch_is_called(subject: str) -> None:
    subject = subject.encode(errors="replace").decode()  # batch ids are valid UTF-8

    headers, _ = http_message(replace(EVENT, subject=subject), ContentMode.BINARY)

    assert all(0x21 <= ord(c) <= 0x7E for c in headers["ce-subject"])
    assert next(both(replace(EVENT, subject=subject), ContentMode.BINARY)).get_subject() == subject


def test_the_sdk_writes_the_same_binary_message() -> None:
    """Not only reads it: both directions follow the specification."""
    read = next(both(EVENT, ContentMode.BINARY))

    written = http.to_binary(read, JSONFormat())

    headers, _ = http_message(EVENT, ContentMode.BINARY)
    assert {k.lower(): v for k, v in written.headers.items()} == headers

"""The HTTP sink against a real receiver, with what goes wrong in networks and receivers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lethe_operator.publish.delivery import RETRY_AFTER_AT_MOST_SECONDS, FailureScope, HttpSink, SinkError
from lethe_operator.publish.events import CloudEvent
from lethe_operator.reasons import Reason
from lethe_operator.resources.observed import ContentMode, HttpSinkSettings

from tests.support.builders import a_batch
from tests.support.publishing import LedgerHistory, publish
from tests.support.servers.receiver import ENDLESS, HANG, LOST, RESET, Answer, Receiver, a_receiver


def a_sink(receiver: Receiver, secret: Path | None = None, **changes: Any) -> HttpSink:
    return HttpSink(HttpSinkSettings(url=receiver.url, **{"timeout_seconds": 5, **changes}), secret)


@pytest.mark.parametrize("mode", ContentMode)
def test_events_arrive_in_order_in_both_modes(receiver: Receiver, events: list[CloudEvent], mode: ContentMode) -> None:
    a_sink(receiver, mode=mode).send(events)

    assert receiver.subjects == ["", "A", "B", "C", "D"]
    assert [e.get_id() for e in receiver.events] == [e.id for e in events]
    assert receiver.events[1].get_data()["batchId"] == "A"
    assert receiver.headers[0]["content-type"].startswith(
        "application/cloudevents+json" if mode is ContentMode.STRUCTURED else "application/json"
    )


@pytest.mark.parametrize(
    ("answer", "reason", "scope"),
    [
        (Answer(500), Reason.SINK_UNAVAILABLE, FailureScope.SINK),
        (Answer(503), Reason.SINK_UNAVAILABLE, FailureScope.SINK),
        (Answer(429), Reason.SINK_UNAVAILABLE, FailureScope.SINK),
        (Answer(408), Reason.SINK_UNAVAILABLE, FailureScope.SINK),
        (HANG, Reason.SINK_UNAVAILABLE, FailureScope.SINK),
        (RESET, Reason.SINK_UNAVAILABLE, FailureScope.SINK),
        (Answer(401), Reason.SINK_DENIED, FailureScope.SINK),
        (Answer(403), Reason.SINK_DENIED, FailureScope.SINK),
        (Answer(404), Reason.SINK_NOT_FOUND, FailureScope.SINK),
        (Answer(307, {"location": "http://169.254.169.254/"}), Reason.SINK_NOT_FOUND, FailureScope.SINK),
        (Answer(413), Reason.MESSAGE_TOO_LARGE, FailureScope.MESSAGE),
        (Answer(400), Reason.MESSAGE_REFUSED, FailureScope.MESSAGE),
        (Answer(422), Reason.MESSAGE_REFUSED, FailureScope.MESSAGE),
    ],
)
def test_a_failure_says_why_and_what_was_delivered_before(
    receiver: Receiver, events: list[CloudEvent], answer: Any, reason: Reason, scope: FailureScope
) -> None:
    receiver.answers = [Answer(204), Answer(204), answer]

    with pytest.raises(SinkError) as failure:
        a_sink(receiver, timeout_seconds=0.5).send(events)

    assert (failure.value.reason, failure.value.scope, failure.value.delivered) == (reason, scope, 2)
    assert receiver.subjects == ["", "A"]
    assert "secret" not in failure.value.message
    assert failure.value.message.startswith(f"http://127.0.0.1:{receiver.port} ")


def test_a_receiver_that_asks_for_a_pause_gets_it(receiver: Receiver, events: list[CloudEvent]) -> None:
    asked = {"17": (17, 19), "Wed, 21 Oct 2015 07:28:00 GMT": (0, 0), "9" * 12: (3600, 3961), "soon": None}
    asked |= {"Mon, 01 Jan 99999999999 00:00:00 GMT": None}
    for text, expected in asked.items():
        receiver.answers = [Answer(503, {"retry-after": text})]
        with pytest.raises(SinkError) as failure:
            a_sink(receiver).send(events)
        pause = failure.value.retry_after_seconds
        assert (pause is None) if expected is None else (pause is not None and expected[0] <= pause <= expected[1])
    assert RETRY_AFTER_AT_MOST_SECONDS == 3600


def test_a_lost_answer_leads_to_a_repeated_event_with_the_same_id(receiver: Receiver, history: LedgerHistory) -> None:
    receiver.answers = [Answer(204), Answer(204), LOST]
    with pytest.raises(SinkError):
        publish(history, a_sink(receiver))

    publish(history, a_sink(receiver))

    assert receiver.subjects == ["", "A", "B", "B", "C", "D"]
    assert receiver.events[2].get_id() == receiver.events[3].get_id()


def test_a_receiver_that_was_away_gets_everything_in_order(history: LedgerHistory) -> None:
    receiver = a_receiver()
    with receiver.up():
        publish(history, a_sink(receiver))
    history.commit(a_batch("E"))
    sink = a_sink(receiver)
    for _ in range(2):
        with pytest.raises(SinkError, match="does not answer"):
            publish(history, sink)
        history.commit(a_batch(f"F{history.made}"))
    with receiver.up():
        publish(history, sink)

    assert receiver.subjects == ["", "A", "B", "C", "D", "E", "F2", "F3"]


def test_a_token_is_sent_and_a_new_one_is_read_without_a_restart(
    receiver: Receiver, events: list[CloudEvent], tmp_path: Path
) -> None:
    sink = a_sink(receiver, tmp_path)
    sink.send(events[:1])
    (tmp_path / "token").write_text("first\n")
    sink.send(events[:1])
    (tmp_path / "token").write_text("second")
    sink.send(events[:1])

    assert [h.get("authorization") for h in receiver.headers] == [None, "Bearer first", "Bearer second"]


def test_a_message_names_the_host_and_nothing_of_the_url_that_may_be_secret(events: list[CloudEvent]) -> None:
    receiver = a_receiver()  # it does not listen
    sink = HttpSink(HttpSinkSettings(url=f"http://user:pass@127.0.0.1:{receiver.port}/hook/T0K3N?key=value"), None)

    with pytest.raises(SinkError) as failure:
        sink.send(events)

    assert f"http://127.0.0.1:{receiver.port} does not answer" in failure.value.message
    assert not [secret for secret in ("user", "pass", "T0K3N", "value") if secret in failure.value.message]


def test_an_endless_answer_holds_up_nothing(receiver: Receiver, events: list[CloudEvent]) -> None:
    receiver.answers = [ENDLESS, ENDLESS]

    a_sink(receiver).send(events)

    assert receiver.subjects == ["", "A", "B", "C", "D"]


def test_connections_are_used_again(receiver: Receiver, events: list[CloudEvent]) -> None:
    sink = a_sink(receiver)
    for _ in range(3):
        sink.send(events)

    assert len(receiver.connections) == 1


def test_a_large_event_arrives_whole(receiver: Receiver, events: list[CloudEvent]) -> None:
    large = replace(events[1], data=json.dumps({"batchIds": ["x" * 250] * 4000}))

    a_sink(receiver).send([large])

    assert len(receiver.events[0].get_data()["batchIds"]) == 4000

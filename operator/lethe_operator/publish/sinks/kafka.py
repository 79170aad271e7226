"""Delivers events to a topic of Kafka. I/O, through librdkafka.

Invariant: what a call delivers is always a prefix of its events. An idempotent producer keeps the order of what it retries. With
`enable.gapless.guarantee`, a message that the broker refuses stops the producer, so that none after it is delivered; and as
messages have no time limit of their own, none expires in front of others. The limit of a call ends with a new producer.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from lethe_operator.brokers import DENIED, NOT_FOUND
from lethe_operator.publish.events import CloudEvent, kafka_message
from lethe_operator.publish.sinks.http import FailureScope, SinkError
from lethe_operator.reasons import Reason
from lethe_operator.resources.publishing import KafkaSinkSettings

log = logging.getLogger(__name__)

# The files of the Secret, and the setting of librdkafka that names each or contains its text.
_FILES: Final = {"ca.crt": "ssl.ca.location", "tls.crt": "ssl.certificate.location", "tls.key": "ssl.key.location"}
_TEXTS: Final = {"username": "sasl.username", "password": "sasl.password"}
# How long librdkafka looks for a topic that its metadata does not have.
_TOPIC_SECONDS: Final = 5
_POLL_SECONDS: Final = 0.1

_TOO_LARGE: Final = frozenset(
    (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE, KafkaError.RECORD_LIST_TOO_LARGE)
)
_REFUSED: Final = frozenset((KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD, KafkaError.POLICY_VIOLATION))


@dataclass
class _Deliveries:
    """The reports about the events of one call."""

    errors: dict[int, KafkaError | None] = field(default_factory=dict)
    """By the number of the event."""

    def report(self, number: int) -> Callable[[KafkaError | None, Any], None]:
        def note(error: KafkaError | None, _: Any) -> None:
            self.errors[number] = error

        return note

    @property
    def delivered(self) -> int:
        """How many of the first events were delivered."""
        number = 0
        while number in self.errors and self.errors[number] is None:
            number += 1
        return number

    @property
    def failure(self) -> KafkaError | None:
        """The first error that is not the consequence of another; None: there is none yet."""
        errors = [e for _, e in sorted(self.errors.items()) if e is not None]
        return next((e for e in errors if e.code() not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)), None)


def _cause(error: KafkaError) -> int:
    """The code of an error. That of a producer that has stopped names its cause only in its text, with the library's words."""
    if error.code() not in (KafkaError._GAPLESS_GUARANTEE, KafkaError._FATAL):
        return int(error.code())
    known = (code for code in (*DENIED, *NOT_FOUND, *_TOO_LARGE, *_REFUSED) if KafkaError(code).str() in error.str())
    return next(known, int(error.code()))


class KafkaSink:
    """A topic. Calls wait for each other: a producer that has stopped is replaced for all."""

    at_once = 100

    def __init__(self, settings: KafkaSinkSettings, secret: Path | None) -> None:
        """Create `KafkaSink`.

        Args:
            secret: The folder with the files of the Secret; None: there is no Secret.
        """
        self._settings = settings
        self._secret = secret
        self._lock = threading.Lock()
        self._producer: tuple[Mapping[str, Any], Producer] | None = None  # with its settings
        self._trouble: KafkaError | None = None  # the last error of a connection
        self._one_by_one = False  # a batch of events is larger than the topic allows

    def send(self, events: Sequence[CloudEvent]) -> None:
        with self._lock:
            delivered, error = self._deliver(events)
            if error is not None and _cause(error) in _TOO_LARGE and not self._one_by_one:
                self._one_by_one = True  # the broker's limit is for a batch: each event alone may fit
                more, error = self._deliver(events[delivered:])
                delivered += more
            if delivered < len(events):
                raise self._failure(error or self._trouble, delivered)

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _deliver(self, events: Sequence[CloudEvent]) -> tuple[int, KafkaError | None]:
        """Deliver it.

        Returns:
            How many events were delivered, and why not more; None: the time is over, or all were.
        """
        deliveries = _Deliveries()
        try:
            self._produce(self._current(), events, deliveries)
            error = deliveries.failure
        except KafkaException as e:
            error = deliveries.failure or (e.args[0] if isinstance(e.args[0], KafkaError) else None)
        except (OSError, ValueError, BufferError):  # a file of the Secret cannot be read
            error = deliveries.failure
        if deliveries.delivered < len(events):
            self._drop()
        return deliveries.delivered, error

    def _produce(self, producer: Producer, events: Sequence[CloudEvent], deliveries: _Deliveries) -> None:
        """Returns when everything is delivered, an event has failed, or the time is over."""
        ends = time.monotonic() + self._settings.timeout_seconds
        for number, event in enumerate(events):
            headers, value = kafka_message(event, self._settings.mode)
            producer.produce(
                self._settings.topic,
                value,
                event.partition_key.encode(),
                on_delivery=deliveries.report(number),
                headers=headers,
            )
        while len(deliveries.errors) < len(events) and deliveries.failure is None and time.monotonic() < ends:
            producer.poll(_POLL_SECONDS)

    def _current(self) -> Producer:
        wanted = self._configuration()
        if self._producer is None or self._producer[0] != wanted:
            self._drop()
            self._trouble = None
            self._producer = (wanted, Producer({**wanted, "error_cb": self._note, "logger": log}))
        return self._producer[1]

    def _drop(self) -> None:
        """What is on its way may still be delivered, as a prefix. It is sent again by the next call."""
        if self._producer is not None:
            self._producer[1].purge()
            self._producer = None

    def _note(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # says nothing new
            self._trouble = error

    def _configuration(self) -> dict[str, Any]:
        """The Secret is read again for each call, so a change applies without a restart."""
        settings = self._settings
        configuration: dict[str, Any] = {
            "bootstrap.servers": settings.bootstrap_servers,
            "client.id": "lethe",
            "security.protocol": settings.security_protocol,
            "acks": "all",
            "enable.idempotence": True,
            "enable.gapless.guarantee": True,
            "message.timeout.ms": 0,
            "linger.ms": 5,
            "compression.type": "zstd",
            "allow.auto.create.topics": False,
            "topic.metadata.propagation.max.ms": _TOPIC_SECONDS * 1000,
            "message.max.bytes": 64 * 1024 * 1024,  # the limit is that of the topic
            "reconnect.backoff.max.ms": 2000,
            "log.connection.close": False,
            "log_level": 3,  # errors
        }
        if self._one_by_one:
            configuration["batch.num.messages"] = 1
        if settings.security_protocol.startswith("SASL"):
            configuration["sasl.mechanism"] = settings.sasl_mechanism
            configuration |= {option: text for name, option in _TEXTS.items() if (text := self._text(name))}
        if settings.security_protocol.endswith("SSL"):
            configuration |= {
                option: str(path) for name, option in _FILES.items() if (path := self._file(name)) is not None
            }
        return configuration

    def _failure(self, error: KafkaError | None, delivered: int) -> SinkError:
        topic = f"topic {self._settings.topic} of {self._settings.bootstrap_servers}"
        code = _cause(error) if error is not None else KafkaError._TIMED_OUT
        said = f" ({KafkaError(code).name()})" if error is not None else ""
        if code in DENIED:
            return SinkError(Reason.SINK_DENIED, f"{topic}: access denied{said}. The operator retries.", delivered)
        if code in NOT_FOUND:
            text = f"{topic} does not exist{said}. The operator retries."
            return SinkError(Reason.SINK_NOT_FOUND, text, delivered)
        if code in _TOO_LARGE:
            text = f"{topic} takes no message of this size{said}. The operator retries."
            return SinkError(Reason.MESSAGE_TOO_LARGE, text, delivered, FailureScope.MESSAGE)
        if code in _REFUSED:
            text = f"{topic} refused an event{said}. The operator retries."
            return SinkError(Reason.MESSAGE_REFUSED, text, delivered, FailureScope.MESSAGE)
        text = f"{topic} acknowledges nothing{said}. The operator retries."
        return SinkError(Reason.SINK_UNAVAILABLE, text, delivered)

    def _file(self, name: str) -> Path | None:
        path = self._secret / name if self._secret is not None else None
        return path if path is not None and path.is_file() else None

    def _text(self, name: str) -> str:
        path = self._file(name)
        return path.read_text().strip() if path is not None else ""

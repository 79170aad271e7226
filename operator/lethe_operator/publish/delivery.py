"""Delivers events to a sink, by HTTP with one request for each or to a topic of Kafka, and says how it failed. I/O.

Invariant of Kafka: what a call delivers is always a prefix of its events. An idempotent producer keeps the order of what it
retries. With `enable.gapless.guarantee`, a message that the broker refuses stops the producer, so that none after it is
delivered; and as messages have no time limit of their own, none expires in front of others. The limit of a call ends with a new
producer.
"""

import logging
import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import Enum
from pathlib import Path
from typing import Any, Final, Protocol

import urllib3
from confluent_kafka import KafkaError, KafkaException, Producer

from lethe_operator.brokers import DENIED, NOT_FOUND
from lethe_operator.publish.events import JSON, CloudEvent, http_message, kafka_message
from lethe_operator.reasons import Reason
from lethe_operator.resources.observed import ContentMode, HttpSinkSettings, KafkaSinkSettings


class FailureScope(Enum):
    """What a failure concerns."""

    SINK = "all messages"
    """Other Datasets would fail as well, so they wait too."""
    MESSAGE = "this message"
    """Other Datasets go on."""


class SinkError(Exception):
    """An event was not delivered. The events before it were; of those after it, none was."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        delivered: int = 0,
        scope: FailureScope = FailureScope.SINK,
        retry_after_seconds: float | None = None,
    ) -> None:
        """Create `SinkError`.

        Args:
            message: For users, without secrets and without the content of the event.
            delivered: How many events of the call were delivered.
            retry_after_seconds: The pause for which the sink asks; None: it asks for none.
        """
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.delivered = delivered
        self.scope = scope
        self.retry_after_seconds = retry_after_seconds


class EventSink(Protocol):
    """Threads share a sink."""

    at_once: int
    """How many events a call gets at most. Between two calls it is checked whether this process may still act."""

    def send(self, events: Sequence[CloudEvent]) -> None:
        """Deliver events in order. Returns when all are delivered.

        The delivered events are always a prefix, so the order is kept when the rest is sent again.

        Raises:
            SinkError: An event was not delivered.
        """
        ...

    def close(self) -> None:
        """Release connections. Nothing is sent afterwards."""
        ...


CONNECTIONS: Final = 8
SHORT_BODY_BYTES: Final = 16 * 1024
RETRY_AFTER_AT_MOST_SECONDS: Final = 3600.0
# The files of the Secret.
TOKEN: Final = "token"
CA: Final = "ca.crt"
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"

Message = Callable[[CloudEvent, ContentMode], tuple[dict[str, str], bytes]]

_DENIED: Final = (401, 403, 407)
_NOT_FOUND: Final = (404, 405, 410)
_LATER: Final = (408, 425, 429)
_TOO_LARGE: Final = 413


def raw(event: CloudEvent, _: ContentMode) -> tuple[dict[str, str], bytes]:
    """Only the content of an event, for receivers of other specifications."""
    return {"content-type": JSON}, event.data.encode()


class HttpSink:
    """A receiver of CloudEvents."""

    at_once = 1  # each is a request, which may take long

    def __init__(self, settings: HttpSinkSettings, secret: Path | None, message: Message = http_message) -> None:
        """Create `HttpSink`.

        Args:
            message: Makes headers and body of a request.
            secret: The folder with the files of the Secret, all optional: `token` (for the header Authorization: Bearer),
                `ca.crt`, and `tls.crt` with `tls.key` of a client; None: there is no Secret.
        """
        self._settings = settings
        self._message = message
        self._secret = secret
        self._where = _without_credentials(settings.url)
        self._lock = threading.Lock()
        self._pool: tuple[object, urllib3.PoolManager] | None = None  # with what its files were like

    def send(self, events: Sequence[CloudEvent]) -> None:
        """Send a request for each event in turn, until one fails.

        Raises:
            SinkError: The receiver did not answer, or not with a status from 200 to 299.
        """
        for number, event in enumerate(events):
            self._post(event, number)

    def close(self) -> None:
        """Close the idle connections. A later `send` opens new ones."""
        with self._lock:
            if self._pool is not None:
                self._pool[1].clear()

    def _post(self, event: CloudEvent, delivered: int) -> None:
        headers, body = self._message(event, self._settings.mode)
        try:
            pool, own = self._connections()
            # The body of an answer may be anything, and endless. A short one is read so that its connection is used again.
            answer = pool.request(
                "POST", self._settings.url, body=body, headers={**headers, **own}, redirect=False, preload_content=False
            )
            length = answer.headers.get("content-length", "0" if answer.status == 204 else "")
            if length.isdecimal() and int(length) <= SHORT_BODY_BYTES:
                answer.drain_conn()
            else:
                answer.close()
            answer.release_conn()
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as e:
            text = f"{self._where} does not answer ({type(e).__name__}). The operator retries."
            raise SinkError(Reason.SINK_UNAVAILABLE, text, delivered) from e
        if not 200 <= answer.status < 300:
            raise self._failure(answer.status, answer.headers, delivered)

    def _failure(self, status: int, headers: Mapping[str, str], delivered: int) -> SinkError:
        text = f"{self._where} answers {status}. The operator retries."
        if status >= 500 or status in _LATER:
            return SinkError(
                Reason.SINK_UNAVAILABLE, text, delivered, retry_after_seconds=_seconds(headers.get("retry-after"))
            )
        if status in _DENIED:
            return SinkError(Reason.SINK_DENIED, text, delivered)
        if status in _NOT_FOUND or 300 <= status < 400:
            return SinkError(Reason.SINK_NOT_FOUND, text, delivered)
        reason = Reason.MESSAGE_TOO_LARGE if status == _TOO_LARGE else Reason.MESSAGE_REFUSED
        return SinkError(reason, text, delivered, FailureScope.MESSAGE)

    def _connections(self) -> tuple[urllib3.PoolManager, dict[str, str]]:
        """The pool, and the headers from the Secret. A Secret that was changed applies to the next request."""
        files = {n: self._file(n) for n in (CA, CERTIFICATE, KEY)}
        seen = {n: (p, p.stat().st_mtime_ns) for n, p in files.items() if p is not None}
        with self._lock:
            if self._pool is None or self._pool[0] != seen:
                self._pool = (seen, self._new_pool(files))
            pool = self._pool[1]
        token = self._file(TOKEN)
        return pool, {"authorization": f"Bearer {token.read_text().strip()}"} if token is not None else {}

    def _new_pool(self, files: Mapping[str, Path | None]) -> urllib3.PoolManager:
        context = ssl.create_default_context(cafile=str(files[CA]) if files[CA] is not None else None)
        if files[CERTIFICATE] is not None:
            context.load_cert_chain(str(files[CERTIFICATE]), str(files[KEY]) if files[KEY] is not None else None)
        limit = urllib3.Timeout(connect=min(5.0, self._settings.timeout_seconds), read=self._settings.timeout_seconds)
        return urllib3.PoolManager(
            maxsize=CONNECTIONS, retries=urllib3.Retry(total=0), timeout=limit, ssl_context=context
        )

    def _file(self, name: str) -> Path | None:
        path = self._secret / name if self._secret is not None else None
        return path if path is not None and path.is_file() else None


def _seconds(retry_after: str | None) -> float | None:
    """The pause that a header Retry-After asks for; None: it asks for none, or is not understood."""
    if not retry_after:
        return None
    try:
        if retry_after.strip().isdecimal():
            asked = float(retry_after)
        else:
            asked = parsedate_to_datetime(retry_after).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None
    # Not all publishers of a company at the same moment.
    return min(max(asked, 0.0), RETRY_AFTER_AT_MOST_SECONDS) * random.uniform(1.0, 1.1)


def _without_credentials(url: str) -> str:
    """The URL for messages, up to its host: the rest may be a secret, such as that of a webhook."""
    parts = urllib3.util.parse_url(url)
    return f"{parts.scheme}://{parts.host}" + (f":{parts.port}" if parts.port is not None else "")


log = logging.getLogger(__name__)

# The files of the Secret, and the setting of librdkafka that names each or contains its text.
_FILES: Final = {"ca.crt": "ssl.ca.location", "tls.crt": "ssl.certificate.location", "tls.key": "ssl.key.location"}
_TEXTS: Final = {"username": "sasl.username", "password": "sasl.password"}
# How long librdkafka looks for a topic that its metadata does not have.
_TOPIC_SECONDS: Final = 5
_POLL_SECONDS: Final = 0.1

_REJECTED_AS_TOO_LARGE: Final = frozenset(
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
    known = (
        code
        for code in (*DENIED, *NOT_FOUND, *_REJECTED_AS_TOO_LARGE, *_REFUSED)
        if KafkaError(code).str() in error.str()
    )
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
        """Produce the events, and wait until the brokers have confirmed all of them.

        Raises:
            SinkError: An event was refused, or not confirmed within the time limit.
        """
        with self._lock:
            delivered, error = self._deliver(events)
            if error is not None and _cause(error) in _REJECTED_AS_TOO_LARGE and not self._one_by_one:
                self._one_by_one = True  # the broker's limit is for a batch: each event alone may fit
                more, error = self._deliver(events[delivered:])
                delivered += more
            if delivered < len(events):
                raise self._failure(error or self._trouble, delivered)

    def close(self) -> None:
        """Discard the producer with what it has not sent. A later `send` creates another one."""
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
        if code in _REJECTED_AS_TOO_LARGE:
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

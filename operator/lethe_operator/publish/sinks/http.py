"""Delivers events by HTTP, one request for each. I/O.

What a sink promises, and how it fails.
"""

import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from enum import Enum
from pathlib import Path
from typing import Final, Protocol

import urllib3

from lethe_operator.publish.events import JSON, CloudEvent, http_message
from lethe_operator.reasons import Reason
from lethe_operator.resources.publishing import ContentMode, HttpSinkSettings


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
        for number, event in enumerate(events):
            self._post(event, number)

    def close(self) -> None:
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
    except (ValueError, TypeError):
        return None
    # Not all publishers of a company at the same moment.
    return min(max(asked, 0.0), RETRY_AFTER_AT_MOST_SECONDS) * random.uniform(1.0, 1.1)


def _without_credentials(url: str) -> str:
    """The URL for messages, up to its host: the rest may be a secret, such as that of a webhook."""
    parts = urllib3.util.parse_url(url)
    return f"{parts.scheme}://{parts.host}" + (f":{parts.port}" if parts.port is not None else "")

"""A small HTTP/1.1 server that trusts no client: limits on connections, headers, bodies and time. I/O: a port, threads.

The order for each request: the headers, their length and their time; how long the body is, before anything else is done; who
sends it; and only then the body. A request that is rejected ends its connection, so what it still sends is not read as another
one.
"""

import hmac
import io
import re
import socket
import ssl
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Final

_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_BUFFER_BYTES: Final = 8192
# What a rejected client may still send, so that it reads the answer and not a reset of the connection.
_DRAINED_BYTES: Final = 4 * 1024 * 1024
_DRAINED_SECONDS: Final = 1.0


@dataclass(frozen=True)
class ClientLimits:
    """What clients may use."""

    body_bytes: int = 0
    """The most bytes of the body of one request."""
    header_bytes: int = 65_536
    """The most bytes of the request line and all headers of one request."""
    header_seconds: float = 10.0
    """From the first byte of a request to the end of its headers."""
    body_seconds: float = 30.0
    """From the end of the headers to the end of the body."""
    idle_seconds: float = 75.0
    """How long a connection may wait for its next request."""
    send_seconds: float = 60.0
    """How long a client may not read what it is sent."""
    connections: int = 256
    """The most connections of all clients at the same time; others are closed."""


class Rejected(Exception):
    """A request that is answered with an error, and whose connection ends."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


class _HeadersTooLarge(Exception):
    pass


class BoundedServer(ThreadingHTTPServer):
    """A server with limits. Its handlers are `BoundedHandler`s."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: "type[BoundedHandler]") -> None:
        """Create `BoundedServer`.

        Args:
            address: Host and port. The host "" means all addresses, of IPv4 and of IPv6.

        Raises:
            OSError: The port is taken.
        """
        self._places = threading.BoundedSemaphore(handler.limits.connections)
        if not address[0] and socket.has_dualstack_ipv6():
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind the socket. Python's own method also asks DNS for the name of the host, which nothing needs."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a new connection. Without a free place, the connection is closed without an answer."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection in its own thread until it ends, then free its place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that ends, or is killed, breaks its connections: that is no news. Print other errors."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class BoundedHandler(BaseHTTPRequestHandler):
    """Answers the requests of one connection. Subclasses define `authorize`, `answer` and `reject`."""

    limits: ClientLimits = ClientLimits()
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    """Otherwise the body of an answer waits 40 ms until the client has acknowledged the header."""
    wbufsize = -1  # sends head and body as one packet

    @abstractmethod
    def authorize(self) -> None:
        """Check the request before its body is read.

        Raises:
            Rejected: The client may not send this request.
        """

    @abstractmethod
    def answer(self, body: bytes) -> None:
        """Answer a request."""

    @abstractmethod
    def reject(self, rejected: Rejected) -> None:
        """Answer with an error."""

    def setup(self) -> None:
        """Read the connection through a reader that enforces the limits of time and of header bytes."""
        super().setup()
        self._reader = _Reader(self.connection)
        self.rfile = self._buffered = io.BufferedReader(self._reader, _BUFFER_BYTES)

    def handle_one_request(self) -> None:
        """Answer one request, or reject it. A client that sends its headers too slowly, or leaves, gets no answer."""
        try:
            if not self._next_request():  # an answer that says what is wrong with it was sent
                self.close_connection = True
                return
        except _HeadersTooLarge:
            self._reject(
                Rejected(431, "HeadersTooLarge", f"the headers have more than {self.limits.header_bytes} bytes")
            )
            return
        except (OSError, ValueError):  # it was too slow, left, or speaks no TLS
            self.close_connection = True
            return
        try:
            if self.request_version == "HTTP/0.9":
                raise Rejected(505, "HTTPVersionNotSupported", "send HTTP/1.1")
            length = length_of(self.headers.items(), self.limits.body_bytes)
            self.authorize()
            body = self._body(length)
            self.connection.settimeout(self.limits.send_seconds)
            self.answer(body)
            self.wfile.flush()
        except Rejected as e:
            self._reject(e)
        except OSError:  # the client left, or does not read
            self.close_connection = True

    def _next_request(self) -> bool:
        """Read the request line and the headers. False: there is no other request, or it was answered with an error."""
        self._reader.allow(self.limits.idle_seconds, None)
        if not self._buffered.peek(1):
            return False
        self._reader.allow(self.limits.header_seconds, self.limits.header_bytes)
        self.raw_requestline = self.rfile.readline(self.limits.header_bytes + 1)
        if len(self.raw_requestline) > self.limits.header_bytes:
            raise _HeadersTooLarge
        self.requestline, self.request_version, self.command = "", "", ""
        return bool(self.raw_requestline) and self.parse_request()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """What the base class finds wrong with the request line or the headers; its message would repeat them."""
        self._reject(Rejected(code, "BadRequest", HTTPStatus(code).phrase))

    def handle_expect_100(self) -> bool:
        """The client waits with the body until it is told to send it, which `_body` does once it may."""
        return True

    def _body(self, length: int) -> bytes:
        """The body of a request.

        Raises:
            Rejected: A request that is answered with an error, and whose connection ends.
            OSError: The client left.
        """
        if not length:
            return b""
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.send_response_only(100)
            self.end_headers()
            self.wfile.flush()
        self._reader.allow(self.limits.body_seconds, None)
        try:
            body = self.rfile.read(length)
        except TimeoutError:
            raise Rejected(
                408, "RequestTimeout", f"the body did not arrive within {self.limits.body_seconds:g} s"
            ) from None
        if len(body) < length:
            raise ConnectionAbortedError
        return body

    def _reject(self, rejected: Rejected) -> None:
        self.close_connection = True
        self.request_version = self.protocol_version  # an answer always has a status line
        with suppress(OSError):
            self.connection.settimeout(self.limits.send_seconds)
            self.reject(rejected)
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_WR)
            self._drain()

    def _drain(self) -> None:
        until, received_bytes = time.monotonic() + _DRAINED_SECONDS, 0
        while received_bytes < _DRAINED_BYTES and (left := until - time.monotonic()) > 0:
            self.connection.settimeout(left)
            piece = self.connection.recv(65_536)
            if not piece:
                return
            received_bytes += len(piece)

    def send(self, status: int, media_type: str, content: bytes, headers: Mapping[str, str] = {}) -> None:
        """Send a whole answer."""
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""


class _Reader(io.RawIOBase):
    """Reads from a connection until a time, and up to a number of bytes."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._until = 0.0
        self._left: int | None = None

    def allow(self, seconds: float, at_most: int | None) -> None:
        """Set the time and the number of bytes that the next reads may take.

        Args:
            at_most: None: any number of bytes.
        """
        self._until = time.monotonic() + seconds
        self._left = at_most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer.

        Raises:
            TimeoutError: And other OSErrors. _HeadersTooLarge.
        """
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if self._left is not None and self._left <= 0:
            raise _HeadersTooLarge
        self._connection.settimeout(left)
        received_bytes = int(self._connection.recv_into(buffer))
        if self._left is not None:
            self._left -= received_bytes
        return received_bytes


def length_of(headers: Iterable[tuple[str, str]], most: int) -> int:
    """How long the body of a request is, as its headers say. Pure.

    Args:
        headers: Pairs of names and values.
        most: How long it may be, in bytes.

    Raises:
        Rejected: The headers do not say it in one way, or it is too long.
    """
    lower = [(name.lower(), value.strip()) for name, value in headers]
    lengths = {value for name, value in lower if name == "content-length"}
    if any(name == "transfer-encoding" for name, _ in lower):
        if lengths:
            raise Rejected(400, "BadRequest", "send Content-Length or Transfer-Encoding, not both")
        raise Rejected(411, "LengthRequired", "send the length of the body in the header Content-Length")
    if not lengths:
        return 0
    (length, *others) = lengths
    if others or not length.isascii() or not length.isdecimal():
        raise Rejected(400, "BadRequest", "the header Content-Length is not a number of bytes")
    if not _LENGTH.fullmatch(length) or int(length) > most:
        raise Rejected(413, "RequestEntityTooLarge", f"the body has more than {most} bytes")
    return int(length)


def is_same_secret(presented: str, expected: str) -> bool:
    """Compare in constant time, whatever characters a client sends."""
    return hmac.compare_digest(presented.encode("utf-8", "surrogateescape"), expected.encode())


def start(server: BoundedServer, name: str) -> None:
    """Serve in a thread, until `shutdown`."""
    # The interval is how long a shutdown takes at most.
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name=name, daemon=True).start()


def wrap_tls(server: BoundedServer, certificate: str, key: str) -> None:
    """Speak TLS. The handshake runs in the thread of the connection, so a client that says nothing delays no other one."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)

"""An HTTP proxy before a store's server that fails as a test says: it cuts a body, answers 503, or loses an answer."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "expect"}


class Fault(Enum):
    CUT_BODY = "the connection ends in the middle of the answer's body"
    SLOW_DOWN = "503 Slow Down; the server does not see the request"
    LOST_ANSWER = "the server does what it is asked, and the connection ends without an answer"


@dataclass
class Proxy:
    """`fault` strikes the next `times` requests of a method."""

    endpoint: str
    fault: Fault | None = None
    method: str = ""
    times: int = 0
    requests: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def arm(self, fault: Fault, method: str, times: int = 1) -> None:
        with self.lock:
            self.fault, self.method, self.times = fault, method, times
            self.requests.clear()

    def take(self, method: str) -> Fault | None:
        with self.lock:
            self.requests.append(method)
            if self.fault is None or method != self.method or not self.times:
                return None
            self.times -= 1
            return self.fault


# Answers a request instead of forwarding it as it is: method, path, headers, body; None: forward it.
Forward = Callable[[str, str, Any, bytes], tuple[int, list[tuple[str, str]], bytes]]


def forward_to(endpoint: str) -> Forward:
    """Send a request on as it is. Signatures stay valid, since the header Host does."""
    server = urlsplit(endpoint).netloc

    def forward(method: str, path: str, headers: Any, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(server, timeout=30)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    return forward


@contextmanager
def before(forward: Forward, port: int = 0) -> Iterator[Proxy]:
    """A proxy for as long as the block lasts, on a free port if none is given."""
    server = ThreadingHTTPServer(("127.0.0.1", port), BaseHTTPRequestHandler)
    proxy = Proxy(f"http://127.0.0.1:{server.server_port}")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            body = self._body()
            fault = proxy.take(self.command)
            if fault is Fault.SLOW_DOWN:
                return self._answer(503, [], b"<Error><Code>SlowDown</Code><Message>AKIAsecret</Message></Error>")
            status, headers, content = forward(self.command, self.path, self.headers, body)
            if fault is Fault.LOST_ANSWER:
                return self._cut()
            self._answer(status, headers, content, len(content) // 2 if fault is Fault.CUT_BODY else None)
            return None

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            pieces: list[bytes] = []
            while size := int(self.rfile.readline(), 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            self.headers["Content-Length"] = str(sum(map(len, pieces)))
            return b"".join(pieces)

        def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes, sent: int | None = None) -> None:
            self.send_response_only(status)
            length = str(len(content))
            for name, value in headers:
                if name.lower() == "content-length":
                    length = value  # of a HEAD request, that of the object
                elif name.lower() not in _HOP_BY_HOP:
                    self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content[:sent])
            if sent is not None:
                self._cut()

        def _cut(self) -> None:
            self.close_connection = True
            with suppress(OSError):
                self.wfile.flush()
                self.connection.shutdown(2)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _do

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server.RequestHandlerClass = Handler
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()

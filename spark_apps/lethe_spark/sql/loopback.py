"""An HTTP server on the loopback address, for this process alone. I/O."""

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from lethe.http_server import BoundedHandler, BoundedServer, Limits, Rejected, is_same_secret, start

TOKEN: Final = "X-Lethe-Token"
# A commit of Iceberg's client may contain the whole metadata of a table with thousands of snapshots.
LIMITS: Final = Limits(body_bytes=256 * 1024 * 1024, body_seconds=120.0)
_METHODS: Final = frozenset({"GET", "POST", "HEAD", "DELETE", "PUT"})


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"}, repr=False)


class NoAnswer(Exception):
    """The connection ends without an answer, as it would between a client and a server that has died."""


class LoopbackServer:
    """For the lifetime of the process. Each request must contain the token."""

    def __init__(self, answer: Callable[[Request], Answer], name: str) -> None:
        """Args:
        answer: May raise NoAnswer. Called by several threads.
        name: Of the thread.
        """
        self.token = secrets.token_urlsafe(24)
        self._server = BoundedServer(("127.0.0.1", 0), _handler_of(answer, self.token))
        start(self._server, name)

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def error(status: int, kind: str, message: str) -> Answer:
    """An error of Iceberg's REST protocol."""
    return Answer(status, json.dumps({"error": {"message": message, "type": kind, "code": status}}).encode())


def _handler_of(answer: Callable[[Request], Answer], token: str) -> type[BoundedHandler]:
    class Handler(BoundedHandler):
        limits = LIMITS

        def authorize(self) -> None:
            if not is_same_secret(self.headers.get(TOKEN, ""), token):
                raise Rejected(401, "NotAuthorizedException", "this catalog serves the process that started it only")

        def reject(self, rejected: Rejected) -> None:
            self._send(error(rejected.status, rejected.reason, rejected.message))

        def answer(self, body: bytes) -> None:
            if self.command not in _METHODS:
                raise Rejected(405, "BadRequestException", f"this catalog does not support {self.command}")
            try:
                found = answer(Request(self.command, self.path, dict(self.headers.items()), body))
            except NoAnswer:
                self.close_connection = True
                return
            self._send(found)

        def _send(self, found: Answer) -> None:
            self.send_response(found.status)
            for name, value in found.headers.items():
                self.send_header(name, value)
            if found.status not in (204, 304):
                self.send_header("Content-Length", str(len(found.body)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(found.body)

    return Handler

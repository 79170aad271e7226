"""Requests as bytes, also those that no HTTP client sends. I/O: a socket."""

import socket
import ssl
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

SECONDS = 20.0


@dataclass(frozen=True)
class Answer:
    """What a server sent, until it closed the connection or sent one whole answer."""

    content: bytes
    seconds: float

    @property
    def status(self) -> int:
        """0: no answer."""
        first = self.content.partition(b"\r\n")[0].split(b" ")
        return int(first[1]) if len(first) > 1 else 0


@dataclass
class RawClient:
    """Args:
    ca: The certificate of a server that speaks TLS; None: it does not.
    """

    port: int
    ca: Path | None = None
    headers: dict[str, str] = field(default_factory=dict)  # of each request, such as the token

    def request(self, line: str, *headers: str, body: bytes = b"", with_own: bool = True) -> bytes:
        """Args:
        headers: `Name: value`.
        with_own: Send `self.headers`, too.
        """
        own = [f"{k}: {v}" for k, v in self.headers.items()] if with_own else []
        return "\r\n".join([line, "Host: localhost", *own, *headers, "", ""]).encode("latin-1") + body

    def send(self, *pieces: bytes, pause: float = 0.0, seconds: float = SECONDS, until_closed: bool = True) -> Answer:
        """Send pieces, with a pause after each, and read until the server closes the connection.

        Args:
            until_closed: False: read one whole answer only.
        Raises: TimeoutError, if the server keeps it open for this long.
        """
        started = time.monotonic()
        with self._connected(seconds) as connection:
            got = b""
            with suppress(BrokenPipeError, ConnectionResetError, ssl.SSLError):
                self._send(connection, pieces, pause)
            with suppress(ConnectionResetError, ssl.SSLError):
                while (until_closed or not _is_whole(got)) and (piece := connection.recv(65_536)):
                    got += piece
        return Answer(got, time.monotonic() - started)

    def _send(self, connection: socket.socket, pieces: Iterable[bytes], pause: float) -> None:
        for piece in pieces:
            connection.sendall(piece)
            if pause:
                time.sleep(pause)  # of the client that is played, not a wait for a condition

    def _connected(self, seconds: float) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=seconds)
        if self.ca is None:
            return plain
        context = ssl.create_default_context(cafile=str(self.ca))
        return context.wrap_socket(plain, server_hostname="127.0.0.1")


def _is_whole(content: bytes) -> bool:
    head, found, body = content.partition(b"\r\n\r\n")
    lengths = [line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(found) and bool(lengths) and len(body) >= int(lengths[0])

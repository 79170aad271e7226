"""A server that nobody may ask: it notes each connection, and what came first."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Canary:
    port: int
    heard: list[bytes] = field(default_factory=list)

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def listening() -> Iterator[Canary]:
    """For as long as the block lasts."""
    heard: list[bytes] = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.settimeout(5)
            heard.append(b"connected")
            try:
                heard.append(self.request.recv(4096))
            except OSError:
                return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield Canary(server.server_address[1], heard)
        finally:
            server.shutdown()

"""Proxies that lose a catalog's answer to a commit: the request arrives there, or does not, and the client never knows.

Real sockets on the loopback. A fault is armed for the next commit only; `outage` makes it last until `end_outage`.
"""

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT_SQL = b"UPDATE iceberg_tables"
READY = b"Z\x00\x00\x00\x05"  # PostgreSQL's ReadyForQuery: what ends the answer to a statement
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "expect"}


@dataclass(frozen=True)
class Fault:
    """`landed`: the catalog carries the commit out. `answer`: what the client is told then, 0 being a cut connection. `hold`:
    it is told nothing, and its connection stays until it goes itself (PostgreSQL only)."""

    landed: bool
    answer: int = 0
    outage: bool = False
    hold: bool = False


@dataclass
class Switch:
    """Where a test arms a fault, and a proxy takes it. `held`: a client waits for an answer that it will not get."""

    fault: Fault | None = None
    commits_before: int = 0
    away: bool = False
    struck: int = 0
    held: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    connections: list[socket.socket] = field(default_factory=list)

    def arm(self, fault: Fault, commits_before: int = 0) -> None:
        """For the next commit, or the one after so many others."""
        with self.lock:
            self.fault, self.commits_before, self.struck = fault, commits_before, 0
            self.held.clear()

    def take(self) -> Fault | None:
        with self.lock:
            if self.fault is not None and self.commits_before:
                self.commits_before -= 1
                return None
            fault, self.fault = self.fault, None
            if fault is not None:
                self.struck += 1
                self.away = fault.outage
            return fault

    def begin_outage(self) -> None:
        """Cut the open connections, too. Only of a TCP proxy."""
        self.away = True
        _close(*self.connections)

    def end_outage(self) -> None:
        self.away = False


# --- TCP ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Proxy:
    port: int
    switch: Switch


@contextmanager
def before_tcp(server_port: int) -> Iterator[Proxy]:
    """A TCP proxy. Before PostgreSQL it knows the statement with which Iceberg's JDBC catalog commits."""
    switch = Switch()
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_accept, args=(listener, server_port, switch), daemon=True).start()
    try:
        yield Proxy(listener.getsockname()[1], switch)
    finally:
        # Linux does not wake an accept() when another thread closes the socket.
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _accept(listener: socket.socket, server_port: int, switch: Switch) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        if switch.away:
            client.close()
            continue
        server = socket.create_connection(("127.0.0.1", server_port))
        switch.connections += [client, server]
        swallow = _Swallow()
        for target, args in (
            (_requests, (client, server, switch, swallow)),
            (_answers, (server, client, switch, swallow)),
        ):
            threading.Thread(target=target, args=args, daemon=True).start()


@dataclass
class _Swallow:
    """The fault whose answers are to be swallowed, once there is one."""

    fault: Fault | None = None


def _requests(client: socket.socket, server: socket.socket, switch: Switch, swallow: _Swallow) -> None:
    with suppress(OSError):
        while content := client.recv(1 << 16):
            fault = switch.take() if COMMIT_SQL in content else None
            if fault is None:
                server.sendall(content)
            elif fault.landed:
                swallow.fault = fault
                server.sendall(content)
                return  # the other direction closes both, once the server has said that it is done
            else:
                if fault.hold:
                    _hold(client, switch)
                break
    _close(client, server)


def _answers(server: socket.socket, client: socket.socket, switch: Switch, swallow: _Swallow) -> None:
    kept = b""
    with suppress(OSError):
        while content := server.recv(1 << 16):
            if swallow.fault is not None:
                kept = (kept + content)[-(1 << 16) :]
                if READY in kept:
                    if swallow.fault.hold:
                        _hold(client, switch)
                    break
            else:
                client.sendall(content)
    _close(client, server)


def _hold(client: socket.socket, switch: Switch) -> None:
    """Until the client goes away."""
    switch.held.set()
    with suppress(OSError):
        while client.recv(1 << 16):
            pass


def _close(*sockets: socket.socket) -> None:
    for s in sockets:
        with suppress(OSError):
            s.shutdown(socket.SHUT_RDWR)
        s.close()


# --- REST ----------------------------------------------------------------------------------------------------------------


@contextmanager
def before_rest(server_port: int) -> Iterator[Proxy]:
    """An HTTP proxy that knows the requests with which tables are committed to."""
    switch = Switch()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        server_port = 0

        def _forward(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length) if length else None
            if switch.away:
                return self._cut()
            fault = switch.take() if _commits(self.command, self.path) else None
            if fault is not None and not fault.landed:
                return self._answer(fault.answer)
            upstream = http.client.HTTPConnection("127.0.0.1", type(self).server_port, timeout=60)
            headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP_BY_HOP}
            upstream.request(self.command, self.path, body, headers)
            answer = upstream.getresponse()
            content = answer.read()
            upstream.close()
            if fault is not None:
                assert answer.status < 300, f"the commit that was to land was refused: {answer.status} {content!r}"
                return self._answer(fault.answer)
            self.send_response(answer.status)
            for k, v in answer.getheaders():
                if k.lower() not in HOP_BY_HOP:
                    self.send_header(k, v)
            if answer.status != 204:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)
            return None

        def _answer(self, status: int) -> None:
            if not status:
                return self._cut()
            self.send_response(status)
            if status == 503:
                self.send_header("Retry-After", "1")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None

        def _cut(self) -> None:
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

        do_GET = do_POST = do_HEAD = do_DELETE = _forward

        def log_message(self, format: str, *args: Any) -> None:
            pass

    Handler.server_port = server_port
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    proxy.daemon_threads = True
    threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield Proxy(proxy.server_port, switch)
    finally:
        proxy.shutdown()
        proxy.server_close()


def _commits(method: str, path: str) -> bool:
    """`POST /v1/namespaces/air/tables/flights`: a commit to one table. Creation ends in `tables`."""
    parts: list[str] = path.partition("?")[0].strip("/").split("/")
    return method == "POST" and len(parts) >= 2 and parts[-2] == "tables"

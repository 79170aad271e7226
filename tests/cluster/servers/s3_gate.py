"""A proxy before S3 that runs in a pod, stops requests as a test says, and can be as if S3 were away. Standard library only.

    python s3_gate.py UPSTREAM-HOST PORT OF-STORE PORT-OF-CONTROL

Control, with JSON: GET / answers the paths of the requests that are held now (`held`).
POST /hold {"pattern": …} holds each PUT whose path matches. POST /release lets them go on, and holds no more.
POST /away cuts them, and every other connection. POST /back forwards again.
"""

import http.client
import json
import re
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "expect"}


@dataclass
class State:
    pattern: str = ""
    away: bool = False
    held: list[str] = field(default_factory=list)
    changes: int = 0
    """How often a test has said something else."""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def passes(self, method: str, path: str) -> bool:
        """Wait as long as the request is held. Returns: whether to forward it."""
        with self.changed:
            if not self.away and method == "PUT" and self.pattern and re.search(self.pattern, path):
                self.held.append(path)
                changes = self.changes
                self.changed.wait_for(lambda: self.changes != changes)
            return not self.away

    def change(self, action: str, pattern: str = "") -> None:
        with self.changed:
            match action:
                case "hold":
                    self.pattern = pattern
                case "release":
                    self.pattern = ""
                case "away":
                    self.pattern, self.away = "", True
                case "back":
                    self.away = False
                case _:
                    raise ValueError(action)
            # Here, since a request that goes on may be slow to say so, and a test would take it for one that is held now.
            self.held.clear()
            self.changes += 1
            self.changed.notify_all()

    def document(self) -> dict[str, Any]:
        with self.changed:
            return {"held": list(self.held), "away": self.away}


class Store(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state = State()
    upstream = ""

    def _forward(self) -> None:
        chunked = self.headers.get("Transfer-Encoding", "").lower() == "chunked"
        body = self._chunks() if chunked else self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self.state.passes(self.command, self.path):
            return self._cut()
        try:
            status, headers, content = self._ask(body, chunked)
        except OSError:  # the store itself is away
            return self._cut()
        self.send_response_only(status)
        length = str(len(content))
        for name, value in headers:
            if name.lower() == "content-length":
                length = value  # of a HEAD request, that of the object
            elif name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        return None

    def _chunks(self) -> bytes:
        """A body that is sent in chunks, as it came: with their sizes, and whatever follows the last one."""
        found = b""
        while True:
            line = self.rfile.readline()
            found += line
            size = int(line.split(b";")[0], 16)
            if size == 0:
                break
            found += self.rfile.read(size + 2)
        while line := self.rfile.readline():
            found += line
            if line == b"\r\n":
                break
        return found

    def _ask(self, body: bytes, chunked: bool) -> tuple[int, list[tuple[str, str]], bytes]:
        """Signatures stay valid, since the header Host does."""
        connection = http.client.HTTPConnection(self.upstream, timeout=60)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in HOP_BY_HOP:
                    connection.putheader(name, value)
            if chunked:
                connection.putheader("Transfer-Encoding", "chunked")
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _cut(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(2)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _forward

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Control(BaseHTTPRequestHandler):
    state = Store.state

    def do_GET(self) -> None:
        content = json.dumps(self.state.document()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.state.change(self.path.strip("/"), **json.loads(body or b"{}"))
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def main() -> None:
    upstream, store_port, control_port = sys.argv[1:]
    Store.upstream = upstream
    threading.Thread(target=ThreadingHTTPServer(("", int(control_port)), Control).serve_forever, daemon=True).start()
    server = ThreadingHTTPServer(("", int(store_port)), Store)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()

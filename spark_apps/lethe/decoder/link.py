"""Messages between a decoder and its parent, over a socket: a document of JSON, and bytes. I/O.

What comes from the decoder is never unpickled: it has read bytes from outside.
"""

import json
import socket
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

Content: TypeAlias = bytes | bytearray | memoryview
Message: TypeAlias = tuple[dict[str, Any], list[memoryview]]
_PARTS_AT_ONCE: Final = 256
_SOCKET_BYTES: Final = 1024**2


class Closed(Exception):
    """The other side has closed the link, or has ended."""


class Link:
    """One end of the socket. One thread at a time may use it."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connected.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BYTES)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, document: dict[str, Any], contents: Sequence[Content] = ()) -> None:
        """Raises: Closed."""
        text = json.dumps([document, [len(c) for c in contents]]).encode()
        parts = [memoryview(p) for p in (len(text).to_bytes(4, "big"), text, *contents) if len(p)]
        try:
            # With one call for many parts, so that the other side wakes once.
            while parts:
                sent = self._socket.sendmsg(parts[:_PARTS_AT_ONCE])
                while parts and sent >= len(parts[0]):
                    sent -= len(parts.pop(0))
                if sent:
                    parts[0] = parts[0][sent:]
        except OSError as e:
            raise Closed from e

    def receive(self) -> Message:
        """Raises: Closed."""
        text = self._exactly(int.from_bytes(self._exactly(4), "big"))
        document, sizes = json.loads(bytes(text))
        content = self._exactly(sum(sizes))
        found, start = [], 0
        for size in sizes:
            found.append(content[start : start + size])
            start += size
        return document, found

    def _exactly(self, size: int) -> memoryview:
        content = np.empty(size, np.uint8).data if size else memoryview(b"")
        done = 0
        while done < size:
            try:
                count = self._socket.recv_into(content[done:], size - done, socket.MSG_WAITALL)
            except OSError as e:
                raise Closed from e
            if not count:
                raise Closed
            done += count
        return content

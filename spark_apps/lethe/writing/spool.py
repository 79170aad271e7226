"""Keeps blocks until they are written: in memory, or encrypted on local disk, if they are many. I/O."""

import os
import tempfile
from types import TracebackType
from typing import IO, Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from lethe.writing.blocks import BlockKey

_IN_MEMORY: Final = 64 * 1024**2


class Spool:
    """Blocks by key. The file has no name, and its random key exists only in this process."""

    def __init__(self, in_memory: int = _IN_MEMORY) -> None:
        """Args:
        in_memory: Bytes. Further blocks are on disk.
        """
        self._free = in_memory
        self._held: dict[BlockKey, bytes] = {}
        # Where a block begins in the file, and its bytes there.
        self._places: dict[BlockKey, tuple[int, int]] = {}
        self._file: IO[bytes] | None = None
        self._cipher = AESGCM(AESGCM.generate_key(256))
        self._end = 0

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, key: BlockKey, content: bytes) -> None:
        """Raises: OSError, if the disk is full."""
        if len(content) <= self._free:
            self._held[key] = content
            self._free -= len(content)
            return
        if self._file is None:
            # Spark names its local disks so. The folder of temporary files of a pod is small.
            scratch = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
            self._file = tempfile.TemporaryFile(dir=scratch or None)  # noqa: SIM115 (closed with the spool)
        hidden = self._cipher.encrypt(_nonce(self._end), content, None)
        self._file.write(hidden)
        self._places[key] = self._end, len(hidden)
        self._end += len(hidden)

    def in_order(self) -> list[BlockKey]:
        """The keys of all blocks, sorted."""
        return sorted([*self._held, *self._places])

    def take(self, key: BlockKey) -> bytes:
        """The content of a block, which the spool then forgets if it is in memory."""
        if key in self._held:
            return self._held.pop(key)
        assert self._file is not None
        start, size = self._places[key]
        self._file.seek(start)
        return self._cipher.decrypt(_nonce(start), self._file.read(size), None)


def _nonce(position: int) -> bytes:
    """A number that no other block of the file has."""
    return position.to_bytes(12, "big")

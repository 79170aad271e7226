"""A file that is read in ranges. Pure, apart from what a subclass does to read one."""

import io
from abc import abstractmethod
from typing import Any, Final

_PART_BYTES: Final = 8 * 1024**2


class RangedFile(io.RawIOBase):
    """A file of a known size, open for reading. Subclasses define `read_part`."""

    def __init__(self, size: int) -> None:
        """Create `RangedFile`.

        Args:
            size: In bytes.
        """
        self.size = size
        self._at = 0

    @abstractmethod
    def read_part(self, start: int, size: int) -> Any:
        """Read a range that does not end after the file.

        Args:
            start: Offset in bytes.
            size: In bytes, at least 1.

        Returns:
            As many bytes, or fewer.
        """

    def readable(self) -> bool:
        """Always True, even when the position is at or after the end."""
        return True

    def seekable(self) -> bool:
        """Always True: moving the position reads nothing."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position without reading, and return it in bytes from the start. It may be after the end."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        return self._at

    def tell(self) -> int:
        """The offset in bytes at which the next read begins."""
        return self._at

    def readall(self) -> bytes:
        """The rest, in few parts; Python's own method reads a few KiB at a time.

        Raises:
            Exception: What `read_part` raises.
        """
        parts: list[bytes] = []
        while self._at < self.size:
            part = bytes(self.read_part(self._at, min(self.size - self._at, _PART_BYTES)))
            if not part:
                break
            self._at += len(part)
            parts.append(part)
        return b"".join(parts)

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer.

        Raises:
            Exception: What `read_part` raises.
        """
        count = min(len(buffer), self.size - self._at)
        if count <= 0:
            return 0
        content = self.read_part(self._at, count)
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)

"""Checks what a file costs while it is decoded: rows, columns, expansion, nesting. Pure, apart from reading the file.

It runs in a decoder, which also has limits of memory and time. These checks refuse a file earlier, and say why.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lethe.decoder.limits import TOO_COSTLY, Limits
from lethe.ingest.buffer_store import BadFile
from lethe.ingest.opened_file import OpenedFile

_NEWLINE, _RETURN, _QUOTE, _OPEN_OBJECT, _CLOSE_OBJECT = b'\n\r"{}'
_OPENER, _WITHOUT_BIT = 0x5B, 0xDF  # { and [ differ in one bit
_NO_STRUCTURE: Final = bytes(c for c in range(256) if c not in b'[]{}"')
_STEPS: Final = np.zeros(256, np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1
# More bytes of one row are not kept.
_ROW_BYTES: Final = 64 * 1024


def check_announced(file: OpenedFile, size: int, limits: Limits) -> None:
    """Check what the footer or the header of a file says. Raises: BadFile.

    Args:
        size: Of the file, in bytes.
    """
    if len(file.schema) > limits.columns:
        raise BadFile(TOO_COSTLY, f"it has {len(file.schema)} columns, expected at most {limits.columns}")
    Spent(size, limits).add(file.rows or 0, file.expanded or 0)


@dataclass
class Spent:
    """What was decoded of a file."""

    size: int  # of the file, in bytes
    limits: Limits
    rows: int = 0
    bytes: int = 0

    def add(self, rows: int, expanded: int) -> None:
        """Raises: BadFile, if it is too much."""
        self.rows, self.bytes = self.rows + rows, self.bytes + expanded
        if self.rows > self.limits.rows_of(self.size):
            raise BadFile(
                TOO_COSTLY,
                f"it has at least {self.rows} rows, expected at most {self.limits.rows_of(self.size)} in a file of "
                f"{self.size} bytes. Write several files",
            )
        if self.bytes > self.limits.expanded_of(self.size):
            raise BadFile(
                TOO_COSTLY,
                f"it expands to at least {self.bytes} bytes, expected at most {self.limits.expanded_of(self.size)} of a "
                f"file of {self.size} bytes. Write several files",
            )


def checked_text(file: Any, size: int, limits: Limits, is_json: bool) -> Any:
    """Text to read instead of this file. Raises: BadFile, now or when it is read.

    Args:
        file: The text, decompressed.
        size: Of the file as it is stored.
    """
    if not isinstance(file, pa.BufferReader):
        return pa.PythonFile(_CheckedText(file, size, limits, is_json), mode="r")
    if is_json:  # at once, because each call of Arrow to Python costs a tenth of reading a small file
        Nesting(limits.nesting).check(file.read_buffer())
        file.seek(0)
    return file


class _CheckedText:
    """Text that is checked before a decoder reads it: how far it expands and, of JSON, how deep it is nested."""

    closed = False

    def __init__(self, file: Any, size: int, limits: Limits, is_json: bool) -> None:
        self._file = file
        self._spent = Spent(size, limits)
        self._nesting = Nesting(limits.nesting) if is_json else None

    def read(self, size: int | None = -1) -> bytes:
        content = bytes(self._file.read(None if size is None or size < 0 else size))
        self._spent.add(0, len(content))
        if self._nesting is not None:
            self._nesting.check(content)
        return content

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None: ...


class Nesting:
    """Checks how deep JSON is nested. Arrow's reader would crash, and others of text that is nested less deep take minutes.

    Rows are found by `}`, a line break and `{`. Between rows the depth is 0: elsewhere this is no JSON, and Arrow's reader stops.
    A row with few brackets is not looked at again, so that this costs a fraction of decoding.
    """

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self._row = b""  # the beginning of a row
        self._depth: _Depth | None = None  # not None: a row was too long to be kept

    def check(self, content: Any) -> None:
        """Check the next bytes, which are bytes or a buffer. Raises: BadFile."""
        if self._depth is not None:
            self._require(self._depth.highest(content))
            return
        text = memoryview(self._row + content if self._row else content)
        data = np.frombuffer(text, np.uint8)
        is_opener = (data & _WITHOUT_BIT) == _OPENER
        starts = _starts_of_rows(data)
        last = int(starts[-1]) if len(starts) else 0
        # Each row begins with a bracket. If so few others are left, no row has too many.
        if np.count_nonzero(is_opener) - len(starts) > self._at_most:
            borders = np.concatenate(([0], starts, [len(data)]))
            counts = np.diff(np.searchsorted(np.flatnonzero(is_opener), borders))
            for n in np.flatnonzero(counts > self._at_most):
                self._require(_Depth().highest(bytes(text[borders[n] : borders[n + 1]])))
        self._row = bytes(text[last:])
        if len(self._row) > _ROW_BYTES:
            self._depth = _Depth()
            self._require(self._depth.highest(self._row))
            self._row = b""

    def _require(self, depth: int) -> None:
        if depth > self._at_most:
            raise BadFile(TOO_COSTLY, f"its JSON is nested more than {self._at_most} levels deep")


def _starts_of_rows(data: Any) -> Any:
    breaks = np.flatnonzero(data == _NEWLINE)
    breaks = breaks[(breaks > 1) & (breaks < len(data) - 1)]
    before = data[breaks - 1]
    if (before == _RETURN).any():
        before = np.where(before == _RETURN, data[breaks - 2], before)
    return breaks[(before == _CLOSE_OBJECT) & (data[breaks + 1] == _OPEN_OBJECT)] + 1


class _Depth:
    """The depth of JSON, whatever its form, byte by byte."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_text = False
        self._escapes = False  # the next byte is escaped

    def highest(self, content: bytes) -> int:
        """The greatest depth in the next bytes."""
        if self._escapes and content:
            content, self._escapes = content[1:], False
        if b"\\" in content:
            if (len(content) - len(content.rstrip(b"\\"))) % 2:
                content, self._escapes = content[:-1], True
            content = content.replace(b"\\\\", b"").replace(b'\\"', b"")
        kept = np.frombuffer(content.translate(None, _NO_STRUCTURE), np.uint8)
        if not len(kept):
            return self._depth
        in_text = (np.cumsum(kept == _QUOTE) & 1).astype(bool) ^ self._in_text
        depths = self._depth + np.cumsum(np.where(in_text, 0, _STEPS[kept]), dtype=np.int64)
        self._in_text, self._depth = bool(in_text[-1]), int(depths[-1])
        return int(depths.max())

"""Checks what a file costs while it is decoded: rows, columns, expansion. Pure.

It runs in a decoder, which also has limits of memory and time. These checks refuse a file earlier, and say why.
"""

from dataclasses import dataclass

from lethe.decoder.limits import TOO_COSTLY, Limits
from lethe.ingest.buffer_store import BadFile
from lethe.ingest.opened_file import OpenedFile


def check_announced(file: OpenedFile, size: int, limits: Limits) -> None:
    """Check what the footer or the header of a file says. Raises: BadFile.

    Args:
        size: Of the file, in bytes.
    """
    check_columns(len(file.schema), limits)
    Spent(size, limits).add(file.rows or 0, file.expanded or 0)


def check_columns(count: int, limits: Limits) -> None:
    """Raises: BadFile, if a file has too many columns."""
    if count > limits.columns:
        raise BadFile(TOO_COSTLY, f"it has {count} columns, expected at most {limits.columns}")


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

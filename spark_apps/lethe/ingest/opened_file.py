"""An open buffered file of any format. Pure values."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

ROWS_PER_BATCH: Final = 65_536


@dataclass(frozen=True)
class OpenedFile:
    """The columns and rows of a file."""

    schema: pa.Schema  # known before any row is read
    tables: Iterable[pa.Table]  # the rows in pieces with this schema, read lazily
    rows: int | None = None  # all, if the file announces it
    expanded: int | None = None  # bytes without compression, if the file announces it

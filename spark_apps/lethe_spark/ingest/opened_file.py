"""What opening a buffered file yields, whatever its format. Pure values."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

ROWS_PER_BATCH: Final = 65_536


@dataclass(frozen=True)
class OpenedFile:
    """The columns that a file has, known before its rows, and the rows in pieces with these columns."""

    schema: pa.Schema
    tables: Iterable[pa.Table]

"""Writes the row groups of a new file: copies of those of other files, and rows that are encoded. I/O."""

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lethe.purge.footer import Struct
from lethe.purge.sinks import Sink
from lethe.purge.source import Source
from lethe.purge.splicing import Splice, footer_of, groups_of, narrow
from lethe.writing.dictionaries import without_unused


class GroupWriter:
    """Writes row groups one after the other. `close` ends the file.

    Args:
        sink: A new file.
        template: The footer of a file with the same columns. It is changed.
    """

    def __init__(self, sink: Sink, template: Struct) -> None:
        self._splice = Splice(sink, template)
        # Bytes of row groups that were copied, and those that were encoded.
        self.copied = self.encoded = 0

    def copy(self, source: Source, number: int, group: Struct, position: int) -> None:
        """Copy a row group, but the row ids that its rows inherit: these are written.

        Args:
            number: Of the row group in its file.
            group: The row group in the footer of its file. It is changed.
            position: Of its first row in the file.
        Raises: Unreadable.
        """
        ids = source.ids_of(number, position)
        if ids is not None:
            narrow(group, source.ids_at)
        self.copied += self._splice.add(source.stream, group)
        if ids is not None:
            made = BytesIO()
            pq.write_table(ids, made, row_group_size=max(1, ids.num_rows), **source.options)
            (columns,) = groups_of(footer_of(made, made.tell()))
            self.encoded += self._splice.widen(made, columns)

    def encode(self, rows: pa.Table, options: Mapping[str, Any]) -> None:
        """Write rows as one row group. Raises: Unreadable."""
        made = BytesIO()
        pq.write_table(without_unused(rows), made, row_group_size=rows.num_rows, **options)
        for group in groups_of(footer_of(made, made.tell())):
            self.encoded += self._splice.add(made, group)

    def close(self) -> None:
        """Write the page indexes and the footer."""
        self._splice.close()

"""Decides by footers whether files that follow each other are in the sort order of their table. Pure."""

from collections.abc import Sequence

from lethe.purge.source import Source
from lethe.writing.layout import SortKey


class NotInOrder(Exception):
    """It is not proven that the rows are in order."""


class Arrangement:
    """The files of a bin, one after the other.

    Args:
        keys: Of the table's sort order. None: any order is right.
        order_id: Of the table's sort order.
    """

    def __init__(self, keys: Sequence[SortKey], batch_column: str, order_id: int) -> None:
        self._keys, self._order_id = keys, order_id
        first = keys[0] if keys else None
        self._is_by_batch = first is not None and first.name == batch_column and not first.is_descending
        self._last: str | None = None  # the highest batch so far

    def add(self, source: Source, order_id: int | None) -> None:
        """Add a file.

        Args:
            order_id: Of the sort order that its entry names. Then its rows are in it. None: none.
        Raises: NotInOrder.
        """
        if not self._keys:
            return
        if not self._is_by_batch:
            raise NotInOrder
        claimed = order_id == self._order_id
        if len(self._keys) > 1 and not claimed:
            raise NotInOrder
        begins = True
        for group in range(source.parquet.metadata.num_row_groups):
            if not source.parquet.metadata.row_group(group).num_rows:
                continue
            bounds = source.bounds_of(group)
            if bounds.lower is None or bounds.upper is None or not (claimed or bounds.lower == bounds.upper):
                raise NotInOrder
            # Rows of one batch in two files may have to be mixed, if there are more keys.
            shares = begins and len(self._keys) > 1 and bounds.lower == self._last
            if shares or (self._last is not None and bounds.lower < self._last):
                raise NotInOrder
            self._last, begins = bounds.upper, False

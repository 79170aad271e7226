"""Rows of a table of batches. I/O."""

from collections.abc import Collection, Iterator

from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, In
from pyiceberg.table import Table

from lethe.batches_table.files import ARROW
from lethe.buffer.batch_rows import BatchRow


def read_rows(table: Table, states: Collection[str] = (), ids: Collection[str] = ()) -> Iterator[BatchRow]:
    """The rows of these batches, or of all; in these states, or in any. Opens no file of another state."""
    chosen: BooleanExpression = AlwaysTrue()
    if states:
        chosen = And(chosen, _one_of("state", states))
    if ids:
        chosen = And(chosen, _one_of("batch_id", ids))
    found = table.scan(row_filter=chosen, selected_fields=tuple(ARROW.names)).to_arrow()
    for row in found.to_pylist():
        yield BatchRow(**row)


def _one_of(column: str, values: Collection[str]) -> BooleanExpression:
    return In(column, frozenset(values))  # type: ignore[call-arg]  # the plugin sees pydantic's fields only

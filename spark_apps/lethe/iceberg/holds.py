"""The rows that the holds of a Dataset cover. Pure: filters, a schema and Arrow rows in, verdicts out.

A filter may name a person, so messages name holds and never what their filters say.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from lethe.base.errors import InputError
from lethe.contract.dataset import HoldSpec
from lethe.iceberg.conditions import RowCondition


@dataclass(frozen=True)
class Hold:
    """A hold on rows of a table."""

    name: str
    condition: RowCondition = field(repr=False)
    """True for each row that the hold covers."""


@dataclass(frozen=True)
class Holds:
    """The holds that are in force."""

    holds: tuple[Hold, ...] = ()

    @classmethod
    def of(cls, specs: Iterable[HoldSpec], schema: Schema) -> "Holds":
        """Apply the filters to a table.

        Args:
            schema: Of the table, now.

        Raises:
            InputError: `InvalidHold`, if a filter is not a condition on rows of the table.
        """
        return cls(tuple(Hold(s.name, _condition(s, schema)) for s in specs))

    @property
    def names(self) -> frozenset[str]:
        """The names of all of them."""
        return frozenset(h.name for h in self.holds)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the top-level columns that tell which rows are covered."""
        return tuple(dict.fromkeys(c for h in self.holds for c in h.condition.columns))

    @property
    def condition(self) -> RowCondition:
        """True for each row that at least one of the holds covers. There must be one."""
        return reduce(RowCondition.either, (h.condition for h in self.holds))

    def covered(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Whether at least one of the holds covers each row.

        Args:
            rows: With the `columns`, in the types of the table.
        """
        masks = [h.condition.true_in(rows) for h in self.holds]
        return reduce(pc.or_, masks, pa.repeat(pa.scalar(False), rows.num_rows))


def _condition(spec: HoldSpec, schema: Schema) -> RowCondition:
    try:
        return RowCondition.of(schema, spec.filter or None)
    except InputError:
        # Its message names what it takes for a column, which may be a part of a value.
        raise InputError(
            "InvalidHold",
            f"spec.holds: the filter of hold {spec.name} is not a condition on the columns of the table: it names a column that "
            "the table does not have, compares a column with a value of another type, or has another syntax. Until it is "
            "corrected, no vacuum and no Erase of the Dataset starts.",
        ) from None

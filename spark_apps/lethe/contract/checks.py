"""`spec.checks` of a Dataset: what must hold for a batch before it is promoted. Pure.

`lethe.ingest.checks` applies them. A run gets them in its `run.json`.
"""

from typing import Annotated, Final

from pydantic import BeforeValidator

from lethe.contract.schema import ApiModel, Int32, Rule, between, items, keywords, length
from lethe.contract.settings import OnFailure

ColumnName = Annotated[str, length(1, 255)]
Value = Annotated[str, BeforeValidator(str), keywords(**{"x-kubernetes-int-or-string": True}, maxLength=256)]
"""A whole number, or the text of any value of a column: a number, a date, a time, true or false."""
_KINDS: Final = ("notNull", "unique", "range", "values", "pattern", "rowCount", "condition")


class RangeCheck(ApiModel):
    """The values of a column are in a range. Both ends belong to it."""

    cel_rules = (Rule("has(self.min) || has(self.max)", "min or max is required"),)

    column: ColumnName
    """The column."""
    min: Value | None = None
    """The smallest value. Write numbers with a fraction, dates and times as texts."""
    max: Value | None = None
    """The greatest value."""


class ValuesCheck(ApiModel):
    """The values of a column are some of a set."""

    column: ColumnName
    """The column."""
    allowed: Annotated[tuple[Value, ...], items(1, 1000)]
    """The values that it may have. Write numbers with a fraction, dates and times as texts."""


class PatternCheck(ApiModel):
    """The texts of a column match a regular expression."""

    column: ColumnName
    """The column, of type string."""
    matches: Annotated[str, length(1, 1024)]
    """The regular expression, in the syntax of RE2. It may match a part of the text: ^ and $ are its beginning and its end."""


class RowCountCheck(ApiModel):
    """The batch has a usual number of rows."""

    cel_rules = (
        Rule(
            "has(self.min) || has(self.max) || has(self.atLeastPercent) || has(self.atMostPercent)",
            "one of min, max, atLeastPercent and atMostPercent is required",
        ),
    )

    min: Annotated[int, between(0)] | None = None
    """The smallest number of rows."""
    max: Annotated[int, between(0)] | None = None
    """The largest number of rows."""
    of_last: Annotated[Int32, between(1, 1000)] = 10
    """How many of the batches that were promoted last atLeastPercent and atMostPercent compare with."""
    at_least_percent: Annotated[Int32, between(1, 100)] | None = None
    """The smallest number of rows, in percent of the median of these batches. Without any such batch it holds."""
    at_most_percent: Annotated[Int32, between(100, 1_000_000)] | None = None
    """The largest number of rows, in percent of the median of these batches. Without any such batch it holds."""


class CheckSpec(ApiModel):
    """A check of each batch before its promotion. A null satisfies every check but notNull.

    It has exactly one of notNull, unique, range, values, pattern, rowCount and condition.
    """

    cel_rules = (
        Rule(
            f"[{', '.join(f'has(self.{kind})' for kind in _KINDS)}].filter(given, given).size() == 1",
            f"exactly one of {', '.join(_KINDS[:-1])} and {_KINDS[-1]} is required",
        ),
    )

    name: Annotated[str, length(1, 63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """The name of the check, for messages."""
    not_null: Annotated[tuple[ColumnName, ...], items(1, 64)] = ()
    """Columns without nulls."""
    unique: Annotated[tuple[ColumnName, ...], items(1, 16)] = ()
    """Columns whose values together differ in all rows of the batch. Rows in which one of them is null do not count."""
    range: RangeCheck | None = None
    values: ValuesCheck | None = None
    pattern: PatternCheck | None = None
    row_count: RowCountCheck | None = None
    condition: Annotated[str, length(1, 4096)] = ""
    """A condition on each row, in the syntax of filters: comparisons of columns with values, IN, IS NULL, LIKE 'prefix%',
    AND, OR, NOT. A row for which it is unknown satisfies it, as in a CHECK of SQL.
    """
    on_failure: OnFailure = OnFailure.REFUSE
    """What happens to a batch that fails. Refuse moves it to _refused/. Hold leaves it in the buffer until a Restatement
    approves or reverts it. Other batches are promoted in any case.
    """

    @property
    def kind(self) -> str:
        """The field that says what is checked, by its name in the API; "": a kind that this version does not know."""
        given = (
            bool(self.not_null),
            bool(self.unique),
            self.range is not None,
            self.values is not None,
            self.pattern is not None,
            self.row_count is not None,
            bool(self.condition),
        )
        kinds = [kind for kind, is_given in zip(_KINDS, given, strict=True) if is_given]
        return kinds[0] if len(kinds) == 1 else ""

"""Makes the checks of `spec.checks` for the columns of a table. Pure.

A decoder that applies them needs this module: its server imports it once, before it forks decoders.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import pyarrow as pa
from pyiceberg.expressions import And, BooleanExpression, GreaterThanOrEqual, In, LessThanOrEqual, NotNull
from pyiceberg.schema import Schema
from pyiceberg.types import UUIDType

from lethe.base.errors import InputError
from lethe.contract.checks import CheckSpec, RangeCheck
from lethe.iceberg.column_path import NoColumn, resolve_column
from lethe.iceberg.conditions import RowCondition
from lethe.ingest.buffer_files import warm_up
from lethe.ingest.checks import BatchChecks

__all__ = ["checks_of", "warm_up"]


def checks_of(specs: Sequence[CheckSpec], schema: Schema, columns: pa.Schema) -> BatchChecks:
    """Make the checks for a table.

    Args:
        columns: Of the rows, in the types that they are checked in.

    Raises:
        InputError: `InvalidCheck`: a check names a column that the table does not have, or compares values of another type.
    """
    conditions: dict[int, RowCondition] = {}
    keys: dict[int, tuple[str, ...]] = {}
    for number, spec in enumerate(specs):
        for name in _columns(spec):
            _require_column(spec, name, schema)
        if spec.unique:
            _require_keys(spec, columns)
            keys[number] = spec.unique
        elif spec.row_count is None:
            conditions[number] = _condition(spec, schema, columns)
    uuids = {n for names in keys.values() for n in names if isinstance(schema.find_type(n), UUIDType)}
    return BatchChecks(tuple(specs), conditions, keys, frozenset(uuids), __name__ if conditions else "")


def _columns(spec: CheckSpec) -> tuple[str, ...]:
    """The columns that a check names by themselves. A condition names others."""
    one = (c.column for c in (spec.range, spec.values, spec.pattern) if c is not None)
    return (*spec.not_null, *spec.unique, *one)


def _invalid(spec: CheckSpec, message: str) -> InputError:
    return InputError("InvalidCheck", f"spec.checks: check {spec.name} ({spec.kind}): {message}")


def _require_column(spec: CheckSpec, name: str, schema: Schema) -> None:
    try:
        resolve_column(schema, name)
    except NoColumn as e:
        text = f"it names the column {name}, {e}. Correct the check, or add the column to the table."
        raise _invalid(spec, text) from None


def _require_keys(spec: CheckSpec, columns: pa.Schema) -> None:
    for name in spec.unique:
        if name not in columns.names or pa.types.is_nested(columns.field(name).type):
            raise _invalid(
                spec, f"the values of {name} cannot be compared: expected a column that is no struct, list or map."
            )


def _condition(spec: CheckSpec, schema: Schema, columns: pa.Schema) -> RowCondition:
    """The condition that a check says.

    Raises:
        InputError: `InvalidCheck`.
    """
    try:
        if spec.pattern is not None:
            condition = RowCondition.matching(schema, spec.pattern.column, spec.pattern.matches)
        else:
            condition = RowCondition.of(schema, _expression(spec))
        condition.false_in(pa.RecordBatch.from_pylist([], schema=columns))
    except InputError as e:
        raise _invalid(spec, e.message.replace("the filter", "the condition")) from e
    except (pa.ArrowException, TypeError, ValueError) as e:
        raise _invalid(spec, "it does not fit the type of a column. Correct the check.") from e
    return replace(condition, schema=Schema())  # each decoder gets it, and needs no other columns


def _expression(spec: CheckSpec) -> str | BooleanExpression:
    if spec.not_null:
        return _all([NotNull(name) for name in spec.not_null])  # type: ignore[call-arg]
    if spec.range is not None:
        return _all(_ends(spec.range))
    if spec.values is not None:
        return In(spec.values.column, set(spec.values.allowed))  # type: ignore[call-arg]
    if spec.condition:
        return spec.condition
    raise _invalid(spec, "this version of Lethe does not know what it checks.")


def _ends(check: RangeCheck) -> list[BooleanExpression]:
    ends: list[BooleanExpression] = []
    if check.min is not None:
        ends.append(GreaterThanOrEqual(check.column, check.min))  # type: ignore[call-arg]
    if check.max is not None:
        ends.append(LessThanOrEqual(check.column, check.max))  # type: ignore[call-arg]
    return ends


def _all(expressions: Sequence[BooleanExpression]) -> BooleanExpression:
    return reduce(And, expressions)

"""The column with the time of a row, and what the metadata of data files says of it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Final

from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, MonthTransform, YearTransform
from pyiceberg.types import DateType, IcebergType, TimestampType, TimestamptzType

from lethe.files.bounds import FileTimes
from lethe.files.values import ValueType
from lethe.iceberg.column_path import ColumnName, NoColumn, resolve_column

_EPOCH: Final = date(1970, 1, 1)
_MICROS: Final = 86_400_000_000
"""Microseconds of a day."""
_TYPES: Final[Mapping[type[IcebergType], ValueType]] = {
    DateType: ValueType.DATE,
    TimestampType: ValueType.TIMESTAMP,
    TimestamptzType: ValueType.TIMESTAMPTZ,
}


@dataclass(frozen=True)
class TimeColumn:
    """The column with the time of a row."""

    name: ColumnName
    """The names on the way to it."""
    field_id: int
    type: ValueType
    """DATE, TIMESTAMP or TIMESTAMPTZ."""
    has_default: bool
    """Whether rows of a file without the column may have a time."""
    partitions: Mapping[int, tuple[tuple[int, PartitionField], ...]] = field(default_factory=dict)
    """By partition spec id, the partition fields of the column that tell a time, with their positions."""

    @classmethod
    def of(cls, schema: Schema, specs: Mapping[int, PartitionSpec], name: str) -> "TimeColumn":
        """Find the column.

        Raises:
            NoColumn: There is no such column, or it has no time. The text ends a sentence that says where the name is.
        """
        path = resolve_column(schema, name)
        kind = _TYPES.get(type(path.type))
        if kind is None or path.in_list:
            found = "is within a list" if path.in_list else f"is of type {path.type}"
            raise NoColumn(f"which {found}; expected a date, timestamp or timestamptz. Use another column")
        partitions = {
            spec_id: tuple((n, f) for n, f in enumerate(spec.fields) if f.source_id == path.field_id and _tells_time(f))
            for spec_id, spec in specs.items()
        }
        has_default = any(f.initial_default is not None for f in path.fields)
        return cls(path.parts, path.field_id, kind, has_default, partitions)

    @property
    def unit(self) -> int:
        """How many of Iceberg's units a day has."""
        return 1 if self.type is ValueType.DATE else _MICROS

    def start_of(self, day: date) -> int:
        """The first time of a UTC day, as Iceberg stores it."""
        return (day - _EPOCH).days * self.unit

    def day_of(self, time: int) -> date | None:
        """The UTC day of a time; None: Python has no such day."""
        try:
            return _EPOCH + timedelta(days=time // self.unit)
        except OverflowError:
            return None

    def times_of(self, file: DataFile) -> FileTimes:
        """What the metadata of a data file says of its times, by its metrics and by its partition."""
        times = self._by_metrics(file)
        for position, partition in self.partitions.get(file.spec_id, ()):
            times = times.and_also(self._by_partition(partition, file.partition[position]))
        return times

    def _by_metrics(self, file: DataFile) -> FileTimes:
        values, nulls = (file.value_counts or {}).get(self.field_id), (file.null_value_counts or {}).get(self.field_id)
        lower, upper = (
            self._bound((bounds or {}).get(self.field_id)) for bounds in (file.lower_bounds, file.upper_bounds)
        )
        may_have_nulls: bool | None = None
        if nulls is not None and values is not None:
            # The counts of a field of structs may leave out rows in which a struct is null.
            may_have_nulls = nulls > 0 or values != file.record_count
            if nulls == values == file.record_count and lower is None and upper is None:
                return FileTimes(nulls=True, empty=True)
        times = FileTimes(lower, upper, may_have_nulls, tight=lower is not None)
        return FileTimes() if times.contradicts_itself else times

    def _bound(self, stored: bytes | None) -> int | None:
        """The time of a bound; None: unknown, or of another type, because the file is older than the column's type."""
        size = 4 if self.type is ValueType.DATE else 8
        return int.from_bytes(stored, "little", signed=True) if stored is not None and len(stored) == size else None

    def _by_partition(self, partition: PartitionField, value: object) -> FileTimes:
        if value is None:
            return FileTimes(nulls=True, empty=True)
        if not isinstance(value, int):
            return FileTimes()
        match partition.transform:
            case IdentityTransform():
                return FileTimes(value, value, nulls=False, tight=True)
            case HourTransform():
                hour = _MICROS // 24
                return FileTimes(value * hour, (value + 1) * hour - 1, nulls=False)
            case DayTransform():
                return FileTimes(value * self.unit, (value + 1) * self.unit - 1, nulls=False)
            case MonthTransform():
                return self._between_months(value, value + 1)
            case _:
                return self._between_months(12 * value, 12 * (value + 1))

    def _between_months(self, start: int, end: int) -> FileTimes:
        """The times from the start of one month to the start of another, as months since January 1970."""
        first, last = _month(start), _month(end)
        if first is None or last is None:
            return FileTimes()
        return FileTimes(self.start_of(first), self.start_of(last) - 1, nulls=False)


def _tells_time(partition: PartitionField) -> bool:
    known = (IdentityTransform, HourTransform, DayTransform, MonthTransform, YearTransform)
    return isinstance(partition.transform, known)


def _month(number: int) -> date | None:
    year, month = divmod(number, 12)
    return date(1970 + year, month + 1, 1) if 1 <= 1970 + year <= 9999 else None

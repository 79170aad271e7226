"""Finds days of the hybrid calendar, in files whose metadata says that they may have some. Pure.

Spark 2, Hive before version 4 and ORC's Java writer count days before 1582-10-15 in the Julian calendar. Iceberg counts all
days in the Gregorian calendar. The same number is another day in each of them, and timestamps before 1900 may be some
minutes off. Such values are refused: whether a reader converts them depends on the reader.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lethe.ingest.buffer_store import BadFile
from lethe.ingest.exact_values import first_flaw, leaves

_DAY_MICROS: Final = 86_400_000_000
_FIRST_GREGORIAN_DAY: Final = -141_427  # 1582-10-15
_FIRST_DAY_OF_1900: Final = -25_567
_SPARK_VERSION: Final = b"org.apache.spark.version"
_UTC: Final = (b"UTC", b"Etc/UTC", b"Z", b"GMT", b"+00:00")
_MICROS: Final = {"s": 1_000_000, "ms": 1000, "us": 1}


@dataclass(frozen=True)
class HybridCalendar:
    """What a file says of its calendar."""

    writer: str  # for messages
    utc: bool = True  # timestamps were written in UTC
    datetimes: bool = True  # False: only columns of the type INT96 are in the hybrid calendar

    @property
    def first_day(self) -> int:
        """The first day that is the same in both calendars, counted from 1970-01-01."""
        return _FIRST_GREGORIAN_DAY

    @property
    def first_micros(self) -> int:
        """The first timestamp that is the same, in microseconds from 1970-01-01."""
        return (_FIRST_GREGORIAN_DAY if self.utc else _FIRST_DAY_OF_1900) * _DAY_MICROS

    def check(self, rows: pa.Table, first_row: int) -> None:
        """Raises: BadFile, if a day or a timestamp is before the first that is the same in both calendars.

        Args:
            rows: As read.
            first_row: Of these rows, in the file.
        """
        for field in rows.schema:
            if not holds_times(field.type):
                continue
            column, name = rows.column(field.name), field.name
            if any(self._problem(chunk, name) for chunk in column.chunks):
                flaw = first_flaw(column, lambda some, name=name: self._problem(some, name))  # type: ignore[misc]
                raise BadFile("SchemaMismatch", f"row {flaw.row + first_row}: column {flaw.path} {flaw.problem}")

    def _problem(self, array: pa.Array, name: str) -> tuple[str, str] | None:
        for path, values in leaves(array, name):
            if pa.types.is_date(values.type):
                first, plain = self.first_day, values.cast(pa.date32()).cast(pa.int32())
            elif pa.types.is_timestamp(values.type):
                first, plain = self._in_unit(values.type.unit), values.cast(pa.int64())
            else:
                continue
            lowest = pc.min(plain).as_py()
            if lowest is not None and lowest < first:
                return path, self.problem("1582-10-15" if self.utc or pa.types.is_date(values.type) else "1900")
        return None

    def _in_unit(self, unit: str) -> int:
        return self.first_micros * 1000 if unit == "ns" else self.first_micros // _MICROS[unit]

    def problem(self, first: str) -> str:
        return (
            f"holds a day before {first}, and the file is of {self.writer}, which counts such days in the hybrid "
            "calendar; expected the "
            "proleptic Gregorian calendar. Write the file again with it"
        )


def holds_times(t: pa.DataType) -> bool:
    """Whether values of this type contain days."""
    if isinstance(t, pa.BaseExtensionType):
        return holds_times(t.storage_type)
    if pa.types.is_nested(t):
        return any(holds_times(t.field(n).type) for n in range(t.num_fields))
    if pa.types.is_dictionary(t):
        return holds_times(t.value_type)
    return bool(pa.types.is_date(t) or pa.types.is_timestamp(t))


def calendar_of(metadata: Mapping[bytes, Any] | None) -> HybridCalendar | None:
    """What the metadata of a Parquet or an Avro file says of its calendar. None: it is the proleptic Gregorian calendar."""
    if not metadata:
        return None
    utc = metadata.get(b"org.apache.spark.timeZone", b"") in _UTC
    for key in (b"writer.date.proleptic", b"writer.proleptic"):
        if metadata.get(key) == b"false":
            return HybridCalendar("Hive", metadata.get(b"writer.time.zone", b"") in _UTC)
    version = metadata.get(_SPARK_VERSION)
    if version is None:
        # Spark names its version since 2.4.6.
        is_spark = b"org.apache.spark.sql.parquet.row.metadata" in metadata
        return HybridCalendar("Spark before 2.4.6", utc) if is_spark else None
    found = re.match(rb"(\d+)\.(\d+)", version)
    number = (int(found[1]), int(found[2])) if found else (0, 0)
    spark = f"Spark {number[0]}.{number[1]}"
    if number < (3, 0):
        return HybridCalendar(spark, utc)
    if b"org.apache.spark.legacyDateTime" in metadata:
        return HybridCalendar(f"{spark} with datetimeRebaseModeInWrite LEGACY", utc)
    if number < (3, 1):
        return HybridCalendar(spark, utc, datetimes=False)
    if b"org.apache.spark.legacyINT96" in metadata:
        return HybridCalendar(f"{spark} with int96RebaseModeInWrite LEGACY", utc, datetimes=False)
    return None


# --- ORC --------------------------------------------------------------------------------------------------------------

_FOOTER: Final = 2  # of a file tail
_CALENDAR: Final = 11  # of a footer
_PROLEPTIC: Final = 2


def calendar_of_orc(tail: bytes) -> HybridCalendar | None:
    """What the file tail of an ORC file says of its calendar. Files that do not say it count as hybrid, as for ORC's Java reader.

    Args:
        tail: `FileTail` of orc_proto.proto, as pyarrow's `serialized_file_tail` returns it.
    """
    footer = _message(_message(tail).get(_FOOTER, b""))
    if footer.get(_CALENDAR) == _PROLEPTIC:
        return None
    said = "a writer that does not say its calendar" if _CALENDAR not in footer else "a writer with the hybrid calendar"
    return HybridCalendar(said)


def _message(content: Any) -> dict[int, Any]:
    """The last value of each field of a Protocol Buffers message: an integer, or bytes."""
    found: dict[int, Any] = {}
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        match key & 7:
            case 0:
                found[key >> 3], at = _varint(content, at)
            case 1:
                at += 8
            case 2:
                size, at = _varint(content, at)
                found[key >> 3], at = content[at : at + size], at + size
            case 5:
                at += 4
            case _:
                break
    return found


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while at < len(content):
        byte = content[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            break
    return value, at

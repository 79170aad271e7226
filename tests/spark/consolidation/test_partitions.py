"""The text of a partition is the same whether Spark's driver makes it of a file it has just written or PyIceberg of the
manifest; and what is remembered of batches names every partition that holds a row of theirs."""

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from lethe.base import names
from lethe.files.bounds import partitions_of_batches
from lethe_spark.jvm.commit import find_staged, stage
from lethe_spark.jvm.scan_tasks import write_uncommitted

from tests.spark.parameters import named
from tests.spark.support.flights import Flights

SCHEMA = "v bigint, carrier string, day date, ok boolean, ts timestamp, batch_id string, price decimal(9,2)"
SPECS: dict[str, tuple[Sequence[str], str | None]] = {
    "no partitions": ((), "0/[]"),
    "identity of an integer": (("v",), "0/[1]"),
    "identity of a string": (("carrier",), '0/["U\\"é/A"]'),
    "identity of a date": (("day",), "0/[-3653]"),
    "identity of a boolean": (("ok",), "0/[true]"),
    "years": (("years(ts)",), "0/[-1]"),
    "months": (("months(ts)",), "0/[-1]"),
    "days": (("days(ts)",), "0/[-2]"),
    "hours": (("hours(ts)",), "0/[-43]"),
    "a bucket of a string": (("bucket(4, carrier)",), "0/[1]"),
    "a prefix of a string": (("truncate(2, carrier)",), '0/["U\\""]'),
    "two fields": (("days(ts)", "carrier"), '0/[-2,"U\\"é/A"]'),
    "a decimal has none": (("price", "v"), None),
}


@pytest.mark.parametrize(
    ("partition_by", "text"), named(SPECS, "two fields", "a bucket of a string", "a decimal has none")
)
def test_the_driver_and_the_manifest_say_the_same_partition(
    make_flights: Callable[..., Flights], partition_by: Sequence[str], text: str | None
) -> None:
    """Also of a row whose partition values are all null, and of files that wait in a staged snapshot."""
    flights = make_flights(schema=SCHEMA, partition_by=partition_by)
    rows: list[tuple[Any, ...]] = [
        (1, 'U"é/A', date(1960, 1, 1), True, datetime(1969, 12, 30, 5, tzinfo=UTC), "A", Decimal("1.50")),
        (None, None, None, None, None, "B", None),
    ]
    frame = flights.spark.createDataFrame(rows, SCHEMA)
    files = write_uncommitted(flights.table, frame, "0" * 32)
    stage(flights.table, files, "wap", {names.STAGE: "file:///list.json"})
    staged = find_staged(flights.table, "wap")
    assert staged is not None
    committed = flights.written_files(flights.commit(files=files))

    expected = {f.path: (f.partition, f.lower, f.upper, f.records, f.size) for f in committed}
    assert {f.path: (f.partition, f.lower, f.upper, f.records, f.bytes) for f in files} == expected
    assert {f.path: (f.partition, f.lower, f.upper, f.records, f.bytes) for f in staged.files} == expected
    assert text in {f.partition for f in files}
    if text is not None and partition_by:
        assert f"0/[{','.join(['null'] * len(partition_by))}]" in {f.partition for f in files}


def test_after_a_change_of_partitioning_a_file_has_the_text_of_its_own_spec(flights: Flights) -> None:
    flights.commit(files=flights.written("A"))
    flights.spark.sql(f"ALTER TABLE {flights.full_name} ADD PARTITION FIELD bucket(2, batch_id)")
    flights.table.refresh()
    files = flights.written("B", run_id="run-2")
    committed = flights.written_files(flights.commit(files=files, run_id="run-2"))

    texts = {f.path: f.partition for f in committed}
    assert {f.path: f.partition for f in files}.items() <= texts.items()
    assert sorted(t.partition("/")[0] for t in texts.values() if t) == ["0", "0", "1", "1"]


def test_what_is_remembered_of_written_batches_names_every_partition_with_their_rows(flights: Flights) -> None:
    files = flights.written("A", "B", "C")

    assert partitions_of_batches(files, ["A", "B", "C"]) == dict.fromkeys("ABC", ("0/[1]", "0/[2]"))
    assert flights.table.properties[names.BATCH_COLUMN] == str(flights.table.field_id("batch_id"))

"""A Dataset whose rows have a time, and vacuums that remove those that are too old."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

import lethe
import lethe_spark
import pyarrow as pa
from lethe.contract.result import RunResult, VacuumResult
from lethe.contract.run import CreateTable, RetentionSpec, RunKind, RunSpec, VacuumSpec
from pyiceberg.manifest import DataFile

from tests.spark.support.story import Story

CUTOFF = date(2024, 6, 1)
TYPES: dict[str, pa.DataType] = {
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
    "DATE": pa.date32(),
}


def old(n: int = 0) -> datetime:
    """The last moments before the cutoff."""
    return datetime(2024, 6, 1, tzinfo=UTC) - timedelta(microseconds=1) - timedelta(days=n)


def young(n: int = 0) -> datetime:
    """The first moment of the cutoff, and later days."""
    return datetime(2024, 6, 1, tzinfo=UTC) + timedelta(days=n)


@dataclass(frozen=True)
class AgingStory(Story):
    """Rows have a number and a time, which may be missing."""

    type: str = "TIMESTAMP"
    nested: bool = False
    """The time is the field `time` of the struct `booking`."""
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def column(self) -> str:
        return "booking.time" if self.nested else "booked_at"

    def spec(self, kind: RunKind, keys: Any, **changes: Any) -> RunSpec:
        run = super().spec(kind, keys, **changes)
        time = f"booking STRUCT<time: {self.type}>" if self.nested else f"booked_at {self.type}"
        create = CreateTable(
            table_schema=f"v bigint, {time}, batch_id string",
            partition_by=self.partition_by,
            format_version=self.format_version,
            properties=self.properties,
        )
        return run.model_copy(update={"table": run.table.model_copy(update={"create": create})})

    def batch(self, batch_id: str, *times: datetime | None) -> None:
        """Put a batch into the buffer; rows are numbered from 0."""
        kind = TYPES[self.type]
        plain = [t.replace(tzinfo=None) if t is not None and self.type != "TIMESTAMP" else t for t in times]
        values = pa.array([t.date() if t is not None and self.type == "DATE" else t for t in plain], kind)
        if self.nested:
            values = pa.StructArray.from_arrays([values], ["time"])
        name = "booking" if self.nested else "booked_at"
        self.buffer.put(batch_id, pa.table({"v": pa.array(range(len(times)), pa.int64()), name: values}))

    def promoted(self, **batches: tuple[datetime | None, ...]) -> "AgingStory":
        """Put batches and promote them together."""
        for batch_id, times in batches.items():
            self.batch(batch_id, *times)
        self.consolidate(*batches)
        return self

    def aging(self, key: str = "1", cutoff: date = CUTOFF, by_batches: bool = False, **asked: Any) -> RunSpec:
        """A vacuum that removes rows with an earlier time."""
        rule = RetentionSpec(column="" if by_batches else self.column, max_age_days=1, cutoff=cutoff)
        return self.vacuuming_so(key, **{"retention": rule, "expire_snapshots": False, **asked})

    def age(self, key: str = "1", at: Mapping[str, Callable[[], object]] | None = None, **asked: Any) -> VacuumResult:
        result: RunResult = self.run(self.aging(key, **asked), **(at or {}))
        assert isinstance(result, VacuumResult)
        return result

    def rows(self, snapshot_id: int | None = None) -> Counter[tuple[str | None, int]]:
        """What readers see: batch and number. Only Spark reads Avro."""
        if self.properties.get("write.format.default") == "avro":
            found = lethe_spark.read(self.spark, self.full_name, snapshot_id=snapshot_id).collect()
            return Counter((r["batch_id"], r["v"]) for r in found)
        rows = lethe.scan(self.full_name, snapshot_id=snapshot_id).to_arrow().to_pylist()
        return Counter((r["batch_id"], r["v"]) for r in rows)

    def live(self) -> dict[str, DataFile]:
        """The live data files by path."""
        table = self.table()
        head = table.current_snapshot()
        assert head is not None
        return {
            e.data_file.file_path: e.data_file
            for m in head.manifests(table.io)
            for e in m.fetch_manifest_entry(table.io)
            if e.data_file.content == 0
        }


def numbers(batch_id: str | None, *found: int) -> Counter[tuple[str | None, int]]:
    return Counter((batch_id, n) for n in found)


def spec_of(run: RunSpec) -> VacuumSpec:
    assert run.vacuum is not None
    return run.vacuum

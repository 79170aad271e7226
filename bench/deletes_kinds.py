"""Tables with batches that Lethe reverted, with each kind of deletes; their readers; and their vacuum. I/O.

The tables share data files with the base table. So a vacuum here expires no snapshot, and no data file is ever deleted.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import lethe
import lethe_spark
from lethe.contract.result import VacuumResult
from lethe.contract.run import RunKind, VacuumSpec
from lethe.contract.settings import Deletes
from lethe_spark.jobs.vacuum import job as vacuum
from lethe_spark.jvm.spark_table import SparkTable
from pyspark.sql import DataFrame

from bench.lake import Lake, files_of, our_properties, promote, revert, revert_request
from bench.scales import Size
from bench.timing import Sample, seconds_of

VERSIONS: Final[Mapping[Deletes, int]] = {d: d.native.format_version if d.native else 2 for d in Deletes}
NOTHING_DELETED: Final = "nothing deleted"
ARROW, SPARK, PLAIN = "lethe.scan", "lethe_spark.read", "plain Spark"
READERS: Final = (ARROW, SPARK, PLAIN)


@dataclass(frozen=True)
class Subject:
    """A table with the files of a base table, whose Dataset asks for one kind of deletes."""

    lake: Lake
    table: SparkTable
    size: Size
    kind: Deletes

    @classmethod
    def of(cls, lake: Lake, base: str, size: Size, kind: Deletes) -> "Subject":
        source = lake.load(base)
        assert source is not None
        name = f"run.{kind.lower()}_{uuid.uuid4().hex[:8]}"
        table = lake.create(name, version=VERSIONS[kind], properties=our_properties())
        promote(lake, table, size, files_of(source))
        return cls(lake, table, size, kind)

    def delete(self, indexes: Sequence[int]) -> Sample:
        """Take batches back by the restatement job. `bytes`: all that it writes below the table's location, metadata too."""
        request = revert_request([self.size.batch_id(i) for i in indexes])
        before = self._files()
        with self.lake.context(RunKind.RESTATEMENT, self.table.name, [request], deletes=self.kind) as context:
            seconds = seconds_of(lambda: revert(context))
        return Sample(seconds, sum(size for path, size in self._files().items() if path not in before))

    def vacuum(self) -> Sample:
        """Purge all deleted rows. `bytes`: the size of the data files that must be rewritten. Raises: RuntimeError."""
        spec = VacuumSpec(policy="bench/vacuum", expire_snapshots=False)
        done: list[VacuumResult] = []
        with self.lake.context(RunKind.VACUUM, self.table.name, vacuum=spec) as context:
            seconds = seconds_of(lambda: done.append(vacuum.run(context)))
        (result,) = done
        if result.outcome != "Committed":
            raise RuntimeError(f"the vacuum ended as {result.outcome}: {result.reason} {result.message}")
        return Sample(seconds, result.bytes_rewritten)

    def rows(self, reader: str) -> int:
        """How many rows a reader sees."""
        if reader == ARROW:
            return lethe.scan(self.table.full_name).count()
        return self._frame(reader).count()

    def read(self, reader: str) -> None:
        """All rows and columns, from the table's name to the last row."""
        if reader == ARROW:
            for _ in lethe.scan(self.table.full_name).to_batches():
                pass
        else:
            self._frame(reader).write.format("noop").mode("overwrite").save()

    def _frame(self, reader: str) -> DataFrame:
        spark, name = self.lake.spark, self.table.full_name
        return lethe_spark.read(spark, name) if reader == SPARK else spark.table(name)

    def _files(self) -> dict[Path, int]:
        folder = Path("/" + self.table.location.removeprefix("file:").lstrip("/"))
        found = (p for p in folder.rglob("*") if p.is_file() and p.suffix != ".crc")  # checksums of a local file system
        return {path: path.stat().st_size for path in found}

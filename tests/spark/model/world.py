"""The real table: a Dataset on SQLite and local files. Runs execute in this process. I/O."""

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import lethe
import lethe_spark
from lethe import ledger_store
from lethe.contract.result import Phase, RunResult
from lethe.contract.run import RunSpec
from lethe.erasure import record
from lethe.ledger import overlay
from lethe.vacuum import housekeeping
from lethe_spark.apps.app import job_of
from lethe_spark.jvm.errors import understood
from pyspark.sql import SparkSession

from tests.model.acts import Append, Job, Setup
from tests.model.rows import Rows, of_values
from tests.spark.model.dataset import Dataset
from tests.spark.model.readings import Files, Seen
from tests.spark.model.strangers import Strangers
from tests.support.lake import Lake
from tests.support.steps import SteppedContext

# Longer than an act takes, so that a later act may remove staged snapshots.
STAGED_SECONDS = 15
Which = Literal["appended", "deleted"]


@dataclass(frozen=True)
class Followed(SteppedContext):
    """The context of a run that is observed."""

    after_commit: Callable[[], object] | None = None  # called after each commit, before another act can happen

    def step(self, name: str) -> None:
        if name == "after-commit" and self.after_commit is not None:
            self.after_commit()
        super().step(name)


@dataclass(frozen=True)
class World:
    dataset: Dataset
    files: Files = field(default_factory=Files)

    @classmethod
    def begin(cls, spark: SparkSession, lake: Lake, setup: Setup | None = None) -> "World":
        """Create an empty table, with a run without batches. Ledger chunks are small, so that small ledgers have many chunks."""
        ledger_store.THRESHOLDS = overlay.Thresholds(floor=2, cap=5)
        _let_go_of_staged_after(STAGED_SECONDS)
        world = cls(Dataset.prepared(spark, lake, setup or Setup()))
        world.create()
        return world

    def create(self) -> None:
        self.run(self.dataset.spec_of(Append(())))

    def end(self) -> None:
        folder = self.look().location()
        self.dataset.lake.catalog.drop_table(self.dataset.name)
        shutil.rmtree(folder)
        ledger_store.THRESHOLDS = overlay.Thresholds()
        _let_go_of_staged_after(86_400)

    @property
    def setup(self) -> Setup:
        return self.dataset.setup

    @property
    def strangers(self) -> Strangers:
        return Strangers(self.dataset)

    # --- runs -----------------------------------------------------------------------------------------------------

    def spec(self, job: Job) -> RunSpec:
        return self.dataset.spec_of(job)

    def run(
        self,
        spec: RunSpec,
        at: str = "",
        happening: Callable[[], object] | None = None,
        after_commit: Callable[[], object] | None = None,
    ) -> RunResult:
        """Execute a run.

        Args:
            at: The step after which `happening` is called, if the run reaches it.
            happening: None: nothing.
            after_commit: Called after each commit of the run; None: nothing.
        """
        made = self.dataset.context(spec)
        context = Followed(
            spec,
            made.reporter,
            made.catalog_properties,
            spark=made.spark,
            at={at: happening} if happening is not None else {},
            after_commit=after_commit,
        )
        try:
            return job_of(spec.kind)(context)
        except OSError as e:  # like an application; another act may delete files that the run reads
            raise understood(e) from e
        finally:
            context.reporter.close(Phase.SUCCEEDED)

    def let_time_pass(self) -> None:
        """Make every file below the table days old, so that maintenance may remove it."""
        then = time.time() - 10 * 86_400
        for folder, _, found in os.walk(self.look().location()):
            for file in found:
                os.utime(os.path.join(folder, file), (then, then))

    # --- readings -------------------------------------------------------------------------------------------------

    def look(self) -> Seen:
        return Seen.of(self.dataset.table(), self.files)

    def read(self, seen: Seen, snapshot_id: int | None = None, day: int | None = None) -> Rows:
        """Read all rows, or those of one day, with Lethe's reader without Spark."""
        wanted = f"day = {day}" if day is not None else None
        return of_arrow(lethe.scan(seen.table, snapshot_id=snapshot_id, filter=wanted))

    def read_by_spark(self, snapshot_id: int | None = None, day: int | None = None) -> Rows:
        wanted = f"day = {day}" if day is not None else None
        return of_spark(lethe_spark.read(self.dataset.spark, self.name, snapshot_id=snapshot_id, filter=wanted))

    def read_plainly(self, seen: Seen) -> Rows:
        """The rows of the head as read by engines that do not know ledgers: PyIceberg, or Spark if PyIceberg refuses."""
        if seen.has_foreign_equality_deletes():
            return of_spark(self.dataset.spark.sql(f"SELECT * FROM {self.name}"))
        return of_arrow(seen.table.scan())

    def read_named(self, name: str) -> Rows:
        """Read the head of the table with this name."""
        return of_arrow(lethe.scan(f"{self.dataset.catalog}.{name}"))

    def increment(self, seen: Seen, since: int, until: int, rows: Which) -> Rows:
        return of_arrow(lethe.scan(seen.table, since=since, until=until, rows=rows))

    def increment_by_spark(self, since: int, until: int, rows: Which) -> Rows:
        return of_spark(lethe_spark.read(self.dataset.spark, self.name, since=since, until=until, rows=rows))

    @property
    def name(self) -> str:
        return self.dataset.full_name


def _let_go_of_staged_after(seconds: int) -> None:
    for module in (housekeeping, record):
        module.STAGED_GRACE_SECONDS = seconds


def of_arrow(scan: Any) -> Rows:
    return of_values(scan.to_arrow().to_pylist())


def of_spark(frame: Any) -> Rows:
    return of_values(r.asDict() for r in frame.collect())

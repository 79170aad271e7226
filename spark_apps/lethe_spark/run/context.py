"""The context of a change of a table: the run with its Spark session, its reports, and the steps at which it can be stopped."""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from lethe.base.errors import TransientError
from lethe.contract.result import Phase
from lethe.contract.run import AcceptedHead, RunSpec
from lethe.storage import vended
from pyspark.sql import SparkSession

from lethe_spark.run.progress import Reporter

CRASH_AT: Final = "LETHE_CRASH_AT"
KILLED: Final = 137  # the exit code of a process that SIGKILL has ended


class Cancelled(TransientError):
    """The process received SIGTERM. The run's commits stay; the next attempt finds them and does the rest."""

    def __init__(self) -> None:
        super().__init__("Cancelled", "the run was stopped (SIGTERM); its next attempt continues.")


class Reports(Protocol):
    """Reports the progress of the work."""

    def phase(self, phase: Phase, message: str = "") -> None: ...


class Committer(Protocol):
    """All that a commit needs to know about its run. A user's Spark job implements it too."""

    # PyIceberg's properties for the catalog and its FileIO.
    @property
    def catalog_properties(self) -> Mapping[str, str]: ...
    @property
    def reporter(self) -> Reports: ...
    # "namespace.table".
    @property
    def table_name(self) -> str: ...
    @property
    def batch_column(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def run_kind(self) -> str: ...
    # What the table's claim must be, if the table has one. None: any.
    @property
    def claim(self) -> str | None: ...
    # A head without its ledger that the commit may continue from. None: no such head.
    @property
    def accepts(self) -> AcceptedHead | None: ...
    # The table and its head when the commit was requested. None: they were not read.
    @property
    def seen_table_uuid(self) -> str | None: ...
    @property
    def seen_snapshot_id(self) -> int | None: ...
    @property
    def seen_sequence_number(self) -> int | None: ...
    def step(self, name: str) -> None: ...


def crash_point(name: str, run_id: str = "") -> None:
    """Fault injection for tests: with LETHE_CRASH_AT=<name> or <name>@<run id>, the process exits here as if it was killed."""
    if os.environ.get(CRASH_AT) in (name, f"{name}@{run_id}"):
        os._exit(KILLED)


def table_properties(context: Committer) -> dict[str, str]:
    """PyIceberg's properties to open files of the table, with the credentials that the catalog vends for it."""
    return vended.of_table(context.catalog_properties, context.table_name)


@dataclass(frozen=True)
class Run:
    """A run with a `run.json`."""

    spec: RunSpec
    reporter: Reports
    catalog_properties: Mapping[str, str]
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set after SIGTERM."""

    @property
    def table_name(self) -> str:
        return self.spec.table.name

    @property
    def batch_column(self) -> str:
        return self.spec.batch_column

    @property
    def run_id(self) -> str:
        return self.spec.run_id

    @property
    def run_kind(self) -> str:
        return str(self.spec.family)

    @property
    def claim(self) -> str:
        return self.spec.dataset.claim

    @property
    def accepts(self) -> AcceptedHead | None:
        return self.spec.consolidation.accepts if self.spec.consolidation else None

    @property
    def seen_table_uuid(self) -> str | None:
        return self.spec.seen_table_uuid

    @property
    def seen_snapshot_id(self) -> int | None:
        return self.spec.seen_snapshot_id

    @property
    def seen_sequence_number(self) -> int | None:
        return self.spec.seen_sequence_number

    def step(self, name: str) -> None:
        """Mark a step as done, and stop here if the run is cancelled.

        Raises:
            Cancelled: The process received SIGTERM.
        """
        crash_point(name, self.run_id)
        if self.cancelled.is_set():
            raise Cancelled


@dataclass(frozen=True)
class RunContext(Run):
    """A run in a Spark session."""

    reporter: Reporter
    spark: SparkSession = field(kw_only=True)

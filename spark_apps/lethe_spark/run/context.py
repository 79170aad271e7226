"""On whose behalf tables are changed: a run with its session, its reports and the points at which it may be stopped."""

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
KILLED: Final = 137  # the exit code of a process that SIGKILL ended


class Cancelled(TransientError):
    """SIGTERM came. What was committed stays; the next attempt finds it and does the rest."""

    def __init__(self) -> None:
        super().__init__(
            "Cancelled", "the run was asked to stop (SIGTERM) and did; its next attempt goes on from there."
        )


class Reports(Protocol):
    """Where to say how far the work is."""

    def phase(self, phase: Phase, message: str = "") -> None: ...


class Committer(Protocol):
    """Who commits, and to which table: all that a commit knows of a run. A user's own Spark job is one, too.

    `table_name` is "namespace.table"; `claim` what the table's claim must be if it has one, None for any; `seen_…` the table
    and the head that were there when the commit was asked for, None when nobody looked; `accepts` a head
    that may be continued although it has lost its ledger; `catalog_properties` are PyIceberg's, for the catalog and its FileIO.
    """

    @property
    def catalog_properties(self) -> Mapping[str, str]: ...
    @property
    def reporter(self) -> Reports: ...
    @property
    def table_name(self) -> str: ...
    @property
    def batch_column(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def run_kind(self) -> str: ...
    @property
    def claim(self) -> str | None: ...
    @property
    def accepts(self) -> AcceptedHead | None: ...
    @property
    def seen_table_uuid(self) -> str | None: ...
    @property
    def seen_snapshot_id(self) -> int | None: ...
    @property
    def seen_sequence_number(self) -> int | None: ...
    def step(self, name: str) -> None: ...


def crash_point(name: str, run_id: str = "") -> None:
    """Fault injection, for tests: with LETHE_CRASH_AT=<name>, or <name>@<run id>, the process dies here, as if it had been
    killed."""
    if os.environ.get(CRASH_AT) in (name, f"{name}@{run_id}"):
        os._exit(KILLED)


def table_properties(context: Committer) -> dict[str, str]:
    """PyIceberg's properties to open files of the table with, with credentials that the catalog vends for it."""
    return vended.of_table(context.catalog_properties, context.table_name)


@dataclass(frozen=True)
class Run:
    """One run of one job, a `Committer` by its `run.json`."""

    spec: RunSpec
    reporter: Reports
    catalog_properties: Mapping[str, str]
    cancelled: threading.Event = field(default_factory=threading.Event)

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
        """Mark that a step is done: a place to stop when asked to. Raises: Cancelled."""
        crash_point(name, self.run_id)
        if self.cancelled.is_set():
            raise Cancelled


@dataclass(frozen=True)
class RunContext(Run):
    """A run in a Spark session."""

    reporter: Reporter
    spark: SparkSession = field(kw_only=True)

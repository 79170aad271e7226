"""What a job is given: the session, its run, where to report, and the points at which it may be stopped."""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from lethe.errors import TransientError
from lethe.run import RunSpec
from pyspark.sql import SparkSession

from lethe_spark.progress import Reporter

CRASH_AT: Final = "LETHE_CRASH_AT"
KILLED: Final = 137  # the exit code of a process that SIGKILL ended


class Cancelled(TransientError):
    """SIGTERM came. What was committed stays; the next attempt finds it and does the rest."""

    def __init__(self) -> None:
        super().__init__(
            "Cancelled", "the run was asked to stop (SIGTERM) and did; its next attempt goes on from there."
        )


@dataclass(frozen=True)
class RunContext:
    """One run of one job. `catalog_properties` are PyIceberg's, for the catalog and its FileIO."""

    spark: SparkSession
    spec: RunSpec
    reporter: Reporter
    catalog_properties: Mapping[str, str]
    cancelled: threading.Event = field(default_factory=threading.Event)

    def step(self, name: str) -> None:
        """Mark that a step is done: a place to stop when asked to. Raises: Cancelled.

        Fault injection, for tests: with LETHE_CRASH_AT=<name> the process dies here, as if it had been killed.
        """
        if os.environ.get(CRASH_AT) == name:
            os._exit(KILLED)
        if self.cancelled.is_set():
            raise Cancelled

"""How many executors a run gets for the bytes that it reads. Pure. The operator and the driver use the same rule."""

import math
from dataclasses import dataclass
from typing import Final

# Iceberg's read.split.target-size: about as much as one task reads.
TASK_BYTES: Final = 128 * 1024 * 1024
# From this number of rounds of tasks on, executors are faster than a driver alone.
ROUNDS: Final = 4


@dataclass(frozen=True)
class ExecutorRule:
    """The limits between which the number of executors follows the bytes."""

    driver_cores: int  # tasks at the same time in a driver that works alone
    executor_cores: int  # tasks at the same time in one executor
    fewest: int  # executors, also for a small run
    most: int  # executors; 0: the driver always works alone

    def executors(self, run_bytes: int) -> int:
        """The number of executors for a run that reads `run_bytes`; 0: the driver works alone."""
        tasks = math.ceil(run_bytes / TASK_BYTES)
        if self.most == 0 or (self.fewest == 0 and tasks <= ROUNDS * self.driver_cores):
            return 0
        wanted = math.ceil(tasks / (self.executor_cores * ROUNDS))
        return min(max(wanted, 1, self.fewest), self.most)

"""How large a run of the benchmark of reading is. Pure values."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.scales import Size


@dataclass(frozen=True)
class ReadingScale:
    """The sizes that determine how long the benchmark takes. Rounds do not include the warm-up."""

    name: str
    # The table that is read, once sorted and once not.
    table: Size
    # Numbers of tombstones of the tables; the middle one is also clustered, and has rivals of all kinds.
    levels: Sequence[int]
    # Rounds of reads by Spark, and by other engines.
    rounds: int
    engine_rounds: int
    # Memory of the driver, as Spark takes it.
    driver_memory: str = "2g"

    @property
    def goal_level(self) -> int:
        return self.levels[len(self.levels) // 2]


SCALES = {
    "tiny": ReadingScale("tiny", Size(2, 60, 20, 2), (2, 10, 30), 1, 1),
    "small": ReadingScale("small", Size(12, 2_000, 100, 2), (100, 1_000, 10_000), 3, 2),
    # Spark scans the table in ten seconds on two cores.
    "full": ReadingScale("full", Size(12, 20_000, 150, 4), (100, 10_000, 100_000), 5, 3, driver_memory="6g"),
}

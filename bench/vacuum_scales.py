"""How large a run of the benchmark of the vacuum is. Pure values."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.scales import Size


@dataclass(frozen=True)
class VacuumScale:
    """The sizes that determine how long the benchmark takes. Rounds do not include the warm-up of several rounds."""

    name: str
    # The table that is purged, once sorted and once unsorted.
    table: Size
    # Numbers of reverted batches of a purge, evenly spread.
    deleted: Sequence[int]
    # Rounds of purges, each of another table.
    purge_rounds: int
    # Reverted batches of the tables that are read before and after their purge.
    read_deleted: int
    read_rounds: int
    # Data files of the tables of which SCAN reads only metadata. Each is combined with each number of `tombstones`.
    files: Sequence[int]
    tombstones: Sequence[int]
    # Rounds of SCAN, each in another process.
    scan_rounds: int
    # Memory of the driver, as Spark takes it.
    driver_memory: str = "2g"


SCALES = {
    "tiny": VacuumScale(
        "tiny",
        table=Size(2, 60, 20, 6),
        deleted=(4, 120),
        purge_rounds=1,
        read_deleted=4,
        read_rounds=1,
        files=(20, 50),
        tombstones=(10, 40),
        scan_rounds=1,
        driver_memory="768m",
    ),
    "small": VacuumScale(
        "small",
        table=Size(10, 100, 500, 20),
        deleted=(20, 200, 1_000),
        purge_rounds=1,
        read_deleted=200,
        read_rounds=3,
        files=(1_000, 10_000),
        tombstones=(1_000, 10_000),
        scan_rounds=2,
    ),
    "full": VacuumScale(
        "full",
        table=Size(10, 500, 1_000, 40),
        deleted=(100, 1_000, 5_000),
        purge_rounds=3,
        read_deleted=1_000,
        read_rounds=5,
        files=(1_000, 10_000, 100_000),
        tombstones=(1_000, 10_000, 100_000),
        scan_rounds=3,
        driver_memory="4g",
    ),
}

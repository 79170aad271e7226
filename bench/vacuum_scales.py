"""How large a run of the benchmark of the vacuum is. Pure values."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.scales import Size


@dataclass(frozen=True)
class Scale:
    """Everything that makes a run long or short. Rounds are those measured, the warm-up comes on top, if there are several.

    Args:
        table: That batches are taken out of and purged from, once sorted and once not.
        deleted: Batches taken back before a purge, evenly spread.
        purge_rounds: A purge is of a table of its own each time.
        read_deleted: Batches taken back of the tables that are read before and after their purge.
        files, tombstones: Of the tables whose metadata alone is scanned, each number of the one with each of the other.
        scan_rounds: Each in a process of its own.
    """

    name: str
    table: Size
    deleted: Sequence[int]
    purge_rounds: int
    read_deleted: int
    read_rounds: int
    files: Sequence[int]
    tombstones: Sequence[int]
    scan_rounds: int
    driver_memory: str = "2g"


SCALES = {
    "tiny": Scale(
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
    "small": Scale(
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
    "full": Scale(
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

"""How large a run of the benchmark of purges of large files is. Pure values."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.scales import Size


@dataclass(frozen=True)
class LargeScale:
    """The sizes that determine how long the benchmark takes."""

    name: str
    # The table, once sorted and once not.
    table: Size
    # Numbers of reverted batches of a purge, evenly spread, each with its number of rounds.
    reverts: Sequence[tuple[int, int]]
    reverts_on_s3: Sequence[tuple[int, int]]
    # Each row group of the unsorted table has rows of all batches, so the number of batches matters little.
    reverts_of_unsorted: Sequence[tuple[int, int]]
    # A copy-on-write DELETE of more batches is left out: it shuffles all rows of the files that it touches, and for those of all
    # files 41 GB of disk were not enough.
    copy_on_write_up_to: int = 10
    # Memory of the driver, as Spark takes it.
    driver_memory: str = "2g"


SCALES = {
    "tiny": LargeScale("tiny", Size(1, 20, 100, 2), ((2, 1),), ((2, 1),), ((2, 1),), driver_memory="768m"),
    "small": LargeScale("small", Size(2, 200, 50_000, 2), ((2, 1), (4, 1)), ((2, 1),), ((2, 1),)),
    "full": LargeScale(
        "full",
        # 64 files of 134 MiB.
        Size(4, 2_500, 55_000, 16),
        reverts=((10, 2), (100, 1)),
        reverts_on_s3=((10, 1), (100, 1)),
        reverts_of_unsorted=((10, 1),),
        driver_memory="4g",
    ),
}

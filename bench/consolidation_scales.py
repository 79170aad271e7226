"""How large a run of the benchmark of consolidation is. Pure values."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Everything that makes a run long or short.

    Args:
        files: Small files that are consolidated one run after the other, `per_run` at a time.
        growth: Small files of single runs, to see what grows with them.
        sample: Batches that each rival commits one by one.
        commits: One after the other, of one batch each.
        window: So many of them are looked at together.
        register_files: Registered in one commit, `register_rounds` times.
    """

    name: str
    files: int
    per_run: int
    growth: Sequence[int]
    sample: int
    commits: int
    window: int
    register_files: int
    register_rounds: int
    driver_memory: str = "2g"


SCALES = {
    "tiny": Scale(
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
    "small": Scale(
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
    "full": Scale(
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

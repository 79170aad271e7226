"""How large a run of the benchmark of restatement is. Pure values."""

from dataclasses import dataclass
from typing import Final

from lethe_operator.restatement.queue import PAUSE_BETWEEN_COMMITS

from bench.scales import Size

# Between two Restatements: longer than the pause between two commits, so that none waits for the commit before it.
QUIET_SECONDS: Final = PAUSE_BETWEEN_COMMITS.total_seconds() + 1


@dataclass(frozen=True)
class RestatementScale:
    """The sizes that determine how long the benchmark takes."""

    name: str
    # Restatements that are created at once, each of one batch.
    thrown: int
    # One of this many Restatements is a Replay. The others are Reverts.
    replay_every: int
    # Restatements per minute of the steady part.
    per_minute: int
    # Duration of the steady part.
    minutes: int
    # Batches that a producer adds per minute of the steady part.
    batches_per_minute: int
    # Active tombstones at which the vacuum of the steady part starts.
    vacuum_at: int
    # Restatements that are each created when nothing else is running.
    alone: int
    # The table whose batches Lethe and SQL delete in one session.
    table: Size
    # Batches that are deleted together in that session.
    group: int
    # Rounds of ways that do not rewrite data.
    rounds: int
    # Rounds of ways that rewrite data.
    rewrite_rounds: int
    # Reverts of one batch each, one after the other.
    commits: int
    # Commits that are evaluated together.
    window: int
    # Memory of the driver, as Spark takes it.
    driver_memory: str = "2g"


SCALES = {
    "tiny": RestatementScale(
        "tiny",
        thrown=40,
        replay_every=10,
        per_minute=60,
        minutes=1,
        batches_per_minute=30,
        vacuum_at=30,
        alone=3,
        table=Size(2, 60, 20, 2),
        group=20,
        rounds=1,
        rewrite_rounds=1,
        commits=30,
        window=10,
        driver_memory="768m",
    ),
    "small": RestatementScale(
        "small",
        thrown=1_000,
        replay_every=20,
        per_minute=208,
        minutes=3,
        batches_per_minute=60,
        vacuum_at=300,
        alone=10,
        table=Size(12, 2_000, 100, 1),
        group=1_000,
        rounds=3,
        rewrite_rounds=1,
        commits=1_000,
        window=200,
    ),
    "full": RestatementScale(
        "full",
        thrown=15_000,
        replay_every=50,
        per_minute=208,
        minutes=15,
        batches_per_minute=60,
        vacuum_at=1_000,
        alone=30,
        table=Size(12, 20_000, 100, 4),
        group=1_000,
        rounds=5,
        rewrite_rounds=2,
        commits=10_000,
        window=1_000,
        driver_memory="4g",
    ),
}

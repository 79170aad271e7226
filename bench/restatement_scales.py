"""How large a run of the benchmark of restatement is. Pure values."""

from dataclasses import dataclass

from bench.scales import Size


@dataclass(frozen=True)
class Scale:
    """Everything that makes a run long or short.

    Args:
        thrown: Restatements that are created at once, of as many batches.
        replay_every: Each so-manieth is a Replay, the others are Reverts.
        per_minute, minutes: Restatements that come steadily.
        batches_per_minute: That a producer adds meanwhile, for consolidation.
        vacuum_at: Active tombstones at which the vacuum beside it runs.
        alone: Restatements of which each comes when nothing else is going on.
        table: That batches are taken out of in one session, by Lethe and by SQL.
        group: Batches that are taken out at once there.
        rounds, rewrite_rounds: Of that; the latter of what rewrites data.
        commits: Reverts one after the other, of one batch each.
        window: So many of them are looked at together.
    """

    name: str
    thrown: int
    replay_every: int
    per_minute: int
    minutes: int
    batches_per_minute: int
    vacuum_at: int
    alone: int
    table: Size
    group: int
    rounds: int
    rewrite_rounds: int
    commits: int
    window: int
    driver_memory: str = "2g"


SCALES = {
    "tiny": Scale(
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
    "small": Scale(
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
    "full": Scale(
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

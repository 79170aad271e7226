"""How large a run of the benchmark of the operator is. Pure values."""

from dataclasses import dataclass

from bench import restatement_scales
from bench.restatement_scales import RestatementScale


@dataclass(frozen=True)
class OperatorScale:
    """The sizes that determine how long the benchmark takes."""

    name: str
    # Datasets that are created at once.
    datasets: int
    # Seconds after which their statuses need not become correct any more.
    correct_within_seconds: int
    # Finished Restatements that exist while the operator is idle.
    finished: int
    # Seconds within which the intervals of idle Datasets must reach their maximum, before anything is measured.
    settle_seconds: int
    # Seconds for which the idle operator is measured.
    idle_seconds: int
    # Reverts, one at a time, each on another of the Datasets.
    reverts: int
    # Runs that become due per minute.
    runs_per_minute: int
    # Duration of these runs.
    run_minutes: int
    # How often the operator is killed.
    kills: int
    # Replays, one at a time, by a warm driver.
    replays: int
    # Reverts without a vacuum, and as many beside one.
    beside_vacuum: int
    # Small files in the buffer of a Dataset.
    small_files: int
    # The sizes of thousands of Restatements at once, of a steady rate, and of consecutive Reverts.
    restatement: RestatementScale

    @property
    def driver_memory(self) -> str:
        """Memory of the session that consecutive Reverts run in, as Spark takes it."""
        return self.restatement.driver_memory


SCALES = {
    "tiny": OperatorScale(
        "tiny",
        datasets=20,
        correct_within_seconds=300,
        finished=100,
        settle_seconds=600,
        idle_seconds=20,
        reverts=3,
        runs_per_minute=60,
        run_minutes=1,
        kills=1,
        replays=2,
        beside_vacuum=3,
        small_files=100,
        restatement=restatement_scales.SCALES["tiny"],
    ),
    "small": OperatorScale(
        "small",
        datasets=100,
        correct_within_seconds=600,
        finished=500,
        settle_seconds=900,
        idle_seconds=60,
        reverts=10,
        runs_per_minute=200,
        run_minutes=1,
        kills=3,
        replays=5,
        beside_vacuum=8,
        small_files=10_000,
        restatement=restatement_scales.SCALES["small"],
    ),
    "medium": OperatorScale(
        "medium",
        datasets=1_000,
        correct_within_seconds=1_200,
        finished=5_000,
        settle_seconds=1_200,
        idle_seconds=120,
        reverts=20,
        runs_per_minute=200,
        run_minutes=3,
        kills=3,
        replays=5,
        beside_vacuum=8,
        small_files=20_000,
        restatement=restatement_scales.SCALES["small"],
    ),
    "full": OperatorScale(
        "full",
        datasets=10_000,
        correct_within_seconds=3_600,
        finished=50_000,
        settle_seconds=2_400,
        idle_seconds=300,
        reverts=40,
        runs_per_minute=200,
        run_minutes=10,
        kills=5,
        replays=20,
        beside_vacuum=30,
        small_files=100_000,
        restatement=restatement_scales.SCALES["full"],
    ),
}

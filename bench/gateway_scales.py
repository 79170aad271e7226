"""How large a run of the benchmark of the gateway is. Pure values."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GatewayScale:
    """The sizes that determine how long the benchmark takes."""

    name: str
    # Batches in the one table.
    batches: int
    # Requests of each kind.
    requests: int
    # Seconds for which as many pages as possible are read.
    seconds: float
    # Batches that change before the index is refreshed.
    changed: int
    # Batches of one small file that are uploaded.
    small_batches: int
    # The size of one large file that is uploaded, and how often.
    large_bytes: int
    rounds: int
    # Commits of 100 batches whose events are published as a backlog, and commits whose lag is measured.
    event_commits: int
    lag_commits: int
    # Messages that the inlet and its rival read, and how often each of them does.
    messages: int
    inlet_rounds: int

    @property
    def driver_memory(self) -> str:
        return ""  # there is no driver


SCALES = {
    s.name: s
    for s in (
        GatewayScale(
            "tiny",
            batches=2_000,
            requests=3,
            seconds=0.2,
            changed=5,
            small_batches=5,
            large_bytes=70 << 20,
            rounds=1,
            event_commits=2,
            lag_commits=3,
            messages=2_000,
            inlet_rounds=1,
        ),
        GatewayScale(
            "small",
            batches=100_000,
            requests=50,
            seconds=5,
            changed=100,
            small_batches=50,
            large_bytes=256 << 20,
            rounds=3,
            event_commits=50,
            lag_commits=50,
            messages=200_000,
            inlet_rounds=1,
        ),
        GatewayScale(
            "full",
            batches=1_000_000,
            requests=200,
            seconds=20,
            changed=100,
            small_batches=500,
            large_bytes=1 << 30,
            rounds=5,
            event_commits=300,
            lag_commits=300,
            messages=2_000_000,
            inlet_rounds=3,
        ),
    )
}

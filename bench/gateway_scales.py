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

    @property
    def driver_memory(self) -> str:
        return ""  # there is no driver


SCALES = {
    s.name: s
    for s in (
        GatewayScale("tiny", batches=2_000, requests=3, seconds=0.2, changed=5),
        GatewayScale("small", batches=100_000, requests=50, seconds=5, changed=100),
        GatewayScale("full", batches=1_000_000, requests=200, seconds=20, changed=100),
    )
}

"""Measure cases in turns: A B C, A B C, … so that other load of the machine affects all cases equally."""

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

WARM_UP = -1  # the number of the round that is not counted


@dataclass(frozen=True)
class Sample:
    """One measurement: wall seconds, and bytes where they are of interest."""

    seconds: float
    bytes: int | None = None


@dataclass
class Case:
    """One case to measure."""

    # What is measured.
    labels: dict[str, Any]
    # Carries out one round. Called with the number of the round, first with WARM_UP.
    act: Callable[[int], Sample]
    rounds: int
    warm_up: bool = True
    samples: list[Sample] = field(default_factory=list)
    error: str = ""

    @property
    def name(self) -> str:
        return " ".join(str(v) for v in self.labels.values())

    def result(self) -> dict[str, Any]:
        """The labels, and the spread of each quantity, as JSON values."""
        found: dict[str, Any] = dict(self.labels)
        if self.error:
            found["error"] = self.error
        if self.samples:
            found["seconds"] = spread([round(s.seconds, 4) for s in self.samples])
            sizes = [s.bytes for s in self.samples if s.bytes is not None]
            if sizes:
                found["bytes"] = spread(sizes)
        return found


def spread(values: Sequence[float]) -> dict[str, Any]:
    return {
        "min": min(values),
        "median": statistics.median(values),
        "max": max(values),
        "mean": round(statistics.fmean(values), 4),
        "all": list(values),
    }


def in_turns(cases: Iterable[Case]) -> list[dict[str, Any]]:
    """Measure all cases, one after the other in each round. A case that fails reports the error in its result, and is skipped
    in further rounds."""
    wanted = list(cases)
    for number in range(WARM_UP, max((c.rounds for c in wanted), default=0)):
        for case in wanted:
            if case.error or number >= case.rounds or (number == WARM_UP and not case.warm_up):
                continue
            try:
                sample = case.act(number)
            except Exception as e:
                case.error = failure(e)
                say(f"  {case.name}: FAILED, {case.error}")
                continue
            if number != WARM_UP:
                case.samples.append(sample)
            label = "warm-up" if number == WARM_UP else f"{number + 1}/{case.rounds}"
            size = "" if sample.bytes is None else f", {sample.bytes:,} bytes"
            say(f"  {label:>8} {case.name}: {sample.seconds:.3f} s{size}")
    return [c.result() for c in wanted]


def failure(error: Exception) -> str:
    """An error in one line."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:300] if text else ''}"


def seconds_of(act: Callable[[], object]) -> float:
    """Wall seconds of one call, after a garbage collection."""
    gc.collect()
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


_START = time.monotonic()


def say(text: str) -> None:
    """A line of progress with the minutes since the start and the machine's load."""
    minutes, seconds = divmod(int(time.monotonic() - _START), 60)
    print(f"{minutes:3d}:{seconds:02d} (load {os.getloadavg()[0]:.1f}) {text}", file=sys.stderr, flush=True)

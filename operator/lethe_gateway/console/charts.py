"""The geometry of charts, as numbers for SVG attributes. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

WIDTH: Final = 620
HEIGHT: Final = 120
_GAP: Final = 0.25  # of the width of a bar


@dataclass(frozen=True)
class Bar:
    """One bar, in the units of the SVG's view box."""

    label: str
    value: int
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class BarChart:
    bars: Sequence[Bar]
    highest: int  # the value of the highest bar
    width: int = WIDTH
    height: int = HEIGHT

    @property
    def total(self) -> int:
        return sum(bar.value for bar in self.bars)


def per_day(counts: Mapping[datetime, int], now: datetime, days: int) -> BarChart:
    """A bar for each of the last days in UTC, also for those without a count."""
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    wanted = [today - timedelta(days=n) for n in reversed(range(days))]
    highest = max([counts.get(day, 0) for day in wanted], default=0)
    step = WIDTH / days
    bars = []
    for n, day in enumerate(wanted):
        value = counts.get(day, 0)
        height = round(HEIGHT * value / highest, 1) if highest else 0.0
        height = max(height, 1.0) if value else 0.0
        x, width = round(n * step, 1), round(step * (1 - _GAP), 1)
        bars.append(Bar(f"{day:%Y-%m-%d}", value, x, round(HEIGHT - height, 1), width, height))
    return BarChart(bars, highest)

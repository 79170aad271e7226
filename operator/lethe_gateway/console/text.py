"""How values are written on a page, and the geometry of charts as numbers for SVG attributes. Pure."""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import quote, unquote

NOTHING: Final = "\N{EN DASH}"  # in place of an unknown value
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEPS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
# Control and format characters, such as those that change the direction of writing; separators of lines; and surrogates.
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def visible(text: object) -> str:
    """A text in which characters that cannot be seen are written as escapes, so that none is overlooked."""
    return "".join(_escaped(c) if unicodedata.category(c) in _HIDDEN else c for c in str(text))


def short(text: object, most: int = 60) -> str:
    """A visible text of at most so many characters."""
    whole = visible(text)
    return whole if len(whole) <= most else f"{whole[: most - 1]}…"


def account(username: str) -> str:
    """A user's name, of a ServiceAccount without what all of them begin with."""
    return short(username.removeprefix("system:serviceaccount:"), 40)


def number(value: int | float | None) -> str:
    """A number with commas between thousands; NOTHING for None."""
    return NOTHING if value is None else f"{value:,}"


def size(count: int | None) -> str:
    """Bytes in binary units, with three digits."""
    if count is None:
        return NOTHING
    value, unit = float(count), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 or value >= 100 else f"{value:.3g} {_UNITS[unit]}"


def time(value: datetime | None) -> str:
    """A time in UTC, to the second, without a name of the zone; NOTHING for None."""
    return NOTHING if value is None else f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def machine_time(value: datetime) -> str:
    """For the attribute `datetime`."""
    return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def distance(value: datetime, now: datetime) -> str:
    """How far a time is from now: 3 min ago, in 2 d."""
    seconds = (value - now).total_seconds()
    amount = next((f"{int(abs(seconds) // step)} {unit}" for step, unit in _STEPS if abs(seconds) >= step), "")
    if not amount:
        return "now"
    return f"in {amount}" if seconds > 0 else f"{amount} ago"


def encoded(batch_id: str) -> str:
    """A batch id as the value of a form, which would change line breaks."""
    return quote(batch_id, safe="")


def decoded(value: str) -> str:
    """The batch id that `encoded` has written.

    Raises:
        UnicodeDecodeError: The value is not UTF-8.
    """
    return unquote(value, errors="strict")


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


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
    """The bars of a chart, from left to right, in the units of a view box of `width` and `height`."""

    bars: Sequence[Bar]
    highest: int
    """The value of the highest bar."""
    width: int = WIDTH
    height: int = HEIGHT

    @property
    def total(self) -> int:
        """The sum of the values of all bars."""
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

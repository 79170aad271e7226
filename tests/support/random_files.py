"""Random Parquet files of several writers, and a check that the places which a footer names are there."""

import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from lethe.purge import footer
from lethe.purge.footer import Struct, decode, extent, footer_of, groups_of

WRITERS = ("arrow", "duckdb", "polars")
TYPES = {
    "int": pa.int64(), "float": pa.float64(), "text": pa.string(), "flag": pa.bool_(),
    "time": pa.timestamp("us", "UTC"), "money": pa.decimal128(12, 2), "bytes": pa.binary(), "list": pa.list_(pa.string()),
    "struct": pa.struct([("a", pa.int64()), ("b", pa.list_(pa.struct([("c", pa.string())])))]),
}  # fmt: skip
_BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
_ID = b"PARQUET:field_id"


def some_values(kind: str, rows: int, luck: random.Random) -> pa.Array:
    def one() -> Any:
        n = luck.randrange(5 if luck.random() < 0.5 else 10**6)
        match kind:
            case "int":
                return n
            case "float":
                return float("nan") if n % 7 == 0 else n / 3
            case "text":
                return "x" * (n % 50) + str(n)
            case "flag":
                return n % 2 == 0
            case "time":
                return _BEGAN + timedelta(microseconds=n)
            case "money":
                return Decimal(n) / 100
            case "bytes":
                return str(n).encode()
            case "list":
                return [None if i % 3 == 0 else str(n + i) for i in range(n % 4)]
            case _:
                return {"a": n, "b": [{"c": str(n)}]}

    nulls = luck.choice((0.0, 0.1, 1.0))
    return pa.array([None if luck.random() < nulls else one() for _ in range(rows)], TYPES[kind])


def a_table(luck: random.Random, at_most: int = 4000) -> pa.Table:
    """Up to so many rows with a number `n`, and some of `TYPES`."""
    rows = luck.randrange(1, at_most)
    kinds = luck.sample(tuple(TYPES), luck.randrange(1, 9))
    return pa.table({"n": range(rows)} | {kind: some_values(kind, rows, luck) for kind in kinds})


def write(path: Path, table: pa.Table, writer: str, luck: random.Random) -> None:
    """Write with random options. Field ids of the table's schema come into the file."""
    codec, rows = luck.choice(("zstd", "snappy", "gzip")), luck.choice((200, 1000))
    match writer:
        case "arrow":
            bloom: Any = {"n": {"ndv": 100}} if luck.random() < 0.3 else None
            pq.write_table(
                table, path, row_group_size=rows, compression=luck.choice((codec, "none", "lz4")),
                use_dictionary=luck.random() < 0.7, data_page_version=luck.choice(("1.0", "2.0")), data_page_size=500,
                write_page_index=luck.random() < 0.7, bloom_filter_options=bloom, write_page_checksum=luck.random() < 0.3,
                store_decimal_as_integer=luck.random() < 0.7,
            )  # fmt: skip
        case "duckdb":
            ids = f", FIELD_IDS {{{_ids_for_duckdb(table.schema)}}}" if _has_ids(table) else ""
            duckdb.sql(f"COPY \"table\" TO '{path}' (FORMAT parquet, CODEC {codec}, ROW_GROUP_SIZE 2048{ids})")
        case _:
            frame: Any = pl.from_arrow(table)
            given: Any = {"arrow_schema": table.schema} if _has_ids(table) else {}
            frame.write_parquet(
                path, compression=codec, row_group_size=rows, statistics="full", data_page_size=500, **given
            )


def _has_ids(table: pa.Table) -> bool:
    return all(_ID in (f.metadata or {}) for f in table.schema)


def _ids_for_duckdb(fields: Iterable[pa.Field]) -> str:
    """Iceberg's field ids as the option of COPY takes them."""
    return ", ".join(f"'{f.name}': {_id_for_duckdb(f)}" for f in fields)


def _id_for_duckdb(field: pa.Field) -> str:
    own = field.metadata[_ID].decode()
    if pa.types.is_list(field.type) or pa.types.is_large_list(field.type):
        return f"{{__duckdb_field_id: {own}, element: {_id_for_duckdb(field.type.value_field)}}}"
    if pa.types.is_struct(field.type):
        return f"{{__duckdb_field_id: {own}, {_ids_for_duckdb(field.type)}}}"
    return own


def check_places(path: Path) -> None:
    """The footer and the page indexes point at pages of this file."""
    content = path.read_bytes()
    with path.open("rb") as stream:
        groups = groups_of(footer_of(stream, len(content)))
    for group in groups:
        _check_group(content, group)


def _check_group(content: bytes, group: Struct) -> None:
    for chunk in group[footer.COLUMNS].items:
        data = chunk[footer.CHUNK_DATA]
        decode(content[data[footer.DATA_PAGE] :][:10_000])  # a header of a page
        assert footer.BLOOM not in data.fields
        if footer.OFFSET_INDEX in chunk.fields:
            start, length = chunk[footer.OFFSET_INDEX], chunk[footer.OFFSET_INDEX_LENGTH]
            pages = decode(content[start : start + length])[footer.PAGES].items
            assert pages[0][footer.PAGE_OFFSET] == data[footer.DATA_PAGE]
            assert all(extent(group)[0] <= page[footer.PAGE_OFFSET] < extent(group)[1] for page in pages)

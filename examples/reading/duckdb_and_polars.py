"""Read a table with DuckDB and Polars: Lethe leaves out deleted rows and passes the others on with Arrow.

    pip install lethe-lake duckdb polars
    python duckdb_and_polars.py main.air.flights [--since SNAPSHOT_ID]

The catalog (`main`) is one of PyIceberg's `.pyiceberg.yaml`. Works on any Iceberg table; one that Lethe never saw is read
as it is.
"""

import argparse

import duckdb
import lethe
import polars as pl


def rows_per_batch_by_duckdb(table: str, batch_column: str) -> list[tuple[str | None, int]]:
    """DuckDB reads the stream batch by batch, so the table need not fit into memory. Only one column is read."""
    stream = lethe.scan(table, columns=[batch_column]).to_reader()
    connection = duckdb.connect()
    connection.register("flights", stream)
    found = connection.sql(f'SELECT "{batch_column}", count(*) FROM flights GROUP BY ALL ORDER BY ALL').fetchall()
    return [(batch, int(rows)) for batch, rows in found]


def rows_per_batch_by_polars(table: str, batch_column: str) -> list[tuple[str | None, int]]:
    """Polars uses the Arrow table without copying it."""
    frame = pl.from_arrow(lethe.scan(table, columns=[batch_column]).to_arrow())
    assert isinstance(frame, pl.DataFrame)
    return frame.group_by(batch_column).len().sort(batch_column, nulls_last=True).rows()


def increment(table: str, since: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows that were added and deleted after a snapshot: what a copy of the table elsewhere must add and delete."""
    came, went = (
        pl.from_arrow(lethe.scan(table, since=since, rows=which).to_arrow()) for which in ("appended", "deleted")
    )
    assert isinstance(came, pl.DataFrame)
    assert isinstance(went, pl.DataFrame)
    return came, went


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", help="catalog.namespace.table")
    parser.add_argument("--batch-column", default="batch_id")
    parser.add_argument("--since", type=int, help="also show what came and went after this snapshot")
    arguments = parser.parse_args()
    for batch, rows in rows_per_batch_by_duckdb(arguments.table, arguments.batch_column):
        print(f"duckdb  {batch}  {rows}")
    for batch, rows in rows_per_batch_by_polars(arguments.table, arguments.batch_column):
        print(f"polars  {batch}  {rows}")
    if arguments.since is not None:
        came, went = increment(arguments.table, arguments.since)
        print(f"appended  {came.height}")
        print(f"deleted  {went.height}")


if __name__ == "__main__":
    main()

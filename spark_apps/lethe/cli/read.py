"""`lethe read` prints rows of a table that are not deleted, or an increment of rows."""

import csv
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import click
import pyarrow as pa
import pyarrow.parquet as pq

from lethe.base.errors import InputError
from lethe.cli.opening import Opened, open_table, table_or_dataset
from lethe.cli.output import SnapshotOrTime, Time, print_table, progress, working
from lethe.iceberg.conditions import RowCondition
from lethe.read.scan import Scan, resolve_snapshot, scan, schema_of

DEFAULT_LIMIT = 100
"""The rows that `--format table` prints."""


@click.command()
@table_or_dataset
@click.option("--snapshot", "snapshot_id", type=int, help="At this snapshot instead of the head.")
@click.option("--as-of", type=Time(), help="At the snapshot that was the head at this time.")
@click.option(
    "--since", type=SnapshotOrTime(), help="Only the rows that were appended or deleted after this snapshot or time."
)
@click.option("--until", type=SnapshotOrTime(), help="The end of the increment; the head by default.")
@click.option(
    "--rows",
    type=click.Choice(["appended", "deleted"]),
    help="Which rows of the increment.  [default: appended]",
)
@click.option(
    "--filter", "condition", help="Only rows that meet this condition, e.g. \"carrier = 'UA' and delay > 30\"."
)
@click.option("--columns", help="Only these columns, separated by commas.")
@click.option(
    "--limit", type=click.IntRange(min=0), help=f"The largest number of rows.  [default: {DEFAULT_LIMIT} with `table`]"
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    default="table",
    show_default=True,
    help="`json` prints one object per line; `parquet` needs --output.",
)
@click.option("--output", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="Write to this file.")
def read(table: str, form: str, output: Path | None, limit: int | None, batch_column: str, **how: Any) -> None:
    """Print the rows of a table, or of the table of a Dataset, without the rows of deleted batches."""
    _check(how, form, output)
    opened = open_table(table, batch_column)
    with working(f"planning to read {table}"):
        rows = _scan(opened, how)
    if form == "table":
        _show(rows, DEFAULT_LIMIT if limit is None else limit, limit is None)
        return
    with counted(rows, limit) as (schema, batches):
        if output is None:
            _text(form, schema, batches, sys.stdout)
        else:
            write_file(form, schema, batches, output)


def write_file(form: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], path: Path) -> None:
    """Write rows to a file, batch by batch.

    Args:
        form: parquet, csv or json: one object per line.
    """
    if form == "parquet":
        with pq.ParquetWriter(path, schema) as parquet:
            for batch in batches:
                parquet.write_batch(batch)
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        _text(form, schema, batches, file)


def _check(how: dict[str, Any], form: str, output: Path | None) -> None:
    if form == "parquet" and output is None:
        raise click.UsageError("--format parquet needs --output FILE.")
    if form == "table" and output is not None:
        raise click.UsageError("--output needs --format csv, json or parquet.")
    if how["since"] is None and (how["until"] is not None or how["rows"] is not None):
        raise click.UsageError("--until and --rows need --since.")
    if sum(how[k] is not None for k in ("snapshot_id", "as_of", "since")) > 1:
        raise click.UsageError("Give only one of --snapshot, --as-of and --since.")


def _scan(opened: Opened, how: dict[str, Any]) -> Scan:
    as_of: datetime | None = how["as_of"]
    chosen = resolve_snapshot(opened.facts, opened.table, how["snapshot_id"], as_of)
    past = how["snapshot_id"] is not None or as_of is not None
    schema = schema_of(opened.table, chosen if past else None)
    columns = [c.strip() for c in how["columns"].split(",")] if how["columns"] else None
    arguments: dict[str, Any] = {"columns": columns, "filter": None}
    if how["condition"]:
        try:
            RowCondition.of(schema, how["condition"])
        except InputError as e:
            if e.reason == "UnknownType":
                raise
            known = ", ".join(f.name for f in schema.fields)
            raise InputError(
                "InvalidFilter",
                f"--filter is not a valid condition on {opened.name}: {e.message} Its columns are {known}. "
                "Write, for example, carrier = 'UA' and delay > 30.",
            ) from e
        arguments["filter"] = how["condition"]
    if how["since"] is not None:
        arguments |= {"since": how["since"], "until": how["until"], "rows": how["rows"] or "appended"}
    else:
        arguments |= {"snapshot_id": how["snapshot_id"], "as_of": as_of}
    return scan(opened.table, **arguments)


@contextmanager
def counted(rows: Scan, limit: int | None) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """The schema and the record batches; a progress bar counts the rows."""
    with progress() as bar:
        task = bar.add_task("rows", total=limit)

        def counted() -> Iterator[pa.RecordBatch]:
            for batch in (rows if limit is None else rows.limit(limit)).to_reader():
                yield batch
                bar.advance(task, batch.num_rows)

        yield rows.schema, counted()


def _show(rows: Scan, limit: int, by_default: bool) -> None:
    """Print a table of at most `limit` rows."""
    with working("reading"):
        table = rows.limit(limit + 1 if by_default else limit).to_reader().read_all()
    print_table(
        table.column_names,
        ([_cell(v) for v in row.values()] for row in table.slice(0, limit).to_pylist()),
        [f.name for f in table.schema if pa.types.is_integer(f.type) or pa.types.is_floating(f.type)],
        styles={},
    )
    if table.num_rows > limit:
        click.echo(f"Only {limit} rows are shown. Use --limit to print more.", err=True)


def _text(form: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], file: IO[str]) -> None:
    if form == "json":
        for batch in batches:
            for row in batch.to_pylist():
                file.write(json.dumps(row, ensure_ascii=False, default=_json) + "\n")
        return
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(schema.names)
    for batch in batches:
        lines.writerows([_field(v) for v in row.values()] for row in batch.to_pylist())


def _field(value: Any) -> Any:
    """CSV has neither nested values nor bytes: write them as in JSON."""
    return json.dumps(value, ensure_ascii=False, default=_json) if isinstance(value, (dict, list)) else _cell(value)


def _cell(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else str(_json(value))


def _json(value: Any) -> Any:
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return str(value)

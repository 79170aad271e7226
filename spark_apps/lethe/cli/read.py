"""`lethe read`: the rows of a table that are not deleted, and increments of them."""

import json
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import click
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from pyiceberg.expressions import parser, visitors

from lethe.cli.opening import Opened, open_table
from lethe.cli.options import Moment, SnapshotOrMoment, table_argument
from lethe.cli.output import print_table, working
from lethe.errors import InputError
from lethe.table.scan import resolve_snapshot, scan, schema_of

SHOWN = 100  # rows of a table for people, unless --limit says otherwise


@click.command()
@table_argument
@click.option("--snapshot", "snapshot_id", type=int, help="At this snapshot instead of the head.")
@click.option("--as-of", type=Moment(), help="At the head of this time.")
@click.option("--since", type=SnapshotOrMoment(), help="Only the rows that came or went after this snapshot or time.")
@click.option("--until", type=SnapshotOrMoment(), help="The end of the increment; the head by default.")
@click.option(
    "--rows",
    type=click.Choice(["appended", "deleted"]),
    help="Which rows of the increment.  [default: appended]",
)
@click.option("--filter", "condition", help="Only these rows, e.g. \"carrier = 'UA' and delay > 30\".")
@click.option("--columns", help="Only these columns, separated by commas.")
@click.option("--limit", type=click.IntRange(min=0), help=f"At most so many rows.  [default: {SHOWN} with `table`]")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    default="table",
    show_default=True,
    help="`json` is one object a line; `parquet` needs --output.",
)
@click.option("--output", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="Write to this file.")
def read(table: str, form: str, output: Path | None, limit: int | None, **how: Any) -> None:
    """Print rows as the ledger says: those of batches taken back are left out."""
    _check(how, form, output)
    opened = open_table(table)
    with working(f"reading {table}"):
        rows = _rows(opened, how)
    if form == "table" and limit is None:
        limit = SHOWN
    shown = rows if limit is None else rows.slice(0, limit)
    if output is None:
        _write(shown, form, None)
    elif form == "parquet":
        pq.write_table(shown, output)
    else:
        with output.open("w", encoding="utf-8", newline="") as file:
            _write(shown, form, file)
    if form == "table" and shown.num_rows < rows.num_rows:
        click.echo(f"{shown.num_rows} of {rows.num_rows} rows; --limit shows more", err=True)


def _check(how: dict[str, Any], form: str, output: Path | None) -> None:
    if form == "parquet" and output is None:
        raise click.UsageError("--format parquet needs --output FILE.")
    if how["since"] is None and (how["until"] is not None or how["rows"] is not None):
        raise click.UsageError("--until and --rows belong to --since.")
    if sum(how[k] is not None for k in ("snapshot_id", "as_of", "since")) > 1:
        raise click.UsageError("give one of --snapshot, --as-of and --since.")


def _rows(opened: Opened, how: dict[str, Any]) -> pa.Table:
    at: datetime | None = how["as_of"]
    chosen = resolve_snapshot(opened.facts, opened.table, how["snapshot_id"], at)
    past = how["snapshot_id"] is not None or at is not None
    schema = schema_of(opened.table, chosen if past else None)
    columns = [c.strip() for c in how["columns"].split(",")] if how["columns"] else None
    known = [f.name for f in schema.fields]
    if unknown := [c for c in columns or () if c not in known]:
        raise InputError(
            "UnknownColumn", f"{opened.name} has no column {', '.join(unknown)}; it has {', '.join(known)}."
        )
    wanted: dict[str, Any] = {"columns": columns, "filter": None}
    if how["condition"]:
        try:
            wanted["filter"] = parser.parse(how["condition"])
            visitors.bind(schema, wanted["filter"], case_sensitive=True)
        except Exception as e:
            # The parser's texts repeat the condition, which may hold what should not be seen.
            raise InputError(
                "InvalidFilter",
                f"--filter is no condition on {opened.name} ({type(e).__name__}); its columns are {', '.join(known)}. "
                "Write e.g. carrier = 'UA' and delay > 30.",
            ) from e
    if how["since"] is not None:
        wanted |= {"since": how["since"], "until": how["until"], "rows": how["rows"] or "appended"}
    else:
        wanted |= {"snapshot_id": how["snapshot_id"], "as_of": at}
    return scan(opened.table, **wanted).to_arrow()


def _write(rows: pa.Table, form: str, file: IO[str] | None) -> None:
    if form == "table":
        if file is not None:
            raise click.UsageError("--output needs --format csv, json or parquet.")
        print_table(rows.column_names, ([_text(v) for v in row.values()] for row in rows.to_pylist()), _numbers(rows))
    elif form == "csv":
        buffer = pa.BufferOutputStream()
        pa.csv.write_csv(_flat(rows), buffer)
        click.echo(buffer.getvalue().to_pybytes().decode(), nl=False, file=file)
    else:
        for row in rows.to_pylist():
            click.echo(json.dumps(row, ensure_ascii=False, default=_json), file=file)


def _numbers(rows: pa.Table) -> list[str]:
    return [f.name for f in rows.schema if pa.types.is_integer(f.type) or pa.types.is_floating(f.type)]


def _flat(rows: pa.Table) -> pa.Table:
    """CSV has no nested values, and arrow's writer no extension types: they become text, as JSON has them."""
    for n, f in enumerate(rows.schema):
        if pa.types.is_nested(f.type):
            texts = [None if v is None else json.dumps(v, default=_json) for v in rows.column(n).to_pylist()]
            rows = rows.set_column(n, f.name, pa.array(texts, pa.string()))
        elif pa.types.is_large_string(f.type):
            rows = rows.set_column(n, f.name, pc.cast(rows.column(n), pa.string()))
    return rows


def _text(value: Any) -> str:
    return "" if value is None else value.isoformat() if isinstance(value, datetime) else str(value)


def _json(value: Any) -> Any:
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return str(value)

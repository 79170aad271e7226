"""`lethe read` prints rows of a table or an increment; `lethe get` writes the rows or files of a batch into a folder. I/O.

Invariant: a file has its name only when it is whole. Until then its name begins with a dot.
"""

import csv
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import IO, Any, Final

import click
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import EqualTo

from lethe.base.errors import InputError
from lethe.base.names import batch_folder
from lethe.base.objects import BufferedObject
from lethe.buffer.layout import is_data, path_problem
from lethe.cli.opening import Opened, open_table, table_or_dataset
from lethe.cli.output import SnapshotOrTime, Time, print_table, progress, working
from lethe.iceberg.conditions import RowCondition
from lethe.ledger.ledger import BatchEntry, BatchState, get_many
from lethe.read.scan import Scan, resolve_snapshot, scan, schema_of
from lethe.storage.object_store import ObjectStore, open_store

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

    Raises:
        InputError: `NotInFormat`.
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
        ([_cell(v) for v in row.values()] for row in _rows_of(table.slice(0, limit))),
        [f.name for f in table.schema if pa.types.is_integer(f.type) or pa.types.is_floating(f.type)],
        styles={},
    )
    if table.num_rows > limit:
        click.echo(f"Only {limit} rows are shown. Use --limit to print more.", err=True)


def _text(form: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], file: IO[str]) -> None:
    if form == "json":
        for batch in batches:
            for row in _rows_of(batch):
                try:
                    file.write(json.dumps(row, ensure_ascii=False, default=_json, allow_nan=False) + "\n")
                except ValueError:
                    text = "a row has NaN or an infinite number, which JSON does not have. Use --format csv or parquet."
                    raise InputError("NotInFormat", text) from None
        return
    lines = csv.writer(file, lineterminator="\n")
    quoted = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
    lines.writerow(schema.names)
    for batch in batches:
        for row in _rows_of(batch):
            fields = [_field(v) for v in row.values()]
            # Python quotes no other end of a line than its own, and readers take each for one.
            (quoted if any("\r" in f for f in fields) else lines).writerow(fields)


def _rows_of(rows: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """The rows in Python's types.

    Raises:
        InputError: `NotInFormat`, if Python does not have a time.
    """
    try:
        return list(rows.to_pylist())
    except (ValueError, OverflowError):  # its text may contain the time
        text = (
            "a row has a time outside of the years 1 to 9999, or one with nanoseconds, which is not written as text. Use "
            "--format parquet."
        )
        raise InputError("NotInFormat", text) from None


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


_NAMES: Final = {"parquet": "rows.parquet", "csv": "rows.csv", "json": "rows.jsonl"}


@click.command()
@table_or_dataset
@click.argument("batch")
@click.option("--to", required=True, type=click.Path(file_okay=False, path_type=Path), help="A new or empty folder.")
@click.option(
    "--format",
    "form",
    type=click.Choice(list(_NAMES)),
    default="parquet",
    show_default=True,
    help="`json` writes one object per line.",
)
@click.option(
    "--at", type=SnapshotOrTime(), help="The rows at this snapshot, or at the one that was the head at this time."
)
@click.option("--original", is_flag=True, help="The files from which the batch was promoted, unless they were deleted.")
def get(
    table: str,
    batch: str,
    to: Path,
    form: str,
    at: int | datetime | None,
    original: bool,
    batch_column: str,
) -> None:
    """Write the rows of a BATCH into a folder, without the batch column: `lethe put` and `lethe replay --from` take the folder.

    A batch that was reverted or replaced has no rows in the table: use --at for a snapshot that still has them, or --original.
    An erased batch is not written.
    """
    if original and at is not None:
        raise click.UsageError("--at chooses rows, and --original has none.")
    opened = open_table(table, batch_column)
    with working(f"reading the ledger of {opened.name}"):
        entry = _entry(opened, batch, None)
        if entry is not None and entry.state is BatchState.ERASED:
            raise InputError("BatchErased", f"the batch {batch} is erased since {entry.time:%Y-%m-%d %H:%MZ}.")
        rows = None if original else _rows(opened, batch, entry, at)
    _require_empty(to)
    if rows is None:
        _get_files(opened, batch, entry, to)
        return
    target, count = to / _NAMES[form], 0
    draft = target.with_name(f".{target.name}.part")
    with counted(rows, None) as (schema, batches):

        def each() -> Iterator[pa.RecordBatch]:
            nonlocal count
            for rows_of_batch in batches:
                if form == "csv":
                    _require_no_null_texts(rows_of_batch)
                count += rows_of_batch.num_rows
                yield rows_of_batch

        write_file(form, schema, each(), draft)
    if not count and entry is None:
        draft.unlink()
        raise _unknown(opened, batch)
    size = draft.stat().st_size
    draft.replace(target)
    click.echo(f"batch {batch}: {count} rows, {size} bytes: {target}")


def _require_no_null_texts(rows: pa.RecordBatch) -> None:
    """Require that no text is NULL. CSV writes it as it writes an empty text, and `lethe put` would read it as one.

    Raises:
        InputError: `NotInFormat`.
    """
    for field, values in zip(rows.schema, rows.columns, strict=True):
        is_text = pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
        if is_text and values.null_count:
            text = (
                f"column {field.name} has NULL, which CSV cannot tell from an empty text. Use --format json or parquet."
            )
            raise InputError("NotInFormat", text)


def _entry(opened: Opened, batch: str, snapshot_id: int | None) -> BatchEntry | None:
    return get_many(opened.ledger(snapshot_id).batches, [batch]).get(batch)


def _rows(opened: Opened, batch: str, entry: BatchEntry | None, at: int | datetime | None) -> Scan:
    """The rows of the batch.

    Raises:
        InputError: `BatchTakenBack`, `NoBatchColumn`, and what resolving a snapshot raises.
    """
    snapshot_id = None
    if at is not None:
        given, as_of = (at, None) if isinstance(at, int) else (None, at)
        snapshot_id = resolve_snapshot(opened.facts, opened.table, given, as_of)
        entry = _entry(opened, batch, snapshot_id)
    if entry is not None and entry.state is not BatchState.PROMOTED:
        by = f" by {entry.replaced_by}" if entry.replaced_by else ""
        raise InputError(
            "BatchTakenBack",
            f"the batch {batch} is {entry.state.value}{by} since {entry.time:%Y-%m-%d %H:%MZ}, so the table has no rows of it. "
            f"Name a snapshot from before with --at (`lethe ledger log {opened.name}` lists them), or use --original.",
        )
    schema = schema_of(opened.table, snapshot_id)
    field_id = opened.facts.batch_field_id
    column = schema.find_column_name(field_id) if field_id is not None else None
    if column is None:
        raise InputError("NoBatchColumn", f"{opened.name} has no batch column. Name it with --batch-column.")
    columns = [f.name for f in schema.fields if f.name != column]
    equal: Any = EqualTo  # PyIceberg's models hide their constructors from mypy
    return scan(opened.table, columns=columns, filter=equal(column, batch), snapshot_id=snapshot_id)


def _unknown(opened: Opened, batch: str) -> InputError:
    return InputError(
        "UnknownBatch",
        f"{opened.name} has no batch {batch}. `lethe batches {opened.name}` lists those of the ledger. Those that wait in "
        "the buffer have no rows yet.",
    )


def _require_empty(folder: Path) -> None:
    """Require a folder without files, apart from drafts of an interrupted command, and make it.

    Raises:
        InputError: `FolderNotEmpty`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(not p.name.startswith(".") for p in folder.iterdir()):
        raise InputError(
            "FolderNotEmpty", f"{folder} contains files. Nothing was written. Name a new folder with --to."
        )


def _get_files(opened: Opened, batch: str, entry: BatchEntry | None, folder: Path) -> None:
    """Copy the files of a batch.

    Raises:
        InputError: `UnknownBatch`, `NoOriginals`, `OriginalsGone`.
        StoreError: A store refused a request or did not answer.
    """
    if entry is None:
        raise _unknown(opened, batch)
    objects = [o for o in entry.objects if is_data(o.key)]
    if not objects:
        raise InputError(
            "NoOriginals", f"the ledger names no files of the batch {batch}. Get its rows without --original."
        )
    store = open_store(objects[0].key, opened.properties)
    with working("looking for the files"):
        gone = [o for o in objects if not _is_there(store, o)]
    if gone:
        raise InputError(
            "OriginalsGone",
            f"{len(gone)} of {len(objects)} files of the batch {batch} are gone or were changed, such as {gone[0].key}. Files "
            "of a batch are deleted spec.buffer.retentionSeconds after its promotion, and those of a refused batch are moved to "
            "_refused/. Nothing was written. Get its rows without --original.",
        )
    with progress() as bar:
        task = bar.add_task("files", total=len(objects))
        for path, listed in _paths(objects, _column(opened), batch).items():
            _copy(store, listed, folder / path)
            bar.advance(task)
    click.echo(f"batch {batch}: {len(objects)} files, {sum(o.size for o in objects)} bytes: {folder}")


def _is_there(store: ObjectStore, listed: BufferedObject) -> bool:
    found = store.head(listed.key)
    return found is not None and (found.size, found.etag) == (listed.size, listed.etag)


def _paths(objects: Sequence[BufferedObject], column: str, batch: str) -> dict[str, BufferedObject]:
    """The objects by their paths below the folder of the batch; in other places, below the folder that they share.

    Raises:
        InputError: `UnusableName`, if a path could lead to another folder.
    """
    inner = f"/{batch_folder(column, batch)}/"
    folders = (o.key.split("/")[:-1] for o in objects)
    shared = sum(1 for _ in takewhile(lambda parts: len(set(parts)) == 1, zip(*folders, strict=False)))
    paths = {o.key.partition(inner)[2] or "/".join(o.key.split("/")[shared:]): o for o in objects}
    for path in paths:
        if problem := path_problem(path):
            raise InputError("UnusableName", f"{path[:80]!r}: {problem}. Copy the files with another tool.")
    return paths


def _column(opened: Opened) -> str:
    """The batch column; "": there is none."""
    field_id = opened.facts.batch_field_id
    return (opened.table.schema().find_column_name(field_id) or "") if field_id is not None else ""


def _copy(store: ObjectStore, listed: BufferedObject, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft, reader = path.with_name(f".{path.name}.part"), store.open(listed.key)
    if reader is None or reader.etag != listed.etag:
        raise InputError(
            "OriginalsGone", f"{listed.key} was deleted or changed meanwhile. Get the rows without --original."
        )
    with reader, draft.open("wb") as file:
        shutil.copyfileobj(reader, file, 8 * 1024 * 1024)
    draft.replace(path)

"""Reads the local files as a consolidation would, and refuses what it would refuse. I/O: reads the files."""

from collections.abc import Callable
from pathlib import Path

from lethe.base.errors import InputError
from lethe.contract.settings import FileFormat
from lethe.decoder.process import NoDecoder
from lethe.ingest.buffer_files import ReadSettings
from lethe.ingest.buffer_store import FileTask
from lethe.ingest.checking import check_files, columns_of
from pyiceberg.schema import Schema


def check_local_files(
    schema: Schema,
    batch_column: str,
    batch_id: str,
    files: list[Path],
    format_: FileFormat,
    add_columns: bool,
    on_file: Callable[[], object],
) -> int:
    """Read all rows, with the code of consolidations. Returns: their number.

    Args:
        schema: Of the table.
        add_columns: `spec.schemaEvolution` is AddColumns.
        on_file: Called after each file.
    Raises: InputError, with the reason and the message with which the batch would be refused, or `UnsupportedColumn`,
        `NotChecked`.
    """
    try:
        columns = columns_of(schema)
    except InputError as e:
        raise InputError(e.reason, f"{e.message}. Put the files with --no-check.") from None
    settings = ReadSettings(batch_column, {}, format_, add_columns)
    tasks = [FileTask(batch_id, f"file://{path}", path.stat().st_size) for path in files]
    try:
        checked = check_files(columns, tasks, settings, on_file=on_file)
    except NoDecoder as e:
        raise InputError("NotChecked", f"The files cannot be checked here: {e}. Put them with --no-check.") from None
    if checked.refusal is not None:
        raise InputError(checked.refusal.reason, f"{checked.refusal.message}. Nothing was put into the buffer.")
    return checked.rows or 0

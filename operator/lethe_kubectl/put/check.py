"""Reads the local files as a consolidation would, and refuses what it would refuse. I/O: reads the files."""

from collections.abc import Callable
from pathlib import Path

from lethe.base.errors import InputError
from lethe.contract.csv_dialect import RFC_4180
from lethe.decoder.process import NoDecoder
from lethe.ingest.buffer_files import ReadSettings
from lethe.ingest.buffer_store import FileTask
from lethe.ingest.checking import check_files, columns_of
from lethe.ingest.folder_values import named_folders
from lethe.ingest.path_limits import path_columns
from lethe_operator.resources.dataset import BufferSpec
from pyiceberg.table import Table


def check_local_files(
    table: Table,
    batch_column: str,
    batch_id: str,
    files: list[Path],
    folder: Path,
    buffer: BufferSpec,
    add_columns: bool,
    on_file: Callable[[], object],
) -> int:
    """Read all rows, with the code of consolidations. Returns: their number.

    Args:
        table: The table.
        folder: The batch's; files may be in folders below it that name values.
        add_columns: `spec.schemaEvolution` is AddColumns.
        on_file: Called after each file.
    Raises: InputError, with the reason and the message with which the batch would be refused, or `UnsupportedColumn`,
        `NotChecked`.
    """
    try:
        columns = columns_of(table.schema())
    except InputError as e:
        raise InputError(e.reason, f"{e.message}. Put the files with --no-check.") from None
    root, uris = f"file://{folder}", [(path, f"file://{path}") for path in files]
    tasks = [FileTask(batch_id, u, p.stat().st_size, folders=named_folders(u, root)) for p, u in uris]
    settings = ReadSettings(
        batch_column,
        {},
        buffer.format,
        add_columns,
        csv=buffer.csv or RFC_4180,
        path_columns=path_columns(table.schema(), table.spec()),
    )
    try:
        checked = check_files(columns, tasks, settings, on_file=on_file)
    except NoDecoder as e:
        raise InputError("NotChecked", f"The files cannot be checked here: {e}. Put them with --no-check.") from None
    if checked.refusal is not None:
        raise InputError(checked.refusal.reason, f"{checked.refusal.message}. Nothing was put into the buffer.")
    return checked.rows or 0

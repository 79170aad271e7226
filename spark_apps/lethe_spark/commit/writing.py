"""A run that writes data files notes that it does, beside the table, so that no erasure is verified while it may write. I/O.

The note comes before the run's first look at the ledger: an erasure that this look misses was committed after it, so that its
verification finds the note.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

from lethe.base import names
from lethe.base.errors import InputError
from lethe.erasure.writers import Writer
from lethe.storage.buffer import open_store
from lethe.vacuum.ledger_files import UNPUBLISHED_FOR
from pyiceberg.io import FileIO, load_file_io

from lethe_spark.jvm.run_folder import run_folder
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Committer, table_properties

log = logging.getLogger(__name__)
_KEPT_FOR: Final = timedelta(days=30) + UNPUBLISHED_FOR  # tells where a run that died may have left files


@contextmanager
def noted(context: Committer, table: IcebergTable, batch_ids: Iterable[str] | None) -> Iterator[None]:
    """Note that this run writes, for as long as it does. The note of one that dies, or of which nobody knows whether it has ended
    everywhere, stays; the next attempt of the same run takes it over.

    Args:
        batch_ids: What it may bring in from the buffer; None: it reads the table and writes rows of it.
    Raises: what the storage raises; what the body raises.
    """
    table.refresh()
    folder = run_folder(table, context.run_id)
    ids = None if batch_ids is None else frozenset(batch_ids)
    writer = Writer(context.run_id, folder, table.last_sequence_number, ids)
    uri = f"{_folder(table)}/{context.run_id}{names.WRITER_SUFFIX}"
    io = load_file_io(table_properties(context), uri)
    with io.new_output(uri).create(overwrite=True) as stream:
        stream.write(writer.to_json())
    try:
        yield
    except InputError:  # nothing is left of what it wrote, and no task runs on
        _forget(io, uri)
        raise
    _forget(io, uri)


def writers_of(table: IcebergTable, io: FileIO, properties: Mapping[str, str]) -> list[tuple[Writer, datetime, str]]:
    """The runs that have noted themselves, when, and where. Raises: what the storage raises."""
    found: list[tuple[Writer, datetime, str]] = []
    folder = _folder(table)
    for o in open_store(folder, properties).list(folder):
        name = o.key.rpartition("/")[2]
        if not name.endswith(names.WRITER_SUFFIX) or name.startswith("."):
            continue
        try:
            with io.new_input(o.key).open() as stream:
                content = bytes(stream.read())
        except FileNotFoundError:  # it has ended since
            continue
        found.append((Writer.of_json(content, name.removesuffix(names.WRITER_SUFFIX)), o.modified, o.key))
    return found


def forget_old(io: FileIO, writers: Iterable[tuple[Writer, datetime, str]], now: datetime) -> None:
    """Remove the notes of runs that ended so long ago that nothing of them can be left."""
    for _, at, uri in writers:
        if at + _KEPT_FOR < now:
            _forget(io, uri)


def _folder(table: IcebergTable) -> str:
    return f"{table.location}/{names.RUNS_FOLDER}"


def _forget(io: FileIO, uri: str) -> None:
    try:
        io.delete(uri)
    except Exception as e:  # it is taken for one of a run that died
        log.warning("the note of a writing run stays: %s: %s", uri, type(e).__name__)

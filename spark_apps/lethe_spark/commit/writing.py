"""Notes of attempts of runs that write data files, stored beside the table. No erasure is verified while one may write. I/O.

An attempt writes its note before it reads the ledger. If it does not see an erasure in the ledger, the erasure was committed
later, so its verification finds the note. Only the attempt itself removes its note, or a later one that knows of its end.
"""

import logging
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

from lethe.base import names
from lethe.base.errors import InputError
from lethe.erasure.writers import Writer, note_name
from lethe.storage.object_store import open_store
from lethe.vacuum.ledger_files import UNPUBLISHED_FOR
from pyiceberg.io import FileIO, load_file_io

from lethe_spark.jvm.run_folder import run_folder
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Committer, Run, table_properties

log = logging.getLogger(__name__)
# A note says where a run that died may have left files.
_KEPT_FOR: Final = timedelta(days=30) + UNPUBLISHED_FOR


@contextmanager
def noted_run(context: Run, table: IcebergTable, batch_ids: Iterable[str] | None) -> Iterator[None]:
    """As `noted`, for a run with a `run.json`."""
    with noted(context, table, batch_ids, context.spec.attempt, context.spec.ended_attempts):
        yield


@contextmanager
def noted(
    context: Committer,
    table: IcebergTable,
    batch_ids: Iterable[str] | None,
    attempt: int = 0,
    ended: Collection[int] = (),
) -> Iterator[None]:
    """Keep a note while an attempt of a run writes. The note stays if the process dies, or if its tasks may still be running.

    Args:
        batch_ids: The batches that the run may add from the buffer. None: it reads the table and writes rows of it.
        attempt: The number of the attempt; 0: attempts are not numbered.
        ended: The numbers of the attempts of this run whose processes are known to have ended. Their notes are removed too.
    Raises: the errors of the storage and of the body.
    """
    table.refresh()
    folder = run_folder(table, context.run_id)
    ids = None if batch_ids is None else frozenset(batch_ids)
    writer = Writer(context.run_id, folder, table.last_sequence_number, ids, attempt)
    properties = table_properties(context)
    uri = f"{_folder(table)}/{note_name(context.run_id, attempt, uuid.uuid4().hex[:8])}"
    io = load_file_io(properties, uri)
    with io.new_output(uri).create(overwrite=True) as stream:
        stream.write(writer.to_json())
    try:
        yield
    except InputError:  # its files were deleted, and none of its tasks is running
        _forget(io, uri)
        raise
    _forget(io, uri)
    if ended:
        for earlier, _, path in writers_of(table, io, properties):
            if earlier.run == context.run_id and earlier.attempt in ended:
                _forget(io, path)


def writers_of(table: IcebergTable, io: FileIO, properties: Mapping[str, str]) -> list[tuple[Writer, datetime, str]]:
    """The attempts with a note, the time of the note, and its path. Raises: the errors of the storage."""
    found: list[tuple[Writer, datetime, str]] = []
    folder = _folder(table)
    for o in open_store(folder, properties).list(folder):
        name = o.key.rpartition("/")[2]
        if not name.endswith(names.WRITER_SUFFIX):
            continue
        try:
            with io.new_input(o.key).open() as stream:
                content = bytes(stream.read())
        except FileNotFoundError:  # the run ended in the meantime
            continue
        found.append((Writer.of_json(content, name), o.modified, o.key))
    return found


def forget_old(io: FileIO, writers: Iterable[tuple[Writer, datetime, str]], now: datetime) -> None:
    """Remove notes that are so old that no files of their runs can remain."""
    for _, at, uri in writers:
        if at + _KEPT_FOR < now:
            _forget(io, uri)


def _folder(table: IcebergTable) -> str:
    return f"{table.location}/{names.RUNS_FOLDER}"


def _forget(io: FileIO, uri: str) -> None:
    try:
        io.delete(uri)
    except Exception as e:  # then it counts as the note of a run that died
        log.warning("could not delete the note of a run: %s: %s", uri, type(e).__name__)

"""Finds which batches have rows in a snapshot, without Spark. I/O: reads manifests, and the batch column up to a limit.

Reads the batch column of the files whose bounds allow one of the ids. Above the limit, the bounds alone decide: then every id
between the bounds of a file counts as present.
"""

import logging
from collections.abc import Collection, Sequence
from typing import Final

import pyarrow.compute as pc
from pyiceberg.table import Table

from lethe.base.errors import InputError
from lethe.files.bounds import FileBounds, IdIndex
from lethe.files.increment import SnapshotFiles
from lethe.iceberg.snapshot_files import PlannedFile, SnapshotView
from lethe.read import arrow
from lethe.read.arrow import ReadPart

log = logging.getLogger(__name__)

MAX_READ_BYTES: Final = 64 * 1024 * 1024
# Memory for one row of a dictionary-encoded column: its index.
_BYTES_PER_ROW: Final = 4


def held_ids(
    table: Table,
    snapshot_id: int,
    field_id: int,
    ids: Sequence[str],
    max_bytes: int = MAX_READ_BYTES,
    paths: Collection[str] | None = None,
) -> frozenset[str]:
    """The ids of which the snapshot's data files hold rows, tombstoned or not.

    Args:
        field_id: Of the batch column.
        max_bytes: Limit for reading that column: stored size or memory, whichever is larger.
        paths: Of the data files to search; None: all of the snapshot.
    """
    index = IdIndex(ids)

    def is_wanted(file: FileBounds) -> bool:
        return (paths is None or file.path in paths) and index.might_hold(file)

    view = SnapshotView.on(table, field_id)
    column = view.schema.find_column_name(field_id)
    try:
        files = [f for f in view.files(SnapshotFiles.LIVE, snapshot_id) if is_wanted(f.bounds)]
    except InputError as e:  # equality deletes, which PyIceberg does not read
        log.info("searching for batch ids by bounds alone: %s", e.reason)
        return _within(index, [f for f in view.bounds(SnapshotFiles.LIVE, snapshot_id) if is_wanted(f)])
    sure = {f.bounds.lower for f in files if index.must_hold(f.bounds) and not f.bounds.deletes}
    found = frozenset(i for i in sure if i is not None)
    rest = IdIndex(frozenset(ids) - found)
    read = [f for f in files if rest.might_hold(f.bounds)]
    size = sum(_bytes(f, field_id) for f in read)
    if column is None or size > max_bytes:
        log.info("searching for batch ids by bounds alone: %d files, %d bytes of the batch column", len(read), size)
        return found | _within(rest, [f.bounds for f in read])
    for f in read:
        wanted = frozenset(rest.within(f.bounds)) - found
        if not wanted:
            continue
        for batch in arrow.read(view, [ReadPart((f,), wanted, of_ids=True)], (column,)):
            found |= frozenset(pc.unique(batch.column(column)).to_pylist())
    return found


def _within(index: IdIndex, files: Collection[FileBounds]) -> frozenset[str]:
    return frozenset(index.covered(files))


def _bytes(file: PlannedFile, field_id: int) -> int:
    """The bytes to read or hold for the batch column of a file."""
    stored = (file.data_file.column_sizes or {}).get(field_id, file.bounds.size)
    return max(int(stored), _BYTES_PER_ROW * file.bounds.records)

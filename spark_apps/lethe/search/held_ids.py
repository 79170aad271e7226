"""Which of some batch ids there are rows of, without Spark. I/O: reads manifests, and one column within limits.

Of files whose bounds allow an id that column is read; where that would be too much, bounds alone answer, by which every id is
there that sorts between two others.
"""

import logging
from collections.abc import Collection, Sequence
from typing import Final

import pyarrow.compute as pc
from pyiceberg.table import Table

from lethe.base.errors import InputError
from lethe.files.bounds import FileBounds, IdIndex
from lethe.files.increment import Files
from lethe.iceberg.snapshot_files import Lens, Planned
from lethe.read import arrow
from lethe.read.arrow import Part

log = logging.getLogger(__name__)

READ_AT_MOST_BYTES: Final = 64 * 1024 * 1024
# What a row of a column of few values takes in memory while it is looked at: its place in the list of them.
_BYTES_PER_ROW: Final = 4


def held_ids(
    table: Table,
    snapshot_id: int,
    field_id: int,
    ids: Sequence[str],
    bytes_at_most: int = READ_AT_MOST_BYTES,
    paths: Collection[str] | None = None,
) -> frozenset[str]:
    """Those of the ids of which a snapshot's data files hold rows, whatever a ledger says of them.

    Args:
        field_id: Of the batch column.
        bytes_at_most: To be read of that column, as stored or in memory, whichever is more.
        paths: Of the data files to look into; None: all of the snapshot.
    """
    index = IdIndex(ids)

    def wanted_file(file: FileBounds) -> bool:
        return (paths is None or file.path in paths) and index.might_hold(file)

    lens = Lens.on(table, field_id)
    column = lens.schema.find_column_name(field_id)
    try:
        files = [f for f in lens.files(Files.LIVE, snapshot_id) if wanted_file(f.bounds)]
    except InputError as e:  # equality deletes, which PyIceberg does not read
        log.info("batch ids are looked up by bounds alone: %s", e.reason)
        return _within(index, [f for f in lens.bounds(Files.LIVE, snapshot_id) if wanted_file(f)])
    sure = {f.bounds.lower for f in files if index.must_hold(f.bounds) and not f.bounds.deletes}
    found = frozenset(i for i in sure if i is not None)
    open_ids = frozenset(ids) - found
    rest = IdIndex(open_ids)
    read = [f for f in files if rest.might_hold(f.bounds)]
    size = sum(_bytes(f, field_id) for f in read)
    if column is None or size > bytes_at_most:
        log.info("batch ids are looked up by bounds alone: %d files, %d bytes of the batch column", len(read), size)
        return found | _within(rest, [f.bounds for f in read])
    for f in read:
        wanted = frozenset(rest.within(f.bounds)) - found
        if not wanted:
            continue
        for batch in arrow.read(lens, [Part((f.task,), wanted, of_ids=True)], (column,)):
            found |= frozenset(pc.unique(batch.column(column)).to_pylist())
    return found


def _within(index: IdIndex, files: Collection[FileBounds]) -> frozenset[str]:
    return frozenset(index.covered(files))


def _bytes(file: Planned, field_id: int) -> int:
    """What reading the batch column of a file takes."""
    stored = (file.task.file.column_sizes or {}).get(field_id, file.bounds.size)
    return max(int(stored), _BYTES_PER_ROW * file.bounds.records)

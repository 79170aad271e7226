"""Plans which files of a table of batches to replace, and their new content. I/O: reads these files.

Opens the files whose bounds allow one of the changed batches, and rewrites those that contain one; merges small files. Changes
are copy-on-write, so any engine reads plain files without deletes.
"""

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from lethe.batches_table.files import (
    ARROW,
    PARALLEL,
    TrackingFile,
    among,
    as_arrow,
    by_state,
    files_of,
    ids_in,
    pieces,
    rows_in,
    totals_of,
)
from lethe.buffer.batch_rows import BUFFERED, BatchRow, Sizes, Totals, to_merge
from lethe.files.bounds import IdIndex

SIZES: Final = Sizes()
_GROUP_ROWS: Final = 50_000  # rows as Python objects


@dataclass(frozen=True)
class Change:
    """A change of the table of batches."""

    removed: tuple[TrackingFile, ...]
    contents: tuple[pa.Table, ...]  # the rows of each file to write
    totals: Totals  # of the table afterwards

    @property
    def is_empty(self) -> bool:
        return not self.removed and not self.contents


def plan_change(
    tracking: Table,
    before: Totals | None,
    rows: Iterable[BatchRow],
    gone: Collection[str],
    waiting: Sequence[BatchRow] | None,
) -> Change:
    """Plan how to make the table show these rows.

    Args:
        before: The table's totals; None: replace all rows except those of waiting batches.
        rows: Of the batches that changed, or of all batches.
        gone: Ids of batches that the ledger no longer has.
        waiting: The batches that wait in the buffer; None: those that the table shows, except batches in `rows`.
    """
    new = _arrow(rows)
    files = files_of(tracking)
    kept = [f for f in files if f.state != BUFFERED]
    removed: list[TrackingFile] = []
    contents: list[pa.Table] = []
    if before is None:
        removed += kept
        totals = totals_of(new)
        for _, part in by_state(new):
            contents += pieces(part, SIZES.cap)
    else:
        touched = pa.concat_arrays([*new["batch_id"].chunks, pa.array(sorted(gone), ARROW.field("batch_id").type)])
        replaced, contents, old = _settled(tracking, kept, new, touched)
        removed += replaced
        totals = before.without(BUFFERED).minus(old).plus(totals_of(new))
    buffered, shown = _buffered(tracking, [f for f in files if f.state == BUFFERED], new["batch_id"], waiting)
    if buffered is not None:
        removed += buffered
        contents += pieces(shown, SIZES.cap)
    return Change(tuple(removed), tuple(contents), totals.plus(totals_of(shown)))


def _settled(
    tracking: Table, files: Sequence[TrackingFile], new: pa.Table, touched: pa.Array
) -> tuple[list[TrackingFile], list[pa.Table], Totals]:
    """The files to remove, the content of the new files, and the totals of the removed rows."""
    affected = _holding(tracking, files, touched)
    old = Totals()
    stay: dict[int, pa.Table] = {}  # the rows to keep of files with a touched batch
    for at, content in zip(affected, rows_in(tracking.io, [files[at] for at in affected]), strict=True):
        mask = among(content, touched)
        old = old.plus(totals_of(content.filter(mask)))
        stay[at] = content.filter(pc.invert(mask))
    contents: list[pa.Table] = []
    gone = set(affected)
    new_by_state = dict(by_state(new))
    for state in dict.fromkeys([*new_by_state, *(f.state for f in files)]):
        own = [at for at, f in enumerate(files) if f.state == state]
        records = [stay[at].num_rows if at in stay else files[at].records for at in own]
        fresh = new_by_state.get(state, ARROW.empty_table())
        chosen = [own[n] for n in to_merge(records, fresh.num_rows, SIZES)] if fresh.num_rows or gone & set(own) else []
        unread = [at for at in chosen if at not in stay]
        read = dict(zip(unread, rows_in(tracking.io, [files[at] for at in unread]), strict=True))
        gone.update(chosen)
        contents += pieces(pa.concat_tables([fresh, *(stay.pop(at, read.get(at)) for at in chosen)]), SIZES.cap)
        contents += [rows for at in own if at not in chosen and (rows := stay.get(at)) is not None and rows.num_rows]
    return [files[at] for at in sorted(gone)], contents, old


def _holding(tracking: Table, files: Sequence[TrackingFile], ids: pa.Array) -> list[int]:
    """The positions of the files that contain one of the batches: first by bounds, then by their ids."""
    index = IdIndex(ids.to_pylist())
    near = [at for at, f in enumerate(files) if index.might_hold(f)]

    def holds(at: int) -> bool:
        return bool(pc.any(pc.is_in(ids_in(tracking.io, files[at]).cast(ids.type), value_set=ids)).as_py())

    with ThreadPoolExecutor(max_workers=PARALLEL) as pool:
        return [at for at, held in zip(near, pool.map(holds, near), strict=True) if held]


def _buffered(
    tracking: Table, files: Sequence[TrackingFile], settled: pa.ChunkedArray, waiting: Sequence[BatchRow] | None
) -> tuple[Sequence[TrackingFile] | None, pa.Table]:
    """The files of buffered batches to remove, and the rows to show. None: the files do not change."""
    was = pa.concat_tables([ARROW.empty_table(), *rows_in(tracking.io, files)])
    if waiting is None:
        now = was.filter(pc.invert(among(was, settled.combine_chunks())))
    else:
        now = as_arrow(waiting)
    same = was.num_rows == now.num_rows and was.sort_by("batch_id").equals(now.sort_by("batch_id"))
    return (None if same else files), now


def _arrow(rows: Iterable[BatchRow]) -> pa.Table:
    """Converts in groups, because a row is ten times as large as a Python object."""
    source = iter(rows)
    parts = [ARROW.empty_table()]
    while some := list(islice(source, _GROUP_ROWS)):
        parts.append(as_arrow(some))
    return pa.concat_tables(parts)

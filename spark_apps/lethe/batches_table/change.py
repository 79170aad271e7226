"""Which files of a table of batches a change takes away, and what is written in their place. Reads those files.

A file is opened if its bounds allow one of the batches, and written anew only if it holds one; small files are merged on the
way. Everything is copied on write: any engine reads plain files, without deletes to apply.
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
_AT_ONCE: Final = 50_000  # rows as Python objects


@dataclass(frozen=True)
class Change:
    """`contents`: rows of files to be written; `totals` of the table afterwards."""

    removed: tuple[TrackingFile, ...]
    contents: tuple[pa.Table, ...]
    totals: Totals

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
    """What makes the table show these rows.

    Args:
        before: The table's totals; None: nothing of what it holds is to stay, but for what waits.
        rows: Of the batches that changed, or of all of them.
        gone: Batches that the ledger has forgotten.
        waiting: What waits in the buffer now; None: what is shown to, except what `rows` say otherwise of.
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
    """The files that go, what is written instead, and the totals of the rows that go."""
    hit = _holding(tracking, files, touched)
    old = Totals()
    stay: dict[int, pa.Table] = {}  # of files that hold a touched batch: their other rows
    for at, content in zip(hit, rows_in(tracking.io, [files[at] for at in hit]), strict=True):
        mask = among(content, touched)
        old = old.plus(totals_of(content.filter(mask)))
        stay[at] = content.filter(pc.invert(mask))
    contents: list[pa.Table] = []
    gone = set(hit)
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
    """The positions of the files that hold one of the batches: by their bounds first, then by their ids."""
    index = IdIndex(ids.to_pylist())
    near = [at for at, f in enumerate(files) if index.might_hold(f)]

    def holds(at: int) -> bool:
        return bool(pc.any(pc.is_in(ids_in(tracking.io, files[at]).cast(ids.type), value_set=ids)).as_py())

    with ThreadPoolExecutor(max_workers=PARALLEL) as pool:
        return [at for at, held in zip(near, pool.map(holds, near), strict=True) if held]


def _buffered(
    tracking: Table, files: Sequence[TrackingFile], settled: pa.ChunkedArray, waiting: Sequence[BatchRow] | None
) -> tuple[Sequence[TrackingFile] | None, pa.Table]:
    """The files of buffered batches that go, None if they stay as they are; and the rows that are shown then."""
    was = pa.concat_tables([ARROW.empty_table(), *rows_in(tracking.io, files)])
    if waiting is None:
        now = was.filter(pc.invert(among(was, settled.combine_chunks())))
    else:
        now = as_arrow(waiting)
    same = was.num_rows == now.num_rows and was.sort_by("batch_id").equals(now.sort_by("batch_id"))
    return (None if same else files), now


def _arrow(rows: Iterable[BatchRow]) -> pa.Table:
    """Some at a time: a row is ten times as large as a Python object."""
    source = iter(rows)
    parts = [ARROW.empty_table()]
    while some := list(islice(source, _AT_ONCE)):
        parts.append(as_arrow(some))
    return pa.concat_tables(parts)

"""In which order a vacuum takes files, and which a budget leaves for the next one. Pure.

First what is due, the earliest deadline before the others. Then what readers gain most by: they have to look at each row of a
file that might hold deleted ones, and to leave those out; so that files go first of which most rows are likely to be deleted for
each byte that is written anew. Of files that are much alike those of one partition go together, in the order of batches.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from math import frexp

from lethe.files.bounds import FileBounds
from lethe.files.tombstone_index import NEVER, Suspects
from lethe.vacuum.estimate import Likely

# Small files are merged into what is written anew beside them, as long as that makes it dearer by so much at most: else the
# vacuum would write more than it has to.
MERGED_SHARE = 0.02
# A file is small if it has less than this part of the size that files are written to.
SMALL_PART = 8
_TARGET = "write.target-file-size-bytes"
_TARGET_BYTES = 512 * 1024 * 1024  # Iceberg's, where nobody says otherwise
_NOTHING = -10_000  # below the exponent of any number


def target_bytes(asked: int | None, properties: Mapping[str, str]) -> int:
    """The size that files are written to: what was asked for, or what the table's properties say."""
    return asked or int(properties.get(_TARGET, _TARGET_BYTES))


def in_order(
    files: Iterable[FileBounds],
    suspects: Suspects,
    likely: Likely,
    due_by: datetime | None,
    erase_by: datetime | None = None,
) -> list[FileBounds]:
    """The files in the order in which they are to go.

    Args:
        files: That might hold a tombstone, or rows under native deletes; sizes in bytes.
        due_by: Deadlines up to this moment count; None: none does.
        erase_by: The deadline of rows under native deletes; None: there is none.
    """

    def rank(file: FileBounds) -> tuple[datetime, int, str, str, str]:
        due = NEVER
        if due_by is not None:
            due = min(suspects.earliest(file), erase_by if erase_by is not None and file.deletes else NEVER)
        rows = likely.rows_in(file)
        gain = frexp(rows / max(file.size, 1))[1] if rows else _NOTHING  # its power of two
        is_due = due_by is not None and due <= due_by
        return (due if is_due else NEVER, -gain, file.partition or "", file.lower or "", file.path)

    return sorted(files, key=rank)


def within_budget(
    files: Sequence[FileBounds], max_bytes: int | None, spent: int = 0
) -> tuple[tuple[FileBounds, ...], tuple[FileBounds, ...]]:
    """Split files, in their order, into those that may go and those that stay for the next vacuum. The first is always taken if
    nothing was before: a file larger than the budget would else never be purged.

    Args:
        max_bytes: The sum of sizes that may go in a run; None: all of them. `spent`: of that, before these.
    """
    if max_bytes is None:
        return tuple(files), ()
    taken: list[FileBounds] = []
    left: list[FileBounds] = []
    for f in files:
        if spent + f.size <= max_bytes or not (taken or spent):
            taken.append(f)
            spent += f.size
        else:
            left.append(f)
    return tuple(taken), tuple(left)


def first_step(files: Sequence[FileBounds], step_bytes: int) -> tuple[FileBounds, ...]:
    """As many of the files, in their order, as make a step of about so many bytes; one at least, if there is one."""
    found: list[FileBounds] = []
    size = 0
    for f in files:
        if found and size + f.size > step_bytes:
            break
        found.append(f)
        size += f.size
    return tuple(found)


def neighbours(
    rewritten: Sequence[FileBounds], small: Iterable[FileBounds], at_most: int | None = None
) -> tuple[FileBounds, ...]:
    """Of small files that hold nothing deleted, those to be merged into what is written anew: of the same partition, and next
    to such a file in the order of batches or within it. The smallest first, for little cost in all.

    Args:
        at_most: Bytes; None: as the share allows.
    """
    left = int(sum(f.size for f in rewritten) * MERGED_SHARE)
    left = left if at_most is None else min(left, at_most)
    by_partition: dict[str, list[FileBounds]] = {}
    for f in rewritten:
        if f.partition is not None:
            by_partition.setdefault(f.partition, []).append(f)
    beside: list[FileBounds] = []
    mine: dict[str, list[FileBounds]] = {}
    for f in small:
        if f.partition in by_partition:
            mine.setdefault(f.partition or "", []).append(f)
    for partition, files in mine.items():
        beside += _adjacent(by_partition[partition], files)
    found: list[FileBounds] = []
    for f in sorted(beside, key=lambda f: (f.size, f.path)):
        if f.size > left:
            break
        found.append(f)
        left -= f.size
    return tuple(found)


def _adjacent(rewritten: Sequence[FileBounds], small: Sequence[FileBounds]) -> list[FileBounds]:
    """Small files between which and a file to rewrite lies no other small one that is not taken, in the order of lower bounds."""
    ranked = sorted(
        [(f.lower or "", True, f) for f in rewritten] + [(f.lower or "", False, f) for f in small], key=_rank
    )
    found: list[FileBounds] = []
    for at, (_, is_rewritten, f) in enumerate(ranked):
        if is_rewritten:
            continue
        before = ranked[at - 1][1] if at else False
        after = ranked[at + 1][1] if at + 1 < len(ranked) else False
        if before or after:
            found.append(f)
    return found


def _rank(entry: tuple[str, bool, FileBounds]) -> tuple[str, bool, str]:
    lower, is_rewritten, file = entry
    return lower, is_rewritten, file.path

"""Which files a partial vacuum rewrites, and which it leaves for the next one. Pure."""

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime

from lethe.ledger.tombstone import Tombstone
from lethe.plan.bounds import FileBounds, IdIndex

_NEVER = datetime.max.replace(tzinfo=UTC)


def within_budget(
    files: Collection[FileBounds],
    tombstones: Iterable[Tombstone],
    max_bytes: int | None,
    due_by: datetime | None,
    erase_by: datetime | None = None,
) -> tuple[tuple[FileBounds, ...], tuple[FileBounds, ...]]:
    """Split files that are to be rewritten into those that go now and those that stay for later, each as given.

    Files with rows that must be gone by `due_by` come first, the earliest deadline before the others; then those with the
    most tombstones per byte. The first is always taken: a file larger than the budget would else never be purged.

    Args:
        files: Files that might hold a tombstone, or rows under native deletes; sizes in bytes.
        max_bytes: The sum of sizes that may go now; None: all of them.
        due_by: Deadlines up to this moment count; None: none does.
        erase_by: The deadline of rows under native deletes; None: there is none.
    """
    if max_bytes is None:
        return tuple(files), ()
    known = tuple(tombstones)
    index = IdIndex([t.id for t in known])
    deadlines = _Deadlines([t for t in known if due_by is not None and t.evict_by is not None and t.evict_by <= due_by])

    def cost(file: FileBounds) -> tuple[datetime, float, str]:
        start, end = index.span(file)
        due = min(deadlines.earliest(file), erased if file.deletes else _NEVER)
        return due, -(end - start) / max(file.size, 1), file.path

    erased = erase_by if erase_by is not None and due_by is not None and erase_by <= due_by else _NEVER
    taken: set[str] = set()
    left = max_bytes
    for f in sorted(files, key=cost):
        if not taken or f.size <= left:
            taken.add(f.path)
            left -= f.size
    return tuple(f for f in files if f.path in taken), tuple(f for f in files if f.path not in taken)


class _Deadlines:
    """The earliest deadline among the tombstones that a file might hold, asked in O(log n). A tree of minima, the leaves
    in the order of ids."""

    def __init__(self, due: Sequence[Tombstone]) -> None:
        in_order = sorted(due, key=lambda t: t.id)
        self._index = IdIndex([t.id for t in in_order])
        self._size = len(in_order)
        self._tree = [_NEVER] * self._size + [t.evict_by or _NEVER for t in in_order]
        for n in range(self._size - 1, 0, -1):
            self._tree[n] = min(self._tree[2 * n], self._tree[2 * n + 1])

    def earliest(self, file: FileBounds) -> datetime:
        start, end = (at + self._size for at in self._index.span(file))
        found = _NEVER
        while start < end:
            if start % 2:
                found = min(found, self._tree[start])
                start += 1
            if end % 2:
                end -= 1
                found = min(found, self._tree[end])
            start, end = start // 2, end // 2
        return found

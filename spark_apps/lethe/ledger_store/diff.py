"""What is different between two ledgers of one table, by the chunks that they do not share. I/O.

Chunks are immutable, and a ledger keeps a prefix of those of the one before it. So the chunks that two ledgers share say the
same in both, however their histories went apart, and a key that is in none of the others is the same in both.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from lethe.base.errors import LedgerError
from lethe.ledger.ledger import BatchEntry
from lethe.ledger.parts import get_many
from lethe.ledger_store.chunks import ChunkedPart, ChunkReader

# Entries in chunks that are not shared. With more it is cheaper to take the new ledger whole: that is so after all chunks
# were merged, which happens once in as many changes as there are entries.
COMPARED_AT_MOST: Final = 200_000


class TooDifferent(Exception):
    """To compare would cost more than to take all."""


def changed_batches(
    before: Mapping[str, BatchEntry], after: Mapping[str, BatchEntry], shown: Callable[[BatchEntry], Any]
) -> tuple[list[BatchEntry], frozenset[str]]:
    """The entries that are new in `after`, or other there, and the ids of those that are gone.

    Args:
        shown: What of an entry matters.

    Raises: TooDifferent; LedgerError, if a chunk of either cannot be read.
    """
    old, new = _chunks(before), _chunks(after)
    own = [c for name, c in old.items() if name not in new] + [c for name, c in new.items() if name not in old]
    if sum(c.chunk.records for c in own) > COMPARED_AT_MOST:
        raise TooDifferent
    keys: Collection[str] = {k for c in own for k in c.entries()}
    then, now = get_many(before, keys), get_many(after, keys)
    changed = [e for k, e in now.items() if k not in then or shown(then[k]) != shown(e)]
    return changed, frozenset(then.keys() - now.keys())


def all_batches(batches: Mapping[str, BatchEntry]) -> Iterator[list[BatchEntry]]:
    """Every entry once, some at a time: remembers ids and one chunk, not the entries.

    Raises: LedgerError, if a chunk cannot be read or they hold another number of entries than the root says.
    """
    if not isinstance(batches, ChunkedPart):
        yield list(batches.values())
        return
    seen: set[str] = set()
    found = 0
    for chunk in reversed(batches.chunks):
        entries = chunk.apart().entries()
        if not chunk.chunk.removes:
            fresh = [e for k, e in entries.items() if k not in seen]
            found += len(fresh)
            yield fresh
        seen.update(entries)
    if found != len(batches):
        raise LedgerError(
            "LedgerUnreadable",
            f"the ledger's chunks hold {found} batches, its root says {len(batches)}: restore its files, or roll the table "
            "back.",
        )


def _chunks(part: Mapping[str, Any]) -> dict[str, ChunkReader[str, BatchEntry]]:
    return {c.chunk.file: c for c in part.chunks} if isinstance(part, ChunkedPart) else {}

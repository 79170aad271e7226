"""Compares two ledgers of one table by the chunks that they do not share. I/O.

Chunks are immutable, and a ledger keeps a prefix of the chunks of its predecessor. So a key that is only in shared chunks has the
same entry in both ledgers, even if their histories diverged.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, TypeVar

from lethe.base.errors import LedgerError
from lethe.ledger.ledger import BatchEntry
from lethe.ledger.parts import get_many
from lethe.ledger_store.chunks import ChunkedPart, ChunkReader

K = TypeVar("K")
V = TypeVar("V")

# The largest number of entries in chunks that are not shared. With more, reading the whole new ledger is cheaper. That happens
# after a merge of all chunks, once in as many changes as there are entries.
MAX_COMPARED: Final = 200_000


class TooDifferent(Exception):
    """Comparing costs more than reading the whole new ledger."""


def differing(before: Mapping[K, V], after: Mapping[K, V]) -> tuple[dict[K, V], dict[K, V]]:
    """The entries of all keys that may differ, in both versions of a part of a ledger. Most of them are equal after a merge.

    Raises: TooDifferent; LedgerError, if a chunk is unreadable.
    """
    old, new = _chunks(before), _chunks(after)
    own = [c for name, c in old.items() if name not in new] + [c for name, c in new.items() if name not in old]
    if sum(c.chunk.records for c in own) > MAX_COMPARED:
        raise TooDifferent
    keys: Collection[K] = {k for c in own for k in c.entries()}
    return get_many(before, keys), get_many(after, keys)


def changed_batches(
    before: Mapping[str, BatchEntry], after: Mapping[str, BatchEntry], shown: Callable[[BatchEntry], Any]
) -> tuple[list[BatchEntry], frozenset[str]]:
    """The entries that are new or changed in `after`, and the ids of those that are missing there.

    Args:
        shown: Returns the part of an entry to compare.
    Raises: TooDifferent; LedgerError, if a chunk is unreadable.
    """
    then, now = differing(before, after)
    changed = [e for k, e in now.items() if k not in then or shown(then[k]) != shown(e)]
    return changed, frozenset(then.keys() - now.keys())


def all_entries(part: Mapping[K, V]) -> Iterator[dict[K, V]]:
    """Yield every entry of a part once, in groups. Keeps keys and one chunk in memory, not all entries.

    Raises: LedgerError, if a chunk is unreadable or the number of entries differs from the root.
    """
    if not isinstance(part, ChunkedPart):
        yield dict(part)
        return
    seen: set[K] = set()
    found = 0
    for chunk in reversed(part.chunks):
        entries = chunk.apart().entries()
        if not chunk.chunk.removes:
            fresh = {k: e for k, e in entries.items() if k not in seen}
            found += len(fresh)
            yield fresh
        seen.update(entries)
    if found != len(part):
        raise LedgerError(
            "LedgerUnreadable",
            f"the ledger's chunks hold {found} {part.name}; its root says {len(part)}. Restore its files, or roll the table "
            "back.",
        )


def all_batches(batches: Mapping[str, BatchEntry]) -> Iterator[list[BatchEntry]]:
    """As `all_entries`, without the keys."""
    for some in all_entries(batches):
        yield list(some.values())


def _chunks(part: Mapping[K, V]) -> dict[str, ChunkReader[K, V]]:
    return {c.chunk.file: c for c in part.chunks} if isinstance(part, ChunkedPart) else {}

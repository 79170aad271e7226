"""Reads and compares the parts of a ledger, chunk by chunk, through PyIceberg's FileIO. I/O.

Chunks are immutable files in `<table location>/_tombstones/`. What was read of them is kept as long as the ledger is used.
"""

from collections.abc import (
    Callable,
    Collection,
    Container,
    ItemsView,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    ValuesView,
)
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Generic, TypeVar

from pyiceberg.io import FileIO

from lethe.base.errors import LedgerError
from lethe.ledger.format import INDEXED_FROM, Index, PartFormat
from lethe.ledger.ledger import BatchEntry, BatchState, Interval, Ranges, get_many
from lethe.ledger.overlay import fold
from lethe.ledger.root import Chunk

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")

WHOLE_UP_TO_BYTES: Final = 4 * 1024 * 1024
"""To look up keys in a larger file, read its header first, then only the necessary blocks."""
NEAR_BYTES: Final = 128 * 1024
"""Blocks with less than this between them are read with one request, which takes less time than a second request."""
AT_ONCE_BYTES: Final = 8 * 1024 * 1024
"""One request reads no more, unless a block is larger."""
PARALLEL_READS: Final = 8
MAX_COMPARED: Final = 200_000
"""The largest number of entries in chunks that are not shared.

With more, reading the whole new ledger is cheaper. That happens after a merge of all chunks, once in as many changes as there are
entries.
"""


def read_file(io: FileIO, uri: str) -> bytes:
    """Read a ledger file.

    Raises:
        LedgerError: `LedgerMissing`.
        Exception: What the store raises if unavailable.
    """
    try:
        with io.new_input(uri).open() as stream:
            return bytes(stream.read())
    except FileNotFoundError as e:
        raise _missing(uri) from e


class ChunkReader(Generic[K, T]):
    """Reads one chunk. `finish` sets the snapshot id of an entry, which only the root knows."""

    def __init__(
        self, io: FileIO, folder: str, chunk: Chunk, format: PartFormat[K, T], finish: Callable[[T], T]
    ) -> None:
        self.chunk = chunk
        self.uri = f"{folder}/{chunk.file}"
        self._io = io
        self._format = format
        self._finish = finish
        self._content: bytes | None = None
        self._header: bytes | None = None
        self._parsed: Index | None = None
        self._entries: dict[K, T] | None = None

    def apart(self) -> "ChunkReader[K, T]":
        """A reader of the same chunk that has read nothing yet."""
        return ChunkReader(self._io, self.uri.rpartition("/")[0], self.chunk, self._format, self._finish)

    def fetch(self) -> None:
        """Read what every look-up needs, so that several chunks can be fetched in parallel."""
        if not self.is_fetched:
            if self.chunk.bytes <= WHOLE_UP_TO_BYTES or not self._indexed:
                self._content = self._whole()
            else:
                self._header = self._range(0, self.chunk.header_bytes)

    @property
    def is_fetched(self) -> bool:
        """Whether `fetch` has nothing to read: the content, the header or the entries are in memory."""
        return self._entries is not None or self._content is not None or self._header is not None

    def entries(self) -> dict[K, T]:
        """All entries, by key."""
        if self._entries is None:
            content = self._content if self._content is not None else self._whole()
            decoded = self._decoded(lambda: self._format.decode(content))
            if len(decoded) != self.chunk.records:
                raise LedgerError(
                    "LedgerUnreadable",
                    f"{self.uri} holds {len(decoded)} entries; its root says {self.chunk.records}. Restore the file, or "
                    "roll the table back.",
                )
            self._entries = {self._format.key(e): e for e in decoded}
            self._content = self._header = self._parsed = None
        return self._entries

    def text(self, key: K) -> str:
        """The text of a key: what entries are sorted by, and what `lower` and `upper` of the chunk are."""
        return self._format.text(key)

    def could_hold_any(self, keys: Iterable[K]) -> bool:
        """Whether one of the keys is between the smallest and the greatest key of the chunk. Reads nothing."""
        return any(self.chunk.may_hold(text := self._format.text(k), text) for k in keys)

    def find(self, keys: Sequence[K]) -> dict[K, T]:
        """The entries of those keys that it contains."""
        inside = [k for k in keys if self.chunk.may_hold(text := self._format.text(k), text)]
        if not inside:
            return {}
        entries: dict[K, T]
        if self._entries is None and self._indexed:
            self.fetch()
            texts = self._index.maybe_there(list(dict.fromkeys(self._format.text(k) for k in inside)))
            entries = self._blocks(lambda index: index.blocks_of(texts), frozenset(texts)) if texts else {}
        else:
            entries = self.entries()
        return {k: entries[k] for k in inside if k in entries}

    def overlaps(self, ranges: Ranges) -> bool:
        """Whether keys of the ranges may be in the chunk, by its smallest and greatest key. Reads nothing."""
        return any(self.chunk.may_hold(lo, hi) for lo, hi in ranges.intervals)

    def within(self, ranges: Ranges) -> dict[K, T]:
        """The entries whose keys are in one of the ranges, by key."""
        entries: dict[K, T]
        if self._entries is None and self._indexed and not ranges.is_everything:
            self.fetch()
            entries = self._blocks(lambda index: dict.fromkeys(index.blocks_within(ranges)), ranges)
        else:
            entries = self.entries()
        return {k: e for k, e in entries.items() if self._format.text(k) in ranges}

    @property
    def _indexed(self) -> bool:
        return self.chunk.records >= INDEXED_FROM and self.chunk.header_bytes > 0

    def _blocks(self, choose: Callable[[Index], Mapping[int, str | None]], keys: Container[str] | Ranges) -> dict[K, T]:
        """The wanted entries of the chosen blocks, each with its last wanted key if that is known."""
        index, header = self._index, self.chunk.header_bytes
        try:
            chosen = choose(index)
            spans = {index.span(block, self.chunk.bytes - header): last for block, last in chosen.items()}
            most = bool(spans) and len(spans) > len(index.offsets) // 2
        except Exception as e:
            raise self._unreadable(type(e).__name__) from e
        if self._content is None and most:
            self._content = self._whole()
        found: dict[K, T] = {}
        for run in _joined(spans):
            first = run[0][0]
            content = self._range(header + first, header + run[-1][1])
            for start, end in run:
                block, last = content[start - first : end - first], spans[start, end]
                entries = self._decoded(partial(self._of_block, index, block, keys, last))
                found.update((self._format.key(e), e) for e in entries)
        return found

    def _of_block(self, index: Index, block: bytes, keys: Container[str] | Ranges, last: str | None) -> list[T]:
        if last is None:
            return self._format.entries(index.decode_block(block), keys)
        return self._format.found_in(index, block, keys, last)

    @property
    def _index(self) -> Index:
        if self._parsed is None:
            header = self._header if self._header is not None else self._range(0, self.chunk.header_bytes)
            try:
                self._parsed = Index(header, self._format.schema)
            except Exception as e:
                raise self._unreadable(type(e).__name__) from e
            if not self._parsed.is_present:
                raise self._unreadable("it has no index")
        return self._parsed

    def _range(self, start: int, end: int) -> bytes:
        if self._content is not None:
            return self._content[start:end]
        try:
            with self._io.new_input(self.uri).open(seekable=True) as stream:
                stream.seek(start)
                content = bytes(stream.read(end - start))
        except FileNotFoundError as e:
            raise _missing(self.uri) from e
        # A file that is truncated between two blocks would otherwise look like a file with fewer entries.
        if len(content) != end - start:
            raise self._unreadable(f"{len(content)} bytes from offset {start}, expected {end - start}")
        return content

    def _whole(self) -> bytes:
        content = read_file(self._io, self.uri)
        if len(content) != self.chunk.bytes:
            raise self._unreadable(f"{len(content)} bytes, expected {self.chunk.bytes}")
        return content

    def _decoded(self, decode: Callable[[], list[T]]) -> list[T]:
        try:
            return [self._finish(e) for e in decode()]
        except Exception as e:  # fastavro raises a dozen types for a damaged file
            raise self._unreadable(type(e).__name__) from e

    def _unreadable(self, why: str) -> LedgerError:
        return LedgerError(
            "LedgerUnreadable",
            f"{self.uri} is not a readable part of a ledger ({why}). Restore the file, or roll the table back.",
        )


class ChunkedPart(Mapping[K, T]):
    """A part in chunks. `len`, `in` and get read little; iterating reads everything.

    It reads its files only as far as a look-up needs.
    """

    def __init__(self, chunks: Sequence[ChunkReader[K, T]], count: int, name: str, remembers: bool = True) -> None:
        self.chunks = tuple(chunks)
        self._count = count
        self.name = name  # for messages
        self._remembers = remembers
        self._known: dict[K, T | None] = {}
        self._all: dict[K, T] | None = None

    def get_many(self, keys: Iterable[K]) -> dict[K, T]:
        """The entries of those keys that the part has."""
        distinct_keys = list(dict.fromkeys(keys))
        if self._all is not None:
            return {k: self._all[k] for k in distinct_keys if k in self._all}
        remembered = self._known if self._remembers else {}
        missing = [k for k in distinct_keys if k not in remembered]
        if missing:
            remembered.update(self._look_up(missing))
        return {k: e for k in distinct_keys if (e := remembered[k]) is not None}

    def apart(self) -> "ChunkedPart[K, T]":
        """A copy for one thread that caches chunks, but no answers."""
        return ChunkedPart([c.apart() for c in self.chunks], self._count, self.name, remembers=False)

    def _look_up(self, keys: list[K]) -> dict[K, T | None]:
        looked_up: dict[K, T | None] = {}
        _fetch([c for c in self.chunks if c.could_hold_any(keys)])
        left = keys
        for chunk in reversed(self.chunks):
            entries = chunk.find(left)
            for key, entry in entries.items():
                looked_up[key] = None if chunk.chunk.removes else entry
            left = [k for k in left if k not in entries]
            if not left:
                break
        return looked_up | dict.fromkeys(left)

    def within(self, intervals: Sequence[Interval]) -> list[T]:
        """The entries whose keys are in one of the intervals. Reads only chunks and blocks that may contain some."""
        ranges = Ranges(intervals)
        if self._all is not None:
            return [e for k, e in self._all.items() if self.chunks[0].text(k) in ranges]
        near = [c for c in self.chunks if c.overlaps(ranges)]
        _fetch(near)
        return list(fold((c.chunk.removes, c.within(ranges)) for c in near)[0].values())

    def load(self) -> Mapping[K, T]:
        """Read all entries.

        Raises:
            LedgerError: `LedgerUnreadable`, if their number differs from the root.
        """
        if self._all is None:
            _fetch(self.chunks)
            entries = fold((c.chunk.removes, c.entries()) for c in self.chunks)[0]
            if len(entries) != self._count:
                raise LedgerError(
                    "LedgerUnreadable",
                    f"the ledger's chunks hold {len(entries)} {self.name}; its root says {self._count}. Restore its files, "
                    "or roll the table back.",
                )
            self._all = entries
        return self._all

    def __getitem__(self, key: K) -> T:
        return self.get_many([key])[key]

    def __contains__(self, key: object) -> bool:
        return bool(self.get_many([key]))  # type: ignore[list-item]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[K]:
        return iter(self.load())

    def items(self) -> ItemsView[K, T]:
        """All keys and entries. The first call reads the whole part, which then stays in memory.

        Raises:
            LedgerError: A ledger file is unusable.
        """
        return self.load().items()

    def values(self) -> ValuesView[T]:
        """All entries. The first call reads the whole part, which then stays in memory.

        Raises:
            LedgerError: A ledger file is unusable.
        """
        return self.load().values()

    def __repr__(self) -> str:
        return f"<{self._count} {self.name} in {len(self.chunks)} chunks>"


def _joined(spans: Iterable[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Group ascending spans that are near one another, to read each group at once."""
    runs: list[list[tuple[int, int]]] = []
    for span in spans:
        if runs and span[0] - runs[-1][-1][1] < NEAR_BYTES and span[1] - runs[-1][0][0] <= AT_ONCE_BYTES:
            runs[-1].append(span)
        else:
            runs.append([span])
    return runs


def _fetch(chunks: Sequence[ChunkReader[Any, Any]]) -> None:
    missing = [c for c in chunks if not c.is_fetched]
    if len(missing) > 1:
        with ThreadPoolExecutor(max_workers=min(PARALLEL_READS, len(missing))) as pool:
            list(pool.map(lambda c: c.fetch(), missing))


def _missing(uri: str) -> LedgerError:
    return LedgerError("LedgerMissing", f"the ledger file {uri} is missing. Restore it, or roll the table back.")


class TooDifferent(Exception):
    """Comparing costs more than reading the whole new ledger."""


def differing(before: Mapping[K, V], after: Mapping[K, V]) -> tuple[dict[K, V], dict[K, V]]:
    """The entries of all keys that may differ, in both versions of a part of a ledger. Most of them are equal after a merge.

    Chunks are immutable, and a ledger keeps a prefix of the chunks of its predecessor. So a key that is only in shared chunks has
    the same entry in both ledgers, even if their histories diverged.

    Raises:
        TooDifferent: Comparing costs more than reading the whole new ledger.
        LedgerError: A chunk is unreadable.
    """
    old, new = _chunks(before), _chunks(after)
    own = [c for name, c in old.items() if name not in new] + [c for name, c in new.items() if name not in old]
    if sum(c.chunk.records for c in own) > MAX_COMPARED:
        raise TooDifferent
    keys: Collection[K] = {k for c in own for k in c.entries()}
    return get_many(before, keys), get_many(after, keys)


def entries_since(before: Mapping[K, V], after: Mapping[K, V], absent: Collection[K]) -> dict[K, V]:
    """The entries in `after` of keys that are not in `before`, an earlier or later version of the same part.

    Reads only chunks that `before` does not have, because the others hold none of these keys, or remove them in both.

    Args:
        absent: Keys that are not in `before`.

    Raises:
        LedgerError: A chunk is unreadable.
    """
    old, new = _chunks(before), _chunks(after)
    # Without a chunk that removes a key, an entry in an older chunk that both have is visible again.
    if not isinstance(after, ChunkedPart) or any(c.chunk.removes for name, c in old.items() if name not in new):
        return get_many(after, absent)
    own = [c for name, c in new.items() if name not in old]
    return ChunkedPart(own, len(after), after.name, remembers=False).get_many(absent)


def _chunks(part: Mapping[K, V]) -> dict[str, ChunkReader[K, V]]:
    return {c.chunk.file: c for c in part.chunks} if isinstance(part, ChunkedPart) else {}


def changed_batches(
    before: Mapping[str, BatchEntry], after: Mapping[str, BatchEntry], shown: Callable[[BatchEntry], Any]
) -> tuple[list[BatchEntry], frozenset[str]]:
    """The entries that are new or changed in `after`, and the ids of those that are missing there.

    Args:
        shown: Returns the part of an entry to compare.

    Raises:
        TooDifferent: Comparing costs more than reading the whole new ledger.
        LedgerError: A chunk is unreadable.
    """
    then, now = differing(before, after)
    changed = [e for k, e in now.items() if k not in then or shown(then[k]) != shown(e)]
    return changed, frozenset(then.keys() - now.keys())


def all_entries(part: Mapping[K, V]) -> Iterator[dict[K, V]]:
    """Yield every entry of a part once, in groups, those that changed last first. Keeps keys and one chunk in memory.

    Raises:
        LedgerError: A chunk is unreadable or the number of entries differs from the root.
    """
    if not isinstance(part, ChunkedPart):
        yield dict(part)
        return
    seen: set[K] = set()
    total = 0
    for chunk in reversed(part.chunks):
        entries = chunk.apart().entries()
        if not chunk.chunk.removes:
            fresh = {k: e for k, e in entries.items() if k not in seen}
            total += len(fresh)
            yield fresh
        seen.update(entries)
    if total != len(part):
        raise LedgerError(
            "LedgerUnreadable",
            f"the ledger's chunks hold {total} {part.name}; its root says {len(part)}. Restore its files, or roll the table "
            "back.",
        )


def latest_rows(batches: Mapping[str, BatchEntry], count: int) -> tuple[int, ...]:
    """The rows of the batches that were promoted last, the newest first.

    Reads only the chunks that changed last, until they hold enough batches.

    Args:
        batches: Of a ledger.
        count: How many of them.

    Raises:
        LedgerError: A chunk is unreadable.
    """
    promoted: list[BatchEntry] = []
    for some in all_entries(batches):  # the newest first
        promoted += (b for b in some.values() if b.state is BatchState.PROMOTED and b.rows is not None)
        if len(promoted) >= count:
            break
    newest = sorted(promoted, key=lambda b: (b.time, b.id), reverse=True)[:count]
    return tuple(b.rows for b in newest if b.rows is not None)


def all_batches(batches: Mapping[str, BatchEntry]) -> Iterator[list[BatchEntry]]:
    """The batches of a ledger, read piece by piece."""
    for some in all_entries(batches):
        yield list(some.values())


def delivered(batches: Mapping[str, BatchEntry], references: Collection[str]) -> dict[str, frozenset[str]]:
    """The ids of the batches that runs of other programs delivered, by the reference of the run. Reads all batches.

    Args:
        batches: Of a ledger.
        references: If there are none, nothing is read.

    Raises:
        LedgerError: A chunk is unreadable.
    """
    found: dict[str, set[str]] = {}
    for some in all_batches(batches) if references else ():
        for b in some:
            if b.reference in references:
                found.setdefault(b.reference or "", set()).add(b.id)
    return {reference: frozenset(ids) for reference, ids in found.items()}

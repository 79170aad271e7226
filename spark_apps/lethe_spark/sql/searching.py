"""Looking for rows with some values in many data files, in Spark's Python workers. I/O through executors.

No value is part of a query: Spark hands them to its workers as it hands them code. No error tells one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from lethe.search.batch_positions import find_batches
from lethe.search.candidates import CandidateFile
from lethe.search.columns import Unsure
from lethe.search.keys import AnyWanted, WantedKeys, find_keys
from lethe.search.positions import SearchedFile, Wanted, find
from pyiceberg.io import load_file_io
from pyroaring import FrozenBitMap64
from pyspark import Broadcast, SparkContext

_GROUPS_PER_CORE: Final = 4
# Of a path, what was found, or why nobody can say; None: it is not there.
Told: TypeAlias = "tuple[str, dict[str, bytes] | str | None]"


@dataclass(frozen=True)
class Search:
    """What is looked for, by keys, PyIceberg's properties to open files with, and the table's name mapping."""

    wanted: Mapping[str, AnyWanted] = field(repr=False)
    io_properties: Mapping[str, str] = field(repr=False)
    names: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Searched:
    """`found`: positions by path, then by the key of the search; `missing`: paths of files that the storage does not have;
    `unsure`: why nothing can be said of the other files."""

    found: Mapping[str, Mapping[str, FrozenBitMap64]]
    unsure: Mapping[str, str]
    missing: frozenset[str] = frozenset()


def search(context: SparkContext, asked: Search, files: Sequence[CandidateFile]) -> Searched:
    """The positions of the rows that are looked for, in each of the data files. Raises: what Spark raises."""
    wanted = context.broadcast(dict(asked.wanted))
    try:
        return _asked(context, files, _Look(wanted, dict(asked.io_properties), asked.names).into)
    finally:
        wanted.destroy()  # from the disks of the executors too


@dataclass(frozen=True)
class BatchSearch:
    """Batches that are looked for by the batch column of this field id; the others as `Search`. `bounds` of that column, lower
    and upper, by the paths of files of which they are known: only batches within are looked for. `absent`: by the paths of
    files, the batch of their rows if they lack that column."""

    field_id: int
    ids: frozenset[str]
    io_properties: Mapping[str, str] = field(repr=False)
    names: Mapping[str, int] | None = None
    bounds: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)


def search_batches(
    context: SparkContext, asked: BatchSearch, files: Sequence[CandidateFile], strict: bool = False
) -> Searched:
    """The positions of each batch's rows in each of the data files, by batch id.

    Args:
        strict: A file that is not there is told of instead of failing the search; of one without the batch column nothing is
            said.
    Raises: what Spark raises.
    """
    ids = context.broadcast(sorted(asked.ids))
    look = _LookForBatches(ids, replace(asked, ids=frozenset()), strict)
    try:
        return _asked(context, files, look.into)
    finally:
        ids.destroy()


def _asked(
    context: SparkContext, files: Sequence[CandidateFile], look: Callable[[Iterable[CandidateFile]], Iterator[Told]]
) -> Searched:
    """What the workers tell of the files, which are handed to them largest first."""
    groups = max(1, min(len(files), context.defaultParallelism * _GROUPS_PER_CORE))
    largest_first = sorted(files, key=lambda c: -c.size)
    shares = [largest_first[n::groups] for n in range(groups)]
    found: dict[str, dict[str, FrozenBitMap64]] = {}
    unsure: dict[str, str] = {}
    missing: set[str] = set()
    for path, answer in context.parallelize(shares, groups).flatMap(look).collect():
        if answer is None:
            missing.add(path)
        elif isinstance(answer, str):
            unsure[path] = answer
        else:
            found[path] = {key: FrozenBitMap64.deserialize(blob) for key, blob in answer.items()}
    return Searched(found, unsure, frozenset(missing))


@dataclass(frozen=True)
class _Look:
    """Runs in a worker."""

    wanted: "Broadcast[dict[str, AnyWanted]]"
    io_properties: dict[str, str]
    names: Mapping[str, int] | None

    def into(self, files: Iterable[CandidateFile]) -> Iterator[Told]:
        def one(c: CandidateFile) -> Mapping[str, FrozenBitMap64]:
            wanted = {key: self.wanted.value[key] for key in c.keys}
            return self._find(c, wanted)

        return (_told(c, one) for c in files)

    def _find(self, c: CandidateFile, wanted: Mapping[str, AnyWanted]) -> dict[str, FrozenBitMap64]:
        values = {key: w for key, w in wanted.items() if isinstance(w, Wanted)}
        keys = {key: w for key, w in wanted.items() if isinstance(w, WantedKeys)}
        searched = SearchedFile(load_file_io(self.io_properties, c.path), c.path, c.format_name, self.names)
        found = find(searched, values, c.if_absent) if values else {}
        if keys:
            found |= find_keys(searched, keys, c.absent)
        return found


@dataclass(frozen=True)
class _LookForBatches:
    """Runs in a worker."""

    ids: "Broadcast[list[str]]"
    asked: BatchSearch  # but for the ids
    strict: bool

    def into(self, files: Iterable[CandidateFile]) -> Iterator[Told]:
        def one(c: CandidateFile) -> Mapping[str, FrozenBitMap64]:
            asked = self.asked
            searched = SearchedFile(load_file_io(dict(asked.io_properties), c.path), c.path, c.format_name, asked.names)
            return find_batches(searched, asked.field_id, self._within(c), asked.absent.get(c.path), self.strict)

        return (_told(c, one, self.strict) for c in files)

    def _within(self, file: CandidateFile) -> list[str]:
        """The ids that the file might hold."""
        ids = self.ids.value
        lower, upper = self.asked.bounds.get(file.path, (None, None))
        start = 0 if lower is None else bisect_left(ids, lower)
        return ids[start:] if upper is None else ids[start : bisect_right(ids, upper)]


def _told(
    file: CandidateFile, look: Callable[[CandidateFile], Mapping[str, FrozenBitMap64]], strict: bool = False
) -> Told:
    try:
        found = look(file)
    except FileNotFoundError:
        if not strict:
            raise RuntimeError(f"{file.path} could not be searched (FileNotFoundError)") from None
        return file.path, None
    except Unsure as e:
        return file.path, str(e)
    except Exception as e:
        raise RuntimeError(f"{file.path} could not be searched ({type(e).__name__})") from None
    return file.path, {key: positions.serialize() for key, positions in found.items()}

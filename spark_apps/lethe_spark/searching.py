"""Looking for rows with some values in many data files, in Spark's Python workers. I/O through executors.

No value is part of a query: Spark hands them to its workers as it hands them code. No error tells one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from lethe.table.candidates import Candidate
from lethe.table.columns import Unsure
from lethe.table.keys import AnyWanted, WantedKeys, find_keys
from lethe.table.positions import Wanted, find
from pyiceberg.io import FileIO, load_file_io
from pyroaring import FrozenBitMap64
from pyspark import Broadcast, SparkContext

_GROUPS_PER_CORE: Final = 4
Told: TypeAlias = "tuple[str, dict[str, bytes] | str]"  # of a path, what was found, or why nobody can say


@dataclass(frozen=True)
class Search:
    """What is looked for, by keys, PyIceberg's properties to open files with, and the table's name mapping."""

    wanted: Mapping[str, AnyWanted] = field(repr=False)
    io_properties: Mapping[str, str] = field(repr=False)
    names: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Searched:
    """`found`: positions by path, then by the key of the search; `unsure`: why nothing can be said of the other files."""

    found: Mapping[str, Mapping[str, FrozenBitMap64]]
    unsure: Mapping[str, str]


def search(context: SparkContext, asked: Search, files: Sequence[Candidate]) -> Searched:
    """The positions of the rows that are looked for, in each of the data files. Raises: what Spark raises."""
    groups = min(len(files), context.defaultParallelism * _GROUPS_PER_CORE)
    largest_first = sorted(files, key=lambda c: -c.size)
    shares = [largest_first[n::groups] for n in range(groups)]
    wanted = context.broadcast(dict(asked.wanted))
    try:
        look = _Look(wanted, dict(asked.io_properties), asked.names)
        told = context.parallelize(shares, groups).flatMap(look.into).collect()
    finally:
        wanted.destroy()  # from the disks of the executors too
    found: dict[str, dict[str, FrozenBitMap64]] = {}
    unsure: dict[str, str] = {}
    for path, answer in told:
        if isinstance(answer, str):
            unsure[path] = answer
        else:
            found[path] = {key: FrozenBitMap64.deserialize(blob) for key, blob in answer.items()}
    return Searched(found, unsure)


@dataclass(frozen=True)
class _Look:
    """Runs in a worker."""

    wanted: "Broadcast[dict[str, AnyWanted]]"
    io_properties: dict[str, str]
    names: Mapping[str, int] | None

    def into(self, files: Iterable[Candidate]) -> Iterator[Told]:
        for c in files:
            try:
                io = load_file_io(self.io_properties, c.path)
                wanted = {key: self.wanted.value[key] for key in c.keys}
                found = self._find(io, c, wanted)
            except Unsure as e:
                yield c.path, str(e)
            except Exception as e:
                raise RuntimeError(f"{c.path} could not be searched ({type(e).__name__})") from None
            else:
                yield c.path, {key: positions.serialize() for key, positions in found.items()}

    def _find(self, io: FileIO, c: Candidate, wanted: Mapping[str, AnyWanted]) -> dict[str, FrozenBitMap64]:
        values = {key: w for key, w in wanted.items() if isinstance(w, Wanted)}
        keys = {key: w for key, w in wanted.items() if isinstance(w, WantedKeys)}
        found = find(io, c.path, values, c.format_name, self.names, c.if_absent) if values else {}
        if keys:
            found |= find_keys(io, c.path, keys, c.format_name, self.names, c.absent)
        return found

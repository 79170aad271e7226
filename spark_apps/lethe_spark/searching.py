"""Looking for rows with some values in many data files, in Spark's Python workers. I/O through executors.

Parquet is read by Arrow, as `lethe.table.positions` does. What Arrow is not sure of (other formats, a column that a file does
not have, and which then has a default or the value of a partition), Iceberg reads. No error tells a value.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from lethe.table.candidates import Candidate
from lethe.table.positions import Unsure, Wanted, find, frozen, matches
from pyiceberg.io import load_file_io
from pyroaring import BitMap64, FrozenBitMap64
from pyspark import Broadcast
from pyspark.sql import functions as F  # noqa: N812

from lethe_spark.frames import named
from lethe_spark.jvm.rewrite import scan_files
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.name_mapping import field_ids

_GROUPS_PER_CORE: Final = 4
_FOUND: Final = "file string, request string, positions binary"
_POSITION: Final = "_pos"
Found: TypeAlias = dict[str, dict[str, FrozenBitMap64]]  # by path, then by the key of the search


@dataclass(frozen=True)
class Search:
    """What is looked for, by keys, and PyIceberg's properties to open files with."""

    wanted: Mapping[str, Wanted] = field(repr=False)
    io_properties: Mapping[str, str] = field(repr=False)


def search(table: SparkTable, asked: Search, snapshot_id: int, files: Sequence[Candidate]) -> Found:
    """The positions of the rows that are looked for, in each of the data files of a snapshot. A file of which Iceberg reads
    the rows shows none that native deletes hide.

    Raises: ConflictError, TransientError; what Spark raises.
    """
    context = table.spark.sparkContext
    wanted = context.broadcast(dict(asked.wanted))
    try:
        found = _by_arrow(table, asked, wanted, [c for c in files if c.parquet])
        rest = [c.path for c in files if c.path not in found]
        return found | _by_iceberg(table, asked, wanted, snapshot_id, rest) if rest else found
    finally:
        wanted.destroy()  # from the disks of the executors too


def _by_arrow(
    table: SparkTable, asked: Search, wanted: "Broadcast[dict[str, Wanted]]", files: Sequence[Candidate]
) -> Found:
    """Of those that Arrow is sure of."""
    if not files:
        return {}
    context = table.spark.sparkContext
    groups = min(len(files), context.defaultParallelism * _GROUPS_PER_CORE)
    largest_first = sorted(files, key=lambda c: -c.size)
    look = _Look(wanted, dict(asked.io_properties), field_ids(table.properties))
    shares = [[(c.path, sorted(c.keys)) for c in largest_first[n::groups]] for n in range(groups)]
    told = context.parallelize(shares, groups).flatMap(look).collect()
    return {
        path: {key: FrozenBitMap64.deserialize(blob) for key, blob in positions.items()}
        for path, positions in told
        if positions is not None
    }


@dataclass(frozen=True)
class _Look:
    """Runs in a worker: paths of files, each with the keys of its searches, to what is found in them; None: not sure."""

    wanted: "Broadcast[dict[str, Wanted]]"
    io_properties: dict[str, str]
    names: dict[str, int] | None

    def __call__(self, files: Iterable[tuple[str, list[str]]]) -> Iterator[tuple[str, dict[str, bytes] | None]]:
        for path, keys in files:
            try:
                io = load_file_io(self.io_properties, path)
                found = find(io, path, {key: self.wanted.value[key] for key in keys}, self.names)
            except Unsure:
                yield path, None
            except Exception as e:
                raise RuntimeError(f"{path} could not be searched ({type(e).__name__})") from None
            else:
                yield path, {key: positions.serialize() for key, positions in found.items()}


def _by_iceberg(
    table: SparkTable, asked: Search, wanted: "Broadcast[dict[str, Wanted]]", snapshot_id: int, paths: Sequence[str]
) -> Found:
    columns = {w.field_id: table.column_name(w.field_id) or "" for w in asked.wanted.values()}
    read = [named(name).alias(f"c{field_id}") for field_id, name in columns.items()]
    found: dict[str, dict[str, BitMap64]] = {path: {} for path in paths}
    with scan_files(table, paths, snapshot_id) as scanned:
        frame = scanned.frame.select(F.col("_file").alias("file"), F.col(_POSITION).alias(_POSITION), *read)
        # A file may be read by several tasks, each with a part of its rows.
        for row in frame.mapInArrow(_Match(wanted), _FOUND).collect():
            found[row.file].setdefault(row.request, BitMap64()).update(BitMap64.deserialize(bytes(row.positions)))
    return {path: {key: frozen(p) for key, p in of.items()} for path, of in found.items()}


@dataclass(frozen=True)
class _Match:
    """Runs in a worker: rows with their files and positions to what is found among them."""

    wanted: "Broadcast[dict[str, Wanted]]"

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            try:
                told = list(self._told(pa.Table.from_batches([batch])))
            except Exception as e:
                raise RuntimeError(f"rows could not be searched ({type(e).__name__})") from None
            yield pa.RecordBatch.from_pylist(
                [{"file": f, "request": key, "positions": p} for f, key, p in told],
                schema=pa.schema([("file", pa.string()), ("request", pa.string()), ("positions", pa.binary())]),
            )

    def _told(self, rows: pa.Table) -> Iterator[tuple[str, str, bytes]]:
        for key, w in self.wanted.value.items():
            hits: Any = rows.select(["file", _POSITION]).take(pa.array(matches(rows.column(f"c{w.field_id}"), w)))
            for file in hits.column("file").unique().to_pylist():
                of_file = hits.filter(pc.equal(hits.column("file"), file)).column(_POSITION)
                yield file, key, BitMap64(of_file.to_pylist()).serialize()

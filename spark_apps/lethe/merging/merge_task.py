"""Merges the data files of one bin into one file. Runs in Spark's Python workers, without Spark. I/O.

Only files of which the footer proves that Arrow writes the same are merged. For others `Unsuitable` says why, and Spark merges
them.
Files that are sorted and next to each other stay in their order. The rows of others are sorted in memory, if they fit.
"""

import json
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table.sorting import SortOrder

from lethe.ingest.registrable import Target
from lethe.merging.arrangement import Arrangement, NotInOrder
from lethe.merging.fetching import FileToMerge, OpenFile, opened
from lethe.merging.merged_file import MergedFile
from lethe.purge.filtering import describe, nans_of
from lethe.purge.footer import Unreadable
from lethe.purge.sinks import Sink, path_of_attempt
from lethe.purge.source import Source, Unsuitable
from lethe.writing.layout import sort_keys_of

# Rows that are sorted in memory have at most so many bytes there.
SORTED_BYTES: Final = 256 * 1024**2


@dataclass(frozen=True)
class BinToMerge:
    """Data files of one partition that become one file."""

    # In the order of batches, by their bounds.
    files: tuple[FileToMerge, ...]
    # URI of the new file.
    to: str


@dataclass(frozen=True)
class Merged:
    """What became of a bin."""

    # Iceberg's JSON of the new file; empty: there is none.
    document: str = ""
    # URI of the new file.
    path: str = ""
    # Bytes of row groups that were copied, and those that were encoded.
    copied: int = 0
    encoded: int = 0
    # Why there is no new file.
    unsuitable: str = ""


@dataclass(frozen=True)
class Merge:
    """Merges bins of one table. It is pickled and sent to the workers."""

    # In format version 3 `with_row_ids`.
    target: Target
    # The table's sort order. Its keys are columns (`sort_keys_of`).
    sort_order_json: str
    io_properties: dict[str, str]
    # Bytes of rows in memory up to which they are sorted.
    sorted_bytes: int = SORTED_BYTES

    @cached_property
    def _order(self) -> SortOrder:
        return SortOrder.model_validate_json(self.sort_order_json)

    def attempt(self, bin_: BinToMerge) -> Merged:
        """As a call, with a path of the new file that no other attempt of the task has."""
        return self(replace(bin_, to=path_of_attempt(bin_.to)))

    def __call__(self, bin_: BinToMerge) -> Merged:
        """Raises: FileNotFoundError, and what the storage raises. Then there is no new file."""
        io = load_file_io(self.io_properties, bin_.to)
        try:
            kept = self._kept(bin_)
            try:
                return self._written(io, bin_, kept, in_memory=False)
            except NotInOrder:
                return self._written(io, bin_, kept, in_memory=True)
        except (Unsuitable, Unreadable) as e:
            return Merged(unsuitable=str(e))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, ValueError) as e:
            # Of the files' content. The text may contain a value.
            return Merged(unsuitable=type(e).__name__)

    def _kept(self, bin_: BinToMerge) -> dict[str, Any]:
        """What the entries of all files say in the same way. Raises: Unsuitable."""
        if not any(f.records for f in bin_.files):
            raise Unsuitable("the files have no rows")
        entries = [json.loads(f.document) for f in bin_.files]
        places = [(e.get("spec-id"), e.get("partition")) for e in entries]
        if any(place != places[0] for place in places):
            raise Unsuitable("the files are in different partitions")
        return {"spec-id": places[0][0], "partition": places[0][1], "sort-order-id": self._order.order_id}

    def _written(self, io: FileIO, bin_: BinToMerge, kept: Mapping[str, Any], in_memory: bool) -> Merged:
        """Raises: Unsuitable, Unreadable; NotInOrder, unless `in_memory`."""
        keys = sort_keys_of(self.target, self._order)
        arrangement = Arrangement(keys, self.target.name(self.target.field_id), self._order.order_id)
        try:
            with io.new_output(bin_.to).create(overwrite=True) as stream:
                sink = Sink(stream)
                merged = MergedFile(sink, self.target, keys, self.sorted_bytes if in_memory else None)
                with closing(opened(io, bin_.files)) as files:
                    for one in files:
                        self._add(one, merged, None if in_memory else arrangement)
                merged.close()
            document = describe(io, bin_.to, sink.size, self.target, kept, merged.nans)
            return Merged(document, bin_.to, merged.copied, merged.encoded)
        except BaseException:
            with suppress(Exception):
                io.delete(bin_.to)
            raise

    def _add(self, one: OpenFile, merged: MergedFile, arrangement: Arrangement | None) -> None:
        """Add the rows of a file. Raises: Unsuitable, Unreadable, NotInOrder."""
        entry = json.loads(one.file.document)
        source = Source(one.stream, one.size, self.target, one.file.row_ids)
        if source.parquet.metadata.num_rows != one.file.records:
            raise Unsuitable("the number of its rows is not that of its entry")
        if arrangement is not None:
            arrangement.add(source, entry.get("sort-order-id"))
        merged.add(source, nans_of(entry))

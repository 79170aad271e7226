"""Writes a data file without the rows of some batches. Runs in Spark's Python workers, without Spark. I/O.

A purge only filters: the order, the partition and the columns of a file stay. So a file needs no sort and no shuffle, and its
rows need not become objects. Row groups without such rows are copied as bytes (`lethe.purge.splicing`), and Arrow encodes the
others again. Only files for which that is certain are written. For others `Unsuitable` says why, and Spark rewrites them.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO, load_file_io

from lethe.ingest.registrable import Target, by_field_id, columns_of, data_file_document
from lethe.purge.rewriting import Rewrite
from lethe.purge.row_ids import RowIds
from lethe.purge.sinks import new_file, path_of_attempt
from lethe.purge.source import Source, Unsuitable


@dataclass(frozen=True)
class Loss:
    """What a file loses."""

    # The batches whose rows are left out, and the number of these rows.
    ids: frozenset[str]
    rows: int
    # Whether its rows must be in the order of batches. Then Spark sorts them if they are not.
    in_order: bool = True


@dataclass(frozen=True)
class FileToFilter:
    """A data file, and what becomes of it."""

    path: str
    # Number of rows.
    records: int
    # URI of the new file. No other file has it.
    to: str
    loss: Loss
    # Iceberg's JSON of the file: its spec, partition and sort order are those of the new file.
    document: str
    # What its rows inherit. None: the table's rows have no ids.
    row_ids: RowIds | None = None


@dataclass(frozen=True)
class Filtered:
    """What became of a data file."""

    path: str
    # Iceberg's JSON of the new file; empty: there is none.
    document: str = ""
    # Bytes of row groups that were copied, and those that were encoded.
    copied: int = 0
    encoded: int = 0
    # Bytes of the new file that the worker has sent, and those that the store has copied by itself.
    sent: int = 0
    by_store: int = 0
    # Why there is no new file.
    unsuitable: str = ""


@dataclass(frozen=True)
class Filter:
    """Filters files of one table. It is pickled and sent to the workers."""

    # In format version 3 `with_row_ids`.
    target: Target
    io_properties: dict[str, str]

    def attempt(self, file: FileToFilter) -> Filtered:
        """As a call, with a path of the new file that no other attempt of the task has."""
        return self(replace(file, to=path_of_attempt(file.to)))

    def __call__(self, file: FileToFilter) -> Filtered:
        """Raises: FileNotFoundError, and what the storage raises."""
        io = load_file_io(self.io_properties, file.path)
        try:
            return self._filtered(io, file)
        except Unsuitable as e:
            return Filtered(file.path, unsuitable=str(e))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, ValueError) as e:
            # Of the file's content. The text may contain a value.
            return Filtered(file.path, unsuitable=type(e).__name__)

    def _filtered(self, io: FileIO, file: FileToFilter) -> Filtered:
        """Raises: Unsuitable."""
        given = io.new_input(file.path)
        with given.open() as stream:
            source = Source(stream, len(given), self.target, file.row_ids)
            try:
                with new_file(io, self.io_properties, file.to, file.path, stream, len(given)) as sink:
                    rewrite = Rewrite(source, sink, file.loss.ids, file.loss.in_order)
                    rewrite.run()
                    if rewrite.left_out != file.loss.rows or rewrite.kept + rewrite.left_out != file.records:
                        raise Unsuitable("the number of its rows is not the one that was found before")
                before = json.loads(file.document)
                kept = {k: before[k] for k in ("spec-id", "partition", "sort-order-id") if k in before}
                nans = rewrite.nans_after(nans_of(before))
                document = describe(io, file.to, sink.size, self.target, kept, nans, before)
                by_store = sink.copied_by_store
                return Filtered(
                    file.path, document, rewrite.copied, rewrite.encoded, sent=sink.size - by_store, by_store=by_store
                )
            except BaseException:
                with suppress(Exception):
                    io.delete(file.to)
                raise


def describe(
    io: FileIO,
    path: str,
    size: int,
    target: Target,
    kept: Mapping[str, Any],
    nans: Mapping[int, int],
    superset: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Iceberg's JSON of a new file, by its footer.

    Args:
        size: Bytes that were written.
        kept: What the footer does not show: spec, partition and sort order.
        nans: By field id.
        superset: Iceberg's JSON of a file that has all rows of this one. Its bounds of floating-point columns hold, where the
            footer has none because of NaNs.
    Raises: Unsuitable.
    """
    written = io.new_input(path)
    if len(written) != size:
        raise Unsuitable("the storage has copied other bytes than it should")
    with written.open() as stream:
        metadata = pq.read_metadata(stream)
    found = data_file_document(metadata, path, size, columns_of(metadata, target))
    counted = found["value-counts"]["keys"]
    known = {i: n for i, n in nans.items() if i in counted}
    bounds = {which: by_field_id(_bounds(which, found, superset, known)) for which in ("lower-bounds", "upper-bounds")}
    return json.dumps(found | bounds | dict(kept) | {"nan-value-counts": by_field_id(known)})


def _bounds(
    which: str, found: Mapping[str, Any], superset: Mapping[str, Any], nans: Mapping[int, int]
) -> dict[int, str]:
    """The bounds that a footer shows, and those of a larger file for floating-point columns that have numbers."""
    bounds, larger = of_field_id(found, which), of_field_id(superset, which)
    values, nulls = of_field_id(found, "value-counts"), of_field_id(found, "null-value-counts")
    numbers = {i: values[i] - nulls[i] - n for i, n in nans.items() if i in nulls}
    return bounds | {i: b for i, b in larger.items() if i not in bounds and numbers.get(i, 0) > 0}


def of_field_id(document: Mapping[str, Any], name: str) -> dict[int, Any]:
    """A map of Iceberg's JSON."""
    found = document.get(name) or {"keys": [], "values": []}
    return dict(zip(found["keys"], found["values"], strict=True))


def nans_of(document: Mapping[str, Any]) -> dict[int, int]:
    """The NaNs of a data file by field id, of Iceberg's JSON."""
    return of_field_id(document, "nan-value-counts")

"""Finds the data files of a snapshot that might hold rows with given values. I/O: reads manifests, no data."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table

from lethe.files.partitions import partition_text
from lethe.files.values import Values
from lethe.iceberg.batch_column import identity_positions
from lethe.iceberg.native_deletes import native_deletes
from lethe.search.keys import AnyWanted, columns_of
from lethe.search.positions import Wanted


@dataclass(frozen=True)
class CandidateFile:
    """A data file that might hold such rows."""

    path: str
    size: int  # bytes
    format_name: str  # PARQUET, ORC or AVRO
    partition: str | None  # as `lethe.files.partitions` writes it; None: unknown
    deletes: frozenset[str]  # names of the native deletes that may apply to it
    keys: frozenset[str]  # of the searches that have to read it
    if_absent: frozenset[str]  # those of `keys` that match every row if the file lacks their column
    # By search, for each of its columns: the index of the value that all rows hold if the file lacks that column; None: no
    # wanted value.
    absent: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)


def candidates(table: Table, snapshot_id: int | None, wanted: Mapping[str, AnyWanted]) -> list[CandidateFile]:
    """The live data files of a snapshot that at least one search has to read, by their metrics. `wanted`: searches by key."""
    snapshot = table.metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    if snapshot is None or not wanted:
        return []
    manifests = snapshot.manifests(table.io)
    deletes = native_deletes(table.io, manifests)
    found: list[CandidateFile] = []
    for manifest in manifests:
        if manifest.content != ManifestContent.DATA:
            continue
        for entry in manifest.fetch_manifest_entry(table.io):
            f = entry.data_file
            keys = frozenset(key for key, w in wanted.items() if all(_might_hold(f, c) for c in columns_of(w)))
            if keys:
                held = {
                    k: tuple(c.values.index_of(_absent(table, f, c.field_id)) for c in columns_of(wanted[k]))
                    for k in keys
                }
                found.append(
                    CandidateFile(
                        path=f.file_path,
                        size=f.file_size_in_bytes,
                        format_name=f.file_format.value,
                        partition=partition_text(f.spec_id, [f.partition[n] for n in range(len(f.partition))]),
                        deletes=deletes.on(f.file_path, manifest.partition_spec_id),
                        keys=keys,
                        if_absent=frozenset(k for k in keys if None not in held[k]),
                        absent=held,
                    )
                )
    return found


def values_if_absent(files: Iterable[CandidateFile], key: str, values: Values) -> dict[str, Any]:
    """By path of a file: the value that its rows hold if it lacks the column of a search. Only wanted values."""
    held = {c.path: c.absent[key][0] for c in files if key in c.absent}
    return {path: values.items[at] for path, at in held.items() if at is not None}


def _might_hold(file: DataFile, wanted: Wanted) -> bool:
    at = wanted.field_id
    values, nulls = (file.value_counts or {}).get(at), (file.null_value_counts or {}).get(at)
    if values is not None and values == nulls == file.record_count:
        return False
    return wanted.values.might_be_in((file.lower_bounds or {}).get(at), (file.upper_bounds or {}).get(at))


def _absent(table: Table, file: DataFile, field_id: int) -> Any:
    """The value of a column that a file lacks, as Iceberg stores it; None: null.

    That is the value of the file's partition, if the table is partitioned by the column itself (files that were added as they
    are). Otherwise it is the initial default of the column.
    """
    at = identity_positions(table.specs(), field_id).get(file.spec_id)
    if at is not None:
        return file.partition[at]
    return next((f.initial_default for f in table.schema().fields if f.field_id == field_id), None)

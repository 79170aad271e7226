"""Which data files of a snapshot might hold rows with some values. I/O: reads manifests, no data."""

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
class Candidate:
    """A data file that might hold such rows.

    Args:
        size: In bytes.
        partition: Its text, as `lethe.files.partitions` writes it.
        deletes: The names of the native deletes that may apply to it.
        keys: Of the searches that have to look at it.
        if_absent: Those of `keys` that want every row if the file lacks their column.
        absent: For each column of each search, which of its values (counted from 0) the rows hold if the file lacks it.
    """

    path: str
    size: int
    format_name: str
    partition: str | None
    deletes: frozenset[str]
    keys: frozenset[str]
    if_absent: frozenset[str]
    absent: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)


def candidates(table: Table, snapshot_id: int | None, wanted: Mapping[str, AnyWanted]) -> list[Candidate]:
    """The live data files of a snapshot that metrics do not rule out for each of the searches, which have keys."""
    snapshot = table.metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    if snapshot is None or not wanted:
        return []
    manifests = snapshot.manifests(table.io)
    deletes = native_deletes(table.io, manifests)
    found: list[Candidate] = []
    for manifest in manifests:
        if manifest.content is not ManifestContent.DATA:
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
                    Candidate(
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


def values_if_absent(files: Iterable[Candidate], key: str, values: Values) -> dict[str, Any]:
    """By path, which of the values of a search for one column the rows of a file hold if it lacks that column."""
    held = {c.path: c.absent[key][0] for c in files if key in c.absent}
    return {path: values.items[at] for path, at in held.items() if at is not None}


def _might_hold(file: DataFile, wanted: Wanted) -> bool:
    at = wanted.field_id
    values, nulls = (file.value_counts or {}).get(at), (file.null_value_counts or {}).get(at)
    if values is not None and values == nulls == file.record_count:
        return False
    return wanted.values.might_be_in((file.lower_bounds or {}).get(at), (file.upper_bounds or {}).get(at))


def _absent(table: Table, file: DataFile, field_id: int) -> Any:
    """What the rows of a file hold in a column that the file lacks, as Iceberg stores it; None: null.

    That is the value of its partition, if that is the column's own (files that were added as they are), else the default
    that the column had when it came.
    """
    at = identity_positions(table.specs(), field_id).get(file.spec_id)
    if at is not None:
        return file.partition[at]
    return next((f.initial_default for f in table.schema().fields if f.field_id == field_id), None)

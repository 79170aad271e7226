"""Decides by metadata which files a vacuum purges one by one, and estimates how many bytes it then copies. Pure.

The run reads the footers of these files, too, and leaves to Spark what does not fit (`lethe.purge.source`).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from lethe.base.names import ROW_ID_COLUMNS
from lethe.files.bounds import FileBounds
from lethe.vacuum.estimate import Estimate
from lethe.vacuum.priority import apart, stays_large

# The format version since which rows have ids.
ROW_IDS_SINCE: Final = 3
_FORMAT_VERSIONS: Final = (1, 2, 3)
_FORMAT: Final = "write.format.default"
_PARQUET: Final = "parquet"
_ENCRYPTED: Final = "encryption.key-id"
_BLOOM_FILTER_OF: Final = "write.parquet.bloom-filter-enabled.column."


@dataclass(frozen=True)
class TableTraits:
    """What decides about all files of a table."""

    format_version: int
    # Id of the current partition spec.
    spec_id: int
    # Names of the columns.
    columns: Collection[str]
    properties: Mapping[str, str]
    # Ids of its sort orders, old ones included, that begin with the batch column.
    batch_orders: Collection[int]

    @property
    def are_files_filterable(self) -> bool:
        plain = self.properties.get(_FORMAT, _PARQUET) == _PARQUET and _ENCRYPTED not in self.properties
        readable = self.format_version in _FORMAT_VERSIONS and not any(n in self.columns for n in ROW_ID_COLUMNS)
        return plain and readable and not has_bloom_filters(self.properties)


@dataclass(frozen=True)
class Candidate:
    """A file that might be purged one by one."""

    bounds: FileBounds
    # As Iceberg writes it.
    format_name: str
    spec_id: int
    # Rows that it loses; None: unknown.
    loses: int | None
    # Row groups of the file; 0: unknown.
    groups: int = 0
    # Id of the sort order that its writer has named; None: none.
    sort_order_id: int | None = None


def has_bloom_filters(properties: Mapping[str, str]) -> bool:
    """Whether new files of a table have Bloom filters. Arrow does not write them as the table asks for."""
    return any(k.startswith(_BLOOM_FILTER_OF) and v.lower() == "true" for k, v in properties.items())


def one_by_one(table: TableTraits, files: Collection[Candidate], target: int) -> list[Candidate]:
    """Those of the files to rewrite that stay large when they are purged one by one.

    Sorted files that overlap are left: they are sorted together, so that the next vacuum finds fewer suspects. Unsorted files
    have no order that could be restored.

    Args:
        target: The target size of data files, in bytes.
    """
    if not table.are_files_filterable:
        return []
    fitting = [f for f in files if _fits(table, f, target)]
    unsorted = {f.bounds.path for f in fitting if not is_sorted(table, f)}
    apart_ = apart(f.bounds for f in files if f.bounds.path not in unsorted)
    return [f for f in fitting if f.bounds.path in unsorted or f.bounds.path in apart_]


def is_sorted(table: TableTraits, file: Candidate) -> bool:
    """Whether the writer of a file says that its rows are in the order of batches."""
    return file.sort_order_id in table.batch_orders


def _fits(table: TableTraits, file: Candidate, target: int) -> bool:
    plain = file.format_name.lower() == _PARQUET and not file.bounds.deletes and file.spec_id == table.spec_id
    return plain and file.loses is not None and stays_large(file.bounds, file.loses, target)


@dataclass(frozen=True)
class ExpectedBytes:
    """What becomes of the bytes of files to rewrite. The rest is in files without deleted rows, which stay."""

    # In row groups without deleted rows, which are copied.
    copied: int = 0
    # In other row groups, and in files that Spark rewrites.
    encoded: int = 0


def expected_bytes(
    estimate: Estimate, files: Iterable[Candidate], filtered: Collection[Candidate] = ()
) -> ExpectedBytes:
    """Estimate how many bytes are copied and encoded.

    A file that is purged one by one counts as in the order of batches if its batches do not overlap with those of others. The
    estimate takes the row groups of such a file to be equally large, and counts each deleted batch as if it shared its row groups
    with no other one. So rather too many bytes are encoded.

    Args:
        estimate: Of all these files.
        filtered: Those that are purged one by one.
    """
    files = list(files)
    in_order = {f.bounds.path for f in filtered} & apart(f.bounds for f in files)
    copied = encoded = 0.0
    for f in files:
        rewritten = 1.0 if f.bounds.deletes else 1.0 - estimate.none_in(f.bounds)
        share = rewritten
        if f.bounds.path in in_order and f.groups > 1:
            share = min(rewritten, _touched(estimate, f) / f.groups)
        encoded += f.bounds.size * share
        copied += f.bounds.size * (rewritten - share)
    return ExpectedBytes(round(copied), round(encoded))


def _touched(estimate: Estimate, file: Candidate) -> float:
    """The expected number of row groups with deleted rows, if no two batches share one. A batch of n rows that begins anywhere
    is in 1 + (n - 1) / r row groups of r rows, on average."""
    batches, rows = estimate.batches_in(file.bounds), estimate.rows_in(file.bounds)
    return batches + max(0.0, rows - batches) * file.groups / max(1, file.bounds.records)

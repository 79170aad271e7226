"""Checks of batches before their promotion (`spec.checks`): applied to rows, and judged by batch. Pure.

`lethe.ingest.check_conditions` makes them for a table.

Rows are checked as they would be written, in the table's types and with columns that a file lacks. A decoder applies the checks
of single rows. Only the files of a batch together show whether keys are unique, and only the batch whether it has enough rows.
Invariant: no message contains a value of a row.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lethe.base.errors import Verdict
from lethe.contract.checks import CheckSpec, RowCountCheck
from lethe.contract.settings import OnFailure
from lethe.ingest.change_rows import decoded, encoded

if TYPE_CHECKING:
    from lethe.iceberg.conditions import RowCondition

FAILED: Final = "CheckFailed"
"""The reason for a batch that fails a check."""
TOO_COSTLY: Final = "CheckTooCostly"
"""The reason for a batch with more keys than are compared."""
KEY_BYTES_AT_MOST: Final = 128 * 1024 * 1024
"""Of the columns of `unique` of one batch, in memory. Comparing them takes about twice as much besides."""
KEY_BYTES_TOGETHER: Final = 16 * 1024 * 1024
"""So many bytes of small batches are compared together, because each comparison takes as long as one of thousands of rows."""
ROWS_NAMED: Final = 5
"""The rows that a message names for a check."""
CHECKS_NAMED: Final = 5
_ROW: Final = "_lethe_row"
_BATCH: Final = "_lethe_batch"


@dataclass(frozen=True)
class FailedRows:
    """Rows that fail a check, of one file."""

    count: int
    first: tuple[int, ...]
    """The numbers of the first of them in the file, from 0."""

    @classmethod
    def of(cls, rows: np.ndarray) -> "FailedRows":
        """From the numbers of all of them, in their order."""
        return cls(len(rows), tuple(int(n) for n in rows[:ROWS_NAMED]))

    def plus(self, other: "FailedRows | None") -> "FailedRows":
        """Both together. The other ones come later in the file."""
        if other is None:
            return self
        return FailedRows(self.count + other.count, (*self.first, *other.first)[:ROWS_NAMED])


FailedChecks = Mapping[int, FailedRows]
"""The rows that fail, by the number of the check."""


@dataclass(frozen=True)
class CheckFailure:
    """A batch that must not be promoted."""

    verdict: Verdict
    is_held: bool
    """It waits for a person; False: it is refused."""


@dataclass(frozen=True)
class BatchChecks:
    """The checks of a Dataset, made for the schema of its table. A check is named by its number in `spec.checks`."""

    specs: tuple[CheckSpec, ...] = ()
    of_rows: "Mapping[int, RowCondition]" = field(default_factory=dict)
    """What must not be false for any row."""
    of_keys: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Columns whose values together must differ in all rows of a batch."""
    uuids: frozenset[str] = frozenset()
    """Those of the key columns that are UUIDs, whose texts may have small and capital letters."""
    module: str = ""
    """What a process that applies them needs to import, which takes longer than reading many files; "": nothing."""

    @property
    def key_columns(self) -> list[str]:
        """The columns whose values are compared among the rows of a batch."""
        return list(dict.fromkeys(name for columns in self.of_keys.values() for name in columns))

    def failing(self, rows: pa.Table) -> Iterator[tuple[int, np.ndarray]]:
        """Each check of rows that some rows fail, and the positions of these rows, in their order."""
        batches = rows.to_batches() if self.of_rows else []
        for number, condition in self.of_rows.items():
            found, start = [], 0
            for batch in batches:
                failed = condition.false_in(batch)
                if failed.true_count:
                    found.append(np.flatnonzero(failed.to_numpy(zero_copy_only=False)) + start)
                start += batch.num_rows
            if found:
                yield number, np.concatenate(found)

    def judge(
        self,
        rows: int | None,
        failed: Mapping[str, FailedChecks],
        latest_rows: Sequence[int] = (),
        is_approved: bool = False,
    ) -> CheckFailure | None:
        """Judge a batch.

        Args:
            rows: Of the batch; None: unknown, so that their number is not judged.
            failed: By the URI of its files.
            latest_rows: The rows of the batches that were promoted last, the newest first.
            is_approved: A person has approved it, so that checks do not hold it.

        Returns:
            None, if it may be promoted.
        """
        texts: dict[OnFailure, list[str]] = {on: [] for on in OnFailure}
        for number, spec in enumerate(self.specs):
            text = ""
            if spec.row_count is not None and rows is not None:
                text = _row_count(spec.row_count, rows, latest_rows)
            elif failed:
                text = _rows_named({uri: f[number] for uri, f in failed.items() if number in f}, rows)
            if text:
                texts[spec.on_failure].append(f"check {spec.name} ({spec.kind}): {text}")
        if texts[OnFailure.REFUSE]:
            return CheckFailure(_verdict(texts[OnFailure.REFUSE] + texts[OnFailure.HOLD]), is_held=False)
        if texts[OnFailure.HOLD] and not is_approved:
            return CheckFailure(_verdict(texts[OnFailure.HOLD]), is_held=True)
        return None


NO_CHECKS: Final = BatchChecks()


@dataclass(frozen=True)
class Screening:
    """How a run checks its batches."""

    specs: tuple[CheckSpec, ...] = ()
    approved: frozenset[str] = frozenset()
    """Batches that a person has approved as they are now."""
    latest_rows: tuple[int, ...] = ()
    """The rows of the batches that were promoted last, the newest first."""


def wanted_row_counts(specs: Sequence[CheckSpec]) -> int:
    """Of how many batches that were promoted last the checks need the rows."""
    counts = (s.row_count for s in specs if s.row_count is not None)
    return max((c.of_last for c in counts if c.at_least_percent or c.at_most_percent), default=0)


def _verdict(texts: Sequence[str]) -> Verdict:
    more = f"; {len(texts) - CHECKS_NAMED} more checks fail" if len(texts) > CHECKS_NAMED else ""
    return Verdict(FAILED, "; ".join(texts[:CHECKS_NAMED]) + more)


def _rows_named(failed: Mapping[str, FailedRows], rows: int | None) -> str:
    count = sum(f.count for f in failed.values())
    if not count:
        return ""
    named, left = [], ROWS_NAMED
    for uri in sorted(failed):
        first = failed[uri].first[:left]
        left -= len(first)
        if first:
            named.append(f"{'rows' if len(first) > 1 else 'row'} {', '.join(map(str, first))} of {uri}")
    of = f" of {rows}" if rows is not None else ""
    return f"{count}{of} rows fail, first {' and '.join(named)}"


def _row_count(check: RowCountCheck, rows: int, latest_rows: Sequence[int]) -> str:
    if check.min is not None and rows < check.min:
        return f"the batch has {rows} rows, expected at least {check.min}"
    if check.max is not None and rows > check.max:
        return f"the batch has {rows} rows, expected at most {check.max}"
    latest = latest_rows[: check.of_last]
    if not latest:
        return ""
    usual = median(latest)
    of = f"of {usual:.0f}, the median of the last {len(latest)} promoted batches"
    if check.at_least_percent is not None and rows * 100 < usual * check.at_least_percent:
        return f"the batch has {rows} rows, expected at least {check.at_least_percent} % {of}"
    if check.at_most_percent is not None and rows * 100 > usual * check.at_most_percent:
        return f"the batch has {rows} rows, expected at most {check.at_most_percent} % {of}"
    return ""


# --- keys -----------------------------------------------------------------------------------------------------------


class Segment(NamedTuple):
    """Consecutive rows of a file, among those whose keys are kept together."""

    batch_id: str
    uri: str
    first_row: int
    """In the file."""
    rows: int


class KeptKeys:
    """The values of the columns of `unique`, kept until all files of their batch are read, and then compared."""

    def __init__(self, checks: BatchChecks) -> None:
        self._of_keys, self._columns, self._uuids = checks.of_keys, checks.key_columns, checks.uuids
        self._segments: list[Segment] = []
        self._tables: list[pa.Table] = []
        self._bytes: Counter[str] = Counter()  # in memory, by batch
        self._complete: set[str] = set()  # batches that can be compared
        self._complete_bytes = 0
        self.too_large: set[str] = set()
        """Batches with more keys than are compared."""

    def add(self, segments: Sequence[Segment], rows: pa.Table) -> None:
        """Keep the keys of rows, which are in the order of the segments. They are copied, without the other columns."""
        wanted = [s.rows > 0 and s.batch_id not in self.too_large for s in segments]
        kept = [s for s, is_wanted in zip(segments, wanted, strict=True) if is_wanted]
        if not kept:
            return
        keys = pa.table({name: _plain(rows.column(name), name in self._uuids) for name in self._columns})
        if len(kept) < len(segments):
            keys = keys.filter(pa.array(np.repeat(wanted, [s.rows for s in segments])))
        keys = decoded(encoded(keys))
        self._segments += kept
        self._tables.append(keys)
        for segment in kept:
            self._bytes[segment.batch_id] += keys.nbytes * segment.rows // keys.num_rows
            if self._bytes[segment.batch_id] > KEY_BYTES_AT_MOST:
                self.too_large.add(segment.batch_id)
        if any(s.batch_id in self.too_large for s in kept):
            self._keep([s.batch_id not in self.too_large for s in self._segments])

    def end(self, batch_id: str) -> bool:
        """All files of a batch are read.

        Returns:
            Whether so many batches are complete that they should be compared.
        """
        self._complete.add(batch_id)
        self._complete_bytes += self._bytes.pop(batch_id, 0)
        return self._complete_bytes >= KEY_BYTES_TOGETHER

    def compare(self) -> Iterator[tuple[Segment, int, FailedRows]]:
        """Compare the keys of all complete batches, and forget them.

        Returns:
            The rows whose values are those of an earlier row of the batch: of which segment, and which check they fail. Nulls
            differ from everything.
        """
        is_complete = [s.batch_id in self._complete for s in self._segments]
        self._complete, self._complete_bytes = set(), 0
        if not any(is_complete):
            return
        numbers: dict[str, int] = {}
        batches = [numbers.setdefault(s.batch_id, len(numbers)) for s in self._segments]
        counts = [s.rows for s in self._segments]
        starts = np.cumsum([0, *counts])
        keys = pa.concat_tables(self._tables).append_column(
            _BATCH, pa.array(np.repeat(np.array(batches, np.int32), counts))
        )
        rows = np.flatnonzero(np.repeat(is_complete, counts))
        if len(rows) < keys.num_rows:
            keys = keys.take(pa.array(rows))
        for check, columns in self._of_keys.items():
            repeated = rows[_repeated(keys, [_BATCH, *columns])]
            for n in np.unique(np.searchsorted(starts, repeated, "right") - 1):
                segment = self._segments[n]
                here = repeated[(repeated >= starts[n]) & (repeated < starts[n + 1])]
                yield segment, check, FailedRows.of(here - starts[n] + segment.first_row)
        self._keep([not complete for complete in is_complete])

    def _keep(self, wanted: Sequence[bool]) -> None:
        """Forget the keys of all other segments."""
        rows = pa.array(np.repeat(wanted, [s.rows for s in self._segments]))
        left = pa.concat_tables(self._tables).filter(rows)
        self._segments = [s for s, keep in zip(self._segments, wanted, strict=True) if keep]
        self._tables = [left] if left.num_rows else []


def _plain(values: pa.ChunkedArray, is_uuid: bool) -> pa.ChunkedArray:
    """The values as they can be compared among tables: the batch column has dictionaries, and UUIDs are texts."""
    values = values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values
    return pc.ascii_lower(values) if is_uuid and pa.types.is_string(values.type) else values


def _repeated(keys: pa.Table, columns: Sequence[str]) -> np.ndarray:
    """The positions of rows whose values in these columns are those of an earlier row."""
    compared, rows = keys.select(list(columns)), np.arange(keys.num_rows)
    if any(column.null_count for column in compared.columns):
        has_all = reduce(pc.and_, (pc.is_valid(column) for column in compared.columns))
        compared, rows = compared.filter(has_all), rows[has_all.to_numpy()]
    if compared.group_by(list(columns), use_threads=False).aggregate([]).num_rows == len(rows):
        return rows[:0]
    numbered = compared.append_column(_ROW, pa.array(rows)).group_by(list(columns), use_threads=False)
    earliest = numbered.aggregate([(_ROW, "min")]).column(f"{_ROW}_min").to_numpy()
    return np.setdiff1d(rows, earliest, assume_unique=True)


def too_many_keys(specs: Sequence[CheckSpec]) -> str:
    """Why a batch with too many keys is refused."""
    named = ", ".join(spec.name for spec in specs if spec.unique)
    return (
        f"check {named} (unique): its columns take more than {KEY_BYTES_AT_MOST // 1024**2} MiB of memory in one batch. "
        "Write smaller batches"
    )

"""What the searches of a vacuum find in data files: rows of batches, and rows that are too old. I/O; executors search many files.

A search stays true, because files never change.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lethe.contract.run import SearchLimits
from lethe.files.bounds import Age
from lethe.iceberg.time_column import TimeColumn
from lethe.ingest.schema_fit import field_ids
from lethe.search.ages import AgeSearch
from lethe.search.candidates import CandidateFile, Suspect
from lethe.search.covered import Leaving, LeavingRows
from lethe.search.retention import Retention

from lethe_spark.commit.table_state import Base
from lethe_spark.jobs.holds import covering
from lethe_spark.run.context import RunContext, table_properties
from lethe_spark.sql.searching import BatchSearch, count_too_old, search_few_here

log = logging.getLogger(__name__)


@dataclass
class SearchResults:
    """The results of the searches. Each file is searched once, because files never change.

    If files overlap, many of them might hold tombstoned rows by their bounds and hold none. Reading one column is cheap compared
    with rewriting a file. All rows of a file are read, also rows that native deletes hide.
    """

    ids: frozenset[str]
    """The batch ids to search for."""
    rows: dict[str, Mapping[str, int]] = field(default_factory=dict)
    """By path, the number of rows of each batch."""
    unsure: set[str] = field(default_factory=set)
    """Paths of files that cannot be searched."""
    missing: set[str] = field(default_factory=set)
    """Paths of files that the storage does not have."""

    def __contains__(self, path: str) -> bool:
        return path in self.rows or path in self.unsure or path in self.missing

    def held(self, path: str, ids: Iterable[str]) -> set[str]:
        """The ids of which a file holds rows; all of them, if the file cannot be searched."""
        return set(ids) if path in self.unsure else self.rows.get(path, {}).keys() & set(ids)

    def count(self, path: str, ids: Iterable[str]) -> int:
        """The number of rows of these ids in a file; 0, if it cannot be searched."""
        rows = self.rows.get(path, {})
        return sum(rows.get(i, 0) for i in ids)

    def search(self, context: RunContext, base: Base, files: Sequence[Suspect]) -> None:
        """Search the files that were not searched before.

        Raises:
            SearchError: A file could not be read.
            Exception: What Spark raises.
        """
        new = [s for s in files if s.bounds.path not in self]
        if not new:
            return
        asked = BatchSearch(
            base.field_id,
            self.ids,
            table_properties(context),
            field_ids(base.iceberg.properties),
            {s.bounds.path: (s.bounds.lower, s.bounds.upper) for s in new},
            # Equal bounds give the batch of a file without the batch column: they come from its partition
            # (`lethe.iceberg.column_path`).
            {
                s.bounds.path: s.bounds.lower
                for s in new
                if s.bounds.lower is not None and s.bounds.lower == s.bounds.upper
            },
            strict=True,
        )
        result = search_few_here(context.spark.sparkContext, SearchLimits(), asked, [_candidate(s) for s in new])
        self.rows |= {path: {i: len(p) for i, p in found.items()} for path, found in result.found.items()}
        self.missing |= result.missing
        for path, why in result.unsure.items():
            log.info("a data file cannot be searched, so it is rewritten: %s", why)
            self.unsure.add(path)


@dataclass
class AgeResults:
    """How many rows of files are too old, where the metadata does not tell. Each file is searched once."""

    column: TimeColumn
    cutoff: int
    """The first time that is not too old, as Iceberg stores it."""
    rows: dict[str, int] = field(default_factory=dict)
    """By path."""
    unsure: set[str] = field(default_factory=set)
    """Paths of files that cannot be searched."""

    def search(self, context: RunContext, base: Base, files: Sequence[Suspect]) -> None:
        """Search the files that were not searched before. Leaves out files that the storage does not have.

        Raises:
            Exception: What Spark raises.
        """
        new = [s for s in files if s.bounds.path not in self.rows and s.bounds.path not in self.unsure]
        if not new:
            return
        names = field_ids(base.iceberg.properties)
        request = AgeSearch(replace(self.column, partitions={}), self.cutoff, table_properties(context), names)
        for path, found in count_too_old(context.spark.sparkContext, request, [_candidate(s) for s in new]):
            if isinstance(found, str):
                log.info("the ages of rows cannot be read, so a data file is rewritten: %s", found)
                self.unsure.add(path)
            elif found is not None:
                self.rows[path] = found

    def holds(self, file: Suspect) -> bool:
        """Whether a searched file has rows that are too old, or may have."""
        path = file.bounds.path
        return file.age is Age.MIXED or path in self.unsure or self.rows.get(path, 0) > 0

    def is_all_of(self, file: Suspect) -> bool:
        """Whether all rows of a file are too old, by its metadata or by a search."""
        return file.age is Age.OLD or self.rows.get(file.bounds.path) == file.bounds.records


@dataclass
class HeldAges:
    """The files whose rows stay although they are too old, because holds cover some of these rows.

    Such a file loses only the rows that tombstones or native deletes hide. Each file is searched once.
    """

    retention: Retention
    holds: dict[str, frozenset[str]] = field(default_factory=dict)
    """By path, the names of the holds."""
    searched: set[str] = field(default_factory=set)
    """Paths of all files that were searched."""

    def search(
        self, context: RunContext, base: Base, files: Iterable[LeavingRows], expired: frozenset[str]
    ) -> frozenset[str]:
        """Search the files that were not searched before.

        Args:
            files: The rows that the files would lose for their age, but for those of `expired`.
            expired: The batches that are too old.

        Returns:
            The paths of those in which holds cover such rows.

        Raises:
            InputError: `InvalidHold`.
            Exception: What Spark raises.
        """
        new = [f for f in files if f.path not in self.searched]
        if not new:
            return frozenset()
        leaving = Leaving(expired, self.retention.condition(base.iceberg.schema()))
        found = covering(context, base, new, leaving)
        self.searched |= {f.path for f in new}
        self.holds |= found
        return frozenset(found)


def _candidate(file: Suspect) -> CandidateFile:
    f = file.bounds
    return CandidateFile(f.path, f.size, file.format_name, f.partition, f.deletes, frozenset(), frozenset(), f.size)

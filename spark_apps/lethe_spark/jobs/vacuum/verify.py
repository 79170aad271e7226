"""Searches files that might hold tombstoned rows: reads the batch column of each file, through executors. I/O.

If files overlap, many of them might hold tombstoned rows by their bounds and hold none. Reading one column is cheap compared with
rewriting a file. All rows of a file are read, also rows that native deletes hide.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lethe.ingest.name_mapping import field_ids
from lethe.search.candidates import CandidateFile
from lethe.search.live_suspects import Suspect

from lethe_spark.commit.table_state import Base
from lethe_spark.run.context import RunContext, table_properties
from lethe_spark.sql.searching import BatchSearch, search_batches

log = logging.getLogger(__name__)


@dataclass
class SearchResults:
    """The results of the searches. Each file is searched once, because files never change."""

    ids: frozenset[str]  # the batch ids to search for
    rows: dict[str, Mapping[str, int]] = field(default_factory=dict)  # by path, the number of rows of each batch
    unsure: set[str] = field(default_factory=set)  # paths of files that cannot be searched
    missing: set[str] = field(default_factory=set)  # paths of files that the storage does not have

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
        """Search the files that were not searched before. Raises: what Spark raises."""
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
            # (`lethe.iceberg.batch_column`).
            {
                s.bounds.path: s.bounds.lower
                for s in new
                if s.bounds.lower is not None and s.bounds.lower == s.bounds.upper
            },
        )
        result = search_batches(context.spark.sparkContext, asked, [_candidate(s) for s in new], strict=True)
        self.rows |= {path: {i: len(p) for i, p in found.items()} for path, found in result.found.items()}
        self.missing |= result.missing
        for path, why in result.unsure.items():
            log.info("a data file cannot be searched, so it is rewritten: %s", why)
            self.unsure.add(path)


def _candidate(file: Suspect) -> CandidateFile:
    f = file.bounds
    return CandidateFile(f.path, f.size, file.format_name, f.partition, f.deletes, frozenset(), frozenset())

"""Which of the files that might hold tombstoned rows do hold some: the batch column of each is read, through executors. I/O.

Where files overlap, bounds make suspects of many that hold nothing. To read one column costs little beside writing a file anew.
What is read are the files' own rows, whatever native deletes hide of them.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lethe.search.candidates import CandidateFile
from lethe.search.live_suspects import Suspect

from lethe_spark.commit.table_state import Base
from lethe_spark.ingest.name_mapping import field_ids
from lethe_spark.run.context import RunContext, table_properties
from lethe_spark.sql.searching import BatchSearch, search_batches

log = logging.getLogger(__name__)


@dataclass
class Looked:
    """What was found in the files that somebody has looked into. A file never changes: each is looked into once.

    Args:
        ids: All that are looked for.
        rows: By path, how many rows of which batches there are.
        unsure: Paths of files of which that cannot be said.
        missing: Paths of files that the storage does not have.
    """

    ids: frozenset[str]
    rows: dict[str, Mapping[str, int]] = field(default_factory=dict)
    unsure: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)

    def __contains__(self, path: str) -> bool:
        return path in self.rows or path in self.unsure or path in self.missing

    def held(self, path: str, ids: Iterable[str]) -> set[str]:
        """Those of the ids of which a file holds rows; of one that cannot be told, all of them."""
        return set(ids) if path in self.unsure else self.rows.get(path, {}).keys() & set(ids)

    def count(self, path: str, ids: Iterable[str]) -> int:
        """How many rows of these ids a file holds, as far as that can be told."""
        rows = self.rows.get(path, {})
        return sum(rows.get(i, 0) for i in ids)

    def look(self, context: RunContext, base: Base, files: Sequence[Suspect]) -> None:
        """Look into those of the files that nobody has looked into yet. Raises: what Spark raises."""
        new = [s for s in files if s.bounds.path not in self]
        if not new:
            return
        asked = BatchSearch(
            base.field_id,
            self.ids,
            table_properties(context),
            field_ids(base.iceberg.properties),
            {s.bounds.path: (s.bounds.lower, s.bounds.upper) for s in new},
            # Of a file without the column, the partition says so (`lethe.iceberg.batch_column`).
            {
                s.bounds.path: s.bounds.lower
                for s in new
                if s.bounds.lower is not None and s.bounds.lower == s.bounds.upper
            },
        )
        told = search_batches(context.spark.sparkContext, asked, [_candidate(s) for s in new], strict=True)
        self.rows |= {path: {i: len(p) for i, p in found.items()} for path, found in told.found.items()}
        self.missing |= told.missing
        for path, why in told.unsure.items():
            log.info("a file is written anew whatever it holds: %s", why)
            self.unsure.add(path)


def _candidate(file: Suspect) -> CandidateFile:
    f = file.bounds
    return CandidateFile(f.path, f.size, file.format_name, f.partition, f.deletes, frozenset(), frozenset())

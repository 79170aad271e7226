"""The schema of an index: one SQLite file for each table. Pure.

Times are microseconds since 1970, in UTC. The indexes `by_…` contain everything that a page is chosen by, so the worst filter
costs one walk through one of them, not through the batches.
"""

from enum import StrEnum
from typing import Final

from lethe.buffer.batch_rows import BUFFERED
from lethe.ledger.ledger import BatchState

VERSION: Final = 4  # of this schema; an index of another version is built again


class IndexedState(StrEnum):
    """The state of a batch, in the order of its numbers in an index."""

    PROMOTED = BatchState.PROMOTED.value
    REVERTED = BatchState.REVERTED.value
    REPLACED = BatchState.REPLACED.value
    ERASED = BatchState.ERASED.value
    REFUSED = BatchState.REFUSED.value
    HELD = BatchState.HELD.value
    BUFFERED = BUFFERED


# The states of batches, by their number in the index.
STATES: Final = tuple(s.value for s in IndexedState)

TABLES: Final = """
CREATE TABLE batches (
  id TEXT PRIMARY KEY, state INTEGER NOT NULL, time INTEGER NOT NULL, rows INTEGER, bytes INTEGER, objects INTEGER,
  snapshot INTEGER, run TEXT, restatement TEXT, replaced_by TEXT, refusal_reason TEXT, refusal_message TEXT,
  evict_by INTEGER, reference TEXT, file INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE files (number INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE);
CREATE TABLE chunks (
  part TEXT NOT NULL, position INTEGER NOT NULL, file TEXT NOT NULL, PRIMARY KEY (part, position)
) WITHOUT ROWID;
CREATE TABLE requests (key TEXT PRIMARY KEY, verified INTEGER NOT NULL, document TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE tombstones (id TEXT PRIMARY KEY, added INTEGER NOT NULL, evict_by INTEGER, partly INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE erasures (key TEXT PRIMARY KEY, document TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE snapshots (id INTEGER PRIMARY KEY, time INTEGER NOT NULL);
CREATE TABLE vacuums (snapshot INTEGER PRIMARY KEY);
CREATE TABLE purges (id TEXT NOT NULL, snapshot INTEGER NOT NULL, PRIMARY KEY (id, snapshot)) WITHOUT ROWID;
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), document TEXT NOT NULL);
"""
# Created after the first rows, which is faster.
INDEXES: Final = """
CREATE INDEX by_id ON batches (id, time, state);
CREATE INDEX by_time ON batches (time, id, state);
CREATE INDEX by_state ON batches (state, time, id);
CREATE INDEX by_restatement ON batches (restatement, time, id, state) WHERE restatement IS NOT NULL;
CREATE INDEX by_file ON batches (file);
CREATE INDEX verified ON requests (key) WHERE verified = 1;
CREATE INDEX purges_by_snapshot ON purges (snapshot);
"""

"""The summary keys, table properties, folder names and file names that Lethe writes into tables and buffers.

Pure: constants only.

Patterns of names in charts and boundaries: * matches any characters; all other characters match themselves. Pure.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

# --- snapshot summary keys -----------------------------------------------------------------------------------------
# Of the Tombstone Extension; always present on snapshots of Lethe. An empty set is an empty file.
TOMBSTONE_FILE: Final = "tombstone.file"
TOMBSTONE_ADDED: Final = "tombstone.metrics.added.count"
TOMBSTONE_DELETED: Final = "tombstone.metrics.deleted.count"
TOMBSTONE_TOTAL: Final = "tombstone.metrics.total.count"
TOMBSTONE_VACUUM_FILE: Final = "tombstone.vacuum.file"
TOMBSTONE_VACUUM_COUNT: Final = "tombstone.metrics.vacuum.count"
# Of Lethe. LEDGER is the pointer that a commit compares and sets.
LEDGER: Final = "lethe.ledger"
RUN_ID: Final = "lethe.run-id"
RUN_KIND: Final = "lethe.run-kind"
# "true" after another writer has added data files: rows of a batch may then be in files that no run of Lethe wrote.
FOREIGN_FILES: Final = "lethe.foreign-files"
# On a snapshot that added or removed native deletes for tombstones: their kind, as in `spec.deletes`.
DELETES: Final = "lethe.deletes"
# "true" while native deletes mask all active tombstones; missing: unknown.
MASKED: Final = "lethe.masked"
# "true" on each commit of a vacuum in steps, except the last.
UNFINISHED: Final = "lethe.unfinished"
# On a staged (write-audit-publish) snapshot: the URI of the list of batches that its files hold.
STAGE: Final = "lethe.stage"
# Of Iceberg: the id of a staged snapshot, and on a published snapshot, the source of its files.
WAP_ID: Final = "wap.id"
PUBLISHED_WAP_ID: Final = "published-wap-id"
SOURCE_SNAPSHOT_ID: Final = "source-snapshot-id"

# --- columns of Iceberg: the id of a row, and the sequence number of its last update --------------------------------
ROW_ID_COLUMNS: Final = ("_row_id", "_last_updated_sequence_number")

# --- table properties ----------------------------------------------------------------------------------------------
CLAIM: Final = "lethe.dataset"  # "<kubernetes namespace>/<dataset name>": who may write this table
# For a FileIO: the table, "namespace.table", whose vended credentials open its files (`lethe.storage.vended`).
VENDED_FOR: Final = "lethe.vended-for"
BATCH_COLUMN: Final = "lethe.batch-column-id"  # the Iceberg field id, so that renames have no effect
METRICS_MODE: Final = (
    "write.metadata.metrics.column.{column}"  # must be `full`: truncated bounds are wrong for long ids
)
LEDGER_SINCE: Final = "lethe.ledger-since"  # the last sequence number before Lethe's first commit
# The table's UUID, set by Lethe's first commit: a snapshot after LEDGER_SINCE without a ledger has lost it. The UUID makes a copy
# of the properties in another table invalid.
LEDGER_BEGUN: Final = "lethe.ledger-begun"
DISTRIBUTION_MODE: Final = "write.distribution-mode"
WAP_ENABLED: Final = "write.wap.enabled"
# Of Iceberg: nothing deletes files of the table unless it is "true" or missing.
GC_ENABLED: Final = "gc.enabled"
# Of Iceberg: they put data files, or metadata files, outside the table's location.
DATA_PROPERTIES: Final = ("write.data.path", "write.object-storage.path", "write.folder-storage.path")
METADATA_PROPERTY: Final = "write.metadata.path"
LOCATION_PROPERTIES: Final = (*DATA_PROPERTIES, METADATA_PROPERTY)

# --- the table of batches beside a table ---------------------------------------------------------------------------
BATCHES_SUFFIX: Final = "_batches"  # of its name
TRACKS: Final = "lethe.tracks"  # table property: the UUID of the table whose batches it shows
# On its snapshots: the root of the ledger that it shows (empty: none), the snapshot that carries it, its version; when the buffer
# was listed; and for each state, the numbers of batches, rows and bytes.
TRACKING_LEDGER: Final = "lethe.tracking.ledger"
TRACKING_CARRIER: Final = "lethe.tracking.snapshot-id"
TRACKING_VERSION: Final = "lethe.tracking.ledger-version"
TRACKING_LISTED: Final = "lethe.tracking.listed-time"
TRACKING_TOTAL: Final = "lethe.tracking.{what}.{state}"

# --- files under the table location --------------------------------------------------------------------------------
# The end of the names of Lethe's position deletes, before the extension, which distinguishes them from those of other writers.
POSITION_DELETES_SUFFIX: Final = "lethe-deletes"
# The leading underscore hides them from Iceberg's clean-up of orphan files.
LEDGER_FOLDER: Final = "_tombstones"
RUNS_FOLDER: Final = "_runs"
# In `_runs/`, the note of a run that writes data files: `<run id>-writing.json`.
WRITER_SUFFIX: Final = "-writing.json"
# The records of verified erasures. Lethe never deletes them.
ERASURES_FOLDER: Final = "_erasures"
# How far the status events of the table are published: `<number>.json`.
EVENTS_FOLDER: Final = "_events"

# --- in the buffer -------------------------------------------------------------------------------------------------
SUCCESS_MARKER: Final = "_SUCCESS"
REFUSED_FOLDER: Final = "_refused"  # below the buffer: folders that begin with an underscore are not batches
# Below the buffer: the uploads through the gateway that are not complete, and those that were completed lately.
UPLOADS_FOLDER: Final = "_uploads"
# At its root: which Dataset owns the buffer.
CLAIM_FILE: Final = "_lethe.json"
REFUSAL_FILE: Final = "_REFUSED.json"  # beside the objects of a refused batch: why


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern matches the whole name; case-sensitive."""
    return _compiled(pattern).fullmatch(name) is not None


def matches_any(patterns: Iterable[str], name: str) -> bool:
    """Whether at least one pattern matches the whole name; False if there are no patterns."""
    return any(matches(p, name) for p in patterns)


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)

"""Every summary key, table property, folder and file name that Lethe writes into a table, each with its source.

Pure: constants only.
"""

from typing import Final

# --- snapshot summary keys -----------------------------------------------------------------------------------------
# Of the Tombstone Extension; always present on a snapshot of ours, an empty set being an empty file.
TOMBSTONE_FILE: Final = "tombstone.file"
TOMBSTONE_ADDED: Final = "tombstone.metrics.added.count"
TOMBSTONE_DELETED: Final = "tombstone.metrics.deleted.count"
TOMBSTONE_TOTAL: Final = "tombstone.metrics.total.count"
TOMBSTONE_VACUUM_FILE: Final = "tombstone.vacuum.file"
TOMBSTONE_VACUUM_COUNT: Final = "tombstone.metrics.vacuum.count"
# Our own. LEDGER is the one pointer that a commit compares and sets.
LEDGER: Final = "lethe.ledger"
RUN_ID: Final = "lethe.run-id"
RUN_KIND: Final = "lethe.run-kind"
# "true" once another writer has added data files: rows of a batch may then lie where no run of ours has put them.
FOREIGN_FILES: Final = "lethe.foreign-files"
# On a snapshot that brought or took back native deletes for the sake of tombstones: which, as `spec.deletes` names them.
DELETES: Final = "lethe.deletes"
# "true" as long as each active tombstone is masked by native deletes; absent where nobody keeps account of it.
MASKED: Final = "lethe.masked"
# "true" on a commit of a run that has more to do: a vacuum in steps. Its last one has no such key.
UNFINISHED: Final = "lethe.unfinished"
# On a staged (write-audit-publish) snapshot: the URI of the list of batches that its files hold.
STAGE: Final = "lethe.stage"
# Iceberg's own: the id of a staged snapshot, and on the published one whence its files came.
WAP_ID: Final = "wap.id"
PUBLISHED_WAP_ID: Final = "published-wap-id"
SOURCE_SNAPSHOT_ID: Final = "source-snapshot-id"

# --- table properties ----------------------------------------------------------------------------------------------
CLAIM: Final = "lethe.dataset"  # "<kubernetes namespace>/<dataset name>": who may write this table
# For a FileIO: the table, "namespace.table", whose vended credentials open its files (`lethe.storage.vended`).
VENDED_FOR: Final = "lethe.vended-for"
BATCH_COLUMN: Final = "lethe.batch-column-id"  # the Iceberg field id, so that a rename is survived
METRICS_MODE: Final = "write.metadata.metrics.column.{column}"  # must be `full`: truncated bounds lie about long ids
LEDGER_SINCE: Final = "lethe.ledger-since"  # the last sequence number before Lethe's first commit
# The table's UUID, from Lethe's first commit on: a snapshot above LEDGER_SINCE that leads to no ledger has lost it. A copy of
# the properties in another table says nothing.
LEDGER_BEGUN: Final = "lethe.ledger-begun"
DISTRIBUTION_MODE: Final = "write.distribution-mode"
WAP_ENABLED: Final = "write.wap.enabled"
# Iceberg's own, by which files lie elsewhere than below the table's location; the last is of metadata, the others of data.
DATA_PROPERTIES: Final = ("write.data.path", "write.object-storage.path", "write.folder-storage.path")
METADATA_PROPERTY: Final = "write.metadata.path"
LOCATION_PROPERTIES: Final = (*DATA_PROPERTIES, METADATA_PROPERTY)

# --- the table of batches beside a table ---------------------------------------------------------------------------
BATCHES_SUFFIX: Final = "_batches"  # of its name
TRACKS: Final = "lethe.tracks"  # table property: the UUID of the table whose batches it shows
# On its snapshots: the root of the ledger that is shown ("" for none), the snapshot that carries it, its version; when the
# buffer was listed; and, of each state, how many batches, rows and bytes there are.
TRACKING_LEDGER: Final = "lethe.tracking.ledger"
TRACKING_CARRIER: Final = "lethe.tracking.snapshot-id"
TRACKING_VERSION: Final = "lethe.tracking.ledger-version"
TRACKING_LISTED: Final = "lethe.tracking.listed-time"
TRACKING_TOTAL: Final = "lethe.tracking.{what}.{state}"

# --- files under the table location --------------------------------------------------------------------------------
# How the names of our equality deletes begin, so that readers who know the ledger can leave them out.
EQUALITY_DELETES_PREFIX: Final = "lethe-tombstones-"
# The leading underscore keeps them out of Iceberg's orphan clean-up (its hidden-path filter).
LEDGER_FOLDER: Final = "_tombstones"
RUNS_FOLDER: Final = "_runs"
# In `_runs/`, the note of a run that writes data files: `<run id>-writing.json`.
WRITER_SUFFIX: Final = "-writing.json"
# The records of erasures that were verified: nothing removes them.
ERASURES_FOLDER: Final = "_erasures"

# --- in the buffer -------------------------------------------------------------------------------------------------
SUCCESS_MARKER: Final = "_SUCCESS"
REFUSED_FOLDER: Final = "_refused"  # below the buffer: folders that begin with an underscore are no batches
# At its root: which Dataset owns the buffer.
CLAIM_FILE: Final = "_lethe.json"
REFUSAL_FILE: Final = "_REFUSED.json"  # beside the objects of a refused batch: why

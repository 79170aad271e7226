"""The names that Lethe writes into tables and buffers, patterns of names, and names that a user has misspelt. Pure.

The names are summary keys, table properties, folders and files. In a pattern of a chart or a boundary, * matches any characters;
all other characters match themselves.
"""

import difflib
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

_COMPARED: Final = 100
"""The characters of a misspelt name that are compared and shown."""

# --- snapshot summary keys -----------------------------------------------------------------------------------------
# Of the Tombstone Extension; always present on snapshots of Lethe. An empty set is an empty file.
TOMBSTONE_FILE: Final = "tombstone.file"
TOMBSTONE_ADDED: Final = "tombstone.metrics.added.count"
TOMBSTONE_DELETED: Final = "tombstone.metrics.deleted.count"
TOMBSTONE_TOTAL: Final = "tombstone.metrics.total.count"
TOMBSTONE_VACUUM_FILE: Final = "tombstone.vacuum.file"
TOMBSTONE_VACUUM_COUNT: Final = "tombstone.metrics.vacuum.count"
LEDGER: Final = "lethe.ledger"
"""The pointer that a commit compares and sets: the URI of the root of the ledger."""
RUN_ID: Final = "lethe.run-id"
RUN_KIND: Final = "lethe.run-kind"
FOREIGN_FILES: Final = "lethe.foreign-files"
"""Is "true" after another writer has added data files: rows of a batch may then be in files that no run of Lethe wrote."""
DELETES: Final = "lethe.deletes"
"""The kind of native deletes, as in `spec.deletes`, on a snapshot that added or removed some for tombstones."""
MASKED: Final = "lethe.masked"
"""Is "true" while native deletes mask all active tombstones; missing: unknown."""
UNFINISHED: Final = "lethe.unfinished"
"""Is "true" on each commit of a vacuum in steps, except the last."""
RETENTION_CUTOFF: Final = "lethe.retention-cutoff"
"""The UTC day before which rows are too old, on a snapshot that removed such rows."""
STAGE: Final = "lethe.stage"
"""The URI of the list of batches in the files of a staged (write-audit-publish) snapshot."""
# Of Iceberg: the id of a staged snapshot, and on a published snapshot, the source of its files.
WAP_ID: Final = "wap.id"
PUBLISHED_WAP_ID: Final = "published-wap-id"
SOURCE_SNAPSHOT_ID: Final = "source-snapshot-id"

# --- columns of Iceberg: the id of a row, and the sequence number of its last update --------------------------------
ROW_ID_COLUMNS: Final = ("_row_id", "_last_updated_sequence_number")

# --- table properties ----------------------------------------------------------------------------------------------
CLAIM: Final = "lethe.dataset"
"""Who may write this table: "<kubernetes namespace>/<dataset name>"."""
VENDED_FOR: Final = "lethe.vended-for"
"""A property of a FileIO: the table, "namespace.table", whose vended credentials open its files (`lethe.storage.vended`)."""
BATCH_COLUMN: Final = "lethe.batch-column-id"
"""The Iceberg field id of the batch column. A name would change when the column is renamed."""
METRICS_MODE: Final = "write.metadata.metrics.column.{column}"
"""The metrics mode of a column. It must be `full`: truncated bounds are wrong for long ids."""
LEDGER_SINCE: Final = "lethe.ledger-since"
"""The last sequence number before Lethe's first commit."""
LEDGER_BEGUN: Final = "lethe.ledger-begun"
"""The table's UUID, set by Lethe's first commit: a snapshot after LEDGER_SINCE without a ledger has lost it.

The UUID makes a copy of the properties in another table invalid.
"""
DISTRIBUTION_MODE: Final = "write.distribution-mode"
WAP_ENABLED: Final = "write.wap.enabled"
GC_ENABLED: Final = "gc.enabled"
"""A property of Iceberg: nothing deletes files of the table unless it is "true" or missing."""
# Of Iceberg: they put data files, or metadata files, outside the table's location.
DATA_PROPERTIES: Final = ("write.data.path", "write.object-storage.path", "write.folder-storage.path")
METADATA_PROPERTY: Final = "write.metadata.path"
LOCATION_PROPERTIES: Final = (*DATA_PROPERTIES, METADATA_PROPERTY)

# --- the table of batches beside a table ---------------------------------------------------------------------------
BATCHES_SUFFIX: Final = "_batches"
"""What its name adds to the name of the table."""
TRACKS: Final = "lethe.tracks"
"""A table property: the UUID of the table whose batches it shows."""
# On its snapshots: the root of the ledger that it shows (empty: none), the snapshot that carries it, its version; when the buffer
# was listed; and for each state, the numbers of batches, rows and bytes.
TRACKING_LEDGER: Final = "lethe.tracking.ledger"
TRACKING_CARRIER: Final = "lethe.tracking.snapshot-id"
TRACKING_VERSION: Final = "lethe.tracking.ledger-version"
TRACKING_LISTED: Final = "lethe.tracking.listed-time"
TRACKING_TOTAL: Final = "lethe.tracking.{what}.{state}"

# --- files under the table location --------------------------------------------------------------------------------
POSITION_DELETES_SUFFIX: Final = "lethe-deletes"
"""The end of the names of Lethe's position deletes, before the extension. Other writers' names have another one."""
# The leading underscore hides them from Iceberg's clean-up of orphan files.
LEDGER_FOLDER: Final = "_tombstones"
RUNS_FOLDER: Final = "_runs"
WRITER_SUFFIX: Final = "-writing.json"
"""The end of the name, in `_runs/`, of the note of a run that writes data files: `<run id>-writing.json`."""
ERASURES_FOLDER: Final = "_erasures"
"""The records of verified erasures. Lethe never deletes them."""
EVENTS_FOLDER: Final = "_events"
"""How far the status events of the table are published: `<number>.json`."""

# --- in the buffer -------------------------------------------------------------------------------------------------
SUCCESS_MARKER: Final = "_SUCCESS"
REFUSED_FOLDER: Final = "_refused"
"""The folder, below the buffer, of refused batches. Folders that begin with an underscore are not batches."""
UPLOADS_FOLDER: Final = "_uploads"
"""The folder, below the buffer, of uploads through the gateway: those that are not complete, and the latest complete ones."""
CLAIM_FILE: Final = "_lethe.json"
"""The file, at the root of the buffer, that says which Dataset owns it."""
REFUSAL_FILE: Final = "_REFUSED.json"
"""The file, beside the objects of a refused batch, that says why it was refused."""


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern matches the whole name; case-sensitive."""
    return _compiled(pattern).fullmatch(name) is not None


def matches_any(patterns: Iterable[str], name: str) -> bool:
    """Whether at least one pattern matches the whole name; False if there are no patterns."""
    return any(matches(p, name) for p in patterns)


def similar(name: str, known: Iterable[str], at_most: int) -> list[str]:
    """The known names that are similar, the most similar first."""
    return difflib.get_close_matches(name[:_COMPARED], [*known], at_most)


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is most similar; "": none is similar."""
    return next(iter(similar(name, known, 1)), "")


def unknown(what: str, name: str, known: Iterable[str], inside: str = "") -> str:
    """What is wrong with a name that does not exist: unknown field "spec.tabel" (did you mean "table"?).

    Args:
        what: A field, an annotation, a parameter.
        name: The name that does not exist.
        known: The names that exist.
        inside: The path of what contains it, with a dot at its end.
    """
    meant = nearest(name, known)
    return f'unknown {what} "{inside}{name[:_COMPARED]}"' + (f' (did you mean "{meant}"?)' if meant else "")


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)

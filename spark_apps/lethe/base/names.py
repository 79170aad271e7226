"""Names that Lethe writes into tables, buffers and Kubernetes, ids and lists of them, patterns of names, misspelt names. Pure.

The names are summary keys, table properties, folders and files. In a pattern of a chart or a boundary, * matches any characters;
all other characters match themselves.

Ids are batch ids and their folder names, run ids, request keys, and the names of Kubernetes objects made of them. They must never
change, because tables store them.
"""

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, unquote

from lethe.base.errors import InputError

MAX_BATCH_ID_LENGTH = 256
FORMAT_EXTENSIONS: Final = (".parquet", ".orc", ".avro", ".json", ".jsonl", ".ndjson", ".csv")
"""The extensions of batch files. A batch id may contain dots, so any other ending is part of the id."""
COMPRESSION_EXTENSIONS: Final = (".gz", ".zst", ".bz2", ".lz4")

NOT_PART_OF_A_REQUEST = frozenset({"suspend", "cancel", "deadlineSeconds", "ttlSecondsAfterFinished"})


def batch_folder(column: str, batch_id: str) -> str:
    """The folder name of a batch in a buffer: `<column>=<percent-encoded id>`."""
    return f"{column}={quote(batch_id, safe='')}"


def batch_id_of_folder(column: str, folder: str) -> str | None:
    """The batch id in a folder name; None: the folder is not `<column>=<id>`.

    Raises:
        InputError: `InvalidBatchId`, if the id is empty, longer than 256 characters or not valid UTF-8.
    """
    prefix = f"{column}="
    if not folder.startswith(prefix):
        return None
    return _batch_id(folder[len(prefix) :], f"the folder {folder[:80]!r}")


def batch_file(batch_id: str, extension: str) -> str:
    """The name of a file that is a whole batch: `<percent-encoded id><extension>`. It never begins with `_` or `.`.

    Args:
        extension: One of `FORMAT_EXTENSIONS`, with or without one of `COMPRESSION_EXTENSIONS` after it.
    """
    encoded = quote(batch_id, safe="")
    if encoded.startswith(("_", ".")):
        encoded = f"%{ord(encoded[0]):02X}{encoded[1:]}"
    return encoded + extension


def batch_id_of_file(name: str) -> str:
    """The batch id in a file name, which is the name without the extensions of a compression and of a format.

    Raises:
        InputError: `InvalidBatchId`, as `batch_id_of_folder`.
    """
    stem = _without(name, COMPRESSION_EXTENSIONS)
    return _batch_id(_without(stem, FORMAT_EXTENSIONS), f"the file {name[:80]!r}")


def _without(name: str, extensions: Iterable[str]) -> str:
    lowered = name.lower()
    return next((name[: -len(e)] for e in extensions if lowered.endswith(e)), name)


def _batch_id(encoded: str, named: str) -> str:
    try:
        batch_id = unquote(encoded, errors="strict")
        batch_id.encode()  # a name of a local file may have any bytes, which Python shows as halves of surrogate pairs
    except UnicodeError as e:
        raise InputError("InvalidBatchId", f"{named} is not percent-encoded UTF-8") from e
    if not 1 <= len(batch_id) <= MAX_BATCH_ID_LENGTH:
        raise InputError("InvalidBatchId", f"{named} names a batch id of {len(batch_id)} characters, expected 1 to 256")
    return batch_id


def run_id(dataset_uid: str, kind: str, keys: Iterable[str]) -> str:
    """The deterministic run id: 32 hex digits of SHA-256 over the UID of the Dataset, the kind, and the sorted keys."""
    document = json.dumps([dataset_uid, kind, sorted(keys)], ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(document.encode()).hexdigest()[:32]


def request_key(namespace: str, name: str, spec: Mapping[str, Any]) -> str:
    """The key of a Restatement in a ledger: `namespace/name/sha256(spec without suspend, cancel, deadline, TTL)`.

    If GitOps creates the object again with the same spec, it has the same key.

    A key is one line, because a tombstone lists the keys of its requests, one per line. A program may name a revert by any text.
    """
    kept = {k: v for k, v in spec.items() if k not in NOT_PART_OF_A_REQUEST and v is not None}
    document = json.dumps(kept, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return f"{namespace}/{name}/{hashlib.sha256(document.encode()).hexdigest()}".replace("\n", "%0A")


def kube_name(*parts: str, limit: int = 63) -> str:
    """Join `parts` to a DNS label of at most `limit` characters.

    If the name was cut or changed, it ends with a hash of the original: `a.b` and `a-b` stay different.
    """
    whole = "-".join(parts).lower()
    name = whole.replace("_", "-").replace(".", "-")
    if name == whole and len(name) <= limit:
        return name
    digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
    return f"{name[: limit - 9].rstrip('-')}-{digest}"


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


def lines_of(text: str) -> list[str]:
    """The lines of a list of ids or values that somebody writes, one per line.

    Only LF or CR LF ends a line. Other line separators, such as U+2028, may be part of an id or a value.
    """
    return [line.removesuffix("\r") for line in text.split("\n")]

"""Finds out which rows of a table an object holds that the ledger does not know. I/O: reads a footer, or a small file.

The first and the last bytes say what an object is, not its name. Only a few formats are read; all others are unknown. Anyone may
have written an object, so a decoder reads it (`lethe.decoder`).
"""

import hashlib
import io
import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO, Final

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from lethe.base import names
from lethe.base.errors import LedgerError
from lethe.buffer.promotion import StageNote
from lethe.contract.result import Progress, result_model
from lethe.contract.run import RunSpec
from lethe.contract.settings import RunKind
from lethe.decoder.objects import ObjectWork, Open, UnreadableObject, read_objects
from lethe.decoder.process import limits_here
from lethe.erasure.record import canonical
from lethe.erasure.request_record import is_request_record
from lethe.erasure.strays import DATA_FILES, OTHER, UNKNOWN, StrayContent
from lethe.files.increment import SnapshotFiles
from lethe.iceberg.facts import TableFacts
from lethe.iceberg.position_deletes import PUFFIN
from lethe.iceberg.snapshot_files import SnapshotView
from lethe.ledger.format import FORMATS
from lethe.ledger.ledger import BatchEntry, BatchState
from lethe.ledger.lineage import Snapshot, cherry_picked
from lethe.ledger_chunks import TooDifferent, all_batches, changed_batches, read_file
from lethe.ledger_store import Loaded, load_root
from lethe.read import data_file
from lethe.uri import local_path, without_values

log = logging.getLogger(__name__)

BYTES_AT_MOST: Final = 64 * 2**20
_AVRO: Final = b"Obj\x01"
_ROOT: Final = frozenset({"format-version", "table-uuid", "ledger-version", "run", "statistics", "parts", "locations"})
_NOTE: Final = frozenset({"format-version", "run", "attempt", "folder", "sequence-number", "batch-ids"})
_CURSOR: Final = frozenset({"format-version", "dataset", "table-uuid", "epoch", "at", "step"})
_SIGNATURE: Final = frozenset({"format-version", "algorithm", "key-id", "statement", "signature"})
_RECORD: Final = frozenset(
    {"format-version", "table", "restatement", "request", "purge", "expired-snapshots", "files", "files-count"}
    | {"files-bytes", "files-sha256", "verified", "not-covered"}
)
_MODELS: Final = (RunSpec, Progress, *(result_model(kind) for kind in RunKind))
_RUN_DOCUMENTS: Final = tuple(
    frozenset(field.alias or name for name, field in model.model_fields.items()) for model in _MODELS
)

_RUN: Final = re.compile(r"/([0-9a-f]{32})/")
"""Matches the folder of a run, in the path of a data file that the run wrote."""

NO_ROWS: Final = StrayContent(no_rows=True)
POSITIONS_OF_PARTITION: Final = StrayContent(of_table=True)
"""Deletes by position whose paths have values of a partition: their own path, or those of the data files that they name."""
_PARQUET: Final = (b"PAR1", b"PARE")
_ORC: Final = b"ORC"
_POSITIONS: Final = ["file_path", "pos"]
_FIELD_ID: Final = b"PARQUET:field_id"
_VERSION_OF_MANIFEST: Final = "format-version"
"""A key in the header of a manifest and of a list of manifests. A data file has none."""
_HEADER_BYTES: Final = 4 * 2**20
_DELETION_VECTOR: Final = "deletion-vector-v1"
_VECTOR_OF: Final = "referenced-data-file"


def is_own(path: str, content: bytes) -> bool:
    """Whether a file in one of Lethe's folders beside a table has the form of what Lethe writes there.

    Names do not count: any file may have such a name. These files contain no rows: ids of batches, paths, counts and digests.
    """
    folders, _, name = path.rpartition("/")
    parts = folders.split("/")
    if names.LEDGER_FOLDER in parts[-1:] and content.startswith(_AVRO):
        return _is_chunk(content)
    document = _json(content)
    if document is None:
        return False
    keys = document.keys()
    match parts[-1:]:
        case [names.LEDGER_FOLDER]:
            return keys == _ROOT
        case [names.RUNS_FOLDER]:
            return (
                keys == _NOTE
                or StageNote.has_keys(document)
                or any("runId" in keys and keys <= document_keys for document_keys in _RUN_DOCUMENTS)
            )
        case [names.ERASURES_FOLDER] if keys == _SIGNATURE:
            return canonical(document) == content
        case [names.ERASURES_FOLDER]:
            digest = hashlib.sha256(content).hexdigest()[:16]
            return (keys == _RECORD or is_request_record(document)) and name.endswith(f"-{digest}.json")
        case _:
            return names.EVENTS_FOLDER in parts[-2:] and keys <= _CURSOR and "table-uuid" in keys


def is_checksum(content: bytes, file_bytes: int) -> bool:
    """Whether it is the checksum file that Hadoop writes beside a local file of this size."""
    if content[:4] != b"crc\0" or len(content) < 8:
        return False
    chunk = int.from_bytes(content[4:8], "big")
    return chunk > 0 and len(content) == 8 + 4 * -(-file_bytes // chunk)


def _is_chunk(content: bytes) -> bool:
    try:
        schema: Any = fastavro.reader(io.BytesIO(content)).writer_schema
        fields = {f["name"] for f in schema["fields"]}
    except Exception:
        return False
    return any(
        schema["name"] == part_format.schema["name"] and fields <= {f["name"] for f in part_format.schema["fields"]}
        for part_format in FORMATS.values()
    )


def _json(content: bytes) -> Mapping[str, Any] | None:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def cherry_picked_batches(table: Table, facts: TableFacts, loaded: Loaded, field_id: int) -> dict[str, BatchEntry]:
    """The batches that these commits brought in, by id, with the entries that a commit of Lethe would have written.

    Example: after a rollback, `cherrypick_snapshot` copies an append of Lethe. Its files are live, but their batches are not in
    the ledger, so a consolidation would load them a second time. It reads ledgers, lists of staged batches and, if the snapshots
    that name them have expired, the batch column of the files.

    Args:
        table: The table of `facts`, in the same state.
        loaded: The ledger of the head.
        field_id: Of the batch column.

    Raises:
        LedgerError: A ledger or a list of staged batches that a retained snapshot names is unreadable.
    """
    bare = loaded.resolution.bare
    batches: dict[str, BatchEntry] = {}
    for source in cherry_picked(facts.snapshots, bare):
        of = _committed(table, facts, loaded, source) if source.ledger is not None else _staged(table, facts, source)
        batches |= {e.id: e for e in of}
    for copy in bare:
        snapshot = facts.snapshots[copy]
        if names.SOURCE_SNAPSHOT_ID in snapshot.summary and not cherry_picked(facts.snapshots, [copy]):
            batches = {**_in_files(table, snapshot, field_id), **batches}
    if batches:
        log.info("%s: snapshots without a ledger brought back %d batches", facts.name, len(batches))
    return batches


def _committed(table: Table, facts: TableFacts, loaded: Loaded, source: Snapshot) -> Iterable[BatchEntry]:
    """The batches that a commit of Lethe added."""
    assert source.ledger is not None
    batches = load_root(table.io, facts, source.ledger, source.id).batches
    try:
        changed: Iterable[BatchEntry] = changed_batches(loaded.ledger.batches, batches, lambda e: e)[0]
    except TooDifferent:
        changed = (e for some in all_batches(batches) for e in some)
    return [e for e in changed if e.snapshot_id == source.id and e.rows is not None]


def _staged(table: Table, facts: TableFacts, source: Snapshot) -> Iterable[BatchEntry]:
    """The batches that a run has staged."""
    uri = source.summary[names.STAGE]
    folder = f"{facts.location.rstrip('/')}/{names.RUNS_FOLDER}"
    if local_path(uri).rpartition("/")[0] != local_path(folder):
        raise LedgerError("LedgerOutside", f"{facts.name}, snapshot {source.id}: the list {uri} is not in {folder}.")
    content = read_file(table.io, uri)
    try:
        note = StageNote.of(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise LedgerError(
            "LedgerUnreadable",
            f"{facts.name}, snapshot {source.id}: {uri} is not a readable list of staged batches ({type(e).__name__}). Restore "
            "the file, or roll the table back.",
        ) from e
    time, run = datetime.fromtimestamp(source.timestamp_ms / 1000, UTC), source.summary.get(names.RUN_ID, "")
    return [
        BatchEntry(
            b.id,
            BatchState.PROMOTED,
            run,
            time,
            rows=b.rows,
            bytes=b.bytes,
            objects=b.objects,
            reference=note.references.get(b.id),
        )
        for b in note.batches.values()
    ]


def _in_files(table: Table, copy: Snapshot, field_id: int) -> dict[str, BatchEntry]:
    """The batches in files of a run's folder, found by reading the rows.

    Their objects in the buffer are unknown, so retention does not delete them.
    """
    view = SnapshotView.on(table, field_id)
    column = view.schema.find_column_name(field_id)
    time = datetime.fromtimestamp(copy.timestamp_ms / 1000, UTC)
    rows: Counter[str] = Counter()
    runs: dict[str, str] = {}
    for file in view.files(SnapshotFiles.ADDED, copy.id):
        run = _RUN.search(file.bounds.path)
        if run is None or column is None:
            continue
        for batch in data_file.read(view, [data_file.ReadPart((file,))], (column,)):
            for counted in pc.value_counts(batch.column(column)).to_pylist():
                if counted["values"] is not None:
                    rows[counted["values"]] += counted["counts"]
                    runs[counted["values"]] = run[1]
    return {i: BatchEntry(i, BatchState.PROMOTED, runs[i], time, rows=n) for i, n in rows.items()}


@dataclass(frozen=True)
class StrayWork(ObjectWork):
    """What a decoder does with objects that no snapshot names."""

    field_id: int
    """The field id of the batch column."""
    schema: Schema

    def bytes_read(self, size: int) -> int:
        """How many bytes are read: at most `BYTES_AT_MOST`, so that a larger object gets no more time."""
        return min(size, BYTES_AT_MOST)

    def read(self, stream: BinaryIO, path: str) -> Any:
        """The `StrayContent` as a dict. Content that cannot be decoded is `UNKNOWN`.

        Raises:
            MemoryError: The decoder has too little memory.
        """
        try:
            return asdict(content_of(stream, path, self.field_id, self.schema))
        except MemoryError:
            raise
        except Exception:  # of any kind: the bytes are someone else's
            return asdict(UNKNOWN)


def contents_of(
    paths: Iterable[str], open_object: Open, field_id: int, schema: Schema
) -> Iterator[tuple[str, StrayContent | None]]:
    """What objects contain; None: an object could not be fetched.

    Args:
        field_id: Of the batch column.
        schema: Of the table.

    Raises:
        NoDecoder: No decoder can be started, or decoders end before they decode anything.
        Exception: What `open_object` raises, unless it is an OSError.
    """
    for path, found in read_objects(StrayWork(limits_here(), field_id, schema), paths, open_object):
        if not isinstance(found, UnreadableObject):
            yield path, StrayContent(**found)
        else:
            yield path, StrayContent(costly=found.why) if found.why else None


def content_of(stream: BinaryIO, path: str, field_id: int, schema: Schema | None = None) -> StrayContent:
    """What is known of an object's content: which rows of the table it may hold.

    Args:
        field_id: Of the batch column.
        schema: Of the table, to know files without field ids by the names of their columns; None: such files are unknown.

    Returns:
        `UNKNOWN` for a data file that is incomplete, or whose format is not read; `OTHER` for anything else.
    """
    start = stream.read(8)
    if not start:
        return NO_ROWS
    if start[:4] in _PARQUET:
        return _of_parquet(stream, path, field_id, schema)
    if start[:4] == _AVRO:
        return _of_avro(stream, path, field_id)
    if start[:4] == PUFFIN:
        files = _files_of_vectors(stream)
        return OTHER if files is None else _of_positions((path, *files))
    if start[:3] == _ORC or path.endswith(DATA_FILES):
        return UNKNOWN
    return NO_ROWS if is_own(path, _whole(stream)) else OTHER


def checksum_content(stream: BinaryIO, file: BinaryIO) -> StrayContent:
    """The content of an object with the name of a checksum file.

    Args:
        file: The file beside it whose checksum it may be.
    """
    return NO_ROWS if is_checksum(_whole(stream), file.seek(0, io.SEEK_END)) else OTHER


def _whole(stream: BinaryIO) -> bytes:
    """The content; empty, if it is large."""
    stream.seek(0)
    content = stream.read(BYTES_AT_MOST + 1)
    return content if len(content) <= BYTES_AT_MOST else b""


def _of_parquet(stream: BinaryIO, path: str, field_id: int, schema: Schema | None) -> StrayContent:
    stream.seek(0)
    try:
        file = pq.ParquetFile(pa.PythonFile(stream, mode="r"))
        if file.metadata.num_rows and file.schema_arrow.names == _POSITIONS:
            files = _files_of_positions(file.metadata)
            return POSITIONS_OF_PARTITION if files is None else _of_positions((path, *files))
        return _content(file.metadata, file.schema_arrow, field_id, schema)
    except (pa.ArrowException, OSError, ValueError):
        return UNKNOWN


def _content(metadata: Any, schema: pa.Schema, field_id: int, of_table: Schema | None) -> StrayContent:
    if metadata.num_rows == 0:
        return NO_ROWS
    field_text = str(field_id).encode()
    ids = {f.name: (f.metadata or {}).get(_FIELD_ID) for f in schema}
    name = next((n for n, i in ids.items() if i == field_text), None)
    by_name = name is None
    if by_name:
        name = _named(ids, field_id, of_table)
    if name is None:
        return UNKNOWN
    # A column named `a.b` has the same path as the field `b` of `a`.
    columns = [i for i in range(metadata.num_columns) if metadata.schema.column(i).path == name]
    if len(columns) != 1:
        return StrayContent(of_table=True, by_name=by_name)
    column = columns[0]
    bounds: list[tuple[str, str]] = []
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(column)
        statistics = chunk.statistics
        if statistics is None or not statistics.has_min_max:
            if statistics is not None and statistics.has_null_count and statistics.null_count == chunk.num_values:
                continue  # no batch ids
            return StrayContent(of_table=True, by_name=by_name)
        if not isinstance(statistics.min, str) or not isinstance(statistics.max, str):
            return StrayContent(of_table=True, by_name=by_name)
        bounds.append((statistics.min, statistics.max))
    if not bounds:
        return StrayContent(of_table=True, lower="", upper="", by_name=by_name)  # rows without a batch
    return StrayContent(True, min(b[0] for b in bounds), max(b[1] for b in bounds), by_name=by_name)


def _of_positions(paths: Iterable[str]) -> StrayContent:
    """The content of deletes by position with these paths: their own, and those of data files."""
    return POSITIONS_OF_PARTITION if any(without_values(p) != p for p in paths) else NO_ROWS


def _files_of_positions(metadata: Any) -> list[str] | None:
    """The first and the last path of a data file in each row group of position deletes; None: unknown.

    Position deletes of several files are in the partition of all of them, so their own path has its values, too.
    """
    paths: list[str] = []
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(_POSITIONS.index("file_path")).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        paths += (statistics.min, statistics.max)
    return paths if all(isinstance(path, str) for path in paths) else None


def _named(ids: dict[str, bytes | None], field_id: int, of_table: Schema | None) -> str | None:
    """The batch column of a file without field ids, if all its columns are of the table; None: it is not of the table."""
    column = of_table.find_column_name(field_id) if of_table is not None else None
    table_columns = {f.name for f in of_table.fields} if of_table is not None else set()
    return column if column in ids and not any(ids.values()) and ids.keys() <= table_columns else None


def _of_avro(stream: BinaryIO, path: str, field_id: int) -> StrayContent:
    """An Avro file has its schema in its first bytes. The values are not read."""
    stream.seek(0)
    header = stream.read(_HEADER_BYTES)
    try:
        opened = fastavro.reader(io.BytesIO(header))
        schema: Any = opened.writer_schema
        fields = schema["fields"]
    except Exception:
        return UNKNOWN
    if is_own(path, header):
        return NO_ROWS
    if _VERSION_OF_MANIFEST in opened.metadata:
        return UNKNOWN  # whose fields have ids of their own, which may be that of the batch column
    return StrayContent(of_table=any(f.get("field-id") == field_id for f in fields))


def _files_of_vectors(stream: BinaryIO) -> list[str] | None:
    """The data files of the deletion vectors in a Puffin file; None: not all its blobs are deletion vectors."""
    try:
        end = stream.seek(0, io.SEEK_END)
        stream.seek(end - 12)
        tail = stream.read(12)
        size, flags = int.from_bytes(tail[:4], "little"), tail[4]
        if tail[8:] != PUFFIN or flags or size > _HEADER_BYTES:
            return None
        stream.seek(end - 12 - size)
        blobs = json.loads(stream.read(size))["blobs"]
        if any(b["type"] != _DELETION_VECTOR for b in blobs):
            return None
        return [str((b.get("properties") or {}).get(_VECTOR_OF, "")) for b in blobs]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None

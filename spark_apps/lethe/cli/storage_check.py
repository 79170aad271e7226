"""Searches the storage for what an erasure removed: the files, rows of the batches, the values. I/O: lists every location
of the table and reads data files; writes and deletes nothing."""

import gzip
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, BinaryIO, Final
from urllib.parse import quote, quote_plus

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lethe.base.errors import InputError
from lethe.cli.opening import Opened
from lethe.iceberg.locations import locations_of, of_this_table
from lethe.search.stray_content import content_of
from lethe.storage.object_versions import Storage, VersionsDenied, open_storage
from lethe.storage.vended import of_table
from lethe.uri import contains, place, without_values

PARALLEL_READS: Final = 8
MIN_VALUE_BYTES: Final = 5  # almost every compressed file contains a shorter value by chance
MAX_NAMED_FILES: Final = 3


@dataclass(frozen=True)
class Listed:
    """The objects below the locations of a table, including deleted objects that still have versions."""

    storage: Storage
    paths: tuple[str, ...]  # of all objects
    own: tuple[str, ...]  # of the objects in folders that contain only files of this table
    unlisted: Mapping[str, str] = field(default_factory=dict)  # location -> why it cannot be listed

    @property
    def data(self) -> list[str]:
        return [path for path in self.own if path.endswith(".parquet")]


@dataclass(frozen=True)
class SearchedColumn:
    """The batch column to search for erased batches."""

    field_id: int
    name: str  # finds it in files without field ids


def list_locations(opened: Opened) -> Listed:
    """Raises: InputError (VersionsNotListed), TransientError, what the storage raises."""
    root = opened.load_ledger().root
    known = locations_of(opened.table, root.locations if root is not None else ()).locations
    storage = open_storage(
        opened.facts.location, opened.table.io, of_table(opened.properties, opened.name.partition(".")[2])
    )
    listed: list[Any] = []
    unlisted: dict[str, str] = {}
    try:
        for uri in known.roots:
            if (why := storage.cannot_list(uri)) is not None:
                unlisted[uri] = why
            else:
                listed += storage.under(uri)
    except VersionsDenied as e:
        raise InputError(
            "VersionsNotListed",
            f"s3://{e.bucket}: the versions of objects cannot be listed. Grant s3:ListBucketVersions.",
        ) from e
    alone = of_this_table(opened.table, opened.table.io, known, listed).own
    paths = tuple(path for path, _ in listed)
    return Listed(storage, paths, tuple(p for p in paths if any(contains(o, p) for o in alone)), unlisted)


def files_present(listed: Listed, record: Mapping[str, Any]) -> list[str]:
    """The files that a record lists as removed and that exist; paths without partition values."""
    gone = {place(str(f["path"])) for f in record.get("files", ()) if isinstance(f, dict) and "path" in f}
    return sorted({name for path in listed.paths if place(name := without_values(path)) in gone})


def files_with_batches(
    listed: Listed, column: SearchedColumn, batch_ids: Collection[str], tick: Callable[[], object]
) -> list[str]:
    """The Parquet files with rows of one of these batches. Raises: what the storage raises."""
    wanted = pa.array(sorted(frozenset(batch_ids)), pa.string())

    def holds(path: str) -> bool:
        tick()
        stream = listed.storage.open(path)
        if stream is None:
            return False  # it was deleted after the listing
        with stream:
            seen = content_of(stream, path, column.field_id)
            if seen.no_rows:
                return False
            if seen.lower is not None and seen.upper is not None:
                lower, upper = seen.lower, seen.upper
                if not any(lower <= i <= upper for i in batch_ids):
                    return False
            stream.seek(0)
            return any(pc.any(pc.is_in(values, value_set=wanted)).as_py() for values in _batch_ids(stream, column))

    return _select(listed.data, holds)


def _batch_ids(stream: BinaryIO, column: SearchedColumn) -> Iterator[pa.Array]:
    try:
        file = pq.ParquetFile(pa.PythonFile(stream, mode="r"))
    except pa.ArrowException:
        return  # it is incomplete, so no reader finds rows in it
    own = str(column.field_id).encode()
    ids = {f.name: (f.metadata or {}).get(b"PARQUET:field_id") for f in file.schema_arrow}
    name = next((n for n, i in ids.items() if i == own), None)
    if name is None and ids.get(column.name, own) is None:
        name = column.name
    if name is not None:
        for batch in file.iter_batches(columns=[name]):
            yield pc.cast(batch.column(0), pa.string())


def objects_with_values(listed: Listed, values: Collection[str], tick: Callable[[], object]) -> list[str]:
    """The objects with one of these values: in a Parquet column, in the path, or as text in the unpacked content."""
    texts = pa.array(sorted(values), pa.string())
    forms = {form.encode() for v in values for form in (v, quote(v), quote(v, safe=""), quote_plus(v))}
    raw = [form for form in forms if len(form) >= MIN_VALUE_BYTES]

    def holds(path: str) -> bool:
        tick()
        stream = listed.storage.open(path)
        if stream is None:
            return False
        with stream:
            content = stream.read()
        whole = (path.encode(), content, *_unpacked(path, content))
        if any(value in part for value in raw for part in whole):
            return True
        return content.startswith(b"PAR1") and any(
            pc.any(pc.is_in(c, value_set=texts)).as_py() for c in _columns(content)
        )

    return _select(listed.own, holds)


def _select(paths: Collection[str], holds: Callable[[str], bool]) -> list[str]:
    with ThreadPoolExecutor(PARALLEL_READS) as pool:
        return sorted(without_values(p) for p, found in zip(paths, pool.map(holds, paths), strict=True) if found)


def _unpacked(path: str, content: bytes) -> Iterator[bytes]:
    if content.startswith(b"Obj\x01"):
        reader = fastavro.reader(BytesIO(content))
        yield repr(reader.metadata).encode()
        for record in reader:
            yield from _texts(record)
    elif path.endswith(".gz") or content.startswith(b"\x1f\x8b"):
        yield gzip.decompress(content)


def _texts(value: Any) -> Iterator[bytes]:
    match value:
        case bytes():
            yield value
        case str():
            yield value.encode()
        case dict():
            for key, inner in value.items():
                yield from _texts(key)
                yield from _texts(inner)
        case list() | tuple():
            for inner in value:
                yield from _texts(inner)


def _columns(content: bytes) -> Iterator[pa.Array]:
    """The values of every column, also nested, that can be cast to text."""
    for batch in pq.ParquetFile(BytesIO(content)).iter_batches():
        for column in batch.columns:
            for leaf in _leaves(column):
                try:
                    yield pc.cast(leaf, pa.string())
                except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                    continue  # bytes that are not text: the raw content is searched


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    if pa.types.is_struct(array.type):
        for inner in array.flatten():
            yield from _leaves(inner)
    elif pa.types.is_map(array.type):
        yield from _leaves(array.keys)
        yield from _leaves(array.items)
    elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        yield from _leaves(array.flatten())
    else:
        yield array

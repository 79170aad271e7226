"""Reads a table's metadata files, and parses only the snapshots that an earlier version of the file did not have. I/O: reads.

A metadata file repeats all snapshots of the table, and parsing a thousand of them takes longer than writing a ledger. Most
commits copy the snapshots of the version before, byte for byte, and append one.
"""

import gzip
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, BinaryIO, Final

from pyiceberg.avro.codecs import SnappyCodec
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.serializers import Compressor
from pyiceberg.table import StaticTable
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot
from pyiceberg.types import ListType, MapType, NestedField, StructType, UnknownType

from lethe.base import avro, names
from lethe.base.errors import InputError
from lethe.base.unknown_types import REMEMBERED, REMEMBERED_REQUIRED, known_types_only, replace_unknown_types
from lethe.decoder.objects import ObjectWork, Open, UnreadableObject, read_objects
from lethe.decoder.process import limits_here
from lethe.erasure.strays import PARTITION_SUMMARY
from lethe.iceberg.facts import snapshot_of
from lethe.ledger.lineage import Snapshot
from lethe.storage.file_io import file_io

log = logging.getLogger(__name__)

_parse_raw: Final = TableMetadataUtil.parse_raw

KEPT_AT_MOST: Final = 5_000
"""Snapshots that a process keeps, of all tables together. One takes about 8 KB."""
_LIST: Final = '"snapshots":['
"""The beginning of the list of snapshots. It cannot be part of a string, because JSON escapes the quotes of a string."""
_decoder: Final = json.JSONDecoder()

_PLAIN: Final = ("table-uuid", "location", "last-sequence-number", "last-updated-ms")
_LISTS: Final = {
    "metadata-log": ("metadata-file",),
    "statistics": ("statistics-path",),
    "partition-statistics": ("statistics-path",),
    "snapshots": ("sequence-number", "manifest-list"),
}


def install() -> None:
    """Let PyIceberg in this process read what it does not read itself. Safe to repeat.

    These are tables with columns of types that it does not know, and manifests that are compressed by snappy.

    `lethe.base.unknown_types` replaces the types. PyIceberg has no hook for this, so the function with which all its catalogs but
    REST parse metadata files is replaced. For REST catalogs, `lethe.storage.vended` changes the answers of the server. What needs
    the values of such a column is refused by name.
    """
    TableMetadataUtil.parse_raw = staticmethod(parse)  # type: ignore[method-assign, assignment]
    SnappyCodec.decompress = staticmethod(partial(avro.plain, "snappy"))  # type: ignore[method-assign]


def parse(text: str) -> TableMetadata:
    """Parse the metadata of a table.

    Raises:
        Exception: As PyIceberg's `TableMetadataUtil.parse_raw`.
    """
    return _parse_raw(known_types_only(text))


def unknown_columns(schema: Schema) -> dict[str, str]:
    """The columns with a type that is unknown here, also within structs, lists and maps: by name, the type."""
    unknown = ((f.name, next(_unknown_in(f), None)) for f in schema.fields)
    return {name: kind for name, kind in unknown if kind is not None}


def _unknown_in(field: NestedField) -> Iterator[str]:
    kind = field.field_type
    if (remembered := _remembered(field)) is not None:
        yield remembered
    elif isinstance(kind, StructType):
        for inner in kind.fields:
            yield from _unknown_in(inner)
    elif isinstance(kind, ListType):
        yield from _unknown_in(kind.element_field)
    elif isinstance(kind, MapType):
        yield from _unknown_in(kind.key_field)
        yield from _unknown_in(kind.value_field)


def is_required(field: NestedField) -> bool:
    """Whether the table requires values of a field."""
    return field.required or (field.doc or "").startswith(REMEMBERED_REQUIRED)


def type_of(field: NestedField) -> str:
    """The type of a field as its table's metadata writes it."""
    return _remembered(field) or str(field.field_type)


def require_known(schema: Schema, columns: Iterable[str], what: str) -> None:
    """Check that these columns have types that Lethe knows.

    Args:
        columns: Columns of the table, not fields of them.
        what: Who needs the values, for the message.

    Raises:
        InputError: `UnknownType`.
    """
    unknown = unknown_columns(schema)
    for name in columns:
        kind = unknown.get(name)
        if kind is not None:
            raise InputError(
                "UnknownType",
                f"{what}: column {name} has the type {kind}, which Lethe does not read. Leave the column out, or use an engine "
                "that knows the type.",
            )


def _remembered(field: NestedField) -> str | None:
    if not isinstance(field.field_type, UnknownType):
        return None
    doc = field.doc or ""
    return next((doc.removeprefix(p) for p in (REMEMBERED, REMEMBERED_REQUIRED) if doc.startswith(p)), None)


@dataclass(frozen=True)
class CachedMetadata:
    """A version of a table's metadata."""

    text: str = field(repr=False)
    """The content of the file."""
    metadata: TableMetadata = field(repr=False)
    converted: dict[int, Snapshot] = field(default_factory=dict, repr=False)
    """What `snapshot_of` makes of the snapshots, by id, as far as it was needed."""
    found_at: tuple[int, int] | None = None
    """The start and the end of the list of snapshots in the text, without its brackets. None: not searched yet."""

    @classmethod
    def of(cls, text: str) -> "CachedMetadata":
        """Make `CachedMetadata`.

        Raises:
            Exception: PyIceberg's ValidationError, if the text is not the metadata of a table.
        """
        return cls(text, parse(text))

    def followed_by(self, text: str) -> "CachedMetadata | None":
        """Parse a later version. None: its snapshots are not those of this version and further ones, byte for byte."""
        first, end = self._list_at
        start = text.find(_LIST) + len(_LIST)
        after = start + end - first  # of the comma, or of the end of the list
        if (
            first == end
            or text.count(_LIST) != 1
            or text[start:after] != self.text[first:end]
            or text[after : after + 1] not in (",", "]")
        ):
            return None
        try:
            added, length = ([], 1) if text[after] == "]" else _decoder.raw_decode("[" + text[after + 1 :])
            last = after + length - 1  # of the end of the list
            document = json.loads(text[:start] + text[last:])
            if document["snapshots"] != []:
                return None
            replace_unknown_types(document)
            document["snapshots"] = [*self.metadata.snapshots, *map(IcebergSnapshot.model_validate, added)]
            return CachedMetadata(text, TableMetadataUtil.parse_obj(document), dict(self.converted), (start, last))
        except Exception:
            return None  # parsing the whole text reports what is wrong with it

    @cached_property
    def _list_at(self) -> tuple[int, int]:
        """The start and the end of the list of snapshots in the text; equal if there are no snapshots, or no such list."""
        if self.found_at is not None:
            return self.found_at
        start = self.text.find(_LIST) + len(_LIST)
        return (start, _decoder.raw_decode(self.text, start - 1)[1] - 1) if start >= len(_LIST) else (0, 0)

    def snapshot_of(self, snapshot: IcebergSnapshot) -> Snapshot:
        """The snapshot with this id, as `facts.snapshot_of` makes it. Converts each snapshot once."""
        converted_snapshot = self.converted.get(snapshot.snapshot_id)
        if converted_snapshot is None:
            converted_snapshot = self.converted[snapshot.snapshot_id] = snapshot_of(snapshot)
        return converted_snapshot


class MetadataCache:
    """The versions of tables that were read last, by the folder of the file. Threads may share it."""

    def __init__(self, most: int = KEPT_AT_MOST) -> None:
        """Create `MetadataCache`.

        Args:
            most: The number of snapshots, of all tables together.
        """
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, CachedMetadata] = OrderedDict()

    def get(self, folder: str) -> CachedMetadata | None:
        """The version kept of a table; None: none is. It may be older than the table's current one. Reads no file."""
        with self._lock:
            return self._kept.get(folder)

    def keep(self, folder: str, version: CachedMetadata) -> None:
        """Keep this version, and forget the one before, and tables that were not read for the longest time."""
        with self._lock:
            self._kept[folder] = version
            self._kept.move_to_end(folder)
            while sum(len(v.metadata.snapshots) for v in self._kept.values()) > self._most:
                self._kept.popitem(last=False)


_versions: Final = MetadataCache()


def read(
    location: str, properties: Mapping[str, Any], versions: MetadataCache = _versions
) -> tuple[StaticTable, CachedMetadata]:
    """Read a metadata file, as PyIceberg's `StaticTable.from_metadata` does, but open its files without the table's properties.

    Args:
        properties: PyIceberg's properties of the catalog, with the credentials for this table.

    Raises:
        Exception: What the store raises. PyIceberg's ValidationError, if the file is not the metadata of a table.
    """
    io = file_io(properties, location)
    file = io.new_input(location)
    with file.open() as stream, Compressor.get_compressor(location).stream_decompressor(stream) as plain:
        text = plain.read().decode()
    folder = location.rpartition("/")[0]
    before = versions.get(folder)
    version = (before.followed_by(text) if before is not None else None) or CachedMetadata.of(text)
    versions.keep(folder, version)
    name = ("static-table", location)
    return StaticTable(name, version.metadata, location, io, NoopCatalog("static-table")), version


class MetadataWork(ObjectWork):
    """Reads metadata.json files: which table they are of, which folders and files they name, and which summaries name partitions.

    Roots of ledgers name their table in the same way.

    Anyone may have written metadata files that lie beside a table, so a decoder reads them (`lethe.decoder`).
    """

    def read(self, stream: BinaryIO, path: str) -> Any:
        """See `ObjectWork`. None: it is no metadata of a table, or it is damaged."""
        del path
        try:
            content = stream.read()
            document = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
            return _needed(document) if isinstance(document, dict) else None
        except MemoryError:
            raise
        except Exception:  # of any kind: the bytes are someone else's
            return None


def _needed(document: Mapping[str, Any]) -> dict[str, Any]:
    needed: dict[str, Any] = {k: document[k] for k in _PLAIN if document.get(k) is not None}
    properties = document.get("properties") or {}
    needed["properties"] = {k: str(v) for k, v in properties.items() if k in names.LOCATION_PROPERTIES}
    for name, keys in _LISTS.items():
        entries = [e for e in document.get(name) or () if isinstance(e, dict)]
        needed[name] = [{k: e[k] for k in keys if k in e} for e in entries]
        if name == "snapshots":
            for kept, entry in zip(needed[name], entries, strict=True):
                kept["summary"] = {k: "" for k in entry.get("summary") or () if k.startswith(PARTITION_SUMMARY)}
    return needed


class ManifestListWork(ObjectWork):
    """Reads which manifests a manifest list names."""

    def read(self, stream: BinaryIO, path: str) -> Any:
        """The paths of the manifests; none, if the object is no manifest list, or it is damaged."""
        del path
        try:
            return [str(m["manifest_path"]) for m in avro.reader(stream)]
        except MemoryError:
            raise
        except Exception:  # of any kind: the bytes are someone else's
            return []


def documents_of(io: FileIO, paths: Iterable[str]) -> dict[str, Mapping[str, Any] | UnreadableObject | None]:
    """What is needed of metadata files, by path.

    None: one is damaged, or no metadata of a table. `UnreadableObject`: it could not be fetched, or ends its reader.

    Raises:
        NoDecoder: No decoder can be started, or decoders end before they decode anything.
    """
    return dict(read_objects(MetadataWork(limits_here()), paths, _opening(io)))


def manifests_in(io: FileIO, manifest_lists: Iterable[str]) -> set[str]:
    """The manifests that readable lists name.

    Raises:
        NoDecoder: No decoder can be started, or decoders end before they decode anything.
    """
    lists = read_objects(ManifestListWork(limits_here()), manifest_lists, _opening(io))
    return {manifest for _, named in lists if not isinstance(named, UnreadableObject) for manifest in named}


def _opening(io: FileIO) -> Open:
    def open_object(path: str) -> Any:
        try:
            return io.new_input(path).open()
        except ValueError as e:
            log.info(
                "an object cannot be opened: %s", type(e).__name__
            )  # its URI, which a file names, is of no known store
            return None

    return open_object

"""Reads metadata files that lie beside a table, and earlier ones of the table. I/O.

Anyone may have written them, so decoders read them (`lethe.decoder`).
"""

import gzip
import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO, Final

import fastavro
from pyiceberg.io import FileIO

from lethe.base import names
from lethe.decoder.objects import ObjectWork, Open, UnreadableObject, read_objects
from lethe.decoder.process import limits_here
from lethe.erasure.strays import PARTITION_SUMMARY

log = logging.getLogger(__name__)
_PLAIN: Final = ("table-uuid", "location", "last-sequence-number", "last-updated-ms")
_LISTS: Final = {
    "metadata-log": ("metadata-file",),
    "statistics": ("statistics-path",),
    "partition-statistics": ("statistics-path",),
    "snapshots": ("sequence-number", "manifest-list"),
}


class MetadataWork(ObjectWork):
    """Reads metadata.json files: which table they are of, which folders and files they name, and which summaries name partitions.

    Roots of ledgers name their table in the same way.
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


class ManifestListWork(ObjectWork):
    """Reads which manifests a manifest list names."""

    def read(self, stream: BinaryIO, path: str) -> Any:
        """See `ObjectWork`. Without any, if it is none, or it is damaged."""
        del path
        try:
            return [str(m["manifest_path"]) for m in fastavro.reader(stream)]
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

"""What an upload consists of, where it is in the buffer, and what routes and the store of uploads exchange. Pure.

The record of an upload is in the buffer itself, so all replicas see the same. Its objects, all written with put-if-absent:

- `_uploads/<upload>/manifest.json`: the batch and its files. Who creates it opens the upload.
- `_uploads/<upload>/<opening>.outcome`: `complete` or `abandoned`. Who creates it decides.
- `_uploads/<upload>/<opening>.published`: the batch of a complete upload is, or was, in the buffer. Before that, no answer says
  that the upload is complete.
- `_uploads/<upload>/<opening>.<n>.multipart`: the store's id of the multipart upload of file n.
- `_uploads/<upload>/<opening>.data`: the file of a batch that is one file, until the upload is complete.

`<upload>` is derived from the batch id, so there is one upload of a batch at a time; `<opening>` is new each time it is opened.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from lethe.base import names
from lethe.buffer.layout import is_data, path_problem
from lethe.buffer.upload import BufferUpload, LocalFile, plan_upload
from lethe.contract.settings import BufferLayout
from pydantic import BaseModel, ConfigDict, ValidationError

VERSION: Final = 1
MANIFEST: Final = "manifest.json"
OUTCOME: Final = ".outcome"
PUBLISHED: Final = ".published"
DATA: Final = ".data"
UPLOAD_ID: Final = r"^[0-9a-f]{32}$"
SHA256: Final = r"^[0-9a-f]{64}$"
MAX_PATH_LENGTH: Final = 512
# No step is empty, and none is the name of a marker or of an unfinished file.
PATH: Final = r"^[^_./\x00-\x1f\x7f][^/\x00-\x1f\x7f]*(/[^_./\x00-\x1f\x7f][^/\x00-\x1f\x7f]*)*$"


class UploadOutcome(StrEnum):
    """How an upload ended."""

    COMPLETE = "complete"
    ABANDONED = "abandoned"


class FileEntry(BaseModel):
    """A file, as the client announced it."""

    model_config = ConfigDict(frozen=True)

    path: str
    """Below the folder of the batch."""
    size: int
    """In bytes."""
    sha256: str = ""
    """In hex; "": not announced."""
    part_bytes: int = 0
    """The size of each part but the last, in bytes; 0: it is sent whole."""


class UploadManifest(BaseModel):
    """An open upload."""

    model_config = ConfigDict(frozen=True)

    version: int = VERSION
    opening: str
    """Random."""
    batch_id: str
    opened_time: datetime
    """UTC."""
    files: tuple[FileEntry, ...]
    reference: str = ""
    """The id of the run that delivers the batch; "": none."""
    opened_by: str = ""
    """A digest of the caller, to count open uploads; "": unknown."""

    def announces(self, files: Sequence[FileEntry], reference: str) -> bool:
        """Whether this is an upload of these files, in any order, with this reference."""
        return _announced(self.files) == _announced(files) and self.reference == reference

    def encode(self) -> bytes:
        """The JSON document that the buffer keeps, and that `decode` reads."""
        return self.model_dump_json().encode()

    @staticmethod
    def decode(content: bytes) -> "UploadManifest | None":
        """None: it is not a manifest of this version."""
        try:
            manifest = UploadManifest.model_validate_json(content)
        except ValidationError:
            return None
        return manifest if manifest.version == VERSION and all(is_path(f.path) for f in manifest.files) else None


@dataclass(frozen=True)
class UploadPlaces:
    """Where the parts of an upload are, as URIs."""

    folder: str
    """Of the record."""
    target: BufferUpload
    """The batch in the buffer."""
    uris: Mapping[int, str]
    """Where each file is uploaded to, by its index."""

    @property
    def manifest(self) -> str:
        """The object that holds the manifest. Who creates it opens the upload."""
        return f"{self.folder}/{MANIFEST}"

    def outcome(self, manifest: UploadManifest) -> str:
        """The object that says how this opening of the upload ended. Who creates it decides."""
        return f"{self.folder}/{manifest.opening}{OUTCOME}"

    def published(self, manifest: UploadManifest) -> str:
        """The object that exists once the batch of this opening is, or was, in the buffer."""
        return f"{self.folder}/{manifest.opening}{PUBLISHED}"

    def multipart(self, manifest: UploadManifest, index: int) -> str:
        """The object with the store's id of the multipart upload of the file with this index."""
        return f"{self.folder}/{manifest.opening}.{index}.multipart"


def upload_id(batch_id: str) -> str:
    """A name for the upload of a batch that fits into a path."""
    return hashlib.sha256(batch_id.encode()).hexdigest()[:32]


def uploads_folder(buffer_uri: str) -> str:
    """The URI of the folder that holds the records of all uploads of a buffer, without a slash at the end."""
    return f"{buffer_uri.rstrip('/')}/{names.UPLOADS_FOLDER}"


def record_folder(buffer_uri: str, upload: str) -> str:
    """The URI of the folder that holds the record of one upload, by its id, without a slash at the end."""
    return f"{uploads_folder(buffer_uri)}/{upload}"


def places_of(buffer_uri: str, layout: BufferLayout, batch_column: str, manifest: UploadManifest) -> UploadPlaces:
    """The places of an upload.

    Raises:
        InputError: `NoDataFiles`, `SeveralFiles`, `UnusableName`, `NameTooLong`, `InvalidReference`.
    """
    files = [LocalFile(f.path, f.size) for f in manifest.files]
    target = plan_upload(buffer_uri, layout, batch_column, manifest.batch_id, files, manifest.reference)
    folder = record_folder(buffer_uri, upload_id(manifest.batch_id))
    if target.marker:
        return UploadPlaces(folder, target, dict(enumerate(target.files)))
    # A single file is a batch as soon as it exists, so it is uploaded beside the manifest first.
    return UploadPlaces(folder, target, {0: f"{folder}/{manifest.opening}{DATA}"})


def is_path(path: str) -> bool:
    """Whether a client may name a file so."""
    return 0 < len(path) <= MAX_PATH_LENGTH and is_data(f"/{path}", "/") and path_problem(path) is None


def expires(manifest: UploadManifest, after: timedelta) -> datetime:
    """When an upload that is still open is removed."""
    return manifest.opened_time + after


def _announced(files: Sequence[FileEntry]) -> str:
    return json.dumps(sorted((f.path, f.size, f.sha256) for f in files))


class UploadState(StrEnum):
    """How far an upload is."""

    OPEN = "Open"
    COMPLETING = "Completing"
    """All files are checked; the batch is not known to be in the buffer yet."""
    COMPLETE = "Complete"
    """The batch is, or was, complete in the buffer."""
    ABANDONED = "Abandoned"


class FileState(StrEnum):
    """Whether the store has a file."""

    MISSING = "Missing"
    UPLOADED = "Uploaded"


@dataclass(frozen=True)
class PartUrl:
    """Where to send a part of a file."""

    number: int
    """From 1."""
    offset: int
    """Of its first byte in the file."""
    size: int
    """In bytes."""
    url: str = field(repr=False)
    """It is a credential."""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FileView:
    """A file of an upload."""

    index: int
    """In the order in which the files were announced."""
    entry: FileEntry
    state: FileState
    url: str = field(default="", repr=False)
    """Empty: it is sent in parts, or through the gateway."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """To send with it."""
    parts: int = 0
    """How many parts it is sent in; 0: whole."""
    parts_uploaded: Sequence[int] = ()
    """The numbers of those that the store has."""


@dataclass(frozen=True)
class UploadView:
    """An upload at one moment."""

    id: str
    batch_id: str
    state: UploadState
    opened_time: datetime
    expires_time: datetime
    """When it is removed if it is still open."""
    files: Sequence[FileView] = ()
    checked: bool | None = None
    """Of a completed upload: whether its files were compared with the table."""

"""What routes and the store of uploads exchange. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from lethe_gateway.uploads.manifest import FileEntry


class UploadState(StrEnum):
    """How far an upload is."""

    OPEN = "Open"
    COMPLETING = "Completing"  # all files are checked; the batch is not known to be in the buffer yet
    COMPLETE = "Complete"  # the batch is, or was, complete in the buffer
    ABANDONED = "Abandoned"


class FileState(StrEnum):
    """Whether the store has a file."""

    MISSING = "Missing"
    UPLOADED = "Uploaded"


@dataclass(frozen=True)
class PartUrl:
    """Where to send a part of a file."""

    number: int  # from 1
    offset: int  # of its first byte in the file
    size: int  # in bytes
    url: str = field(repr=False)  # it is a credential
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FileView:
    """A file of an upload."""

    index: int  # in the order in which the files were announced
    entry: FileEntry
    state: FileState
    url: str = field(default="", repr=False)  # "": it is sent in parts, or through the gateway
    headers: Mapping[str, str] = field(default_factory=dict)  # to send with it
    parts: int = 0  # how many parts it is sent in; 0: whole
    parts_uploaded: Sequence[int] = ()  # the numbers of those that the store has


@dataclass(frozen=True)
class UploadView:
    """An upload at one moment."""

    id: str
    batch_id: str
    state: UploadState
    opened_time: datetime
    expires_time: datetime  # when it is removed if it is still open
    files: Sequence[FileView] = ()
    checked: bool | None = None  # of a completed upload: whether its files were compared with the table

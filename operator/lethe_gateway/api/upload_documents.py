"""The documents of uploads. Pure."""

from datetime import datetime

from lethe.base.errors import InputError
from lethe.base.ids import MAX_BATCH_ID_LENGTH
from lethe.buffer.reference import LENGTH_AT_MOST, require_reference
from lethe.contract.schema import ApiModel
from pydantic import Field, field_validator

from lethe_gateway.api.documents import Page, RequestBody
from lethe_gateway.uploads.manifest import (
    MAX_PATH_LENGTH,
    PATH,
    SHA256,
    FileEntry,
    FileState,
    FileView,
    PartUrl,
    UploadState,
    UploadView,
    is_path,
)

MAX_FILE_BYTES = 5 * 2**40
FILES_AT_MOST = 10_000
PARTS_AT_ONCE = 1000


_NAMES = (
    "Names of files and folders do not begin with _ or ., have no control characters, and lead nowhere else if decoded"
)


class AnnouncedFile(RequestBody):
    """A file that will be uploaded."""

    path: str = Field(
        pattern=PATH,
        max_length=MAX_PATH_LENGTH,
        description=f"Its path below the folder of the batch. {_NAMES}",
    )
    size: int = Field(ge=0, le=MAX_FILE_BYTES)
    """In bytes."""
    sha256: str = Field(default="", pattern=rf"{SHA256}|^$")
    """In hex. Then no other content is accepted. If a file is sent in parts, better announce that of each part: the whole
    file is read again to compare it.
    """

    @field_validator("path", mode="before")
    @classmethod
    def _say_what_names_are_possible(cls, path: object) -> object:
        """Whoever uploads a folder reads no pattern."""
        if isinstance(path, str) and 0 < len(path) <= MAX_PATH_LENGTH and not is_path(path):
            raise ValueError(f"the file cannot have this name. {_NAMES}. Rename it")
        return path


class UploadRequest(RequestBody):
    """The batch that will be uploaded."""

    batch_id: str = Field(min_length=1, max_length=MAX_BATCH_ID_LENGTH)
    """The id of the batch. An id is used once."""
    files: list[AnnouncedFile] = Field(min_length=1, max_length=FILES_AT_MOST)
    """All files of the batch, with different paths."""
    reference: str = Field(default="", max_length=LENGTH_AT_MOST)
    """The id of the run that delivers the batch, such as of a DAG. What a run has delivered can be taken back at once. Only for
    buffers in which a batch is a folder.
    """

    @field_validator("reference")
    @classmethod
    def _require_reference(cls, reference: str) -> str:
        try:
            return require_reference(reference, "the upload") if reference else ""
        except InputError as e:
            raise ValueError(e.message) from None

    @property
    def entries(self) -> list[FileEntry]:
        """The files for the manifest, in the order of the request. None is divided into parts yet."""
        return [FileEntry(path=f.path, size=f.size, sha256=f.sha256) for f in self.files]


class HashedFile(RequestBody):
    """The checksum of a file that was announced."""

    path: str = Field(max_length=MAX_PATH_LENGTH)
    """As it was announced."""
    sha256: str = Field(pattern=SHA256)
    """Of its content, in hex."""


class CompleteRequest(RequestBody):
    """The checksums that a client knows only after it has sent the files.

    The gateway compares them before it completes an upload.
    """

    files: list[HashedFile] = Field(default=[], max_length=FILES_AT_MOST)
    """Any files of the upload."""


class AskedPart(RequestBody):
    """A part of a file for which the client needs a URL."""

    number: int = Field(ge=1, le=10_000)
    """The number of the part, from 1."""
    sha256: str = Field(default="", pattern=rf"{SHA256}|^$")
    """In hex. Then no other content is accepted."""


class PartsRequest(RequestBody):
    """The parts that will be sent next."""

    parts: list[AskedPart] = Field(min_length=1, max_length=PARTS_AT_ONCE)
    """They may be sent at the same time."""


class PresignedRequest(ApiModel):
    """A PUT to the store. Anyone with the URL can send it until it expires."""

    url: str
    """Send the content there, by PUT, without the token."""
    headers: dict[str, str]
    """Send them as they are."""


class UploadPart(PresignedRequest):
    """A PUT that sends one part of a file to the store."""

    number: int
    """The number of the part, from 1."""
    offset: int
    """Where the part begins in the file, in bytes."""
    size: int
    """In bytes."""


class UploadParts(ApiModel):
    """Where to send parts of a file."""

    items: list[UploadPart]
    """In the order in which they were asked for."""


class MultipartUpload(ApiModel):
    """A file that is sent in parts."""

    parts: int
    """How many parts it has, numbered from 1."""
    part_size: int
    """The size of each part but the last, in bytes."""
    uploaded: list[int]
    """The numbers of the parts that the store has."""


class UploadFile(ApiModel):
    """A file of an upload.

    Send it as `put` says, or in parts as `multipart` says, or, if it is small, by PUT to `files/<index>` of the upload.
    """

    index: int
    """Its number in the upload, from 0."""
    path: str
    """Its path below the folder of the batch."""
    size: int
    """In bytes."""
    sha256: str | None = None
    """In hex, if it was announced."""
    state: FileState
    """Missing or Uploaded."""
    put: PresignedRequest | None = None
    """Where to send it directly to the store."""
    multipart: MultipartUpload | None = None
    """It is sent in parts: ask for their URLs."""


class UploadSummary(ApiModel):
    """An upload in a list."""

    id: str
    """Identifies the upload in paths. It is derived from the batch id."""
    batch_id: str
    """The id of the batch."""
    state: UploadState
    """Open; Completing, while the batch is brought into the buffer; Complete, when it is there; or Abandoned, while the
    upload is being removed.
    """
    opened_time: datetime
    """When it was opened."""
    expires_time: datetime
    """When it is removed if it is still open."""


class Upload(UploadSummary):
    """A batch that is being uploaded."""

    files: list[UploadFile]
    """In the order in which they were announced."""
    checked: bool | None = None
    """Of a completed upload: whether the files were compared with the table. If not, the consolidation does it."""


class UploadPage(Page):
    """Uploads of one Dataset, without their files."""

    items: list[UploadSummary]
    """Uploads that are open or were completed lately, in the order of their ids."""


def summary_of(view: UploadView) -> UploadSummary:
    """The short form of an upload, for lists: without its files."""
    return UploadSummary(
        id=view.id,
        batch_id=view.batch_id,
        state=view.state,
        opened_time=view.opened_time,
        expires_time=view.expires_time,
    )


def upload_of(view: UploadView) -> Upload:
    """An upload with the state of each file, and with URLs for the files that have one."""
    return Upload(**dict(summary_of(view)), files=[_file(f) for f in view.files], checked=view.checked)


def parts_of(parts: list[PartUrl]) -> UploadParts:
    """The URLs of parts, in the order of the list."""
    return UploadParts(
        items=[
            UploadPart(number=p.number, offset=p.offset, size=p.size, url=p.url, headers=dict(p.headers)) for p in parts
        ]
    )


def _file(view: FileView) -> UploadFile:
    entry = view.entry
    return UploadFile(
        index=view.index,
        path=entry.path,
        size=entry.size,
        sha256=entry.sha256 or None,
        state=view.state,
        put=PresignedRequest(url=view.url, headers=dict(view.headers)) if view.url else None,
        multipart=MultipartUpload(parts=view.parts, part_size=entry.part_bytes, uploaded=list(view.parts_uploaded))
        if view.parts
        else None,
    )

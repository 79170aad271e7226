"""Which files of a batch become which objects in the buffer, and what is there already. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import assert_never

from lethe.base import names
from lethe.base.errors import InputError
from lethe.base.names import (
    COMPRESSION_EXTENSIONS,
    FORMAT_EXTENSIONS,
    batch_file,
    batch_folder,
)
from lethe.base.objects import ListedObject
from lethe.buffer.layout import OBJECTS_AT_MOST, is_data, path_problem
from lethe.buffer.reference import INVALID_REFERENCE, marker_of, require_reference
from lethe.contract.settings import BufferLayout
from lethe.ledger.ledger import BatchEntry, BatchState
from lethe.uri import KEY_BYTES, NAME_BYTES, bucket_and_key, is_local


@dataclass(frozen=True)
class LocalFile:
    """A data file that is to be uploaded."""

    path: str
    """Below the folder of the batch, with slashes."""
    size: int
    """Size in bytes."""


@dataclass(frozen=True)
class BufferUpload:
    """A batch as it will be in the buffer."""

    batch_id: str
    folder: str
    """The URI of the batch's folder, or of its only file."""
    files: Mapping[str, LocalFile]
    """The files of the batch, by the URI of the object."""
    marker: str
    """The URI of what completes the batch, written last; "": the only file completes it."""
    reference: str = ""
    """The id of the run that delivers the batch; "": none."""

    @property
    def marker_content(self) -> bytes:
        """What to write to `marker`."""
        return marker_of(self.reference)

    @property
    def bytes(self) -> int:
        """The size of all data files together, without the marker."""
        return sum(f.size for f in self.files.values())


class Known(Enum):
    """What the ledger knows of a batch."""

    NEW = auto()
    """Nothing, or it was refused: it may be put."""
    SAME = auto()
    """It is promoted, with files of the same paths and sizes."""


def data_files(files: Iterable[LocalFile]) -> list[LocalFile]:
    """The files without markers and unfinished ones, whose names begin with `_` or `.`."""
    return sorted((f for f in files if is_data(f"/{f.path}", "/")), key=lambda f: f.path)


def plan_upload(
    buffer_uri: str,
    layout: BufferLayout,
    batch_column: str,
    batch_id: str,
    files: Sequence[LocalFile],
    reference: str = "",
) -> BufferUpload:
    """Say which file becomes which object.

    Args:
        reference: The id of the run that delivers the batch; "": none.

    Raises:
        InputError: `NoDataFiles`, `TooManyFiles`, `SeveralFiles`, `UnusableName`, `NameTooLong`, `InvalidReference`.
    """
    if reference:
        require_reference(reference, f"batch {batch_id}")
    if not files:
        raise InputError(
            "NoDataFiles", "the folder has no data file. Names that begin with _ or . are markers and unfinished files."
        )
    if len(files) >= OBJECTS_AT_MOST:
        raise InputError(
            "TooManyFiles",
            f"the folder has {len(files)} data files, and a batch has at most {OBJECTS_AT_MOST} objects with its marker. Join "
            "files, or divide them into several batches.",
        )
    for file in files:
        if problem := path_problem(file.path):
            raise InputError("UnusableName", f"{file.path[:80]!r}: {problem}. Rename the file.")
    root = buffer_uri.rstrip("/")
    match layout:
        case BufferLayout.DIRECTORY:
            folder = f"{root}/{batch_folder(batch_column, batch_id)}"
            objects = {f"{folder}/{f.path}": f for f in files}
            _require_short_names([*objects, f"{folder}/{names.SUCCESS_MARKER}"])
            return BufferUpload(batch_id, folder, objects, f"{folder}/{names.SUCCESS_MARKER}", reference)
        case BufferLayout.FILE:
            if reference:
                raise InputError(
                    INVALID_REFERENCE,
                    f"batch {batch_id}: with spec.buffer.layout {BufferLayout.FILE} a batch has no {names.SUCCESS_MARKER}, which "
                    "would name its reference. Put the batch without a reference, or use the layout Directory.",
                )
            if len(files) > 1:
                raise InputError(
                    "SeveralFiles",
                    f"the folder has {len(files)} data files, and with spec.buffer.layout {BufferLayout.FILE} a batch is one "
                    "file. Join them, or put each file from a folder of its own.",
                )
            uri = f"{root}/{batch_file(batch_id, _extension(files[0].path))}"
            _require_short_names([uri])
            return BufferUpload(batch_id, uri, {uri: files[0]}, "")
        case _:
            assert_never(layout)


def _require_short_names(uris: Iterable[str]) -> None:
    """Require names that a store can have.

    Raises:
        InputError: `NameTooLong`, if a store cannot have an object of such a name, so that nothing is written before.
    """
    for uri in uris:
        if is_local(uri):
            longest, what, most = max(uri.split("/"), key=_bytes_of), "name of a file or folder", NAME_BYTES
        else:
            longest, what, most = bucket_and_key(uri)[1], "key of an object", KEY_BYTES
        if _bytes_of(longest) > most:
            raise InputError(
                "NameTooLong",
                f"{uri[:80]}…: the {what} has {_bytes_of(longest)} bytes, expected at most {most}. In the buffer, the batch id "
                "is percent-encoded: a character that is not a letter, digit or one of _.-~ becomes 3 bytes for each of its "
                "own. Use a shorter batch id or shorter names of files.",
            )


def _bytes_of(name: str) -> int:
    return len(name.encode("utf-8", "surrogatepass"))


def _extension(path: str) -> str:
    name = path.rpartition("/")[2].lower()
    packed = next((e for e in COMPRESSION_EXTENSIONS if name.endswith(e)), "")
    stem = name.removesuffix(packed)
    return next((e for e in FORMAT_EXTENSIONS if stem.endswith(e)), "") + packed


def judge_entry(upload: BufferUpload, entry: BatchEntry | None) -> Known:
    """Compare the batch with the ledger's entry of its id.

    Raises:
        InputError: `BatchIdUsed`.
    """
    if entry is None or not entry.blocks_promotion:
        return Known.NEW
    if entry.state is BatchState.PROMOTED and has_files_of(entry, upload):
        return Known.SAME
    raise InputError(
        "BatchIdUsed",
        f"the batch id {upload.batch_id} is used: the batch is {entry.state.value} since {entry.time:%Y-%m-%d %H:%MZ}, with "
        "other files. An id is never used again. Choose another one; to replace a batch, use a Restatement (`lethe replay`).",
    )


def has_files_of(entry: BatchEntry, upload: BufferUpload) -> bool:
    """Whether the ledger's entry is about files of the same paths and sizes as those of the upload.

    A registered file keeps its URI, a moved one may not: paths are those below the folder of the batch, wherever that is. If the
    ledger's files are in no such folder, only the names of files count.
    """
    inner = f"/{upload.folder.rpartition('/')[2]}/"
    recorded = [(o.key, o.size) for o in entry.objects if is_data(o.key)]
    given = [(uri, file.size) for uri, file in upload.files.items()]
    if not all(inner in uri for uri, _ in (*recorded, *given)):
        inner = "/"
    return _below(inner, recorded) == _below(inner, given)


def _below(inner: str, files: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """The part of each URI after the last occurrence of a text, and the size."""
    return sorted((uri.rpartition(inner)[2], size) for uri, size in files)


def strangers(upload: BufferUpload, listed: Iterable[ListedObject]) -> list[str]:
    """The URIs of data objects in the batch's folder that are not of this upload."""
    return [o.key for o in listed if is_data(o.key, upload.folder) and o.key not in upload.files]

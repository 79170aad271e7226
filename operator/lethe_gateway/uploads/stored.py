"""Which files of an upload are in the store. I/O: the object store of the buffer."""

from collections.abc import Mapping

from lethe.buffer.batch import ListedObject
from lethe.buffer.upload import strangers
from lethe.storage.s3_uploads import S3Uploads

from lethe_gateway.problems import not_found
from lethe_gateway.uploads.manifest import FileEntry
from lethe_gateway.uploads.opening import Record


def objects(record: Record) -> dict[str, ListedObject]:
    """What is in the folder of the batch, or beside the manifest, by URI."""
    folder = record.places.target.folder if record.places.target.marker else record.places.folder
    return {o.key: o for o in record.buffer.store.list(folder)}


def others(record: Record, there: Mapping[str, ListedObject]) -> list[str]:
    """Files of the batch that somebody else wrote, as URIs."""
    target = record.places.target
    if target.marker:
        return strangers(target, there.values())
    return [uri for uri in target.files if record.buffer.store.head(uri) is not None]  # ours comes last


def missing(record: Record, index: int, entry: FileEntry, there: Mapping[str, ListedObject]) -> str:
    """Why a file is not there as announced; "": it is."""
    found = there.get(record.places.uris[index])
    if found is None:
        return "is missing"
    return "" if found.size == entry.size else f"has {found.size} bytes, announced were {entry.size}"


def multipart_of(record: Record, index: int) -> str:
    """The store's id of the multipart upload of a file; "": it has not begun."""
    content = record.buffer.store.read(record.places.multipart(record.manifest, index))
    return content.data.decode() if content is not None else ""


def begin_multipart(record: Record, index: int, of: S3Uploads) -> str:
    """Returns: the store's id of a new multipart upload, or of one that another request has begun."""
    uri = record.places.uris[index]
    own = of.begin(uri)
    if record.buffer.store.put_if_absent(record.places.multipart(record.manifest, index), own.encode()):
        return own
    of.abort(uri, own)  # another request was first
    return multipart_of(record, index)


def entry_of(record: Record, index: int) -> FileEntry:
    """Raises: Problem (`not-found`), if the upload has no such file."""
    if not 0 <= index < len(record.manifest.files):
        raise not_found()
    return record.manifest.files[index]

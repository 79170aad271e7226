"""Local folders as an object store. I/O.

The ETag of a file is its size and modification time. This module uses the operating system directly: obstore hides files whose
names end in `#` and digits, and does not flush a new file to the disk.
"""

import errno
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

from lethe.base.errors import InputError
from lethe.base.objects import BufferedObject, ListedObject, Retention, file_etag, hidden_folder
from lethe.storage.object_store import Content, ObjectReader, WriteUnknown, not_created, not_retained
from lethe.uri import local_path

log = logging.getLogger(__name__)

_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV)
"""The errors of link(2) on a file system without hard links."""
_ENTRIES_PER_NAME: Final = 20
"""How many entries of a folder are read at most for each requested name."""


class LocalStore:
    """A POSIX file system. A mounted one must have hard links.

    A folder that becomes empty is removed, except `root`: the root of a buffer belongs to its producers.
    """

    def __init__(self, root: str = "") -> None:
        self._root = Path(local_path(root)) if root else None

    def list(self, uri: str, hidden: bool = True, after: str = "") -> Iterator[ListedObject]:
        """List files by name, those of a folder before its subfolders. If it cannot be read, there are none.

        A subfolder that cannot be read is listed as if it were a file: it may have files, and who opens it learns that it cannot
        be read. With `hidden=False`, those directly below the URI are left out, such as `lost+found` of a volume.
        """
        # A path of text for each file, not a Path: making one takes longer than asking for the file's size.
        root, prefix = str(Path(local_path(uri))), uri.rstrip("/")
        unread: list[str] = []

        def entries_of_unread() -> Iterator[ListedObject]:
            for path in unread:
                inner = path.removeprefix(root).strip("/")
                if inner and (hidden or "/" in inner) and (entry := _listed(path, f"{prefix}/{inner}")):
                    yield entry
            unread.clear()

        def on_error(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):  # it was not deleted meanwhile
                unread.append(error.filename)

        for folder, folders, files in os.walk(root, onerror=on_error):
            yield from entries_of_unread()
            shown = hidden or folder != root
            folders[:] = sorted(f for f in folders if shown or not hidden_folder(f"{f}/", ""))
            if after and folder == root:
                folders[:] = [f for f in folders if f >= after]
                files[:] = [f for f in files if f >= after]
            below = folder.removeprefix(root).strip("/")
            parent = f"{prefix}/{below}" if below else prefix
            for name in sorted(files):
                if hidden_entries := _listed(f"{folder}/{name}", f"{parent}/{name}"):
                    yield hidden_entries
        yield from entries_of_unread()

    def names(self, folder: str, prefix: str = "", at_most: int | None = None) -> Iterator[str]:
        """List names in no order. With `at_most`, look at up to 20 entries per name, and ignore an OSError."""
        try:
            with os.scandir(local_path(folder)) as entries:
                limit = None if at_most is None else at_most * _ENTRIES_PER_NAME
                yield from (e.name for e in islice(entries, limit) if e.name.startswith(prefix) and not e.is_dir())
        except FileNotFoundError:
            return
        except OSError:
            if at_most is None:
                raise

    def head(self, uri: str) -> ListedObject | None:
        """Return the size, ETag and modification time of a file; None: there is no file, or it is a folder."""
        path = Path(local_path(uri))
        return _listed(path, uri) if path.is_file() else None

    def read(self, uri: str) -> Content | None:
        """Read a whole file. Bytes and ETag belong together, even if another file takes the name meanwhile."""
        try:
            with open(local_path(uri), "rb", buffering=0) as file:
                etag = _etag(os.fstat(file.fileno()))
                return Content(file.read(), etag)
        except FileNotFoundError:
            return None

    def read_range(self, uri: str, start: int, size: int) -> bytes | None:
        """Read up to `size` bytes from offset `start`; empty bytes: the file ends before it. None: there is no file."""
        try:
            with Path(local_path(uri)).open("rb") as file:
                file.seek(start)
                return file.read(size)
        except FileNotFoundError:
            return None

    def read_unchanged(self, listed: BufferedObject, start: int, size: int) -> bytes | None:
        """Read up to `size` bytes of a file whose size and modification time are as listed; otherwise return None."""
        try:
            file = os.open(local_path(listed.key), os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            return os.pread(file, size, start) if _etag(os.fstat(file)) == listed.etag else None
        finally:
            os.close(file)

    def open(self, uri: str) -> ObjectReader | None:
        """Open a file. The reader keeps its content even if another file takes the name."""
        try:
            return LocalReader(Path(local_path(uri)))
        except FileNotFoundError:
            return None

    def put(self, uri: str, content: bytes) -> None:
        """Write a draft, flush it to the disk and rename it to the target. Deletes Hadoop's checksum file first."""
        path = Path(local_path(uri))
        # Hadoop writes a checksum file beside each file. With the old checksum it would reject the new file.
        (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
        self._replace(path, lambda draft: _write(draft, content), lambda: True)

    def put_if_absent(self, uri: str, content: bytes, retention: Retention | None = None) -> bool:
        """Write a draft, flush it to the disk and make the target a hard link to it, which replaces nothing.

        Raises:
            InputError: `RecordNotRetained`, for any `retention`. `UnsupportedStorage`: there are no hard links.
            TransientError: `StorageRefused`: nothing was created.
            WriteUnknown: The file may exist now.
        """
        if retention is not None:
            raise not_retained(uri, "file storage has none")
        path = Path(local_path(uri))
        draft = _draft_of(path)
        try:
            try:
                _write(draft, content)
            except OSError as e:
                raise not_created(uri, type(e).__name__) from e
            try:
                os.link(draft, path)
            except FileExistsError:
                return False
            except OSError as e:
                if e.errno not in _NO_LINKS:
                    raise WriteUnknown(uri, type(e).__name__) from e
                raise InputError(
                    "UnsupportedStorage",
                    f"{path.parent}: the file system has no hard links ({errno.errorcode.get(e.errno or 0, e.errno)}), so a "
                    "file cannot be created there without the danger of overwriting another. Use a catalog of type sql or "
                    "rest, or another file system.",
                ) from e
        finally:
            with suppress(OSError):
                draft.unlink()
        _sync(path.parent)
        return True

    def retained_until(self, uri: str) -> datetime | None:  # noqa: ARG002 - files have no locks
        """Always None: files have no object locks."""
        return None

    def copy(self, source: BufferedObject, target: str) -> bool:
        """Copy a file over the target, unless the file differs from the listing once its bytes are read."""
        path = Path(local_path(source.key))
        try:
            return self._replace(
                Path(local_path(target)),
                lambda draft: shutil.copyfile(path, draft),
                lambda: _etag(path.stat()) == source.etag,
            )
        except FileNotFoundError:
            return False

    def delete(self, objects: Iterable[BufferedObject]) -> int:
        """Delete unchanged files one by one. Return how many no longer exist, those that were gone before included.

        A file that cannot be deleted keeps no other one.
        """
        return sum(self._may_be_gone(o) for o in objects)

    def _may_be_gone(self, listed: BufferedObject) -> bool:
        try:
            return self.delete_unchanged(listed)
        except OSError as e:
            log.warning("%s could not be deleted (%s)", listed.key, type(e).__name__)
            return False

    def delete_unchanged(self, listed: BufferedObject) -> bool:
        """Delete a file if its size and modification time are as listed, then its folder if empty and not the root."""
        path = Path(local_path(listed.key))
        with suppress(FileNotFoundError):
            if _etag(path.stat()) != listed.etag:
                return False
            path.unlink()
        if path.parent != self._root:
            with suppress(OSError):  # the folder is not empty, or already gone
                path.parent.rmdir()
        return True

    def remove(self, uri: str) -> None:
        """Delete a file and Hadoop's checksum file of it. Its folder stays, even if it is empty then."""
        path = Path(local_path(uri))
        path.unlink(missing_ok=True)
        (path.parent / f".{path.name}.crc").unlink(missing_ok=True)

    def _replace(self, path: Path, write: Callable[[Path], object], holds: Callable[[], bool]) -> bool:
        """Write a draft beside the target and rename it to the target, if `holds` returns True after writing."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = _draft_of(path)
        try:
            write(draft)
            if not holds():
                return False
            draft.replace(path)
            return True
        finally:
            with suppress(OSError):
                draft.unlink()


class LocalReader(ObjectReader):
    """A local file that is open. If another file takes its name, it goes on reading the old content."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        stat = os.fstat(self._file.fileno())
        self.size, self.etag = stat.st_size, _etag(stat)

    def readable(self) -> bool:
        """Always True: the file is opened for reading only."""
        return True

    def seekable(self) -> bool:
        """Always True: a local file has random access."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset in bytes. Return the new position, from the start of the file."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """The position in bytes from the start of the file."""
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from the current position. Return the number of bytes; 0: the end of the file."""
        return self._file.readinto(buffer)

    def close(self) -> None:
        """Close the file in the operating system too. Closing it again changes nothing."""
        self._file.close()
        super().close()


def _draft_of(path: Path) -> Path:
    """A hidden name beside the target. A crash may leave a file of this name; it is never read."""
    return path.with_name(f".{uuid.uuid4().hex}")


def _write(path: Path, content: bytes) -> None:
    """Create a file and flush it to the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _sync(folder: Path) -> None:
    """Flush a folder, so that a new name in it survives a power failure, if the file system supports that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _listed(path: str | Path, key: str) -> ListedObject | None:
    try:
        stat = os.stat(path)
    except FileNotFoundError:  # deleted since its folder was read
        return None
    return ListedObject(key, stat.st_size, _etag(stat), datetime.fromtimestamp(stat.st_mtime, UTC))


def _etag(stat: os.stat_result) -> str:
    return file_etag(stat.st_size, stat.st_mtime_ns)

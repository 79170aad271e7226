"""Objects of a store as values. Pure."""

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True)
class ListedObject:
    """One object as a store lists it."""

    key: str
    """Its full URI."""
    size: int
    """Size in bytes."""
    etag: str
    """The ETag without quotes."""
    modified: datetime
    """Aware."""


def file_etag(size: int, modified_ns: int) -> str:
    """The substitute for an ETag on a file system. Code that compares a file with a listing must use this function."""
    return f"{size:x}-{modified_ns:x}"


def hidden_folder(key: str, prefix: str) -> str:
    """The first folder of a key below `prefix` if its name begins with `_` or `.`; otherwise ""."""
    folder, slash, _ = key.removeprefix(prefix).partition("/")
    return folder if slash and folder.startswith(("_", ".")) else ""


@dataclass(frozen=True)
class BufferedObject:
    """An object of the buffer as it was promoted. Retention deletes exactly these objects, and none of a registered batch."""

    key: str
    """Full URI."""
    size: int
    """Bytes."""
    etag: str
    sequencer: str | None = field(default=None, compare=False)
    """The order of the write, from the store's event notification; None: unknown. Ignored when objects are compared."""

    @property
    def fields(self) -> tuple[str, int, str, str | None]:
        """All fields, in their order."""
        return self.key, self.size, self.etag, self.sequencer

"""Objects of a store as values, and their retention, as in S3's object lock. Pure."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from lethe.base.errors import InputError


class LockMode(StrEnum):
    """Modes of S3's object lock."""

    GOVERNANCE = "GOVERNANCE"
    """Users with s3:BypassGovernanceRetention may delete the object earlier."""
    COMPLIANCE = "COMPLIANCE"
    """No user may, not even the owner of the account."""


@dataclass(frozen=True)
class Retention:
    """How long no version of an object can be deleted or overwritten."""

    mode: LockMode
    days: int
    """After it was written; at least 1."""

    def until(self, written: datetime) -> datetime:
        """The time at which the lock of an object ends: exactly `days` times 24 hours after it was written."""
        return written + timedelta(days=self.days)

    def __str__(self) -> str:
        return f"{self.mode}:{self.days}"


def parse_retention(text: str) -> Retention | None:
    """Parse `MODE:DAYS`, such as COMPLIANCE:3650; None for an empty text.

    Raises:
        InputError: InvalidRetention.
    """
    if not text:
        return None
    mode, _, days = text.partition(":")
    if mode not in tuple(LockMode) or not days.isdecimal() or int(days) < 1:
        raise InputError("InvalidRetention", f"expected GOVERNANCE:DAYS or COMPLIANCE:DAYS, found {text!r}.")
    return Retention(LockMode(mode), int(days))


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

"""Finds the current metadata file of a table without a catalog service: the version with the highest number. Pure.

Ignores `version-hint.text`, which other Hadoop-style writers keep beside the versions: it may be missing or outdated.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from lethe.base.errors import TableError

HINT: Final = "version-hint.text"
# Every file that Iceberg considers a version counts as one, even if Lethe cannot read it: ignoring it would mean committing over
# it.
_VERSION: Final = re.compile(r"v([0-9]+)\..+")
_DELETE_OLD: Final = "write.metadata.delete-after-commit.enabled"
_KEEP: Final = "write.metadata.previous-versions-max"
_KEEP_DEFAULT: Final = 100


def version_of(name: str) -> int | None:
    """The number in a file's name; None: the file is not a version of table metadata."""
    match = _VERSION.fullmatch(name)
    return int(match[1]) if match else None


def file_of(version: int) -> str:
    """The only name for a new version.

    With a second spelling, such as a compressed one, two writers could both commit a version.
    """
    return f"v{version}.metadata.json"


def newest(names: Iterable[str], folder: str) -> str | None:
    """The newest version among these names; None: there is none.

    Raises:
        TableError: MetadataAmbiguous, if two files have the highest number.
    """
    versions = [(number, name) for name in names if (number := version_of(name)) is not None]
    if not versions:
        return None
    number, _ = max(versions)
    called = sorted(name for n, name in versions if n == number)
    if len(called) > 1:
        raise TableError(
            "MetadataAmbiguous",
            f"{folder}: {' and '.join(called)} have the same, highest version number. Two writers that name "
            "their files differently, for example because one compresses them, committed at the same time. "
            "Keep the file of the commit that you want, move the other file away, and let all writers use "
            "Lethe.",
        )
    return called[0]


def kept_versions(properties: Mapping[str, str]) -> int | None:
    """How many versions before the newest to keep, by Iceberg's properties and defaults; None: all."""
    if properties.get(_DELETE_OLD, "false").lower() != "true":
        return None
    text = properties.get(_KEEP, "")
    return max(1, int(text)) if text.isdigit() else _KEEP_DEFAULT


def outdated(names: Iterable[str], version: int, keep: int) -> tuple[str, ...]:
    """The versions to delete, oldest first, when `version` was committed and `keep` versions before it stay.

    In this order, no version is deleted before an older one. A commit that all kept versions have overtaken detects that by this
    order (`lethe.hadoop`).
    """
    versions = [
        (number, name) for name in names if (number := version_of(name)) is not None and number < version - keep
    ]
    return tuple(name for _, name in sorted(versions))

"""Which file of a metadata folder is a table's state, when no catalog service says so: the one with the highest number.
Pure.

`version-hint.text`, which other Hadoop-style writers keep beside the versions, is never asked: it may be missing, or old.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from lethe.base.errors import TableError

HINT: Final = "version-hint.text"
# Every file that Iceberg would take for a version counts as one, also what this version cannot read: skipping it would
# mean to commit over it.
_VERSION: Final = re.compile(r"v([0-9]+)\..+")
_DELETE_OLD: Final = "write.metadata.delete-after-commit.enabled"
_KEEP: Final = "write.metadata.previous-versions-max"
_KEEP_DEFAULT: Final = 100


def version_of(name: str) -> int | None:
    """The number in a file's name; None when it is not a version of a table's metadata."""
    found = _VERSION.fullmatch(name)
    return int(found[1]) if found else None


def file_of(version: int) -> str:
    """The one name under which a version is created. Two spellings, such as a compressed one, would not exclude each other."""
    return f"v{version}.metadata.json"


def newest(names: Iterable[str], folder: str) -> str | None:
    """The newest version among the names of a listing; None of a folder without any.

    Raises: TableError (MetadataAmbiguous), if two files have the highest number.
    """
    versions = [(number, name) for name in names if (number := version_of(name)) is not None]
    if not versions:
        return None
    number, _ = max(versions)
    called = sorted(name for n, name in versions if n == number)
    if len(called) > 1:
        raise TableError(
            "MetadataAmbiguous",
            f"{folder}: {' and '.join(called)} both say that they are the table's newest version. A writer that spells its "
            f"files in another way, or compresses them, committed at the same time as one that does not. Keep the one whose "
            f"commit counts, move the other away, and let all writers go through Lethe.",
        )
    return called[0]


def kept_versions(properties: Mapping[str, str]) -> int | None:
    """How many versions before the newest a table keeps; None for all. Iceberg's own properties and defaults."""
    if properties.get(_DELETE_OLD, "false").lower() != "true":
        return None
    text = properties.get(_KEEP, "")
    return max(1, int(text)) if text.isdigit() else _KEEP_DEFAULT


def outdated(names: Iterable[str], version: int, keep: int) -> tuple[str, ...]:
    """The versions to delete when `version` was committed and `keep` before it stay, the oldest first.

    In this order a version is never gone before the one below it: by that, a commit that was overtaken by all of the kept
    ones knows that it was (`lethe.hadoop.metadata_folder`).
    """
    found = [(number, name) for name in names if (number := version_of(name)) is not None and number < version - keep]
    return tuple(name for _, name in sorted(found))

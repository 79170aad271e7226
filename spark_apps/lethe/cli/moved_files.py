"""Finds files of a table that an earlier version of Lethe took for refused batches and moved to `_refused/`. I/O: lists.

This happened where a Dataset named a folder of a table as its buffer. The files are complete: copying them back restores the
table.
"""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from lethe.base import names
from lethe.cli.diagnosis import Finding, Level
from lethe.guards.table_files import is_table_data, is_table_metadata
from lethe.storage.object_store import open_store
from lethe.uri import is_local, local_path

_FOLDERS: Final = ("", "/metadata", "/data")
_METADATA_FILE: Final = re.compile(r"([^\s'\"]+)/[^/\s'\"]+\.metadata\.json(\.gz)?")


@dataclass(frozen=True)
class Moved:
    """A file of a table that was moved."""

    uri: str  # where it is
    home: str  # where it belongs

    @property
    def command(self) -> str:
        """The shell command that copies it back. A local copy replaces no file."""
        if is_local(self.uri):
            return f"cp -n {shlex.quote(local_path(self.uri))} {shlex.quote(local_path(self.home))}"
        return f"aws s3 cp {shlex.quote(self.uri)} {shlex.quote(self.home)}"


def location_of(error: BaseException) -> str | None:
    """The table's location, taken from an error that names a missing metadata file; None if the error names none."""
    found = _METADATA_FILE.search(str(error))
    if found is None:
        return None
    location = found[1].removesuffix("/metadata")
    # Arrow names an object by bucket and key.
    return location if location.startswith("/") or "://" in location else f"s3://{location}"


def find(location: str, properties: Mapping[str, str]) -> tuple[Moved, ...]:
    """Find files of a table in the `_refused/` folders below its own folders. Raises: what the store raises."""
    found: list[Moved] = []
    for below in _FOLDERS:
        buffer = location.rstrip("/") + below
        area = f"{buffer}/{names.REFUSED_FOLDER}"
        keys = [o.key for o in open_store(area, properties).list(area)]
        found += (Moved(key, home) for key in keys if (home := _home(key, buffer, area)) is not None)
    return tuple(found)


def findings(moved: Iterable[Moved]) -> tuple[Finding, ...]:
    files = sorted(moved, key=lambda m: m.home)
    if not files:
        return ()
    return (
        Finding(
            Level.ERROR,
            "TableFilesSetAside",
            f"{len(files)} files of the table are in {names.REFUSED_FOLDER}/ below its own folders: an earlier version took "
            "them for refused batches of a Dataset whose spec.buffer.uri was wrong.",
            "\n    ".join(
                (
                    "Delete or pause that Dataset. Copy the files back and run this command again. Then delete the files in "
                    f"{names.REFUSED_FOLDER}/:",
                    *(m.command for m in files),
                )
            ),
        ),
    )


def _home(key: str, buffer: str, area: str) -> str | None:
    """Where a file was: `<area>/<folder or file>/<12 digits>/<the rest>`."""
    refused, _, rest = key.removeprefix(f"{area}/").partition("/")
    rest = rest.partition("/")[2]
    if not rest or not (is_table_metadata(rest) or is_table_data(rest)):
        return None
    return f"{buffer}/{rest}" if rest == refused else f"{buffer}/{refused}/{rest}"

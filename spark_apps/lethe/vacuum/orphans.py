"""Which files below a table nobody needs: written by who died, or lost a race, and named by no snapshot. Pure.

Whoever asks must have listed the storage before reading the table's metadata. A file that was committed in between is then
needed; one that came after the listing is not in it. In the other order it would be listed, unknown and deleted.

In doubt a file stays. Nothing is judged but what Iceberg's writers put into the table's own data and metadata folders: not
`_tombstones/` and `_runs/`, which have a clean-up that knows ledgers (`lethe.vacuum.ledger_files`), nor batches of any kind.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lethe.base import names
from lethe.buffer.batch import ListedObject
from lethe.contract.result import LISTED_AT_MOST
from lethe.files.hadoop_version import version_of
from lethe.uri import contains, place, surely_contains
from lethe.vacuum.ledger_files import UNPUBLISHED_FOR

_DATA: Final = (".parquet", ".orc", ".avro", ".puffin")
_TABLE: Final = (".metadata.json", ".metadata.json.gz")
_METADATA: Final = (*_TABLE, ".avro", ".stats", ".puffin")
_RUN: Final = re.compile(r"[0-9a-f]{32}")  # `lethe.base.ids.run_id`: the folder of a run's data files


@dataclass(frozen=True)
class Folders:
    """URIs of the folders that a table's writers use. None: it lies elsewhere, maybe with files of other tables in it."""

    data: str | None
    metadata: str | None

    @classmethod
    def of(cls, location: str, data_path: str | None, metadata_path: str | None) -> "Folders":
        """Args: of the table; the properties `write.data.path` and `write.metadata.path`, None where they are not set."""

        def own(folder: str) -> str | None:
            return (
                folder.rstrip("/") if surely_contains(location, folder) and place(folder) != place(location) else None
            )

        location = location.rstrip("/")
        return cls(own(data_path or f"{location}/data"), own(metadata_path or f"{location}/metadata"))


@dataclass(frozen=True)
class Orphans:
    """URIs of files that may go; `bytes` of them together."""

    files: tuple[str, ...] = ()
    bytes: int = 0


def plan_orphans(
    listed: Collection[ListedObject],
    needed: Collection[str],
    folders: Folders,
    now: datetime,
    older_than: timedelta,
    buffer: str,
    own_run: str = "",
) -> Orphans:
    """What may go of a listing.

    Args:
        listed: What lies in the two folders, seen before `needed` was.
        needed: Keys (`key_of`) of all files that retained snapshots, refs, staged snapshots and the table's metadata lead to.
        older_than: At least a day, whatever is said: no commit takes longer from its first file to its last attempt. What lies in
            the folder of a run stays as long as anything in it is younger: that run may be under way.
        buffer: The Dataset's. No part of it goes, should it lie there against all rules.
        own_run: Whose files stay, too.
    """
    youngest_kept = now - max(older_than, UNPUBLISHED_FOR)
    young = [o.key for o in listed if o.modified > youngest_kept]
    under_way = {run for key in young if (run := _run_of(key, folders)) is not None} | {own_run}
    not_ours = {_folder(o.key) for o in listed if o.key.rpartition("/")[2] == names.SUCCESS_MARKER}
    # A table called `data` in a namespace that is called as this table is lies right in the data folder.
    not_ours |= {_folder(_folder(o.key)) for o in listed if _is_of_another_table(o.key, folders)}
    found = [
        o
        for o in listed
        if o.modified <= youngest_kept
        and _is_of_a_writer(o.key, folders)
        and _run_of(o.key, folders) not in under_way
        and not (not_ours and _within(o.key, not_ours))
        and key_of(o.key) not in needed
        and not contains(buffer, o.key)
    ]
    return Orphans(tuple(sorted(o.key for o in found)), sum(o.size for o in found))


def key_of(uri: str) -> str:
    """What files are compared by: the path, whatever the scheme and the bucket are called. Who names one file in two ways then
    means the same; two files of one name in two buckets count as one, which at the worst keeps one of them."""
    return "/".join(place(uri)[1])


def shown(orphans: Orphans, location: str) -> tuple[str, ...]:
    """The first of them for people, as paths below the table, without the values of partitions: those may be personal."""
    start = len(place(location)[1])
    first = [place(uri)[1][start:] for uri in orphans.files[:LISTED_AT_MOST]]
    return tuple("/".join(f"{n.partition('=')[0]}=…" if "=" in n else n for n in path) for path in first)


def _below(key: str, folder: str | None) -> tuple[str, ...] | None:
    """The names of a path below a folder; None when it is not there."""
    return tuple(key[len(folder) + 1 :].split("/")) if folder is not None and key.startswith(f"{folder}/") else None


def _run_of(key: str, folders: Folders) -> str | None:
    path = _below(key, folders.data)
    return path[0] if path is not None and len(path) > 1 and _RUN.fullmatch(path[0]) else None


def _is_of_a_writer(key: str, folders: Folders) -> bool:
    """Whether its name and place are such as Iceberg's writers give."""
    name = key.rpartition("/")[2]
    if (metadata := _below(key, folders.metadata)) is not None:
        # Of a table in a mere folder the numbers say which version is the newest; their writers remove them in order.
        return len(metadata) == 1 and name.endswith(_METADATA) and version_of(name) is None and not _is_hidden(metadata)
    data = _below(key, folders.data)
    return data is not None and name.endswith(_DATA) and not _is_hidden(data)


def _is_of_another_table(key: str, folders: Folders) -> bool:
    """Whether it is a table's metadata, but not where this one's lies."""
    name = key.rpartition("/")[2]
    return name.endswith(_TABLE) and _below(key, folders.metadata) is None


def _is_hidden(path: Iterable[str]) -> bool:
    return any(part.startswith(("_", ".")) for part in path)


def _within(key: str, places: Collection[str]) -> bool:
    """Whether one of the folders above it is among these."""
    folder = _folder(key)
    while folder:
        if folder in places:
            return True
        folder = _folder(folder)
    return False


def _folder(key: str) -> str:
    return key.rpartition("/")[0]

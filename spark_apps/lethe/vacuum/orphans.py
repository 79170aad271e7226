"""Plans which orphan files of a table to delete: files of writers that crashed or lost a race, which no snapshot names. Pure.

The caller must list the storage before it reads the table's metadata. Then a file that is committed in between counts as needed,
and a file written after the listing is not in it. In the other order, a new file would be listed, unknown and deleted.

In doubt, a file is kept. Only files are deleted that Iceberg's writers put into the table's own data and metadata folders:
not `_tombstones/` and `_runs/`, which `lethe.vacuum.ledger_files` cleans up, and no batches.
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
    """URIs of the folders that a table's writers use. None: outside the table's location, where other tables may have files."""

    data: str | None
    metadata: str | None

    @classmethod
    def of(cls, location: str, data_path: str | None, metadata_path: str | None) -> "Folders":
        """Args: the table's location and its properties `write.data.path` and `write.metadata.path`; None: not set."""

        def own(folder: str) -> str | None:
            return (
                folder.rstrip("/") if surely_contains(location, folder) and place(folder) != place(location) else None
            )

        location = location.rstrip("/")
        return cls(own(data_path or f"{location}/data"), own(metadata_path or f"{location}/metadata"))


@dataclass(frozen=True)
class Orphans:
    """The orphan files to delete."""

    files: tuple[str, ...] = ()  # URIs
    bytes: int = 0  # in total


@dataclass(frozen=True)
class OrphanScope:
    """Where to look for orphans, and what to keep there."""

    folders: Folders
    buffer: str  # the Dataset's buffer: keep its files, in case it is below the table against all rules
    own_run: str = ""  # run id: keep its files; empty: none


def plan_orphans(
    listed: Collection[ListedObject],
    needed: Collection[str],
    scope: OrphanScope,
    now: datetime,
    older_than: timedelta,
) -> Orphans:
    """Plan which of the listed files to delete.

    Args:
        listed: The content of the two folders, listed before `needed` was read.
        needed: Keys (`key_of`) of all files that retained snapshots, refs, staged snapshots and the table's metadata name.
        older_than: The minimum age. Less than a day counts as a day, because no commit takes longer. Files in a run's folder are
            kept while any file in it is younger: that run may be running.
    """
    folders = scope.folders
    youngest_kept = now - max(older_than, UNPUBLISHED_FOR)
    young = [o.key for o in listed if o.modified > youngest_kept]
    active_runs = {run for key in young if (run := _run_of(key, folders)) is not None} | {scope.own_run}
    not_ours = {_folder(o.key) for o in listed if o.key.rpartition("/")[2] == names.SUCCESS_MARKER}
    # A table called `data`, in a namespace with the name of this table, is in the data folder itself.
    not_ours |= {_folder(_folder(o.key)) for o in listed if _is_of_another_table(o.key, folders)}
    found = [
        o
        for o in listed
        if o.modified <= youngest_kept
        and _is_of_a_writer(o.key, folders)
        and _run_of(o.key, folders) not in active_runs
        and not (not_ours and _within(o.key, not_ours))
        and key_of(o.key) not in needed
        and not contains(scope.buffer, o.key)
    ]
    return Orphans(tuple(sorted(o.key for o in found)), sum(o.size for o in found))


def key_of(uri: str) -> str:
    """The key by which files are compared: the path without scheme and bucket. Different URIs of one file then have the same key.
    Files with the same path in two buckets count as one, which at worst keeps one of them."""
    return "/".join(place(uri)[1])


def shown(orphans: Orphans, location: str) -> tuple[str, ...]:
    """The first orphans, as paths below the table. Leaves out the values of partitions, which may be personal data."""
    start = len(place(location)[1])
    first = [place(uri)[1][start:] for uri in orphans.files[:LISTED_AT_MOST]]
    return tuple("/".join(f"{n.partition('=')[0]}=…" if "=" in n else n for n in path) for path in first)


def _below(key: str, folder: str | None) -> tuple[str, ...] | None:
    """The path below a folder, as names; None: the key is not below the folder."""
    return tuple(key[len(folder) + 1 :].split("/")) if folder is not None and key.startswith(f"{folder}/") else None


def _run_of(key: str, folders: Folders) -> str | None:
    path = _below(key, folders.data)
    return path[0] if path is not None and len(path) > 1 and _RUN.fullmatch(path[0]) else None


def _is_of_a_writer(key: str, folders: Folders) -> bool:
    """Whether an Iceberg writer could have written it, by its name and folder."""
    name = key.rpartition("/")[2]
    if (metadata := _below(key, folders.metadata)) is not None:
        # In a Hadoop table, numbered metadata files say which version is the newest; their writers delete them in order.
        return len(metadata) == 1 and name.endswith(_METADATA) and version_of(name) is None and not _is_hidden(metadata)
    data = _below(key, folders.data)
    return data is not None and name.endswith(_DATA) and not _is_hidden(data)


def _is_of_another_table(key: str, folders: Folders) -> bool:
    """Whether it is table metadata, but not in the metadata folder of this table."""
    name = key.rpartition("/")[2]
    return name.endswith(_TABLE) and _below(key, folders.metadata) is None


def _is_hidden(path: Iterable[str]) -> bool:
    return any(part.startswith(("_", ".")) for part in path)


def _within(key: str, folders: Collection[str]) -> bool:
    """Whether one of the folders above it is one of these."""
    folder = _folder(key)
    while folder:
        if folder in folders:
            return True
        folder = _folder(folder)
    return False


def _folder(key: str) -> str:
    return key.rpartition("/")[0]

"""Plans the clean-up of a table: snapshots to expire, manifests to rewrite, ledger files and orphans to delete. Pure.

In doubt, a snapshot or a file is kept. The caller must list the storage before it reads the table's metadata. Then a file that is
committed in between counts as needed, and a file written after the listing is not in it. In the other order, a new file would be
listed, unknown and deleted.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from lethe.base import names
from lethe.base.errors import LedgerError
from lethe.base.objects import ListedObject
from lethe.contract.result import LISTED_AT_MOST
from lethe.contract.run import SnapshotLimits
from lethe.files.bounds import FileBounds
from lethe.files.hadoop_version import version_of
from lethe.ledger.ledger import Carrier
from lethe.ledger.lineage import Snapshot, resolve
from lethe.uri import contains, place, surely_contains

# A run commits its staged snapshots later. A vacuum of another run must not delete their files, whatever the limits. This is
# longer than any run takes, with all its attempts.
STAGED_GRACE_SECONDS = 86_400
SLACK = 1.1
"""A history is expired only when it is longer than allowed by this factor, so not at every commit."""


KEEPS_FILES = (
    f"the table property {names.GC_ENABLED} is not true, so nothing deletes files of the table. Set it to true, or unset it: "
    f"ALTER TABLE … UNSET TBLPROPERTIES ('{names.GC_ENABLED}')"
)

UNPUBLISHED_FOR: Final = timedelta(days=1)
"""A time that is longer than any commit takes, from its first file to its last attempt."""
READ_FOR: Final = timedelta(hours=1)
"""A time that is longer than a reader takes from loading the table to reading the last file of its ledger."""
RUN_FOR: Final = timedelta(days=7)
"""A time that is longer than a run waits, is retried and ends: `_runs/` contains long run documents."""

_ROOT = re.compile(r"(\d{8,})-.+-root\.json")
_LEDGER_FILE = re.compile(r"\d{8,}-.+\.(avro|json)")
_STAGE_LIST = re.compile(r".+-stage-[0-9a-f]+\.json")

MIN_SAVED: Final = 8
"""A commit is worthwhile if a reader opens at least this many manifests fewer, and at most half as many."""
SMALL: Final = 0.5
"""Fraction of the target size below which a manifest is small."""

_DATA: Final = (".parquet", ".orc", ".avro", ".puffin")
_TABLE: Final = (".metadata.json", ".metadata.json.gz")
_METADATA: Final = (*_TABLE, ".avro", ".stats", ".puffin")
_RUN: Final = re.compile(r"[0-9a-f]{32}")
"""The folder of a run's data files, which is its id (`lethe.base.names.run_id`)."""


def keeps_files(properties: Mapping[str, str]) -> bool:
    """Whether the properties of a table forbid to expire snapshots and to delete files.

    As Iceberg reads it, any value but `true` is false.
    """
    return properties.get(names.GC_ENABLED, "true").lower() != "true"


def too_many(snapshots: int, limits: SnapshotLimits) -> bool:
    """Whether any run should expire snapshots, not only a vacuum: each commit writes the list of all snapshots."""
    return snapshots > SLACK * limits.max_count


@dataclass(frozen=True)
class SnapshotTree:
    """The retained snapshots of a table."""

    snapshots: Mapping[int, Snapshot]
    """The retained snapshots, by id."""
    head_id: int | None
    """The current snapshot; None: the table is empty."""
    refs: Mapping[str, int]
    """Branches and tags -> snapshot id."""
    carriers: tuple[Carrier, ...] = ()
    """The carriers of the head's ledger."""


def plan_expiry(tree: SnapshotTree, limits: SnapshotLimits, now: datetime, by_age: bool = True) -> tuple[int, ...]:
    """Return the ids of the snapshots to expire, oldest first.

    Keeps:
    - the newest `min_to_keep` snapshots of the head's lineage, and up to `max_count` that are younger than `max_age_seconds`;
    - the snapshots that branches and tags name, and the retained lineage of each branch except main;
    - staged snapshots, for at least a day, until a later commit of their run;
    - the carrier of each bare snapshot that is kept, because it has its ledger.

    A snapshot that a ledger needs never expires.

    Args:
        by_age: False: expire only snapshots beyond `max_count`, whatever their age.
    """
    snapshots, refs = tree.snapshots, tree.refs
    oldest_kept_ms = (now.timestamp() - limits.max_age_seconds) * 1000
    lineage = _ancestors(snapshots, tree.head_id)
    keep: set[int] = set(lineage[: max(1, limits.min_to_keep)])
    keep.update(i for i in lineage[: limits.max_count] if not by_age or snapshots[i].timestamp_ms > oldest_kept_ms)
    for name, target in refs.items():
        keep.update(_ancestors(snapshots, target) if name != "main" and target not in lineage else (target,))
    on_main = set(lineage)
    last_commit_of = {snapshots[i].summary.get(names.RUN_ID): snapshots[i].sequence_number for i in reversed(lineage)}
    young_ms = min(oldest_kept_ms, (now.timestamp() - STAGED_GRACE_SECONDS) * 1000)
    for i, s in snapshots.items():
        if i in on_main:
            continue
        wap_id = s.summary.get(names.WAP_ID)
        if wap_id is None:
            kept = s.timestamp_ms > oldest_kept_ms
        else:
            kept = s.timestamp_ms > young_ms and last_commit_of.get(wap_id, -1) < s.sequence_number
        if kept:
            keep.add(i)
    for i in list(keep):
        if i not in snapshots or snapshots[i].ledger is not None:
            continue
        try:
            resolution = resolve(snapshots, i, tree.carriers)
        except LedgerError:
            continue
        keep.update(resolution.bare)
        if resolution.carrier_id is not None:
            keep.add(resolution.carrier_id)
    gone = [s for s in snapshots.values() if s.id not in keep]
    return tuple(s.id for s in sorted(gone, key=lambda s: (s.sequence_number, s.timestamp_ms)))


def _ancestors(snapshots: Mapping[int, Snapshot], start: int | None) -> list[int]:
    """`start` and its retained ancestors, newest first."""
    ids: list[int] = []
    while start is not None and start in snapshots:
        ids.append(start)
        start = snapshots[start].parent_id
    return ids


@dataclass(frozen=True)
class Cleanup:
    """The URIs to delete."""

    roots: tuple[str, ...] = ()
    """Delete these first."""
    others: tuple[str, ...] = ()


def needed_roots(
    snapshots: Mapping[int, Snapshot], carriers: Iterable[Carrier], table: str, ledger_since: int | None
) -> frozenset[str]:
    """The URIs of the roots that retained snapshots need, including staged snapshots.

    Args:
        carriers: Of all ledgers of retained snapshots.

    Then nothing may be deleted.

    Raises:
        LedgerError: `LedgerLost`, if the ledger of a snapshot is unknown.
    """
    carrier_list = tuple(carriers)
    roots = {s.ledger for s in snapshots.values() if s.ledger is not None} | {c.ledger for c in carrier_list}
    for i, s in snapshots.items():
        if (
            s.ledger is None
            and (pointer := resolve(snapshots, i, carrier_list, table, ledger_since).pointer) is not None
        ):
            roots.add(pointer)
    return frozenset(roots)


def named_files(snapshots: Iterable[Snapshot]) -> frozenset[str]:
    """The names of the files that the summaries of these snapshots contain."""
    keys = (names.LEDGER, names.TOMBSTONE_FILE, names.TOMBSTONE_VACUUM_FILE, names.STAGE)
    return frozenset(_name(s.summary[k]) for s in snapshots for k in keys if k in s.summary)


def just_superseded(listed: Iterable[ListedObject], now: datetime) -> tuple[str, ...]:
    """The URIs of roots that were superseded so recently that a reader may still use them."""
    roots = [(int(match[1]), o) for o in listed if (match := _ROOT.fullmatch(_name(o.key)))]
    newest_of: dict[int, datetime] = {}
    for version, o in roots:
        newest_of[version] = max(o.modified, newest_of.get(version, o.modified))
    return tuple(o.key for version, o in roots if newest_of.get(version + 1, o.modified) > now - READ_FOR)


def plan_cleanup(listed: Iterable[ListedObject], needed: Collection[str], now: datetime) -> Cleanup:
    """Plan which listed files of the two folders to delete. Keeps files whose names Lethe does not use.

    A file may be deleted if no retained snapshot needs it and it is so old that no running commit can publish it: a commit reuses
    parts only from the ledger of the head, which a retained snapshot needs, and writes all other parts again. A reader may have
    loaded the table just before its snapshot expired: for some time after it was superseded, a root and its parts are kept too.

    Roots are deleted before their parts. After a crash in between, parts without a root remain, which the next clean-up deletes.
    In the other order, a root could remain whose parts are gone. Deleting a file twice is safe.

    Args:
        needed: Names of files to keep, whatever their age.
    """
    roots: list[str] = []
    others: list[str] = []
    for o in listed:
        name = _name(o.key)
        grace = _grace(o.key)
        if grace is None or name in needed or o.modified > now - grace:
            continue
        (roots if _ROOT.fullmatch(name) else others).append(o.key)
    return Cleanup(tuple(sorted(roots)), tuple(sorted(others)))


def _grace(key: str) -> timedelta | None:
    """The age at which a file may be deleted; None: never."""
    folder, _, name = key.rpartition("/")
    if folder.endswith(f"/{names.LEDGER_FOLDER}"):
        return UNPUBLISHED_FOR if _LEDGER_FILE.fullmatch(name) else None
    if name.endswith(names.WRITER_SUFFIX):
        return None  # says where a run that crashed may have left files
    if folder.endswith(f"/{names.RUNS_FOLDER}") and name.endswith(".json"):
        return UNPUBLISHED_FOR if _STAGE_LIST.fullmatch(name) else RUN_FOR
    return None


def _name(uri: str) -> str:
    return uri.rpartition("/")[2]


@dataclass(frozen=True)
class DataManifest:
    """A manifest of data files."""

    path: str
    spec_id: int
    size: int
    """Bytes."""
    entries: int
    """Including those of removed files."""
    files: tuple[FileBounds, ...]
    """The live data files."""


@dataclass(frozen=True)
class ManifestPlan:
    """Which manifests to rewrite."""

    replaced: frozenset[str] = frozenset()
    """Paths of manifests."""
    manifest_of: Mapping[str, int] = field(default_factory=dict)
    """Path of a data file -> number of its new manifest."""

    @property
    def is_empty(self) -> bool:
        """Whether no manifest is worth rewriting."""
        return not self.replaced


def plan_manifests(manifests: Iterable[DataManifest], target_bytes: int) -> ManifestPlan:
    """Plan which manifests of a snapshot to rewrite.

    For each partition spec: all its manifests, if that halves their number, or the number of manifests opened when each partition
    is read once; else the small ones, if that halves their number.

    Planning a read opens every manifest whose partitions might match. It is fast with few manifests in which neighbouring
    partitions are together. Within a partition, files are listed in batch order. Only rewrites from which readers benefit are
    planned.

    Args:
        target_bytes: The size of a manifest (table property `commit.manifest.target-size-bytes`).
    """
    by_spec: dict[int, list[DataManifest]] = {}
    for m in manifests:
        by_spec.setdefault(m.spec_id, []).append(m)
    replaced: set[str] = set()
    manifest_of: dict[str, int] = {}
    for spec_id in sorted(by_spec):
        of_spec = by_spec[spec_id]
        small = [m for m in of_spec if m.size < SMALL * target_bytes]
        for chosen in (of_spec, small):
            groups = _grouped(chosen, target_bytes)
            if _worthwhile(chosen, groups):
                start = max(manifest_of.values(), default=-1) + 1
                replaced.update(m.path for m in chosen)
                manifest_of |= {f.path: start + n for n, group in enumerate(groups) for f in group}
                break
    return ManifestPlan(frozenset(replaced), manifest_of)


def _worthwhile(manifests: Sequence[DataManifest], groups: Sequence[Sequence[FileBounds]]) -> bool:
    """Whether reads of the whole table, or of its partitions, benefit enough."""
    whole_table, by_partition = (len(manifests), len(groups)), (_opened([m.files for m in manifests]), _opened(groups))
    return any(now - then >= MIN_SAVED and 2 * then <= now for now, then in (whole_table, by_partition))


def _opened(lists: Iterable[Sequence[FileBounds]]) -> int:
    """The number of manifests opened if each partition is read once. Partitions without text count as one."""
    return sum(len({f.partition for f in files}) for files in lists)


def _grouped(manifests: Sequence[DataManifest], target_bytes: int) -> list[list[FileBounds]]:
    """The live files in order, in groups of equal length. Each group becomes a manifest of at most the target size."""
    files = sorted((f for m in manifests for f in m.files), key=_sort_key)
    entries = sum(m.entries for m in manifests)
    of_one = sum(m.size for m in manifests) / max(entries, 1)
    fit = max(1, int(target_bytes // max(of_one, 1)))
    groups = -(-len(files) // fit)
    return [files[n * len(files) // groups : (n + 1) * len(files) // groups] for n in range(groups)]


def _sort_key(file: FileBounds) -> tuple[Any, ...]:
    """Sorts partitions by their values. Files whose partition has no text come last, by path."""
    if file.partition is None:
        return (1, (), file.path, "")
    values = json.loads(file.partition.partition("/")[2])
    order = tuple((v is not None, isinstance(v, str), 0 if v is None else v) for v in values)
    return (0, order, file.lower or "", file.path)


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

    files: tuple[str, ...] = ()
    """URIs."""
    bytes: int = 0
    """The total size."""


@dataclass(frozen=True)
class OrphanScope:
    """Where to look for orphans, and what to keep there."""

    folders: Folders
    buffer: str
    """The Dataset's buffer: keep its files, in case it is below the table against all rules."""
    own_run: str = ""
    """Run id: keep its files; empty: none."""


def plan_orphans(
    listed: Collection[ListedObject],
    needed: Collection[str],
    scope: OrphanScope,
    now: datetime,
    older_than: timedelta,
) -> Orphans:
    """Plan which of the listed files to delete.

    Only files are deleted that Iceberg's writers put into the table's own data and metadata folders: not `_tombstones/` and
    `_runs/`, which `plan_cleanup` covers, and no batches.

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
    orphans = [
        o
        for o in listed
        if o.modified <= youngest_kept
        and _is_of_a_writer(o.key, folders)
        and _run_of(o.key, folders) not in active_runs
        and not (not_ours and _within(o.key, not_ours))
        and key_of(o.key) not in needed
        and not contains(scope.buffer, o.key)
    ]
    return Orphans(tuple(sorted(o.key for o in orphans)), sum(o.size for o in orphans))


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


def _is_hidden(path: Iterable[str]) -> bool:
    return any(part.startswith(("_", ".")) for part in path)


def _is_of_another_table(key: str, folders: Folders) -> bool:
    """Whether it is table metadata, but not in the metadata folder of this table."""
    name = key.rpartition("/")[2]
    return name.endswith(_TABLE) and _below(key, folders.metadata) is None


def _within(key: str, folders: Collection[str]) -> bool:
    """Whether one of the folders above it is one of these."""
    folder = _folder(key)
    while folder:
        if folder in folders:
            return True
        folder = _folder(folder)
    return False


def key_of(uri: str) -> str:
    """The key by which files are compared: the path without scheme and bucket.

    Different URIs of one file then have the same key. Files with the same path in two buckets count as one, which at worst keeps
    one of them.
    """
    return "/".join(place(uri)[1])


def shown(orphans: Orphans, location: str) -> tuple[str, ...]:
    """The first orphans, as paths below the table. Leaves out the values of partitions, which may be personal data."""
    start = len(place(location)[1])
    first = [place(uri)[1][start:] for uri in orphans.files[:LISTED_AT_MOST]]
    return tuple("/".join(f"{n.partition('=')[0]}=…" if "=" in n else n for n in path) for path in first)


def _below(key: str, folder: str | None) -> tuple[str, ...] | None:
    """The path below a folder, as names; None: the key is not below the folder."""
    return tuple(key[len(folder) + 1 :].split("/")) if folder is not None and key.startswith(f"{folder}/") else None


def _folder(key: str) -> str:
    return key.rpartition("/")[0]

"""Finds metadata of a table that may contain values of erased rows after the rows are purged. Pure.

A manifest contains bounds of each column, the partition and the path of a file, also of removed files until the manifest is
rewritten. A snapshot's summary may name partitions (`write.summary.partition-limit`). Lethe does not keep the erased values, so
all metadata of a file that may have held one counts, whatever it contains.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from lethe.erasure.progress import DATA, HeldFile, History, OpenErasure
from lethe.files.hadoop_version import version_of
from lethe.ledger.erasure import BlockerKind, ErasureBlocker
from lethe.uri import without_values
from lethe.vacuum.ledger_files import UNPUBLISHED_FOR

PARTITION_SUMMARY: Final = "partitions."  # prefix of the summary keys that name a partition
TABLE_FILES: Final = (".metadata.json", ".metadata.json.gz")
_STATISTICS: Final = (".stats", ".puffin", ".parquet", ".orc")
WRITTEN: Final = (*TABLE_FILES, ".avro", *_STATISTICS)  # the files that Iceberg's writers put into a metadata folder


def mentioned_in(open_erasures: Iterable[OpenErasure], history: History) -> dict[str, frozenset[str]]:
    """By manifest, the keys of the erasures of which it lists a removed file. Only erasures whose rows have left the head."""
    found: dict[str, set[str]] = {}
    for open_erasure in open_erasures:
        for manifest, files in history.gone.items():
            if any(_may_have_held(open_erasure, f) for f in files):
                found.setdefault(manifest, set()).add(open_erasure.key)
    return {manifest: frozenset(keys) for manifest, keys in found.items()}


def named_in_summaries(open_erasures: Iterable[OpenErasure], history: History) -> dict[int, frozenset[str]]:
    """By snapshot, the keys of the erasures whose rows may have been in a partition that the snapshot's summary names."""
    purged = [(c.key, at) for c in open_erasures if (at := c.erasure.purged_at) is not None]
    found: dict[int, frozenset[str]] = {}
    for i, snapshot in history.snapshots.items():
        if any(key.startswith(PARTITION_SUMMARY) for key in snapshot.summary):
            keys = frozenset(key for key, at in purged if snapshot.sequence_number <= at)
            found |= {i: keys} if keys else {}
    return found


def _may_have_held(open_erasure: OpenErasure, file: HeldFile) -> bool:
    """Whether a removed file may have held a row of the erasure. Files added after the purge cannot."""
    purged = open_erasure.erasure.purged_at
    if purged is None or (file.sequence_number is not None and file.sequence_number > purged):
        return False
    # The time of an Erase by records is lost when its snapshot expires, so every file counts. Delete files contain paths of
    # files, or the values by which they delete.
    return open_erasure.ids.might_hold(file) if file.content == DATA and not open_erasure.by_records else True


def names_partitions(metadata: Mapping[str, Any], open_erasure: OpenErasure) -> bool:
    """Whether parsed table metadata contains a snapshot from before the purge whose summary names partitions."""
    purged = open_erasure.erasure.purged_at
    before = (s for s in metadata.get("snapshots") or () if purged is None or (s.get("sequence-number") or 0) <= purged)
    return any(key.startswith(PARTITION_SUMMARY) for s in before for key in s.get("summary") or ())


def with_versions_before(going: Mapping[str, Collection[str]], there: Iterable[str]) -> dict[str, set[str]]:
    """The files to delete, with the keys of their erasures, and all numbered metadata versions before the newest of them. In the
    order of deletion: no version is deleted before an older one (`lethe.files.hadoop_version`).

    Args:
        going: Files to delete, with the keys of their erasures.
        there: All files that may be deleted.
    """

    def number(path: str) -> int:
        return version_of(path.rpartition("/")[2]) or 0

    newest = max(map(number, going), default=0)
    found = {path: set(keys) for path, keys in going.items()}
    every = set[str]().union(*found.values())
    found |= {path: set(every) for path in there if 0 < number(path) < newest and path not in found}
    return dict(sorted(found.items(), key=lambda item: (number(item[0]), item[0])))


def clean_from(open_erasure: OpenErasure, history: History) -> int | None:
    """The oldest retained snapshot of the head's lineage after the purge; None: there is none."""
    purged = open_erasure.erasure.purged_at
    after = [i for i in history.lineage() if purged is not None and history.snapshots[i].sequence_number > purged]
    return after[-1] if after else None


def blocker_if_young(path: str, modified: datetime, now: datetime) -> ErasureBlocker | None:
    """What blocks deleting a metadata file that no snapshot names; None: it is so old that no writer can commit it any more."""
    until = modified + UNPUBLISHED_FOR
    if until <= now:
        return None
    why = "no snapshot names it; its writer may still commit it"
    return ErasureBlocker(BlockerKind.OBJECT, without_values(path), until.replace(microsecond=0), why)

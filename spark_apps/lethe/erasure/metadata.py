"""Which of a table's metadata may tell what the rows of an erasure held, once the rows themselves have left. Pure.

A manifest has the least and the greatest value of each column of a file, its partition and its path. It keeps those of removed
files until it is written anew. A snapshot's summary may name partitions (`write.summary.partition-limit`). Nobody keeps the
erased values: what is said of a file that may have held one counts, whatever it says.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from lethe.erasure.progress import DATA, Claim, HeldFile, History
from lethe.files.hadoop_version import version_of
from lethe.ledger.erasure import Blocker, Holder
from lethe.uri import without_values
from lethe.vacuum.ledger_files import UNPUBLISHED_FOR

PARTITION_SUMMARY: Final = "partitions."  # how the keys of a snapshot's summary begin that name a partition
TABLE_FILES: Final = (".metadata.json", ".metadata.json.gz")
_STATISTICS: Final = (".stats", ".puffin", ".parquet", ".orc")
WRITTEN: Final = (*TABLE_FILES, ".avro", *_STATISTICS)  # what Iceberg's writers put into a metadata folder


def mentioned_in(claimed: Iterable[Claim], history: History) -> dict[str, frozenset[str]]:
    """By manifest, the erasures with a file that it says was removed. Only erasures whose rows have left the head."""
    found: dict[str, set[str]] = {}
    for claim in claimed:
        for manifest, files in history.gone.items():
            if any(_may_have_held(claim, f) for f in files):
                found.setdefault(manifest, set()).add(claim.key)
    return {manifest: frozenset(keys) for manifest, keys in found.items()}


def named_in_summaries(claimed: Iterable[Claim], history: History) -> dict[int, frozenset[str]]:
    """By snapshot, the erasures whose rows may have been in a partition that the snapshot's summary names."""
    purged = [(c.key, at) for c in claimed if (at := c.erasure.purged_at) is not None]
    found: dict[int, frozenset[str]] = {}
    for i, snapshot in history.snapshots.items():
        if any(key.startswith(PARTITION_SUMMARY) for key in snapshot.summary):
            keys = frozenset(key for key, at in purged if snapshot.sequence_number <= at)
            found |= {i: keys} if keys else {}
    return found


def _may_have_held(claim: Claim, file: HeldFile) -> bool:
    """Whether a removed file may have held a row of the erasure. What came after the rows had left the head cannot."""
    purged = claim.erasure.purged_at
    if purged is None or (file.sequence_number is not None and file.sequence_number > purged):
        return False
    # When records were taken out is forgotten with that snapshot. Deletes tell paths of files, or values by which they delete.
    return claim.ids.might_hold(file) if file.content == DATA and not claim.by_records else True


def tells_partitions(metadata: Mapping[str, Any], claim: Claim) -> bool:
    """Whether a table's metadata, as parsed, has a snapshot from before the rows left whose summary names partitions."""
    purged = claim.erasure.purged_at
    before = (s for s in metadata.get("snapshots") or () if purged is None or (s.get("sequence-number") or 0) <= purged)
    return any(key.startswith(PARTITION_SUMMARY) for s in before for key in s.get("summary") or ())


def with_versions_before(going: Mapping[str, Collection[str]], there: Iterable[str]) -> dict[str, set[str]]:
    """Files that go, each for the sake of some erasures, and the numbered versions of the table's metadata before the newest of
    them. In the order in which they go: no version goes before an older one (`lethe.files.hadoop_version`).

    Args:
        there: The files that may go.
    """

    def number(path: str) -> int:
        return version_of(path.rpartition("/")[2]) or 0

    newest = max(map(number, going), default=0)
    found = {path: set(keys) for path, keys in going.items()}
    every = set[str]().union(*found.values())
    found |= {path: set(every) for path in there if 0 < number(path) < newest and path not in found}
    return dict(sorted(found.items(), key=lambda item: (number(item[0]), item[0])))


def clean_from(claim: Claim, history: History) -> int | None:
    """The first retained snapshot of the table's line that was made after the rows had left; None: there is none."""
    purged = claim.erasure.purged_at
    after = [i for i in history.lineage() if purged is not None and history.snapshots[i].sequence_number > purged]
    return after[-1] if after else None


def young(path: str, modified: datetime, now: datetime) -> Blocker | None:
    """What is said of a metadata file that no snapshot names; None: it is so old that nobody can commit it any more."""
    until = modified + UNPUBLISHED_FOR
    if until <= now:
        return None
    why = "no snapshot names it; its writer may commit it yet"
    return Blocker(Holder.OBJECT, without_values(path), until.replace(microsecond=0), why)

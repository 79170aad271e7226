"""Plans which snapshots to expire, by age and number. Never expires a snapshot that a ledger needs. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from lethe.base import names
from lethe.base.errors import LedgerError
from lethe.contract.run import SnapshotLimits
from lethe.ledger.ledger import Carrier
from lethe.ledger.lineage import Snapshot, resolve

# A run commits its staged snapshots later. A vacuum of another run must not delete their files, whatever the limits. This is
# longer than any run takes, with all its attempts.
STAGED_GRACE_SECONDS = 86_400
# Expire only when the history is longer than allowed by a tenth, so not at every commit.
SLACK = 1.1


KEEPS_FILES = (
    f"the table property {names.GC_ENABLED} is not true, so nothing deletes files of the table. Set it to true, or unset it: "
    f"ALTER TABLE … UNSET TBLPROPERTIES ('{names.GC_ENABLED}')"
)


def keeps_files(properties: Mapping[str, str]) -> bool:
    """Whether the properties of a table forbid to expire snapshots and to delete files. As Iceberg reads it, any value but `true`
    is false."""
    return properties.get(names.GC_ENABLED, "true").lower() != "true"


def too_many(snapshots: int, limits: SnapshotLimits) -> bool:
    """Whether any run should expire snapshots, not only a vacuum: each commit writes the list of all snapshots."""
    return snapshots > SLACK * limits.max_count


@dataclass(frozen=True)
class SnapshotTree:
    """The retained snapshots of a table."""

    snapshots: Mapping[int, Snapshot]  # by id
    head_id: int | None  # None: the table is empty
    refs: Mapping[str, int]  # branches and tags -> snapshot id
    carriers: tuple[Carrier, ...] = ()  # of the head's ledger


def plan_expiry(tree: SnapshotTree, limits: SnapshotLimits, now: datetime, by_age: bool = True) -> tuple[int, ...]:
    """Return the ids of the snapshots to expire, oldest first.

    Keeps:
    - the newest `min_to_keep` snapshots of the head's lineage, and up to `max_count` that are younger than `max_age_seconds`;
    - the snapshots that branches and tags name, and the retained lineage of each branch except main;
    - staged snapshots, for at least a day, until a later commit of their run;
    - the carrier of each bare snapshot that is kept, because it has its ledger.

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
            found = resolve(snapshots, i, tree.carriers)
        except LedgerError:
            continue
        keep.update(found.bare)
        if found.carrier_id is not None:
            keep.add(found.carrier_id)
    gone = [s for s in snapshots.values() if s.id not in keep]
    return tuple(s.id for s in sorted(gone, key=lambda s: (s.sequence_number, s.timestamp_ms)))


def _ancestors(snapshots: Mapping[int, Snapshot], start: int | None) -> list[int]:
    """`start` and its retained ancestors, newest first."""
    found: list[int] = []
    while start is not None and start in snapshots:
        found.append(start)
        start = snapshots[start].parent_id
    return found

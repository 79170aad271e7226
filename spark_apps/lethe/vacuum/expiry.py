"""Which snapshots may go: by age, number kept and number allowed, never one that a ledger still needs. Pure."""

from collections.abc import Mapping
from datetime import datetime

from lethe.base import names
from lethe.base.errors import LedgerError
from lethe.contract.run import SnapshotLimits
from lethe.ledger.ledger import Carrier
from lethe.ledger.lineage import Snapshot, resolve

# What a run staged it is about to commit: a vacuum beside it must not delete the files under it, whatever the limits.
# Longer than any run lives, its repetitions included.
STAGED_GRACE_SECONDS = 86_400
# A history is cut only when it is longer than allowed by a tenth: not at every commit.
SLACK = 1.1


def too_many(snapshots: int, limits: SnapshotLimits) -> bool:
    """Whether a table has so many snapshots that any run should expire some, vacuum or not: each commit writes the list
    of all of them."""
    return snapshots > SLACK * limits.max_count


def plan_expiry(
    snapshots: Mapping[int, Snapshot],
    head_id: int | None,
    refs: Mapping[str, int],
    limits: SnapshotLimits,
    now: datetime,
    carriers: tuple[Carrier, ...] = (),
    by_age: bool = True,
) -> tuple[int, ...]:
    """Ids to expire, oldest first. Without `by_age`, only what is too much, though it may be old.

    Kept are: the newest `min_to_keep` of the head's lineage; what is younger than `max_age_seconds` up to `max_count`;
    what a branch or tag names, with a branch's whole retained lineage except main's; staged snapshots that no later
    commit of their run has made superfluous, for a day at least; and the carrier of every bare snapshot that is kept,
    else that one would lose its ledger.
    """
    oldest_kept_ms = (now.timestamp() - limits.max_age_seconds) * 1000
    lineage = _ancestors(snapshots, head_id)
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
            found = resolve(snapshots, i, carriers)
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

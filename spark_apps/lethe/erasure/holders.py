"""Decides which snapshots, tags and branches keep the files of erasures, and which snapshots to expire for them. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from lethe.base import names
from lethe.contract.result import LISTED_AT_MOST
from lethe.erasure.progress import History, OpenErasure
from lethe.erasure.strays import mentioned_in, named_in_summaries
from lethe.ledger.erasure import BlockerKind, Erasure, ErasureBlocker, PurgedFile
from lethe.ledger.ledger import Carrier
from lethe.ledger.lineage import Snapshot
from lethe.vacuum.housekeeping import STAGED_GRACE_SECONDS

RUN_RECHECK_SECONDS: Final = 1800  # a run takes minutes, and its end triggers no check


@dataclass(frozen=True)
class Ref:
    """A tag or branch."""

    name: str
    kind: BlockerKind
    snapshot_id: int
    until: datetime | None = None
    """When Iceberg removes it by itself; None: never."""


def holders(
    history: History, files: Mapping[str, PurgedFile], open_erasures: Collection[OpenErasure] = ()
) -> dict[int, frozenset[str]]:
    """By snapshot id, the keys of the erasures that it blocks.

    It names some of their files, or its metadata contains values of their rows.

    Args:
        files: The files that may hold rows, by path.
        open_erasures: The erasures whose values must not be in metadata any more.
    """
    of_manifest = {manifest: set(keys) for manifest, keys in mentioned_in(open_erasures, history).items()}
    for manifest, paths in history.named.items():
        keys = {k for p in paths if p in files for k in files[p].restatements}
        if keys:
            of_manifest.setdefault(manifest, set()).update(keys)
    in_summaries = named_in_summaries(open_erasures, history)
    keys_by_snapshot: dict[int, frozenset[str]] = {}
    for i, manifests in history.manifests.items():
        keys = set(in_summaries.get(i, ())).union(*(of_manifest.get(m, set()) for m in manifests))
        if keys:
            keys_by_snapshot[i] = frozenset(keys)
    return keys_by_snapshot


def to_expire(
    history: History,
    held: Mapping[int, Collection[str]],
    refs: Iterable[Ref],
    due: Collection[str],
    now: datetime,
) -> tuple[int, ...]:
    """The ids of the snapshots to expire for due erasures, oldest first, whatever the retention limits.

    Keeps snapshots that tags and branches name, and staged snapshots that their runs may still publish.
    """
    kept = {r.snapshot_id for r in refs} | {history.head_id}
    expiring = [
        history.snapshots[i]
        for i, keys in held.items()
        if i not in kept and any(k in due for k in keys) and staged_until(history.snapshots[i], history, now) is None
    ]
    return tuple(s.id for s in sorted(expiring, key=lambda s: (s.sequence_number, s.timestamp_ms)))


def staged_until(snapshot: Snapshot, history: History, now: datetime) -> datetime | None:
    """Until when a run may publish this staged snapshot; None: it is not staged, the time is over, or the run has committed."""
    wap_id = snapshot.summary.get(names.WAP_ID)
    if wap_id is None or history.last_commit_of.get(wap_id, -1) >= snapshot.sequence_number:
        return None
    until = _time(snapshot) + timedelta(seconds=STAGED_GRACE_SECONDS)
    return until if until > now else None


def losing_ledger(history: History, expiring: Collection[int], carriers: Iterable[Carrier]) -> bool:
    """Whether expiring these snapshots leaves a retained snapshot without a ledger.

    The newest ledger does not list its carrier.
    """
    named = {b for c in carriers for b in c.bare}
    for i, snapshot in history.snapshots.items():
        if i in expiring or i in named:
            continue
        current: Snapshot | None = snapshot
        while current is not None and current.ledger is None:
            if current.id in expiring:
                return True
            current = history.snapshots.get(current.parent_id) if current.parent_id is not None else None
        if current is not None and current.id in expiring and current.id != i:
            return True
    return False


def snapshot_blockers(
    history: History,
    held: Mapping[int, Collection[str]],
    refs: Collection[Ref],
    max_age_seconds: int,
    now: datetime,
) -> dict[str, list[ErasureBlocker]]:
    """By erasure, what keeps the snapshots that name its files: first tags and branches, then snapshots, oldest first."""
    of_snapshot: dict[int, list[Ref]] = {}
    for ref in refs:
        of_snapshot.setdefault(ref.snapshot_id, []).append(ref)
    blockers: dict[str, list[ErasureBlocker]] = {}
    snapshots = sorted((history.snapshots[i] for i in held), key=lambda s: (s.id not in of_snapshot, s.sequence_number))
    for snapshot in snapshots:
        for blocker in _blockers_of(snapshot, history, of_snapshot.get(snapshot.id, ()), max_age_seconds, now):
            for key in held[snapshot.id]:
                blockers.setdefault(key, []).append(blocker)
    return blockers


def _blockers_of(
    snapshot: Snapshot, history: History, refs: Collection[Ref], max_age_seconds: int, now: datetime
) -> Iterable[ErasureBlocker]:
    if refs:
        return [
            ErasureBlocker(r.kind, r.name, r.until, f"snapshot {snapshot.id}")
            for r in sorted(refs, key=lambda r: r.name)
        ]
    if (until := staged_until(snapshot, history, now)) is not None:
        return [ErasureBlocker(BlockerKind.STAGED_SNAPSHOT, str(snapshot.id), until, "its run may publish it")]
    over = _time(snapshot) + timedelta(seconds=max_age_seconds)
    return [
        ErasureBlocker(BlockerKind.SNAPSHOT, str(snapshot.id), over if over > now else None, "spec.snapshots keeps it")
    ]


def property_blocker() -> ErasureBlocker:
    """Blocks every erasure of a table whose properties forbid to delete files."""
    why = "it must be true to erase anything. Set it to true, or unset it"
    return ErasureBlocker(BlockerKind.TABLE_PROPERTY, names.GC_ENABLED, None, why)


def with_blockers(erasure: Erasure, blockers: Collection[ErasureBlocker], now: datetime, again_seconds: int) -> Erasure:
    """The erasure with these blockers.

    The next check is when the first blocker ends. Objects and runs are also checked at intervals, because no event reports their
    end; for tags, branches and snapshots the table's metadata reports it.
    """
    known = [b.until for b in blockers if b.until is not None and b.until > now]
    only_in_storage = any(
        b.kind in (BlockerKind.OBJECT, BlockerKind.OBJECT_VERSION, BlockerKind.LEGAL_HOLD) for b in blockers
    )
    pauses = [again_seconds] * only_in_storage + [RUN_RECHECK_SECONDS] * any(
        b.kind is BlockerKind.RUN for b in blockers
    )
    again = min([*known, *(now + timedelta(seconds=s) for s in pauses)], default=None)
    listed = tuple(blockers)[:LISTED_AT_MOST]
    same = (listed, len(blockers)) == (erasure.blockers, erasure.blockers_count)
    if same and (again == erasure.look_again or (erasure.look_again is not None and erasure.look_again > now)):
        return erasure
    return replace(erasure, blockers=listed, blockers_count=len(blockers), look_again=again)


def _time(snapshot: Snapshot) -> datetime:
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)

"""What holds the files of erasures: snapshots, tags, branches; and which of these may go. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from lethe.base import names
from lethe.contract.result import LISTED_AT_MOST
from lethe.erasure.metadata import mentioned_in, named_in_summaries
from lethe.erasure.progress import Claim, History
from lethe.ledger.erasure import Blocker, Erasure, Holder, PurgedFile
from lethe.ledger.ledger import Carrier
from lethe.ledger.lineage import Snapshot
from lethe.vacuum.expiry import STAGED_GRACE_SECONDS

RUN_AGAIN_SECONDS: Final = 1800  # a run takes minutes, and says nothing when it has ended


@dataclass(frozen=True)
class Ref:
    """A tag or branch; `until`: when Iceberg lets go of it by itself."""

    name: str
    kind: Holder
    snapshot_id: int
    until: datetime | None = None


def holders(
    history: History, files: Mapping[str, PurgedFile], claimed: Collection[Claim] = ()
) -> dict[int, frozenset[str]]:
    """By snapshot, the erasures that it holds: it names some of their files, or tells something of these.

    Args:
        files: That may hold rows, by path.
        claimed: The erasures of which nothing must be told any more.
    """
    of_manifest = {manifest: set(keys) for manifest, keys in mentioned_in(claimed, history).items()}
    for manifest, paths in history.named.items():
        keys = {k for p in paths if p in files for k in files[p].restatements}
        if keys:
            of_manifest.setdefault(manifest, set()).update(keys)
    told = named_in_summaries(claimed, history)
    found: dict[int, frozenset[str]] = {}
    for i, manifests in history.manifests.items():
        keys = set(told.get(i, ())).union(*(of_manifest.get(m, set()) for m in manifests))
        if keys:
            found[i] = frozenset(keys)
    return found


def to_expire(
    history: History,
    held: Mapping[int, Collection[str]],
    refs: Iterable[Ref],
    due: Collection[str],
    now: datetime,
) -> tuple[int, ...]:
    """Ids of the snapshots that name files of due erasures, oldest first, whatever the retention limits. A tag or branch keeps
    the one that it points to; a staged snapshot stays as long as its run may still publish it."""
    kept = {r.snapshot_id for r in refs} | {history.head_id}
    going = [
        history.snapshots[i]
        for i, keys in held.items()
        if i not in kept and any(k in due for k in keys) and staged_until(history.snapshots[i], history, now) is None
    ]
    return tuple(s.id for s in sorted(going, key=lambda s: (s.sequence_number, s.timestamp_ms)))


def staged_until(snapshot: Snapshot, history: History, now: datetime) -> datetime | None:
    """Until when the run that staged a snapshot may publish it; None: it is none, or that is over, or done."""
    wap_id = snapshot.summary.get(names.WAP_ID)
    if wap_id is None or history.last_commit_of.get(wap_id, -1) >= snapshot.sequence_number:
        return None
    until = _time(snapshot) + timedelta(seconds=STAGED_GRACE_SECONDS)
    return until if until > now else None


def losing_ledger(history: History, going: Collection[int], carriers: Iterable[Carrier]) -> bool:
    """Whether a snapshot that stays would be left without a ledger, since the newest ledger does not name its carrier yet."""
    named = {b for c in carriers for b in c.bare}
    for i, snapshot in history.snapshots.items():
        if i in going or i in named:
            continue
        current: Snapshot | None = snapshot
        while current is not None and current.ledger is None:
            if current.id in going:
                return True
            current = history.snapshots.get(current.parent_id) if current.parent_id is not None else None
        if current is not None and current.id in going and current.id != i:
            return True
    return False


def snapshot_blockers(
    history: History,
    held: Mapping[int, Collection[str]],
    refs: Collection[Ref],
    max_age_seconds: int,
    now: datetime,
) -> dict[str, list[Blocker]]:
    """By erasure, what keeps snapshots that name its files: tags and branches first, then the snapshots, the oldest first."""
    of_snapshot: dict[int, list[Ref]] = {}
    for ref in refs:
        of_snapshot.setdefault(ref.snapshot_id, []).append(ref)
    found: dict[str, list[Blocker]] = {}
    snapshots = sorted((history.snapshots[i] for i in held), key=lambda s: (s.id not in of_snapshot, s.sequence_number))
    for snapshot in snapshots:
        for blocker in _blockers_of(snapshot, history, of_snapshot.get(snapshot.id, ()), max_age_seconds, now):
            for key in held[snapshot.id]:
                found.setdefault(key, []).append(blocker)
    return found


def _blockers_of(
    snapshot: Snapshot, history: History, refs: Collection[Ref], max_age_seconds: int, now: datetime
) -> Iterable[Blocker]:
    if refs:
        return [Blocker(r.kind, r.name, r.until, f"snapshot {snapshot.id}") for r in sorted(refs, key=lambda r: r.name)]
    if (until := staged_until(snapshot, history, now)) is not None:
        return [Blocker(Holder.STAGED_SNAPSHOT, str(snapshot.id), until, "its run may publish it")]
    over = _time(snapshot) + timedelta(seconds=max_age_seconds)
    return [Blocker(Holder.SNAPSHOT, str(snapshot.id), over if over > now else None, "spec.snapshots keeps it")]


def looked_at(erasure: Erasure, blockers: Collection[Blocker], now: datetime, again_seconds: int) -> Erasure:
    """The erasure with what holds it. It is looked at again when the first of these lets go; and now and then where only the
    storage can tell whether it did: tags, branches and snapshots are seen to be gone without a look."""
    known = [b.until for b in blockers if b.until is not None and b.until > now]
    unseen = any(b.kind in (Holder.OBJECT, Holder.OBJECT_VERSION, Holder.LEGAL_HOLD) for b in blockers)
    pauses = [again_seconds] * unseen + [RUN_AGAIN_SECONDS] * any(b.kind is Holder.RUN for b in blockers)
    again = min([*known, *(now + timedelta(seconds=s) for s in pauses)], default=None)
    listed = tuple(blockers)[:LISTED_AT_MOST]
    same = (listed, len(blockers)) == (erasure.blockers, erasure.blockers_count)
    if same and (again == erasure.look_again or (erasure.look_again is not None and erasure.look_again > now)):
        return erasure
    return replace(erasure, blockers=listed, blockers_count=len(blockers), look_again=again)


def _time(snapshot: Snapshot) -> datetime:
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)

"""Makes a log of the snapshots of a table, newest first. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from lethe.base import names
from lethe.ledger.lineage import Snapshot


@dataclass(frozen=True)
class Line:
    """One snapshot. The counts are of tombstones; None: the snapshot's summary has no such number."""

    snapshot_id: int
    time: datetime
    operation: str
    run_kind: str | None  # None: another writer committed it
    run_id: str | None  # None: another writer committed it
    added: int | None
    deleted: int | None
    total: int | None
    vacuumed: int | None
    bare: bool  # it has no ledger of its own
    refs: tuple[str, ...]  # branches and tags


def lines(
    snapshots: Mapping[int, Snapshot], head_id: int | None, refs: Mapping[str, int], *, everything: bool = False
) -> tuple[Line, ...]:
    """The head and its retained ancestors; with `everything`, also staged snapshots and those of other branches."""
    if everything:
        chosen = sorted(snapshots.values(), key=lambda s: (s.sequence_number, s.timestamp_ms), reverse=True)
    else:
        chosen = []
        while head_id is not None and head_id in snapshots:
            chosen.append(snapshots[head_id])
            head_id = snapshots[head_id].parent_id
    named: dict[int, list[str]] = {}
    for name, snapshot_id in sorted(refs.items()):
        named.setdefault(snapshot_id, []).append(name)
    return tuple(_line(s, tuple(named.get(s.id, ()))) for s in chosen)


def _line(snapshot: Snapshot, refs: tuple[str, ...]) -> Line:
    summary = snapshot.summary
    return Line(
        snapshot_id=snapshot.id,
        time=datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC),
        operation=summary.get("operation", ""),
        run_kind=summary.get(names.RUN_KIND),
        run_id=summary.get(names.RUN_ID),
        added=count(summary, names.TOMBSTONE_ADDED),
        deleted=count(summary, names.TOMBSTONE_DELETED),
        total=count(summary, names.TOMBSTONE_TOTAL),
        vacuumed=count(summary, names.TOMBSTONE_VACUUM_COUNT),
        bare=snapshot.ledger is None,
        refs=refs,
    )


def count(summary: Mapping[str, str], key: str) -> int | None:
    """The number under a summary key; None: the key is missing or not a number."""
    value = summary.get(key, "")
    return int(value) if value.isdigit() else None

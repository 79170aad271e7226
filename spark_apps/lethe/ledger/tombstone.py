"""Tombstones, which delete rows of a batch from readers, and erasures, which also delete their bytes. Pure.

A tombstone says: "the rows whose field `namespace` has the value `id` are deleted". An erasure in the ledger says which rows must
be gone, what blocks that, and which files may hold them; it contains no values of rows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from lethe.contract.settings import NativeDeletes

# Keys of `meta`. RESTATEMENTS contains request keys, one per line: several restatements may have set one tombstone.
META_RESTATEMENTS = "restatements"
META_REASON = "reason"
META_RUN = "run"
META_PARTITIONS = "partitions"
"""The partitions that rows of the batch may be in, one per line, as `lethe.files.bounds` writes them: a superset."""
META_PURGED_BY = "purgedBy"
"""The run of a vacuum that removed some files with such rows. A tombstone that is purged in part cannot be undone."""
PURGED_BEFORE = "before"
"""The value of META_PURGED_BY if the vacuum was before this tombstone and its run is unknown."""
PURGED_AT_ONCE = "at once"
"""The value of META_PURGED_BY if whole files of such rows were dropped when the batch was deleted."""
PURGED_BESIDE = "beside"
"""The value of META_PURGED_BY if other native deletes also apply to some of the rows."""
META_MASK = "mask"
"""The native deletes that hide its rows from readers without the ledger, as `Mask` writes them."""


@dataclass(frozen=True, slots=True)
class Mask:
    """The native deletes of a tombstone."""

    by: NativeDeletes
    rows: int
    """Rows of the batch in the data files when they were written."""
    whole: bool = True
    """False: rows without a native delete may have been added since."""

    @classmethod
    def parse(cls, text: str) -> "Mask":
        """Read what `str()` of a mask writes, as `meta` has it under `META_MASK`."""
        by, rows, *more = text.split(" ")
        return cls(NativeDeletes(by), int(rows), not more)

    def __str__(self) -> str:
        return f"{self.by} {self.rows}{'' if self.whole else ' more'}"


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The rows with one value of one column are deleted."""

    id: str
    """The value; values other than strings in Iceberg's JSON single-value form."""
    namespace: int
    """The Iceberg field id of the column."""
    added_on: datetime
    """UTC."""
    evict_by: datetime | None = None
    """When the bytes must be gone, in UTC; None: no deadline."""
    meta: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[int, str]:
        """The field id and the value. A ledger has one tombstone for each key: others are merged into it."""
        return (self.namespace, self.id)

    @property
    def restatements(self) -> tuple[str, ...]:
        """The keys of the requests that set it, in the order in which they did; empty: no request set it."""
        return tuple(r for r in self.meta.get(META_RESTATEMENTS, "").split("\n") if r)

    @property
    def partitions(self) -> tuple[str, ...] | None:
        """The partitions that its rows may be in; None: any."""
        text = self.meta.get(META_PARTITIONS)
        return None if text is None else tuple(p for p in text.split("\n") if p)

    @property
    def mask(self) -> Mask | None:
        """Its native deletes; None: it has none."""
        text = self.meta.get(META_MASK)
        return None if text is None else Mask.parse(text)

    @property
    def is_masked(self) -> bool:
        """Whether all its rows have native deletes."""
        return self.mask is not None and self.mask.whole

    def masked(self, mask: Mask) -> "Tombstone":
        """A copy with this mask, which replaces the one that it may have."""
        return replace(self, meta={**self.meta, META_MASK: str(mask)})

    def same_origin(self, other: "Tombstone") -> bool:
        """Whether both come from the same deletion. A tombstone that was undone and set again does not."""
        return self.key == other.key and self.added_on == other.added_on and self.restatements == other.restatements


def merge(old: Tombstone, new: Tombstone) -> Tombstone:
    """Merge two tombstones of one id: the earliest evictBy, all restatements, all partitions, the older addedOn and meta.

    The newer mask counts. If the newer tombstone has none, rows may have been added since, so the old mask is not whole any
    more.
    """
    deadlines = [d for d in (old.evict_by, new.evict_by) if d is not None]
    restatements = tuple(dict.fromkeys((*old.restatements, *new.restatements)))
    meta = {**new.meta, **old.meta}
    if restatements:
        meta[META_RESTATEMENTS] = "\n".join(restatements)
    if old.partitions is None or new.partitions is None:
        meta.pop(META_PARTITIONS, None)
    else:
        meta[META_PARTITIONS] = "\n".join(dict.fromkeys((*old.partitions, *new.partitions)))
    if new.mask is not None:
        meta[META_MASK] = str(new.mask)
    elif old.mask is not None:
        meta[META_MASK] = str(replace(old.mask, whole=False))
    return replace(
        old,
        added_on=min(old.added_on, new.added_on),
        evict_by=min(deadlines) if deadlines else None,
        meta=meta,
    )


def merged(
    tombstones: Mapping[tuple[int, str], Tombstone], new: Iterable[Tombstone]
) -> dict[tuple[int, str], Tombstone]:
    """A new mapping with `new` merged into `tombstones`, which does not change."""
    result = dict(tombstones)
    for t in new:
        result[t.key] = merge(result[t.key], t) if t.key in result else t
    return result


class BlockerKind(StrEnum):
    """What may keep files of an erasure."""

    TAG = "Tag"
    BRANCH = "Branch"
    SNAPSHOT = "Snapshot"
    STAGED_SNAPSHOT = "StagedSnapshot"
    OBJECT_LOCK = "ObjectLock"
    LEGAL_HOLD = "LegalHold"
    OBJECT_VERSION = "ObjectVersion"
    OBJECT = "Object"
    RUN = "Run"
    TABLE_PROPERTY = "TableProperty"
    HOLD = "Hold"
    """A hold of the Dataset. LEGAL_HOLD is one of the object store."""


@dataclass(frozen=True)
class ErasureBlocker:
    """What keeps files of an erasure."""

    kind: BlockerKind
    name: str
    """Name of the tag, branch, property or hold, id of the snapshot or run, URI of the object."""
    until: datetime | None = None
    """When it ends by itself; None: unknown."""
    why: str = ""
    """A reason for users; empty: none."""

    def __str__(self) -> str:
        called = {
            BlockerKind.TAG: "tag",
            BlockerKind.BRANCH: "branch",
            BlockerKind.SNAPSHOT: "snapshot",
            BlockerKind.STAGED_SNAPSHOT: "staged snapshot",
            BlockerKind.OBJECT_LOCK: "object lock on",
            BlockerKind.LEGAL_HOLD: "legal hold on",
            BlockerKind.OBJECT_VERSION: "an older version of",
            BlockerKind.OBJECT: "object",
            BlockerKind.RUN: "run",
            BlockerKind.TABLE_PROPERTY: "the table property",
            BlockerKind.HOLD: "hold",
        }[self.kind]
        until = f" until {self.until:%Y-%m-%dT%H:%M:%SZ}" if self.until is not None else ""
        return f"{called} {self.name}{until}{f' ({self.why})' if self.why else ''}"


@dataclass(frozen=True)
class Erasure:
    """Rows whose bytes must be deleted."""

    restatement: str
    """The key of the request."""
    field_id: int
    """The field id of the column that names the rows: the batch column, or for records any other."""
    evict_by: datetime | None
    """The deadline; None: there is none."""
    purged_by: int | None = None
    """The snapshot that removed the last rows from the data files; None: the head has rows."""
    purged_at: int | None = None
    """The sequence number of the snapshot at which that was found; None: the head has rows."""
    purged_time: datetime | None = None
    """When that was found; None: the head has rows."""
    blockers: tuple[ErasureBlocker, ...] = ()
    """The first blockers of the last check."""
    blockers_count: int = 0
    """All blockers of the last check."""
    look_again: datetime | None = None
    """The next check, if no blocker ends before; None: none is planned."""
    verified: bool = (
        False  # the storage has none of the files. The newest verified erasure by records stays in the ledger
    )

    @property
    def is_open(self) -> bool:
        """Whether no check has verified yet that the storage has none of the files with its rows."""
        return not self.verified

    @property
    def is_purged(self) -> bool:
        """Whether the head's data files have none of its rows. Older snapshots and the storage may still have some."""
        return self.purged_at is not None

    @property
    def is_held(self) -> bool:
        """Whether the last vacuum left rows of it in the head's data files, because holds cover some of them."""
        return not self.is_purged and any(b.kind is BlockerKind.HOLD for b in self.blockers)

    def is_due(self, by: datetime) -> bool:
        """Whether the bytes must be gone by this time."""
        return self.evict_by is not None and self.evict_by <= by

    def reopened(self) -> "Erasure":
        """The erasure with rows in the table's data files again."""
        return replace(
            self, purged_by=None, purged_at=None, purged_time=None, blockers=(), blockers_count=0, look_again=None
        )


@dataclass(frozen=True)
class PurgedFile:
    """A file that may hold rows of open erasures and is not in the head: it must be deleted from the storage."""

    path: str
    bytes: int
    """Its size; 0: unknown."""
    content: str
    """`data` or `deletes`."""
    restatements: tuple[str, ...]
    """The keys of these erasures."""


def purged_after(
    before: Mapping[str, PurgedFile], changed: Iterable[PurgedFile], forgotten: Iterable[str]
) -> dict[str, PurgedFile]:
    """The purged files after a change. A file in both `changed` and `forgotten` stays."""
    removed = frozenset(forgotten)
    return {p: f for p, f in before.items() if p not in removed} | {f.path: f for f in changed}

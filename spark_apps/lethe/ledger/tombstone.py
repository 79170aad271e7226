"""A tombstone: "the rows whose field `namespace` has the value `id` are deleted". Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from lethe.contract.settings import NativeDeletes

# Keys of `meta`. RESTATEMENTS contains request keys, one per line: several restatements may have set one tombstone.
META_RESTATEMENTS = "restatements"
META_REASON = "reason"
META_RUN = "run"
# The partitions that rows of the batch may be in, one per line, as `lethe.files.bounds` writes them: a superset.
META_PARTITIONS = "partitions"
# The run of a vacuum that removed some files with such rows. A tombstone that is purged in part cannot be undone.
META_PURGED_BY = "purgedBy"
PURGED_BEFORE = "before"  # its value, if the vacuum was before this tombstone and its run is unknown
PURGED_AT_ONCE = "at once"  # its value, if whole files of such rows were dropped when the batch was deleted
PURGED_BESIDE = "beside"  # its value, if other native deletes also apply to some of the rows
# The native deletes that hide its rows from readers without the ledger, as `Mask` writes them.
META_MASK = "mask"


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
    """UTC; None: no deadline."""
    meta: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[int, str]:
        return (self.namespace, self.id)

    @property
    def restatements(self) -> tuple[str, ...]:
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

"""One tombstone: the record "rows whose field `namespace` equals `id` are deleted". Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

# Keys of `meta`. RESTATEMENTS holds request keys joined by newlines: several restatements may hold one tombstone.
META_RESTATEMENTS = "restatements"
META_REASON = "reason"
META_RUN = "run"
# The partitions that rows of the batch may lie in, one a line, as `lethe.files.partitions` writes them: a superset.
META_PARTITIONS = "partitions"
# The run of a vacuum that removed a file with such rows while others stayed: what is purged in part cannot be undone.
META_PURGED_BY = "purgedBy"
PURGED_BEFORE = "before"  # its value, when the vacuum was before this tombstone and is not remembered
PURGED_AT_ONCE = "at once"  # its value, when whole files of such rows went as the batch was taken back
PURGED_BESIDE = (
    "beside"  # its value, when some of the rows were deleted natively, before it or since, by other means as well
)
# Which of Iceberg's own deletes hide its rows from readers that know no ledger, as `Mask` writes it.
META_MASK = "mask"


@dataclass(frozen=True, slots=True)
class Mask:
    """Native deletes that stand for a tombstone.

    Args:
        by: `DeletionVectors` or `EqualityDeletes`.
        rows: How many rows of the batch the data files held when it was masked.
        whole: Whether they are all; else rows may have come since that no native delete is of.
    """

    by: str
    rows: int
    whole: bool = True

    @classmethod
    def parse(cls, text: str) -> "Mask":
        by, rows, *more = text.split(" ")
        return cls(by, int(rows), not more)

    def __str__(self) -> str:
        return f"{self.by} {self.rows}{'' if self.whole else ' more'}"


@dataclass(frozen=True, slots=True)
class Tombstone:
    """`id` is the value (non-strings in Iceberg's JSON single-value form), `namespace` the column's Iceberg field id,
    `added_on` and `evict_by` aware UTC datetimes."""

    id: str
    namespace: int
    added_on: datetime
    evict_by: datetime | None = None
    meta: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[int, str]:
        return (self.namespace, self.id)

    @property
    def restatements(self) -> tuple[str, ...]:
        return tuple(r for r in self.meta.get(META_RESTATEMENTS, "").split("\n") if r)

    @property
    def partitions(self) -> tuple[str, ...] | None:
        """The partitions that its rows may lie in; None: anywhere."""
        text = self.meta.get(META_PARTITIONS)
        return None if text is None else tuple(p for p in text.split("\n") if p)

    @property
    def mask(self) -> Mask | None:
        """The native deletes that hide its rows as well; None: there are none."""
        text = self.meta.get(META_MASK)
        return None if text is None else Mask.parse(text)

    @property
    def is_masked(self) -> bool:
        """Whether each of its rows is deleted natively."""
        return self.mask is not None and self.mask.whole

    def masked(self, mask: Mask) -> "Tombstone":
        return replace(self, meta={**self.meta, META_MASK: str(mask)})

    def same_origin(self, other: "Tombstone") -> bool:
        """Whether both are the same act of deletion; a tombstone undone and set again is not."""
        return self.key == other.key and self.added_on == other.added_on and self.restatements == other.restatements


def merge(old: Tombstone, new: Tombstone) -> Tombstone:
    """Two tombstones of one id: the earliest evictBy, every restatement, all partitions, the older addedOn and meta.

    Of the mask the newer one counts. One that is set again without a mask may be because rows came in the meantime."""
    deadlines = [d for d in (old.evict_by, new.evict_by) if d is not None]
    held_by = tuple(dict.fromkeys((*old.restatements, *new.restatements)))
    meta = {**new.meta, **old.meta}
    if held_by:
        meta[META_RESTATEMENTS] = "\n".join(held_by)
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
    """A new mapping with `new` merged into `tombstones`, which is left as it was."""
    result = dict(tombstones)
    for t in new:
        result[t.key] = merge(result[t.key], t) if t.key in result else t
    return result

"""Plans which manifests to rewrite, and which new manifest lists which data file. Rewrites only where readers benefit. Pure.

Planning a read opens every manifest whose partitions might match. It is fast with few manifests in which neighbouring partitions
are together. Within a partition, files are listed in batch order.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lethe.files.bounds import FileBounds

# A commit is worthwhile if a reader opens at least this many manifests fewer, and at most half as many.
MIN_SAVED: Final = 8
# Fraction of the target size below which a manifest is small.
SMALL: Final = 0.5


@dataclass(frozen=True)
class Manifest:
    """A manifest of data files."""

    path: str
    spec_id: int
    size: int  # bytes
    entries: int  # including those of removed files
    files: tuple[FileBounds, ...]  # the live data files


@dataclass(frozen=True)
class ManifestPlan:
    """Which manifests to rewrite."""

    replaced: frozenset[str] = frozenset()  # paths of manifests
    manifest_of: Mapping[str, int] = field(default_factory=dict)  # path of a data file -> number of its new manifest

    @property
    def is_empty(self) -> bool:
        return not self.replaced


def plan_manifests(manifests: Iterable[Manifest], target_bytes: int) -> ManifestPlan:
    """Plan which manifests of a snapshot to rewrite.

    For each partition spec: all its manifests, if that halves their number, or the number of manifests opened when each partition
    is read once; else the small ones, if that halves their number.

    Args:
        target_bytes: The size of a manifest (table property `commit.manifest.target-size-bytes`).
    """
    by_spec: dict[int, list[Manifest]] = {}
    for m in manifests:
        by_spec.setdefault(m.spec_id, []).append(m)
    replaced: set[str] = set()
    manifest_of: dict[str, int] = {}
    for spec_id in sorted(by_spec):
        of_spec = by_spec[spec_id]
        small = [m for m in of_spec if m.size < SMALL * target_bytes]
        for chosen in (of_spec, small):
            groups = _grouped(chosen, target_bytes)
            if _worthwhile(chosen, groups):
                start = max(manifest_of.values(), default=-1) + 1
                replaced.update(m.path for m in chosen)
                manifest_of |= {f.path: start + n for n, group in enumerate(groups) for f in group}
                break
    return ManifestPlan(frozenset(replaced), manifest_of)


def _worthwhile(manifests: Sequence[Manifest], groups: Sequence[Sequence[FileBounds]]) -> bool:
    """Whether reads of the whole table, or of its partitions, benefit enough."""
    whole_table, by_partition = (len(manifests), len(groups)), (_opened([m.files for m in manifests]), _opened(groups))
    return any(now - then >= MIN_SAVED and 2 * then <= now for now, then in (whole_table, by_partition))


def _opened(lists: Iterable[Sequence[FileBounds]]) -> int:
    """The number of manifests opened if each partition is read once. Partitions without text count as one."""
    return sum(len({f.partition for f in files}) for files in lists)


def _grouped(manifests: Sequence[Manifest], target_bytes: int) -> list[list[FileBounds]]:
    """The live files in order, in groups of equal length. Each group becomes a manifest of at most the target size."""
    files = sorted((f for m in manifests for f in m.files), key=_sort_key)
    entries = sum(m.entries for m in manifests)
    of_one = sum(m.size for m in manifests) / max(entries, 1)
    fit = max(1, int(target_bytes // max(of_one, 1)))
    groups = -(-len(files) // fit)
    return [files[n * len(files) // groups : (n + 1) * len(files) // groups] for n in range(groups)]


def _sort_key(file: FileBounds) -> tuple[Any, ...]:
    """Sorts partitions by their values. Files whose partition has no text come last, by path."""
    if file.partition is None:
        return (1, (), file.path, "")
    values = json.loads(file.partition.partition("/")[2])
    order = tuple((v is not None, isinstance(v, str), 0 if v is None else v) for v in values)
    return (0, order, file.lower or "", file.path)

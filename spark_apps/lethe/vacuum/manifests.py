"""Which manifests are written anew, and which data file is listed in which of them: only where readers gain by it. Pure.

Who plans a read opens every manifest whose partitions may match. So few of them, with neighbouring partitions together, are what
makes planning fast; within a partition files are listed in batch order.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lethe.files.bounds import FileBounds

# A commit is worth it if a reader is spared so many manifests, and half of them.
SPARED_AT_LEAST: Final = 8
# Of the target size: a manifest below that is small.
SMALL: Final = 0.5


@dataclass(frozen=True)
class Manifest:
    """One of data files. `size` in bytes; `entries` counts those of removed files, too; `files` are the live ones."""

    path: str
    spec_id: int
    size: int
    entries: int
    files: tuple[FileBounds, ...]


@dataclass(frozen=True)
class ManifestPlan:
    """`replaced`: paths of manifests; `manifest_of`: by the path of a data file in one of them, the number of the new one."""

    replaced: frozenset[str] = frozenset()
    manifest_of: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not self.replaced


def plan_manifests(manifests: Iterable[Manifest], target_bytes: int) -> ManifestPlan:
    """What to write anew of the manifests of a snapshot.

    Of each partition spec: all of its manifests if that halves their number, or how many are opened for its partitions, one after
    the other; else the small ones if half as many or fewer hold the same.

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
    """For who reads the whole table, or for who reads partitions of it."""
    of_all, of_partitions = (len(manifests), len(groups)), (_opened([m.files for m in manifests]), _opened(groups))
    return any(now - then >= SPARED_AT_LEAST and 2 * then <= now for now, then in (of_all, of_partitions))


def _opened(lists: Iterable[Sequence[FileBounds]]) -> int:
    """How many manifests are opened if each partition is read once; those without a text count as one."""
    return sum(len({f.partition for f in files}) for files in lists)


def _grouped(manifests: Sequence[Manifest], target_bytes: int) -> list[list[FileBounds]]:
    """The live files in order, in groups of equal length that make manifests of at most the target size."""
    files = sorted((f for m in manifests for f in m.files), key=_place)
    entries = sum(m.entries for m in manifests)
    of_one = sum(m.size for m in manifests) / max(entries, 1)
    fit = max(1, int(target_bytes // max(of_one, 1)))
    groups = -(-len(files) // fit)
    return [files[n * len(files) // groups : (n + 1) * len(files) // groups] for n in range(groups)]


def _place(file: FileBounds) -> tuple[Any, ...]:
    """Partitions in the order of their values, files without a text of theirs behind them by path: by folder, mostly."""
    if file.partition is None:
        return (1, (), file.path, "")
    values = json.loads(file.partition.partition("/")[2])
    order = tuple((v is not None, isinstance(v, str), 0 if v is None else v) for v in values)
    return (0, order, file.lower or "", file.path)

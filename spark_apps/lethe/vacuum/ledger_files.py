"""Which files of `_tombstones/` and `_runs/` nobody needs any more. Pure.

A file may go when no retained snapshot leads to it and it is old enough that no commit under way can still publish it: a
commit takes parts over from the ledger of the head only, which a retained snapshot leads to, and writes all others anew.
A reader that found its ledger a moment before that ledger's snapshot expired may still be reading: for a while after it
was superseded, a root and its parts stay, too.

Roots go before their parts. Whoever dies in between leaves parts without a root, which the next clean-up finds like any
other file; the other way round there would be a root, whole to the eye, whose parts are gone. Deleting twice does no harm.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lethe.base import names
from lethe.buffer.batch import ListedObject
from lethe.ledger.ledger import Carrier
from lethe.ledger.lineage import Snapshot, resolve

# Longer than any commit takes from the first of its files to its last attempt.
UNPUBLISHED_FOR: Final = timedelta(days=1)
# Longer than a reader takes from the look at the table to the last file of its ledger.
READ_FOR: Final = timedelta(hours=1)
# Longer than a run waits, is repeated and ends: what it was told lies in `_runs/` when it is long.
RUN_FOR: Final = timedelta(days=7)

_ROOT = re.compile(r"(\d{8,})-.+-root\.json")
_LEDGER_FILE = re.compile(r"\d{8,}-.+\.(avro|json)")
_STAGE_LIST = re.compile(r".+-stage-[0-9a-f]+\.json")


@dataclass(frozen=True)
class Cleanup:
    """URIs that may go: `roots` first, then `others`."""

    roots: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def needed_roots(
    snapshots: Mapping[int, Snapshot], carriers: Iterable[Carrier], table: str, ledger_since: int | None
) -> frozenset[str]:
    """The URIs of the roots that retained snapshots lead to, staged ones included.

    Args:
        carriers: Of all the ledgers that retained snapshots carry.
    Raises: LedgerError (`LedgerLost`), if nobody knows which ledger one of them has: then nothing may be deleted.
    """
    known = tuple(carriers)
    found = {s.ledger for s in snapshots.values() if s.ledger is not None} | {c.ledger for c in known}
    for i, s in snapshots.items():
        if s.ledger is None and (pointer := resolve(snapshots, i, known, table, ledger_since).pointer) is not None:
            found.add(pointer)
    return frozenset(found)


def named_files(snapshots: Iterable[Snapshot]) -> frozenset[str]:
    """The names of the files that summaries of retained snapshots name themselves."""
    keys = (names.LEDGER, names.TOMBSTONE_FILE, names.TOMBSTONE_VACUUM_FILE, names.STAGE)
    return frozenset(_name(s.summary[k]) for s in snapshots for k in keys if k in s.summary)


def just_superseded(listed: Iterable[ListedObject], now: datetime) -> tuple[str, ...]:
    """URIs of roots that were succeeded so lately that a reader may still be at them."""
    roots = [(int(found[1]), o) for o in listed if (found := _ROOT.fullmatch(_name(o.key)))]
    newest_of: dict[int, datetime] = {}
    for version, o in roots:
        newest_of[version] = max(o.modified, newest_of.get(version, o.modified))
    return tuple(o.key for version, o in roots if newest_of.get(version + 1, o.modified) > now - READ_FOR)


def plan_cleanup(listed: Iterable[ListedObject], needed: Collection[str], now: datetime) -> Cleanup:
    """What may go of a listing of the two folders. Files with names that Lethe does not give stay.

    Args:
        needed: Names of files that stay however old they are.
    """
    roots: list[str] = []
    others: list[str] = []
    for o in listed:
        name = _name(o.key)
        grace = _grace(o.key)
        if grace is None or name in needed or o.modified > now - grace:
            continue
        (roots if _ROOT.fullmatch(name) else others).append(o.key)
    return Cleanup(tuple(sorted(roots)), tuple(sorted(others)))


def _grace(key: str) -> timedelta | None:
    """How old a file must be before it may go; None: it is not ours to judge."""
    folder, _, name = key.rpartition("/")
    if folder.endswith(f"/{names.LEDGER_FOLDER}"):
        return UNPUBLISHED_FOR if _LEDGER_FILE.fullmatch(name) else None
    if name.endswith(names.WRITER_SUFFIX):
        return None  # tells where a run that died may have left files
    if folder.endswith(f"/{names.RUNS_FOLDER}") and name.endswith(".json"):
        return UNPUBLISHED_FOR if _STAGE_LIST.fullmatch(name) else RUN_FOR
    return None


def _name(uri: str) -> str:
    return uri.rpartition("/")[2]

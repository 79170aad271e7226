"""Plans which files of `_tombstones/` and `_runs/` to delete. Pure.

A file may be deleted if no retained snapshot needs it and it is so old that no running commit can publish it: a commit reuses
parts only from the ledger of the head, which a retained snapshot needs, and writes all other parts again. A reader may have
loaded the table just before its snapshot expired: for some time after it was superseded, a root and its parts are kept too.

Roots are deleted before their parts. After a crash in between, parts without a root remain, which the next clean-up deletes. In
the other order, a root could remain whose parts are gone. Deleting a file twice is safe.
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

# Longer than any commit takes, from its first file to its last attempt.
UNPUBLISHED_FOR: Final = timedelta(days=1)
# Longer than a reader takes from loading the table to reading the last file of its ledger.
READ_FOR: Final = timedelta(hours=1)
# Longer than a run waits, is retried and ends: `_runs/` contains long run documents.
RUN_FOR: Final = timedelta(days=7)

_ROOT = re.compile(r"(\d{8,})-.+-root\.json")
_LEDGER_FILE = re.compile(r"\d{8,}-.+\.(avro|json)")
_STAGE_LIST = re.compile(r".+-stage-[0-9a-f]+\.json")


@dataclass(frozen=True)
class Cleanup:
    """The URIs to delete."""

    roots: tuple[str, ...] = ()  # delete these first
    others: tuple[str, ...] = ()


def needed_roots(
    snapshots: Mapping[int, Snapshot], carriers: Iterable[Carrier], table: str, ledger_since: int | None
) -> frozenset[str]:
    """The URIs of the roots that retained snapshots need, including staged snapshots.

    Args:
        carriers: Of all ledgers of retained snapshots.
    Raises: LedgerError (`LedgerLost`), if the ledger of a snapshot is unknown. Then nothing may be deleted.
    """
    known = tuple(carriers)
    found = {s.ledger for s in snapshots.values() if s.ledger is not None} | {c.ledger for c in known}
    for i, s in snapshots.items():
        if s.ledger is None and (pointer := resolve(snapshots, i, known, table, ledger_since).pointer) is not None:
            found.add(pointer)
    return frozenset(found)


def named_files(snapshots: Iterable[Snapshot]) -> frozenset[str]:
    """The names of the files that the summaries of these snapshots contain."""
    keys = (names.LEDGER, names.TOMBSTONE_FILE, names.TOMBSTONE_VACUUM_FILE, names.STAGE)
    return frozenset(_name(s.summary[k]) for s in snapshots for k in keys if k in s.summary)


def just_superseded(listed: Iterable[ListedObject], now: datetime) -> tuple[str, ...]:
    """The URIs of roots that were superseded so recently that a reader may still use them."""
    roots = [(int(found[1]), o) for o in listed if (found := _ROOT.fullmatch(_name(o.key)))]
    newest_of: dict[int, datetime] = {}
    for version, o in roots:
        newest_of[version] = max(o.modified, newest_of.get(version, o.modified))
    return tuple(o.key for version, o in roots if newest_of.get(version + 1, o.modified) > now - READ_FOR)


def plan_cleanup(listed: Iterable[ListedObject], needed: Collection[str], now: datetime) -> Cleanup:
    """Plan which listed files of the two folders to delete. Keeps files whose names Lethe does not use.

    Args:
        needed: Names of files to keep, whatever their age.
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
    """The age at which a file may be deleted; None: never."""
    folder, _, name = key.rpartition("/")
    if folder.endswith(f"/{names.LEDGER_FOLDER}"):
        return UNPUBLISHED_FOR if _LEDGER_FILE.fullmatch(name) else None
    if name.endswith(names.WRITER_SUFFIX):
        return None  # says where a run that crashed may have left files
    if folder.endswith(f"/{names.RUNS_FOLDER}") and name.endswith(".json"):
        return UNPUBLISHED_FOR if _STAGE_LIST.fullmatch(name) else RUN_FOR
    return None


def _name(uri: str) -> str:
    return uri.rpartition("/")[2]

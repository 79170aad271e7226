"""Files of a table that no snapshot names: which of them may hold rows of an erasure, and what becomes of these. Pure.

Whoever asks must have listed the storage before reading the table's metadata: what was committed in between is then named.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lethe.base import names
from lethe.erasure.progress import Claim
from lethe.erasure.writers import Writer
from lethe.files.bounds import IdIndex
from lethe.ledger.erasure import Blocker, Holder
from lethe.uri import Place, contains, place, surely_contains, without_values
from lethe.vacuum.ledger_files import UNPUBLISHED_FOR

DATA_FILES: Final = (".parquet", ".orc", ".avro")
TABLE_FILES: Final = (".metadata.json", ".metadata.json.gz")
# As old as Iceberg's own clean-up wants files of other writers to be.
OTHERS_FOR: Final = timedelta(days=3)
_RUN: Final = re.compile(r"[0-9a-f]{32}")  # `lethe.base.ids.run_id`


@dataclass(frozen=True)
class Locations:
    """Every folder that a table's files may lie in."""

    # URIs of the table's locations, of now and before: nothing but its files lies there, unless another table does.
    own: tuple[str, ...]
    # URIs of data folders elsewhere, which tables may share.
    shared: tuple[str, ...]
    # URIs of the folders of its metadata.
    metadata: tuple[str, ...]
    # URIs of the folders of its data, each within one of the first two.
    data: tuple[str, ...]

    @property
    def roots(self) -> tuple[str, ...]:
        """What has to be listed: none of these lies within another."""
        every = sorted({*self.own, *self.shared}, key=lambda uri: len(place(uri).names))
        found: list[str] = []
        for uri in every:
            if not any(surely_contains(outer, uri) for outer in found):
                found.append(uri)
        return tuple(found)


@dataclass(frozen=True)
class Stray:
    """A data file that no snapshot names."""

    path: str
    modified: datetime
    # The id of the run of Lethe in whose folder it lies; "": none.
    run: str = ""


@dataclass(frozen=True)
class Content:
    """What a file's own footer says of it."""

    # Whether it was written for the table: it has the batch column, by its field id.
    of_table: bool = False
    # The least and the greatest batch id in it; None: unknown.
    lower: str | None = None
    upper: str | None = None
    # Whether it holds no row of the table at all: positions of deletes, or nothing.
    no_rows: bool = False


UNKNOWN: Final = Content()


def strays(
    listed: Collection[tuple[str, datetime]],
    needed: Collection[Place],
    locations: Locations,
    buffer: str,
    writers: Iterable[Writer],
) -> list[Stray]:
    """The data files of a listing that no snapshot names.

    Args:
        listed: Paths below the roots of the locations, and when each was written, by the storage's clock.
        needed: The places of all files that retained snapshots name.
        buffer: The Dataset's; its batches are no files of the table.
        writers: Runs of which it is known where they wrote.
    """
    others = _of_others([path for path, _ in listed], locations)
    folders = {place(w.folder): w.run for w in writers if w.folder}
    data, shared, hidden_below = (
        [place(u) for u in uris] for uris in (locations.data, locations.shared, locations.roots)
    )
    metadata = [place(u) for u in locations.metadata]
    found: list[Stray] = []
    for path, modified in listed:
        at = place(path)
        if not path.endswith(DATA_FILES) or at in needed or any(_below(m, at) for m in metadata):
            continue
        if any(_below(o, at) for o in others) or contains(buffer, path) or _is_hidden(at, hidden_below):
            continue
        run = next((run for folder, run in folders.items() if _below(folder, at)), "") or _run_of(at, data)
        if run not in folders.values() and any(_below(s, at) for s in shared) and not _is_own(at, locations):
            continue  # maybe of another table: the record says that nobody has looked
        found.append(Stray(path, modified, run))
    return found


def may_hold(stray: Stray, content: Content, claim: Claim, writers: Sequence[Writer]) -> bool:
    """Whether a file may hold a row of the erasure.

    Args:
        writers: The notes of its run; none, if that has ended, or is nobody's.
    """
    if content.no_rows or (writers and not any(_may_have_written(w, claim) for w in writers)):
        return False
    if not claim.by_records and content.of_table and content.lower is not None and content.upper is not None:
        return IdIndex(claim.result.batch_ids).might_hold(content)
    purged = claim.erasure.purged_time
    # No writer takes longer from its look at the table to its last file.
    return purged is None or stray.modified <= purged + UNPUBLISHED_FOR


def fate(stray: Stray, content: Content, now: datetime) -> Blocker | None:
    """What becomes of a file that may hold rows of an erasure. None: it is removed."""
    young = stray.modified + UNPUBLISHED_FOR
    name = without_values(stray.path)
    if young > now:
        why = (
            "a run wrote it and may commit it yet"
            if stray.run
            else "no snapshot names it; its writer may commit it yet"
        )
        return Blocker(Holder.OBJECT, name, young.replace(microsecond=0), why)
    if stray.run:
        return None
    until = stray.modified + OTHERS_FOR
    if not content.of_table:
        why = "no snapshot names it, and nobody can tell what it holds: delete it, or have orphan files removed"
        return Blocker(Holder.OBJECT, name, None, why)
    if until > now:
        return Blocker(Holder.OBJECT, name, until.replace(microsecond=0), "no snapshot names it; it is removed then")
    return None


@dataclass(frozen=True)
class Upload:
    """A multipart upload that was begun and never finished: its parts are on the storage, and nobody can read them."""

    path: str
    id: str
    begun: datetime


def fate_of_upload(upload: Upload, claim: Claim, is_run: bool, now: datetime) -> Blocker | bool:
    """What keeps an erasure open; True: it is aborted; False: it is no concern of this erasure."""
    purged = claim.erasure.purged_time
    if purged is not None and upload.begun > purged + UNPUBLISHED_FOR:
        return False
    until = upload.begun + (UNPUBLISHED_FOR if is_run else OTHERS_FOR)
    if until <= now:
        return True
    why = "an unfinished upload, which is aborted then"
    return Blocker(Holder.OBJECT, without_values(upload.path), until.replace(microsecond=0), why)


def is_of_run(path: str, locations: Locations, writers: Iterable[Writer]) -> bool:
    """Whether a path lies in the folder of a run of Lethe."""
    at = place(path)
    return any(w.folder and _below(place(w.folder), at) for w in writers) or bool(
        _run_of(at, [place(u) for u in locations.data])
    )


def _may_have_written(writer: Writer, claim: Claim) -> bool:
    """As `Writer.may_write`; of records, also a run that began before they were purged, whatever it brings in."""
    purged = claim.erasure.purged_at
    before = purged is None or writer.since < purged
    return writer.may_write(claim) or (claim.by_records and before)


def _of_others(paths: Iterable[str], locations: Locations) -> list[Place]:
    """Folders within that are no business of this table: batches, and whatever belongs to another table."""
    found: list[Place] = []
    own, metadata = {place(u) for u in locations.own}, [place(u) for u in locations.metadata]
    for path in paths:
        at = place(path)
        if not at.names:
            continue
        if at.names[-1] == names.SUCCESS_MARKER:
            found.append(Place(at.root, at.names[:-1]))
        elif path.endswith(TABLE_FILES) and not any(_below(m, at) for m in metadata):
            found.append(Place(at.root, at.names[:-2]))
    return [f for f in found if f not in own and not any(_below(f, o) for o in own)]


def _run_of(at: Place, data: Iterable[Place]) -> str:
    for folder in data:
        rest = at.names[len(folder.names) :]
        if _below(folder, at) and len(rest) > 1 and _RUN.fullmatch(rest[0]):
            return rest[0]
    return ""


def _is_own(at: Place, locations: Locations) -> bool:
    return any(_below(place(u), at) for u in locations.own)


def _is_hidden(at: Place, roots: Iterable[Place]) -> bool:
    rests = [at.names[len(r.names) :] for r in roots if _below(r, at)]
    # A partition may be called `_x=1`.
    return any(part.startswith(("_", ".")) and "=" not in part for rest in rests for part in rest)


def _below(outer: Place, inner: Place) -> bool:
    return outer.root == inner.root and inner.names[: len(outer.names)] == outer.names

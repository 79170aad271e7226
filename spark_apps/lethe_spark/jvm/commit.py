"""Commits a change of a table, as a compare-and-set on the ledger's pointer. Each commit of Lethe goes through this module. I/O.

After each error of the catalog the table's history is read, because only the history says whether the commit succeeded.
Invariant: ConflictError means that certainly nothing was committed. UnknownCommitState means that the commit may have succeeded
or may succeed later: its files must not be deleted.
"""

import logging
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, assert_never

from lethe.base import names
from lethe.base.errors import ConflictError, LetheError, TransientError, UnknownCommitState

from lethe_spark.jvm.data_files import DataFile, DeleteChanges, append_all, described
from lethe_spark.jvm.errors import ATTEMPTS, ICEBERG, JvmError, is_a, java_class, java_message, reading, wait_before
from lethe_spark.jvm.gateway import FEW_MANIFESTS, calling_thread, each, java_list, listen_for_callbacks, texts_of
from lethe_spark.jvm.metadata import DeleteManifests, rewriting
from lethe_spark.jvm.table import IcebergTable

log = logging.getLogger(__name__)

MARKER: Final = "LETHE-LEDGER-MOVED"
FURTHEST: Final = 1_000_000
"""The most snapshots that the check reads."""

_CLOCKS_DIFFER_BY_MS: Final = 60_000
"""Iceberg refuses metadata that is older than the last by more than this. It does not say which clock is wrong."""

_TAG: Final = "lethe-staged-{}"
_PARTITION_VALUE: Final = re.compile(r"=[^/]*(?=/)")
"""In a text with paths: the value in the name of a folder, which may be that of an erased row."""

HISTORY_READS: Final = 3
"""How often the history is read after an error."""
RACES: Final = 4
"""Attempts of one change. Commits that do not conflict with it, such as new properties, may come first."""


@dataclass(frozen=True)
class Expectation:
    """The ledger and history that a plan was made on."""

    pointer: str | None
    """URI of the ledger's root. None: the table has no ledger."""
    bare: frozenset[int] = frozenset()
    """Ids of the snapshots after the carrier, without a ledger, whose files the plan has read."""
    expired: bool = False
    """Whether the carrier had expired before the plan, and its ledger was found in a list."""


@dataclass(frozen=True)
class Ancestor:
    """The part of a snapshot that the check reads."""

    id: int
    parent_id: int | None
    ledger: str | None


def objection(expected: Expectation, ancestry: Iterable[Ancestor]) -> str | None:
    """Why a commit on this history (newest first) must be refused. None: it is allowed. Pure."""
    last: Ancestor | None = None
    for ancestor in ancestry:
        if ancestor.ledger is not None:
            if ancestor.ledger == expected.pointer:
                return None
            return f"planned on ledger {expected.pointer}, snapshot {ancestor.id} has set {ancestor.ledger} since then"
        if ancestor.id not in expected.bare:
            return f"snapshot {ancestor.id}, by another writer, was committed after the change was planned"
        last = ancestor
    at_the_root = last is None or last.parent_id is None
    if expected.pointer is not None and at_the_root and not expected.expired:
        return f"planned on ledger {expected.pointer}, and no snapshot of the current history carries a ledger"
    # Otherwise the history ended at an expired parent, below snapshots that the plan had resolved.
    return None


class LedgerCheck:
    """Iceberg's `SnapshotAncestryValidator` in Python. `error` keeps an exception of this code, which Java would swallow.

    Iceberg refreshes the table before each attempt, and would rebase a stale ledger over a newer one without an error. The
    check reads the refreshed history, newest first, and accepts the attempt only if

    - the plan has read the added files of each snapshot before the first carrier, and
    - the first carrier points to the ledger of the plan.
    """

    def __init__(self, expected: Expectation) -> None:
        self.expected = expected
        self.objection: str | None = None
        self.error: Exception | None = None

    def validate(self, snapshots: Any) -> bool:
        """Whether the commit may follow this history, newest snapshot first; if not, `objection` says why."""
        try:
            self.objection = objection(self.expected, _ancestors(snapshots))
        except Exception as e:
            self.error = e
            raise
        return self.objection is None

    def errorMessage(self) -> str:  # noqa: N802 - Java's name
        """The message of Iceberg's exception after a refusal, with MARKER, by which Lethe recognizes it."""
        return f"{MARKER}: {self.objection}"

    class Java:
        """Tells py4j which Java interface this object implements."""

        implements = ["org.apache.iceberg.SnapshotAncestryValidator"]


def _ancestors(snapshots: Any) -> Iterable[Ancestor]:
    iterator = snapshots.iterator()
    for _ in range(FURTHEST):
        if not iterator.hasNext():
            return
        snapshot = iterator.next()
        parent, ledger = snapshot.parentId(), snapshot.summary().get(names.LEDGER)
        yield Ancestor(
            int(snapshot.snapshotId()), None if parent is None else int(parent), None if ledger is None else str(ledger)
        )
    raise RuntimeError(f"a history of more than {FURTHEST} snapshots without a ledger")


@dataclass(frozen=True)
class CommitAttempt:
    """New metadata that was not submitted to the catalog yet.

    Iceberg's own `commit()` makes the metadata and submits it, and deletes the manifests of an attempt after each error that it
    takes for a refusal. But a catalog may answer 400, 403 or 404 to a commit that succeeded, and then the manifests of a live
    snapshot would be deleted. Here the files of an attempt are deleted only if it certainly failed.
    """

    table: IcebergTable
    base: Any
    """The metadata that it was made from."""
    made: Any

    @classmethod
    def make(cls, table: IcebergTable, change: Callable[[Any], None], staged: int | None = None) -> "CommitAttempt":
        """Refresh the table and change its metadata, manifests included.

        Args:
            change: Applies its updates to a transaction.
            staged: A snapshot that must exist until the catalog has accepted the change.

        Raises:
            ConflictError: `DataMoved`, if the snapshot does not exist.
            TransientError: `ClockBehindTable`. JvmError.
        """
        transaction = table.java.newTransaction()
        _check_clock(table, int(transaction.startMetadata().lastUpdatedMillis()))
        if staged is not None and transaction.startMetadata().snapshot(staged) is None:
            raise ConflictError(
                "DataMoved",
                f"{table.full_name}: another writer expired snapshot {staged}, which keeps the staged files of this run. Nothing "
                "was committed. The run writes the files again.",
            )
        change(transaction)
        if staged is not None:
            # A REST catalog compares only what a commit names. It refuses a tag on a snapshot that does not exist.
            tag = _TAG.format(uuid.uuid4().hex)
            transaction.manageSnapshots().createTag(tag, staged).commit()
            transaction.manageSnapshots().removeTag(tag).commit()
        return cls(table, transaction.startMetadata(), transaction.currentMetadata())

    def submit(self) -> None:
        """Ask the catalog to replace the base by the new metadata.

        Raises:
            JvmError: In some cases although it succeeded.
        """
        self.table.java.operations().commit(self.base, self.made)

    def discard(self) -> None:
        """Delete the manifests that it wrote. Call this only if the attempt certainly failed and cannot succeed later."""
        try:
            utility = self.table.jvm.org.apache.iceberg.CatalogUtil
            paths = java_list(self.table.jvm, self._written())
            utility.deleteFiles(self.table.java.io(), paths, "uncommitted manifests", True)
        except JvmError as e:
            log.warning("manifests of a refused commit could not be deleted: %s", type(e).__name__)

    def _written(self) -> list[str]:
        io, found = self.table.java.io(), []
        for snapshot in each(self.made.snapshots()):
            number = int(snapshot.snapshotId())
            if self.base.snapshot(number) is not None:
                continue
            own = [m for m in each(snapshot.allManifests(io)) if m.snapshotId() == number]
            found += [str(m.path()) for m in own] + [str(snapshot.manifestListLocation())]
        return found


def lost_the_race(table: IcebergTable, error: BaseException) -> bool:
    """Whether the catalog reports that another commit came first, so that this one has failed."""
    return is_a(table.jvm, error, ICEBERG + "CommitFailedException")


def _check_clock(table: IcebergTable, last_updated_ms: int) -> None:
    """Check the clock against that of the table.

    Raises:
        TransientError: `ClockBehindTable`, if Iceberg would refuse each commit because of its time.
    """
    now_ms = int(table.jvm.java.lang.System.currentTimeMillis())
    if last_updated_ms - now_ms <= _CLOCKS_DIFFER_BY_MS:
        return
    last, now = (f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}" for ms in (last_updated_ms, now_ms))
    raise TransientError(
        "ClockBehindTable",
        f"{table.full_name}: the last change of the table is of {last}, and the clock of this machine shows {now}. Iceberg "
        "refuses a commit that is older than the last one. Compare the clocks of the machines that write the table, and "
        "correct the one that is wrong. Nothing was committed; runs succeed once this clock has passed the last change.",
    )


@dataclass(frozen=True)
class Append:
    """Adds new data files."""

    files: tuple[DataFile, ...]


@dataclass(frozen=True)
class Register:
    """Adds data files that other programs wrote."""

    files: Any
    """A Java list, as `lethe_spark.jvm.data_files` makes it."""


@dataclass(frozen=True)
class LedgerOnly:
    """A new ledger without data: the snapshot changes no files."""


@dataclass(frozen=True)
class RewriteFiles:
    """Files are replaced by files with their remaining rows. Operation `replace`."""

    remove: tuple[DataFile, ...]
    add: tuple[DataFile, ...]
    from_snapshot: int
    """The snapshot at which `remove` was read. Equality deletes that were added later apply to `add` too."""
    dangling: tuple[Any, ...] = ()
    """Iceberg's delete files that are removed with them."""
    deletes: tuple[Any, ...] = ()
    """Iceberg's delete files of `add`, which replace some of `dangling`."""


@dataclass(frozen=True)
class DeleteFiles:
    """Whole files are removed. Operation `delete`."""

    files: tuple[DataFile, ...]


@dataclass(frozen=True)
class Overwrite:
    """Files are replaced by files with their remaining rows and with new rows.

    Operation `overwrite`, because readers may assume that a `replace` deletes no rows.
    """

    remove: tuple[DataFile, ...]
    add: tuple[DataFile, ...]
    from_snapshot: int
    """The snapshot at which `remove` was read."""
    dangling: tuple[Any, ...] = ()
    """Iceberg's delete files that are removed with them."""


@dataclass(frozen=True)
class RowDelta:
    """Rows are deleted by native deletes, and files are added and removed."""

    deletes: DeleteChanges
    """Deletion vectors contain all deleted rows of their files."""
    add: tuple[DataFile, ...]
    """New files, to which the deletes do not apply."""
    from_snapshot: int
    """The snapshot that the deletes were made for."""
    remove: tuple[DataFile, ...] = ()
    """Files that are removed whole."""


@dataclass(frozen=True)
class RewriteManifests:
    """Moves the entries of data files into new manifests (`lethe.vacuum.housekeeping`). Operation `replace`."""

    replaced: frozenset[str]
    """Paths of the manifests that are replaced."""
    manifest_of: Mapping[str, int]
    """The number of the new manifest of each data file, by path."""
    deletes: DeleteManifests = DeleteManifests()  # noqa: RUF009 - frozen
    """Manifests of delete files."""


Change: TypeAlias = (
    Append | Register | LedgerOnly | RewriteFiles | DeleteFiles | Overwrite | RowDelta | RewriteManifests
)


@dataclass(frozen=True)
class Staged:
    """A staged (write-audit-publish) snapshot: its files are in the table's metadata, and no reader sees them."""

    snapshot_id: int
    files: tuple[DataFile, ...]
    summary: Mapping[str, str]


def commit(
    table: IcebergTable,
    change: Change,
    summary: Mapping[str, str],
    expect: Expectation,
    properties: Mapping[str, str] | None = None,
    staged: int | None = None,
) -> int:
    """Commit a change with its summary and table properties, if the table has the expected ledger.

    Args:
        summary: Must contain `lethe.ledger`, the pointer that this commit sets, which must be unique to this call.
        properties: Table properties to set in the same commit.
        staged: The snapshot that keeps the files of the change until the commit. None: no snapshot does.

    Returns:
        The id of the new snapshot. `table` is refreshed.

    Raises:
        ConflictError: `LedgerMoved`, `DataMoved`, `CommitFailed`.
        UnknownCommitState: `CommitStateUnknown`.
    """
    check = LedgerCheck(expect)

    def change_it(transaction: Any) -> None:
        update = _update(table, transaction, change, summary).validateWith(check)
        if files_to_find(change) <= FEW_MANIFESTS:
            update = update.scanManifestsWith(calling_thread(table.jvm))
        update.commit()
        if properties:
            update = transaction.updateProperties()
            for key, value in properties.items():
                update.set(key, value)
            update.commit()

    def find() -> int | None:
        return _id_of(s for s in _history(table) if s.summary().get(names.LEDGER) == summary[names.LEDGER])

    return _commit(table, change_it, find, lambda: check.error, staged)


def _commit(
    table: IcebergTable,
    change: Callable[[Any], None],
    find: Callable[[], int | None],
    defect: Callable[[], Exception | None] = lambda: None,
    staged: int | None = None,
) -> int:
    """Make a change and submit it, again if a commit that does not conflict came first.

    Args:
        find: Returns the id of the new snapshot in the table's refreshed metadata. None: it is not there.
        defect: Returns the exception of a callback, if any.
    """
    listen_for_callbacks(table.gateway)
    for number in range(1, RACES + 1):
        attempt: CommitAttempt | None = None
        failure: BaseException = RuntimeError("the catalog accepted the commit, but the table does not contain it")
        refused: LetheError | None = None
        try:
            attempt = CommitAttempt.make(table, change, staged)
            attempt.submit()
        except JvmError as e:
            if (error := defect()) is not None:
                raise error from e
            failure, refused = e, _refusal(table, e)
            if attempt is None and refused is not None and refused.reason != "CommitFailed":
                raise refused from e  # by a validation, before anything was submitted
        # The commit may have succeeded whatever the catalog answered. The history says so.
        committed = _find_in_history(table, find, failure)
        if committed is not None:
            return committed
        if refused is None:
            raise _unknown(table, failure) from failure
        lost = lost_the_race(table, failure)
        if lost and attempt is not None:
            attempt.discard()
        if not lost or number == RACES:
            raise refused from failure
        wait_before(number + 1)
    raise AssertionError("unreachable")


def _update(table: IcebergTable, target: Any, change: Change, summary: Mapping[str, str]) -> Any:
    """Iceberg's pending update for a change; `target` is a transaction on the table.

    DataFile objects only: with a path, py4j would bind `deleteFile` to a method that deletes the file at once.
    """
    match change:
        case Append(files):
            update = _appending(table, target)
            for file in files:
                update = update.appendFile(file.java)
        case Register(java_files):
            update = _appending(table, target)
            append_all(table, update, java_files)
        case LedgerOnly():
            update = target.newFastAppend()
        case RewriteFiles(remove, add, from_snapshot, dangling, new_deletes):
            update = target.newRewrite().validateFromSnapshot(from_snapshot)
            if table.format_version > 1:
                update = update.dataSequenceNumber(_retained(table, from_snapshot).sequenceNumber())
            for file in remove:
                update = update.deleteFile(file.java)
            for old in dangling:
                update = update.deleteFile(old)
            for file in add:
                update = update.addFile(file.java)
            for new in new_deletes:
                update = update.addFile(new)
        case Overwrite(remove, add, from_snapshot, dangling):
            update = target.newOverwrite().validateFromSnapshot(from_snapshot).validateNoConflictingDeletes()
            sets = table.jvm.org.apache.iceberg.util
            removed = sets.DataFileSet.of(java_list(table.jvm, [file.java for file in remove]))
            update = update.deleteFiles(removed, sets.DeleteFileSet.of(java_list(table.jvm, dangling)))
            for file in add:
                update = update.addFile(file.java)
        case RowDelta(deletes, add, from_snapshot, remove):
            # Iceberg always validates that no other vector was added for one of the files. The last of these validations checks
            # that the replaced vectors and the files still exist.
            update = target.newRowDelta().validateFromSnapshot(from_snapshot)
            # Files to remove are not listed here, because Iceberg requires listed files to stay. The ledger's check covers them.
            update = update.validateDataFilesExist(java_list(table.jvm, deletes.data_paths)).validateDeletedFiles()
            if deletes.data_paths and table.format_version < 3:
                # Of position deletes, Iceberg validates this only if it is asked to, and for the whole table.
                update = update.validateNoConflictingDeleteFiles()
            for file in remove:
                update = update.removeRows(file.java)
            for new in deletes.added:
                update = update.addDeletes(new)
            for old in deletes.replaced:
                update = update.removeDeletes(old)
            for file in add:
                update = update.addRows(file.java)
        case RewriteManifests(replaced, manifest_of, manifests_of_deletes):
            update = rewriting(table, target, replaced, manifest_of)
            for manifest in manifests_of_deletes.removed:
                update = update.deleteManifest(manifest)
            for manifest in manifests_of_deletes.added:
                update = update.addManifest(manifest)
        case DeleteFiles(files):
            # Without this validation, deleting a file that is already gone succeeds silently.
            update = target.newDelete().validateFilesExist()
            for file in files:
                update = update.deleteFile(file.java)
        case _:
            assert_never(change)
    for key, value in summary.items():
        update = update.set(key, value)
    return update


def _retained(table: IcebergTable, snapshot_id: int) -> Any:
    """A snapshot.

    Raises:
        ConflictError: `DataMoved`, if it has expired.
    """
    snapshot = table.java.snapshot(snapshot_id)
    if snapshot is None:
        raise ConflictError(
            "DataMoved",
            f"{table.full_name}: snapshot {snapshot_id}, of which the files of this commit were read, has expired. Nothing was "
            "committed. The run plans again.",
        )
    return snapshot


def files_to_find(change: Change) -> int:
    """The files whose manifests a change has to find and to write again. Pure."""
    match change:
        case RewriteFiles(remove=remove, dangling=dangling) | Overwrite(remove=remove, dangling=dangling):
            return len(remove) + len(dangling)
        case RowDelta(deletes=deletes, remove=remove):
            return len(deletes.replaced) + len(remove)
        case DeleteFiles(files=files):
            return len(files)
        case RewriteManifests(replaced=replaced):
            return len(replaced)
        case Append() | Register() | LedgerOnly():
            return 0
        case _:
            assert_never(change)


def _appending(table: IcebergTable, target: Any) -> Any:
    """Iceberg's pending update that adds files. It may merge manifests, unless these would lose the partitions of their files."""
    return target.newFastAppend() if table.lost_specs() else target.newAppend()


def _refusal(table: IcebergTable, error: BaseException) -> LetheError | None:
    """The conflict that Iceberg reports. None: the error does not say whether the commit succeeded."""
    if is_a(table.jvm, error, ICEBERG + "ValidationException"):
        text = java_message(error)
        if MARKER in text:
            seen = text.split(f"{MARKER}: ", 1)[-1].splitlines()[0]
            return ConflictError(
                "LedgerMoved", f"{table.full_name}: {seen}. Nothing was committed. The run plans again."
            )
        why = _PARTITION_VALUE.sub("=*", text.splitlines()[0])[:300]
        return ConflictError(
            "DataMoved",
            f"{table.full_name}: a concurrent commit changed the data files of this commit ({why}). Nothing was committed. The "
            "run plans again.",
        )
    if is_a(table.jvm, error, ICEBERG + "CleanableFailure"):
        return ConflictError(
            "CommitFailed",
            f"{table.full_name}: the catalog refused the commit ({java_class(error).rsplit('.', 1)[-1]}), as "
            "it does after a conflicting commit, and the table's history does not contain the commit. "
            "Nothing was committed. The run plans again.",
        )
    return None


def _unknown(table: IcebergTable, error: BaseException) -> UnknownCommitState:
    return UnknownCommitState(
        "CommitStateUnknown",
        f"{table.full_name}: the catalog answered a commit with {java_class(error).rsplit('.', 1)[-1]}, and "
        "the table's history does not contain the commit. It may still succeed. The next attempt first looks "
        "for this run in the ledger.",
    )


def _find_in_history(table: IcebergTable, find: Callable[[], int | None], failure: BaseException) -> int | None:
    """Refresh the table and call `find`.

    Raises:
        UnknownCommitState: The catalog does not answer.
    """
    for _ in range(HISTORY_READS):
        try:
            table.java.refresh()
            return find()
        except JvmError:
            continue
    raise _unknown(table, failure) from failure


def _id_of(snapshots: Iterable[Any]) -> int | None:
    """The id of the first snapshot."""
    return next((int(s.snapshotId()) for s in snapshots), None)


def _history(table: IcebergTable) -> Iterable[Any]:
    """The head and its retained ancestors, newest first."""
    snapshot, seen = table.java.currentSnapshot(), 0
    total = int(table.java.operations().current().snapshots().size())
    while snapshot is not None and seen <= total:
        yield snapshot
        parent = snapshot.parentId()
        snapshot = None if parent is None else table.java.snapshot(parent)
        seen += 1


def stage(table: IcebergTable, files: Iterable[DataFile], wap_id: str, summary: Mapping[str, str]) -> int:
    """Record written files in the table's metadata without showing them to readers, so that a crash does not lose them.

    Args:
        summary: Must contain `lethe.stage`, unique to these files.

    Returns:
        The id of the staged snapshot.

    Raises:
        ConflictError: After 12 lost races, UnknownCommitState.
    """
    file_list = tuple(files)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _stage_once(table, file_list, wap_id, summary)
        except ConflictError as e:
            # No new plan is needed: a staged snapshot is valid after any other commit.
            if attempt == ATTEMPTS and _newest(table, wap_id) is not None:
                raise _unknown(table, e) from e  # one attempt succeeded; its files must not be deleted
            if attempt == ATTEMPTS:
                raise
        wait_before(attempt + 1)
        table.refresh()
    raise AssertionError("unreachable")


def _stage_once(table: IcebergTable, files: tuple[DataFile, ...], wap_id: str, summary: Mapping[str, str]) -> int:
    def change(transaction: Any) -> None:
        _update(table, transaction, Append(files), {**summary, names.WAP_ID: wap_id}).stageOnly().commit()

    def find() -> int | None:
        return _id_of(s for s in _snapshots(table) if s.summary().get(names.STAGE) == summary[names.STAGE])

    return _commit(table, change, find)


def _snapshots(table: IcebergTable) -> Iterable[Any]:
    """All retained snapshots of the last refresh, including staged ones."""
    return each(table.java.operations().current().snapshots())


@reading("looking for a staged snapshot")
def find_staged(table: IcebergTable, wap_id: str) -> Staged | None:
    """The newest snapshot that was staged under this id, published or not."""
    snapshot = _newest(table, wap_id)
    if snapshot is None:
        return None
    files = described(table, each(snapshot.addedDataFiles(table.java.io())))
    return Staged(int(snapshot.snapshotId()), files, texts_of(table.jvm, snapshot.summary()))


@reading("looking for a staged snapshot")
def _newest(table: IcebergTable, wap_id: str) -> Any | None:
    table.java.refresh()
    staged = [s for s in _snapshots(table) if s.summary().get(names.WAP_ID) == wap_id]
    return max(staged, key=lambda s: int(s.sequenceNumber()), default=None)

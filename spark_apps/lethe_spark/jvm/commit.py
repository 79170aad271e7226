"""Commit a change of a table, as a compare-and-set on the ledger's pointer. Each commit of Lethe goes through this module.

After each error of the catalog the table's history is read, because only the history says whether the commit succeeded.

Invariant: ConflictError means that certainly nothing was committed. UnknownCommitState means that the commit may have
succeeded or may succeed later: its files must not be deleted.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, assert_never

from lethe.base import names
from lethe.base.errors import ConflictError, LetheError, UnknownCommitState

from lethe_spark.jvm.ancestry import MARKER, Expectation, LedgerCheck
from lethe_spark.jvm.attempt import CommitAttempt, lost_the_race
from lethe_spark.jvm.backoff import ATTEMPTS, wait_before
from lethe_spark.jvm.data_files import DataFile, described
from lethe_spark.jvm.deletes import DeleteChanges
from lethe_spark.jvm.errors import ICEBERG, JvmError, is_a, java_class, java_message, reading
from lethe_spark.jvm.gateway import each, java_list, listen_for_callbacks
from lethe_spark.jvm.manifests import DeleteManifests, rewriting
from lethe_spark.jvm.registration import append_all
from lethe_spark.jvm.table import IcebergTable

# How often the history is read after an error.
HISTORY_READS: Final = 3
# Attempts of one change. Commits that do not conflict with it, such as new properties, may come first.
RACES: Final = 4


@dataclass(frozen=True)
class Append:
    """New data files."""

    files: tuple[DataFile, ...]


@dataclass(frozen=True)
class Register:
    """Data files that other programs wrote."""

    # A Java list, as `lethe_spark.jvm.registration` makes it.
    files: Any


@dataclass(frozen=True)
class LedgerOnly:
    """A new ledger without data: the snapshot changes no files."""


@dataclass(frozen=True)
class Rewrite:
    """Files are replaced by files with their remaining rows. Operation `replace`."""

    remove: tuple[DataFile, ...]
    add: tuple[DataFile, ...]
    # The snapshot at which `remove` was read. Equality deletes that were added later apply to `add` too.
    from_snapshot: int
    # Iceberg's delete files that are removed with them.
    dangling: tuple[Any, ...] = ()
    # Iceberg's delete files of `add`, which replace some of `dangling`.
    deletes: tuple[Any, ...] = ()


@dataclass(frozen=True)
class DeleteFiles:
    """Whole files are removed. Operation `delete`."""

    files: tuple[DataFile, ...]


@dataclass(frozen=True)
class Overwrite:
    """Files are replaced by files with their remaining rows and with new rows. Operation `overwrite`, because readers may
    assume that a `replace` deletes no rows."""

    remove: tuple[DataFile, ...]
    add: tuple[DataFile, ...]
    # The snapshot at which `remove` was read.
    from_snapshot: int
    # Iceberg's delete files that are removed with them.
    dangling: tuple[Any, ...] = ()


@dataclass(frozen=True)
class RowDelta:
    """Rows are deleted by native deletes, and files are added and removed."""

    # Deletion vectors contain all deleted rows of their files.
    deletes: DeleteChanges
    # New files, to which the deletes do not apply.
    add: tuple[DataFile, ...]
    # The snapshot that the deletes were made for.
    from_snapshot: int
    # Files that are removed whole.
    remove: tuple[DataFile, ...] = ()


@dataclass(frozen=True)
class RewriteManifests:
    """The same files in new manifests (`lethe.vacuum.manifests`). Operation `replace`."""

    # Paths of the manifests that are replaced.
    replaced: frozenset[str]
    # The number of the new manifest of each data file, by path.
    manifest_of: Mapping[str, int]
    # Manifests of delete files.
    deletes: DeleteManifests = DeleteManifests()  # noqa: RUF009 - frozen


Change: TypeAlias = Append | Register | LedgerOnly | Rewrite | DeleteFiles | Overwrite | RowDelta | RewriteManifests


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
    Returns: the id of the new snapshot. `table` is refreshed.
    Raises: ConflictError (`LedgerMoved`, `DataMoved`, `CommitFailed`), UnknownCommitState (`CommitStateUnknown`).
    """
    check = LedgerCheck(expect)

    def change_it(transaction: Any) -> None:
        _update(table, transaction, change, summary).validateWith(check).commit()
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
        case Rewrite(remove, add, from_snapshot, dangling, new_deletes):
            update = target.newRewrite().validateFromSnapshot(from_snapshot)
            if table.format_version > 1:
                update = update.dataSequenceNumber(table.java.snapshot(from_snapshot).sequenceNumber())
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
            update = update.validateDataFilesExist(java_list(table.jvm, deletes.of)).validateDeletedFiles()
            if deletes.of and table.format_version < 3:
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
        return ConflictError(
            "DataMoved",
            f"{table.full_name}: a concurrent commit changed the data files of this commit "
            f"({text.splitlines()[0][:300]}). Nothing was committed. The run plans again.",
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
    """Refresh the table and call `find`. Raises: UnknownCommitState, if the catalog does not answer."""
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
    Returns: the id of the staged snapshot. Raises: ConflictError after 12 lost races, UnknownCommitState.
    """
    wanted = tuple(files)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _stage_once(table, wanted, wap_id, summary)
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
    summary = {str(e.getKey()): str(e.getValue()) for e in each(snapshot.summary().entrySet())}
    return Staged(int(snapshot.snapshotId()), files, summary)


@reading("looking for a staged snapshot")
def _newest(table: IcebergTable, wap_id: str) -> Any | None:
    table.java.refresh()
    staged = [s for s in _snapshots(table) if s.summary().get(names.WAP_ID) == wap_id]
    return max(staged, key=lambda s: int(s.sequenceNumber()), default=None)

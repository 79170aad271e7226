"""Changing a table: every commit of Lethe goes through here and is a compare-and-set on the ledger's pointer.

After any error of the catalog the table's history is looked at: only that says whether the commit has landed.

Invariant: what is raised says what is known. ConflictError: certainly nothing landed. UnknownCommitState: nobody knows,
and the history did not tell; its files must not be deleted.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from lethe.base import names
from lethe.base.errors import ConflictError, LetheError, UnknownCommitState

from lethe_spark.jvm.ancestry import MARKER, Expectation, LedgerCheck
from lethe_spark.jvm.attempt import Attempt, lost_the_race
from lethe_spark.jvm.backoff import ATTEMPTS, wait_before
from lethe_spark.jvm.data_files import DataFile, described
from lethe_spark.jvm.deletes import NativeDeletes
from lethe_spark.jvm.errors import ICEBERG, JvmError, is_a, java_class, java_message, reading
from lethe_spark.jvm.gateway import each, java_list, listen_for_callbacks
from lethe_spark.jvm.manifests import DeleteManifests, rewriting
from lethe_spark.jvm.registration import append_all
from lethe_spark.jvm.table import IcebergTable

LOOKS_AFTER_UNKNOWN = 3
# Of one change: other commits may come first that do not matter to it, such as new properties.
RACES = 4


@dataclass(frozen=True)
class Append:
    """New data files."""

    files: tuple[DataFile, ...]


@dataclass(frozen=True)
class Register:
    """Data files that others wrote, as `lethe_spark.jvm.registration` makes them: thousands at once."""

    files: Any


@dataclass(frozen=True)
class LedgerOnly:
    """A new ledger, no data: a snapshot of nothing but its summary."""


@dataclass(frozen=True)
class Rewrite:
    """`add` stands for the surviving rows of `remove`, which were read at `from_snapshot`; equality deletes that came since
    are of its rows too. `dangling`: Iceberg's delete files that go along. Operation `replace`."""

    remove: tuple[DataFile, ...]
    add: tuple[DataFile, ...]
    from_snapshot: int
    dangling: tuple[Any, ...] = ()


@dataclass(frozen=True)
class DeleteFiles:
    """Whole files go. Operation `delete`."""

    files: tuple[DataFile, ...]


@dataclass(frozen=True)
class Overwrite:
    """`add` stands for what is left of the rows of `remove` as they were at `from_snapshot`, and for new ones. Operation
    `overwrite`: of a `replace` everybody may believe that no row is lost."""

    remove: tuple[DataFile, ...]
    add: tuple[DataFile, ...]
    from_snapshot: int


@dataclass(frozen=True)
class RowDelta:
    """Rows go by native deletes: vectors, which hold all that is deleted of their files at `from_snapshot` and from now on, or
    equality deletes. The files of `add` come, and are none of those; the files of `remove` go whole."""

    deletes: NativeDeletes
    add: tuple[DataFile, ...]
    from_snapshot: int
    remove: tuple[DataFile, ...] = ()


@dataclass(frozen=True)
class RewriteManifests:
    """The same files, listed in other manifests (`lethe.vacuum.manifests`); `deletes`: of delete files. Operation `replace`."""

    replaced: frozenset[str]
    manifest_of: Mapping[str, int]
    deletes: DeleteManifests = DeleteManifests()  # noqa: RUF009 - frozen


Change: TypeAlias = Append | Register | LedgerOnly | Rewrite | DeleteFiles | Overwrite | RowDelta | RewriteManifests


@dataclass(frozen=True)
class Staged:
    """A staged (write-audit-publish) snapshot: its files are in the table's metadata, and in nobody's reads."""

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
    """Commit a change, its summary and, in the same commit, table properties; only on the ledger that was expected.

    Args:
        summary: Must hold `lethe.ledger`, the pointer this commit sets; unique to this call.
        staged: The snapshot that keeps the files of the change until it is committed; None: no snapshot does.
    Returns: The id of the new snapshot. `table` is refreshed.
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
    """Make a change and let the catalog take it, several times if other commits come first that do not matter.

    Args:
        find: The id of the new snapshot in the table's refreshed metadata, None if it is not there.
        defect: What went wrong in a callback.
    """
    listen_for_callbacks(table.gateway)
    for number in range(1, RACES + 1):
        attempt: Attempt | None = None
        failure: BaseException = RuntimeError("the catalog took the commit, and the table does not show it")
        refused: LetheError | None = None
        try:
            attempt = Attempt.make(table, change, staged)
            attempt.submit()
        except JvmError as e:
            if (error := defect()) is not None:
                raise error from e
            failure, refused = e, _refusal(table, e)
            if attempt is None and refused is not None and refused.reason != "CommitFailed":
                raise refused from e  # by a validation, before the catalog was asked
        # Whatever the catalog answered, the commit may have landed: its history says so.
        landed = _look_for(table, find, failure)
        if landed is not None:
            return landed
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
            update = target.newAppend()
            for file in files:
                update = update.appendFile(file.java)
        case Register(java_files):
            update = target.newAppend()
            append_all(table, update, java_files)
        case LedgerOnly():
            update = target.newFastAppend()
        case Rewrite(remove, add, from_snapshot, dangling):
            update = target.newRewrite().validateFromSnapshot(from_snapshot)
            if table.format_version > 1:
                update = update.dataSequenceNumber(table.java.snapshot(from_snapshot).sequenceNumber())
            for file in remove:
                update = update.deleteFile(file.java)
            for deletes in dangling:
                update = update.deleteFile(deletes)
            for file in add:
                update = update.addFile(file.java)
        case Overwrite(remove, add, from_snapshot):
            update = target.newOverwrite().validateFromSnapshot(from_snapshot).validateNoConflictingDeletes()
            for file in remove:
                update = update.deleteFile(file.java)
            for file in add:
                update = update.addFile(file.java)
        case RowDelta(deletes, add, from_snapshot, remove):
            # That no other vector came for one of the files is validated in any case; that the replaced ones are there still,
            # and the files, also if somebody dropped them whole, is by the last of these.
            update = target.newRowDelta().validateFromSnapshot(from_snapshot)
            # Of the files that go, the ledger's check is enough: Iceberg takes a file that is named here for one that stays.
            update = update.validateDataFilesExist(java_list(table.jvm, deletes.of)).validateDeletedFiles()
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
            # Without the validation, deleting a file that is already gone lands silently.
            update = target.newDelete().validateFilesExist()
            for file in files:
                update = update.deleteFile(file.java)
    for key, value in summary.items():
        update = update.set(key, value)
    return update


def _refusal(table: IcebergTable, error: BaseException) -> LetheError | None:
    """The conflict that Iceberg reports, or None when it does not say whether the commit landed."""
    if is_a(table.jvm, error, ICEBERG + "ValidationException"):
        text = java_message(error)
        if MARKER in text:
            seen = text.split(f"{MARKER}: ", 1)[-1].splitlines()[0]
            return ConflictError(
                "LedgerMoved", f"{table.full_name}: {seen}. Nothing was committed; the run plans again."
            )
        return ConflictError(
            "DataMoved",
            f"{table.full_name}: a concurrent commit changed the data files that this one is about "
            f"({text.splitlines()[0][:300]}). Nothing was committed; the run plans again.",
        )
    if is_a(table.jvm, error, ICEBERG + "CleanableFailure"):
        return ConflictError(
            "CommitFailed",
            f"{table.full_name}: the catalog refused the commit ({java_class(error).rsplit('.', 1)[-1]}), as it does when "
            "other writers are faster, and the table's history does not show it. Nothing was committed; the run plans again.",
        )
    return None


def _unknown(table: IcebergTable, error: BaseException) -> UnknownCommitState:
    return UnknownCommitState(
        "CommitStateUnknown",
        f"{table.full_name}: the catalog answered a commit with {java_class(error).rsplit('.', 1)[-1]}, and the table's "
        "history does not show the commit. It may still land: the next attempt looks for this run in the ledger first.",
    )


def _look_for(table: IcebergTable, find: Callable[[], int | None], failure: BaseException) -> int | None:
    """What `find` finds in the table as it is now. Raises: UnknownCommitState, if the catalog does not answer."""
    for _ in range(LOOKS_AFTER_UNKNOWN):
        try:
            table.java.refresh()
            return find()
        except JvmError:
            continue
    raise _unknown(table, failure) from failure


def _id_of(snapshots: Iterable[Any]) -> int | None:
    """Of the first one."""
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
    """Record written files in the table's metadata without showing them: a crash then loses nothing.

    Args:
        summary: Must hold `lethe.stage`, unique to these files.
    Returns: The staged snapshot's id. Raises: ConflictError after 12 lost races, UnknownCommitState.
    """
    wanted = tuple(files)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _stage_once(table, wanted, wap_id, summary)
        except ConflictError as e:
            # Nothing has to be planned anew: a staged snapshot is valid on whatever the others have made of the table.
            if attempt == ATTEMPTS and _newest(table, wap_id) is not None:
                raise _unknown(table, e) from e  # one attempt did land; its files must not be taken for unpublished
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
    """Every retained snapshot of the metadata that Iceberg saw last, staged ones too."""
    return each(table.java.operations().current().snapshots())


@reading("looking for a staged snapshot")
def find_staged(table: IcebergTable, wap_id: str) -> Staged | None:
    """The newest snapshot staged under this id, whether or not it was published since."""
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

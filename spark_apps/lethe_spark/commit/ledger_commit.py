"""Changes a table: plan on its newest ledger, write the next ledger, compare-and-set; plan again after a lost race. I/O.

Each commit, of a run or of a user's Spark job, goes through `commit_on_ledger`.
"""

import itertools
import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final, Generic, TypeVar

from lethe import batches_table, ledger_store, tracing
from lethe.base import names
from lethe.base.errors import ConflictError, InputError, LetheError, UnknownCommitState
from lethe.buffer.batch_rows import BatchRow
from lethe.contract.result import Phase
from lethe.contract.settings import NativeDeletes
from lethe.erasure.progress import Writer, note_name
from lethe.iceberg import catalogs
from lethe.ledger.ledger import Delta
from lethe.ledger.lineage import needed_carriers, summary
from lethe.ledger.tombstone import Tombstone
from lethe.storage.file_io import file_io
from lethe.storage.object_store import open_store
from lethe.vacuum.housekeeping import UNPUBLISHED_FOR
from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO

from lethe_spark.commit.table_state import Base, observe_base
from lethe_spark.jvm.commit import Change, commit
from lethe_spark.jvm.data_files import DataFile
from lethe_spark.jvm.errors import ATTEMPTS, wait_before
from lethe_spark.jvm.metadata import remove_files
from lethe_spark.jvm.table import IcebergTable, run_folder
from lethe_spark.run.context import Committer, Run, table_properties

log = logging.getLogger(__name__)
_KEPT_FOR: Final = timedelta(days=30) + UNPUBLISHED_FOR
"""A note says where a run that died may have left files."""

# How long an open catalog is used again: opening one costs requests, but what its server said when it was opened may change.
# The credentials for files are not part of it. The catalog vends them with each table that is loaded.
OPEN_SECONDS: Final = 60.0
_open: Final[dict[str, tuple[dict[str, str], float, Catalog]]] = {}
"""By name: the properties in the configuration, when the catalog was opened by time.monotonic(), and the catalog."""

MIN_SECONDS: Final = 120.0
"""A run does not give up before this, in seconds, while other writers change the table.

Beside a writer that commits every second, most attempts fail, and twelve of them take only seconds.
"""

T = TypeVar("T")


@contextmanager
def noted_run(context: Run, table: IcebergTable, batch_ids: Iterable[str] | None) -> Iterator[None]:
    """Keep a note while a run with a `run.json` writes; see `noted`."""
    with noted(context, table, batch_ids, context.spec.attempt, context.spec.ended_attempts):
        yield


@contextmanager
def noted(
    context: Committer,
    table: IcebergTable,
    batch_ids: Iterable[str] | None,
    attempt: int = 0,
    ended: Collection[int] = (),
) -> Iterator[None]:
    """Keep a note while an attempt of a run writes. The note stays if the process dies, or if its tasks may still be running.

    No erasure is verified while an attempt with a note may write. An attempt writes its note before it reads the ledger. If it
    does not see an erasure in the ledger, the erasure was committed later, so its verification finds the note. Only the attempt
    itself removes its note, or a later one that knows of its end.

    Args:
        batch_ids: The batches that the run may add from the buffer. None: it reads the table and writes rows of it.
        attempt: The number of the attempt; 0: attempts are not numbered.
        ended: The numbers of the attempts of this run whose processes are known to have ended. Their notes are removed too.

    Raises:
        Exception: The errors of the storage and of the body.
    """
    table.refresh()
    folder = run_folder(table, context.run_id)
    ids = None if batch_ids is None else frozenset(batch_ids)
    writer = Writer(context.run_id, folder, table.last_sequence_number, ids, attempt)
    properties = table_properties(context)
    uri = f"{_folder(table)}/{note_name(context.run_id, attempt, uuid.uuid4().hex[:8])}"
    io = file_io(properties, uri)
    with io.new_output(uri).create(overwrite=True) as stream:
        stream.write(writer.to_json())
    try:
        yield
    except InputError:  # its files were deleted, and none of its tasks is running
        _forget(io, uri)
        raise
    _forget(io, uri)
    if ended:
        for earlier, _, path in writers_of(table, io, properties):
            if earlier.run == context.run_id and earlier.attempt in ended:
                _forget(io, path)


def writers_of(table: IcebergTable, io: FileIO, properties: Mapping[str, str]) -> list[tuple[Writer, datetime, str]]:
    """The attempts with a note, the time of the note, and its path.

    Raises:
        Exception: The errors of the storage.
    """
    writers: list[tuple[Writer, datetime, str]] = []
    folder = _folder(table)
    for o in open_store(folder, properties).list(folder):
        name = o.key.rpartition("/")[2]
        if not name.endswith(names.WRITER_SUFFIX):
            continue
        try:
            with io.new_input(o.key).open() as stream:
                content = bytes(stream.read())
        except FileNotFoundError:  # the run ended in the meantime
            continue
        writers.append((Writer.of_json(content, name), o.modified, o.key))
    return writers


def forget_old(io: FileIO, writers: Iterable[tuple[Writer, datetime, str]], now: datetime) -> None:
    """Remove notes that are so old that no files of their runs can remain."""
    for _, noted_time, uri in writers:
        if noted_time + _KEPT_FOR < now:
            _forget(io, uri)


def _folder(table: IcebergTable) -> str:
    return f"{table.location}/{names.RUNS_FOLDER}"


def _forget(io: FileIO, uri: str) -> None:
    try:
        io.delete(uri)
    except Exception as e:  # then it counts as the note of a run that died
        log.warning("could not delete the note of a run: %s: %s", uri, type(e).__name__)


def keep_up(context: Committer, table: IcebergTable, *, create: bool, waiting: Sequence[BatchRow] | None = None) -> str:
    """Update the table of batches. Never raises: the commit is done, and the next update includes it.

    Args:
        create: Create the table of batches if it does not exist.
        waiting: The batches in the buffer. None: unknown.

    Returns:
        Why the update failed; empty if it succeeded, or the table of batches does not exist.
    """
    try:
        done = batches_table.bring_up_to_date(
            _catalog(table.catalog),
            table.name,
            context.batch_column,
            batches_table.TrackingUpdate(create, waiting),
            context.step,
        )
    except Exception as e:
        _open.pop(table.catalog, None)  # its connection or its token may be the reason
        log.warning(
            "%s was not updated; the next run updates it: %s", batches_table.name_of(table.full_name), safe_text(e)
        )
        return safe_text(e)
    if done is not None and done.snapshot_id is not None:
        log.info("%s shows version %d of the ledger", done.name, done.shown.version)
    return ""


def _catalog(name: str) -> Catalog:
    """Open a catalog, or use one that was opened a moment ago.

    Raises:
        Exception: As `catalogs.load`.
    """
    properties, now = catalogs.properties(name), time.monotonic()
    kept = _open.get(name)
    if kept is None or kept[0] != properties or now - kept[1] >= OPEN_SECONDS:
        _open[name] = kept = (properties, now, catalogs.load(name))
    return kept[2]


def safe_text(error: Exception) -> str:
    """The text of a LetheError. Of other errors only the type, because their text may contain a secret."""
    return str(error) if isinstance(error, LetheError) else type(error).__name__


@dataclass(frozen=True)
class Intent(Generic[T]):
    """What a plan wants to commit."""

    delta: Delta
    """The change of the ledger."""
    change: Change
    """The change of the table's files."""
    outcome: T
    """Returned to the caller after the commit."""
    vacuumed: Collection[Tombstone] | None = None
    """The tombstones that were applied to the files it removes, or masks by deletion vectors. None: it removes and masks none."""
    publishes: str | None = None
    """The id under which the files were staged. None: they were not."""
    staged: int | None = None
    """The snapshot that keeps the staged files. If it expired, the files are deleted, and nothing may be committed."""
    native: NativeDeletes | None = None
    """The kind of native deletes that it adds or removes for tombstones. None: no native deletes."""
    masks_everything: bool = False
    """Whether it masks every active tombstone."""
    unfinished: bool = False
    """Whether the run makes further commits."""
    retention_cutoff: date | None = None
    """The UTC day before which rows are too old. None: no row is removed for its age."""


@dataclass(frozen=True)
class NothingToCommit(Generic[T]):
    """The ledger contains the change already, or there is nothing to change."""

    outcome: T


@dataclass(frozen=True)
class Committed(Generic[T]):
    """The outcome of a plan."""

    outcome: T
    snapshot_id: int | None
    """The snapshot of the commit. None: nothing was committed."""


@dataclass
class Attempts:
    """What is known of the attempts to commit."""

    in_doubt: bool = False
    """Whether an attempt may have succeeded, or may succeed later: its answer was lost, or the run was stopped before the attempt
    was dealt with. Its files must not be deleted.
    """


def commit_on_ledger(
    context: Committer,
    table: IcebergTable,
    plan: Callable[[Base], Intent[T] | NothingToCommit[T]],
    attempts: Attempts | None = None,
    seen: Base | None = None,
) -> Committed[T]:
    """Commit what `plan` wants on the newest ledger. Call `plan` again whenever another commit came first.

    Each plan first checks whether the ledger contains its run. So the change is made exactly once, also if the answer to a
    commit was lost.

    Args:
        attempts: Records whether an answer was lost.
        seen: A state that the caller has read. It is used if the table has not changed since.

    Raises:
        ConflictError: After 12 attempts, and if other writers changed the table before each of them, not before two minutes.
        UnknownCommitState: The answer to the last attempt was lost.
        Exception: The errors of `plan` and of reading the table.
    """
    context.reporter.phase(Phase.COMMITTING)
    attempts = attempts if attempts is not None else Attempts()
    began = time.monotonic()
    for attempt in itertools.count(1):
        base = observe_base(context, table, seen)
        intent = plan(base)
        if isinstance(intent, NothingToCommit):
            return Committed(intent.outcome, None)
        try:
            return Committed(intent.outcome, _try_once(context, table, base, intent, attempts))
        except ConflictError as e:
            # A catalog may refuse a commit for ever; a table that moved is another writer's success.
            moved = e.reason in ("LedgerMoved", "DataMoved")
            if attempt >= ATTEMPTS and not (moved and time.monotonic() - began < MIN_SECONDS):
                raise
            log.info("attempt %d to commit lost its race and is planned again: %s", attempt, e.reason)
        except UnknownCommitState as e:
            if attempt >= ATTEMPTS:
                raise
            log.warning("attempt %d to commit: %s; checking the ledger", attempt, e.reason)
        wait_before(attempt + 1)
    raise AssertionError("unreachable")


def _try_once(context: Committer, table: IcebergTable, base: Base, intent: Intent[T], attempts: Attempts) -> int:
    delta = base.restore_tombstones(intent.delta)
    carriers = needed_carriers(base.facts.snapshots, base.loaded.carriers)
    written = ledger_store.write(base.iceberg.io, base.facts, base.loaded, delta, carriers, intent.vacuumed)
    keys = summary(written, context.run_id, context.run_kind)
    keys[names.FOREIGN_FILES] = "true" if base.has_foreign_files else "false"
    if intent.native is not None:
        keys[names.DELETES] = intent.native.value
    masked = intent.masks_everything or base.is_masked
    if masked and written.total and all(t.is_masked for t in delta.add_tombstones):
        keys[names.MASKED] = "true"
    if intent.publishes is not None:
        keys[names.PUBLISHED_WAP_ID] = intent.publishes  # Iceberg then refuses to cherry-pick the staged snapshot again
    if intent.unfinished:
        keys[names.UNFINISHED] = "true"
    if intent.retention_cutoff is not None:
        keys[names.RETENTION_CUTOFF] = intent.retention_cutoff.isoformat()
    context.step("before-commit")
    with tracing.span("commit", {"lethe.table": table.full_name, "lethe.change": type(intent.change).__name__}):
        in_doubt, attempts.in_doubt = attempts.in_doubt, True
        try:
            snapshot_id = commit(table, intent.change, keys, base.expectation, base.facts.beginning, intent.staged)
        except UnknownCommitState:
            raise
        except LetheError:
            attempts.in_doubt = in_doubt
            raise
        tracing.describe({"lethe.snapshot.id": snapshot_id})
    context.step("after-commit")
    attempts.in_doubt = in_doubt
    return snapshot_id


def discard(table: IcebergTable, files: Iterable[DataFile | str], attempts: Attempts) -> None:
    """Delete files, given by path or as data files, that certainly no snapshot names or will name.

    The caller must pass only files that this process wrote, did not stage, and tried to commit only in attempts that were
    refused. After an attempt in doubt the files stay, because it may still succeed. A vacuum removes them later as orphan files.
    """
    paths = [f if isinstance(f, str) else f.path for f in files]
    if not paths:
        return
    if attempts.in_doubt:
        log.warning("%d files were not deleted, because it is unknown whether their commit succeeded", len(paths))
        return
    try:
        remove_files(table, paths)
    except LetheError as e:
        log.warning("%d unpublished files could not be deleted: %s", len(paths), e)

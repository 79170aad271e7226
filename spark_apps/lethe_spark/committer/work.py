"""Carries out one run of the mailbox, from its key to its result, or leaves it to a Job. I/O.

The order matters: the key is removed after the result was delivered. If the process dies in between, the next one repeats the run
and finds in the ledger that it is done.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Final, assert_never

from lethe import tracing
from lethe.base.errors import InputError, LedgerError, LetheError, TableError, TransientError
from lethe.buffer.batch_rows import BatchRow
from lethe.buffer.promotion import FILES_AT_MOST, OBJECTS_AT_MOST
from lethe.contract.result import (
    ConsolidationResult,
    Phase,
    Progress,
    RestatementGroupResult,
    RunOutcome,
    RunResult,
    log_fields,
    span_attributes,
)
from lethe.contract.run import (
    ConsolidationSpec,
    MailboxEntry,
    RestatementGroupSpec,
    RestatementRequest,
    RunKind,
    RunSpec,
    SearchLimits,
)
from lethe.contract.settings import ConsolidationMode
from lethe.decoder.process import NoDecoder
from lethe.guards.boundary import require_run_within
from lethe.iceberg import catalogs
from lethe.ingest.buffer_files import reading_failure
from lethe.ingest.buffer_store import BufferAway, FileTask
from lethe.ingest.registrable import FOOTER_TOO_LARGE, Footer, FooterReader
from lethe.kube import NotFound
from lethe.ledger.ledger import Ledger
from lethe.logs import about
from lethe.search.batches import NO_CACHE, BatchSearch, ColumnCache, Searched, SearchError, search_within
from lethe.search.candidates import CandidateFile, held_ids
from pydantic import ValidationError

from lethe_spark.commit.group_commit import Erased, GroupCommit, Replacements, result_of
from lethe_spark.commit.masking import NativeMasker, native_kind
from lethe_spark.commit.table_state import Base, check_and_observe, is_settled
from lethe_spark.committer.reports import KEY as PROGRESS
from lethe_spark.committer.reports import LoggedPhases, Reporting
from lethe_spark.jobs.clean_up import anchored, finished, reanchor_and_mask
from lethe_spark.jobs.consolidation.gather import WrittenBatches, buffered_ids, claim_buffer, waiting_deliveries
from lethe_spark.jobs.consolidation.promote import promote, register
from lethe_spark.jvm.errors import understood
from lethe_spark.jvm.standalone_jvm import JvmCatalog, SmallJvm
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.mailbox import Post, drop_keys
from lethe_spark.run import context as run_context
from lethe_spark.run import progress as run_progress
from lethe_spark.run.context import Cancelled, Reports, Run, crash_point
from lethe_spark.run.kube import PodApi, StatusConfigMap
from lethe_spark.run.redact import RedactingFormatter, secrets_of
from lethe_spark.sql import rest_servers

log = logging.getLogger(__name__)


# 32 footers are read at a time, and pyarrow needs several times as much for a parsed one.
FOOTER_BYTES_AT_MOST: Final = 256 * 1024
DOCUMENTS_AT_MOST: Final = 4 * 1024 * 1024
"""The most characters of JSON that describe the files to Iceberg. Java keeps about as many bytes until the commit."""
LIVE_FILES_AT_MOST: Final = 10_000
"""The most live files of a table that other writers may have written to: the run compares its files with all of them."""
BATCHES_AT_MOST: Final = 100_000
"""The most batches of a ledger that the process searches for those of a run: it reads them all, in about two seconds."""
REFUSED_BYTES_AT_MOST: Final = 1024**3
"""The most bytes of refused files, which the run copies out of the buffer before it ends."""
_OF_CREDENTIALS: Final = frozenset({"AccessDenied", "BufferNotFound", "StorageRefused"})
"""Reasons that the pod's credentials may have caused. A Job's pod may have others."""

BEGUN_AT_MOST: Final = 3
"""A run during which the process ended this many times is left to a Job, whose process serves no other runs."""


class NeedsSpark(TransientError):
    """The run is not refused; it needs a Job."""

    def __init__(self, why: str) -> None:
        super().__init__("NeedsSpark", f"{why}. Nothing was changed. A Job carries out the run.")


def require_fit(spec: RunSpec) -> None:
    """Require a run that the committer can carry out.

    Raises:
        NeedsSpark: For a run that writes data files, reads their rows, or registers many files.
    """
    match spec.kind:
        case RunKind.RESTATEMENT:
            assert spec.restatement is not None
            if spec.restatement.dry_run:
                raise NeedsSpark("a dry run reads data files")
            for request in spec.restatement.requests:
                if request.replacement is not None or not request.operation.is_metadata_only:
                    raise NeedsSpark(f"Restatement {request.name}: a {request.operation} writes data")
                if request.rows is not None or request.batch_ids_uri:
                    raise NeedsSpark(f"Restatement {request.name}: it needs more than metadata")
        case RunKind.REANCHORING:
            pass
        case RunKind.CONSOLIDATION:
            assert spec.consolidation is not None
            _require_small_registration(spec.consolidation)
        case RunKind.VACUUM | RunKind.ERASURE_CHECK:
            raise NeedsSpark(f"a {spec.family} writes data")
        case _:
            assert_never(spec.kind)


def _require_small_registration(spec: ConsolidationSpec) -> None:
    if spec.mode is not ConsolidationMode.REGISTER:
        raise NeedsSpark("a consolidation of mode Rewrite writes data")
    if len(spec.batch_ids) > FILES_AT_MOST:
        raise NeedsSpark(
            f"the run has {len(spec.batch_ids)} batches, and the committer registers at most {FILES_AT_MOST} files"
        )


@dataclass
class OpenTables:
    """Opens tables by name. Safe to use from several threads."""

    jvm: SmallJvm
    formatter: RedactingFormatter
    _opened: dict[str, tuple[Mapping[str, str], JvmCatalog]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def learn_secrets(self) -> None:
        """Redact the current secrets of the configuration file from the log."""
        secrets = [secrets_of(own) for own in catalogs.every().values()]
        with self._lock:
            self.formatter.secrets = self.formatter.secrets.union(*secrets)

    def properties(self, name: str) -> dict[str, str]:
        """PyIceberg's current properties of a catalog.

        A Job decides whether that is permanent.

        Raises:
            NeedsSpark: The catalog is missing or cannot be opened here.
        """
        try:
            values = catalogs.properties(name)
            if not catalogs.is_folder(values):
                catalogs.spark_properties(name, values)
        except InputError as e:
            raise NeedsSpark(e.message.rstrip(".")) from e
        if catalogs.is_folder(values):
            raise NeedsSpark(f"catalog {name} has type hadoop, which is served to Spark sessions only")
        return values

    def open(self, context: Run) -> IcebergTable:
        """The table of a run, if it needs no preparation.

        Raises:
            NeedsSpark: The run is not refused; it needs a Job.
            InputError: As `check_and_observe`.
            TransientError: A dependency is temporarily unavailable.
        """
        table_spec = context.spec.table
        table = self._catalog(table_spec.catalog, context.catalog_properties).load(table_spec.name)
        if table is None:
            raise NeedsSpark(f"catalog {table_spec.catalog} has no table {table_spec.name} yet")
        if table.format_version < 2:
            raise NeedsSpark(f"{table_spec.name} has Iceberg format version 1")
        if not is_settled(context, check_and_observe(context, table)):
            raise NeedsSpark(f"{table_spec.name} is not claimed and prepared for Dataset {context.claim} yet")
        return table

    def _catalog(self, name: str, properties: Mapping[str, str]) -> JvmCatalog:
        # Under the lock, so that only one thread at a time waits for a catalog that does not answer.
        with self._lock:
            open_catalog = self._opened.get(name)
            if open_catalog is not None and open_catalog[0] == properties:
                return open_catalog[1]
            prefix = f"spark.sql.catalog.{name}."
            conf = rest_servers.spark_properties(name, properties)
            try:
                catalogs.require_history(name, properties)
            except Exception as e:
                raise understood(e) from e
            own = {k.removeprefix(prefix): v for k, v in conf.items() if k.startswith(prefix)}
            # The catalog with the old properties is not closed: a run of another thread may be using it.
            opened = self.jvm.open_catalog(name, own)
            self._opened[name] = (properties, opened)
            return opened


def register_small_set(context: Run, table: IcebergTable) -> tuple[ConsolidationResult, tuple[BatchRow, ...] | None]:
    """Register the batches of a run. The result, and the batches that still wait, as `promote` returns them.

    The process also serves other runs, so everything that grows with the buffer, the table or the files has a limit here. With
    four runs at a time, the limits keep the process and its JVM within their memory. Above a limit, a Job carries out the run.

    Raises:
        NeedsSpark: The set is too large, or if anything is wrong with the buffer: this process may have other credentials
            than a Job, so a Job decides whether that is permanent.
        TableError: The table changed.
        LedgerError: The ledger cannot be read.
        ConflictError: As `promote`.
    """
    spec = context.spec.consolidation
    assert spec is not None
    with _job_for_buffer():
        claim_buffer(context, table, _listing_limit())
        return promote(context, table, spec.batch_ids, partial(_register, context, table))


@contextmanager
def _job_for_buffer() -> Iterator[None]:
    """Leave what is wrong with the buffer to a Job.

    Raises:
        NeedsSpark: Instead of an InputError, and of a TransientError that is about credentials.
    """
    try:
        yield
    except (TableError, LedgerError):
        raise
    except InputError as e:
        raise NeedsSpark(e.message.rstrip(".")) from e
    except TransientError as e:
        if e.reason not in _OF_CREDENTIALS:
            raise
        raise NeedsSpark(e.message.removesuffix(" Nothing was changed.").rstrip(".")) from e


def _register(context: Run, table: IcebergTable, base: Base, batch_ids: Iterable[str]) -> WrittenBatches:
    require_few_live_files(base)
    written = register(context, table, read_few, base, batch_ids, _listing_limit())
    refused = sum(o.size for judged in written.refused.values() for o in judged.objects)
    if refused > REFUSED_BYTES_AT_MOST:
        raise NeedsSpark(f"{refused} bytes are refused, and the committer moves at most {REFUSED_BYTES_AT_MOST}")
    return written


def require_few_live_files(base: Base) -> None:
    """Require that few files of other writers are live.

    Raises:
        NeedsSpark: The run would have to look at too many files of the table.
    """
    head = base.facts.snapshots.get(base.facts.head_id) if base.facts.head_id is not None else None
    if head is None or not base.has_foreign_files:
        return
    total = head.summary.get("total-data-files", "")
    if not total.isdecimal() or int(total) > LIVE_FILES_AT_MOST:
        raise NeedsSpark(
            f"other writers may have added files to {base.facts.name}, and the committer compares with at most "
            f"{LIVE_FILES_AT_MOST} live files; the table has {total or 'an unknown number of'}"
        )


def read_few(reader: FooterReader, tasks: Sequence[FileTask]) -> list[Footer]:
    """Read the footers of files.

    Raises:
        NeedsSpark: The run is not refused; it needs a Job.
        TransientError: `BufferAway`.
    """
    if len(tasks) > FILES_AT_MOST:
        raise NeedsSpark(f"{len(tasks)} files wait, and the committer registers at most {FILES_AT_MOST}")
    found: list[Footer] = []
    size = 0
    try:
        # Closed at once, so that no further footers are read after an error.
        with closing(replace(reader, footer_bytes_at_most=FOOTER_BYTES_AT_MOST).footers(tasks)) as footers:
            for footer in footers:
                if footer.error is not None and footer.error.reason in (*_OF_CREDENTIALS, FOOTER_TOO_LARGE):
                    raise NeedsSpark(f"{footer.uri}: {footer.error.message}")
                size += len(footer.described.document) if footer.described is not None else 0
                if size > DOCUMENTS_AT_MOST:
                    raise NeedsSpark(
                        f"the metadata of the {len(tasks)} files has more than {DOCUMENTS_AT_MOST} characters"
                    )
                found.append(footer)
    except (BufferAway, NoDecoder) as e:
        raise reading_failure(e) from e
    return found


def _listing_limit() -> Callable[[], None]:
    """To be called for each object of a listing.

    Raises:
        NeedsSpark: After OBJECTS_AT_MOST calls.
    """
    count = 0

    def seen() -> None:
        nonlocal count
        count += 1
        if count > OBJECTS_AT_MOST:
            raise NeedsSpark(f"the buffer holds more than {OBJECTS_AT_MOST} objects")

    return seen


class JvmGone(Exception):
    """The JVM has ended, so this process must end. The next process repeats the run."""


@dataclass(frozen=True)
class PendingCleanup:
    """A finished run whose result was delivered, and its table, which still needs upkeep."""

    context: Run
    table: IcebergTable
    result: RunResult
    waiting: tuple[BatchRow, ...] | None = None
    """The batches that still wait in the buffer. None: the run did not list it."""

    def clean_up(self) -> None:
        """Clean up after the result, as `finished` does. Never raises."""
        with about(**log_fields(self.context.spec)):
            self._clean_up()

    def _clean_up(self) -> None:
        done = finished(self.context, self.table, self.result, self.waiting)
        if done.snapshots_expired or done.ledger_files_removed:
            log.info(
                "%s: %d snapshots expired, %d ledger files removed",
                self.table.full_name,
                done.snapshots_expired,
                done.ledger_files_removed,
            )


@dataclass(frozen=True)
class Worker:
    """Carries out the runs of the mailbox."""

    api: PodApi
    mailbox: str
    """Name of the mailbox's ConfigMap."""
    tables: OpenTables
    reporting: Reporting
    hurry: threading.Event = field(default_factory=threading.Event)
    """When set, runs stop at their next step, and stay in the mailbox."""
    leaving: threading.Event = field(default_factory=threading.Event)
    """When set, upkeep stops at its next step."""
    on_result: Callable[[RunResult, float], object] = lambda _result, _seconds: None
    """Called after a result was delivered, with the seconds since the run began."""
    columns: ColumnCache = NO_CACHE
    """Batch columns that earlier runs read."""

    def carry_out(self, post: Post) -> PendingCleanup | None:
        """Carry out a run, deliver its result, and remove its key from the mailbox.

        The key then stays.

        Returns:
            The upkeep that remains.

        Raises:
            Cancelled: The process received SIGTERM.
            KubeError: The result could not be delivered.
            JvmGone: The JVM has ended, so this process must end.
        """
        with about(namespace=self.api.namespace, run=post.entry.run_id, attempt=post.entry.attempt):
            return self._carry_out_and_drop(post)

    def _carry_out_and_drop(self, post: Post) -> PendingCleanup | None:
        entry = post.entry
        config_map = StatusConfigMap(self.api, entry.config_map, entry.prefix)
        left: PendingCleanup | None = None
        try:
            documents = config_map.documents()
            if "run.json" in documents:
                left = self._carry_out(entry, config_map, documents)
            else:
                log.info("run %s is no longer in ConfigMap %s, and is dropped", entry.run_id, entry.config_map)
        except NotFound:
            log.info("run %s: ConfigMap %s was deleted with its Dataset", entry.run_id, entry.config_map)
        self.drop(post.key)
        return left

    def drop(self, *keys: str) -> None:
        """Remove keys from the mailbox.

        Raises:
            KubeError: The API server rejected the request, or did not answer.
        """
        drop_keys(self.api, self.mailbox, keys)

    def _carry_out(
        self, entry: MailboxEntry, config_map: StatusConfigMap, documents: dict[str, str]
    ) -> PendingCleanup | None:
        since = monotonic()
        try:
            self.tables.learn_secrets()
            spec = _run_of(entry, documents["run.json"])
        except Exception as e:
            unread = run_progress.failed(entry, _logged_error(entry, e))
            run_progress.put(config_map, {"result.json": unread.to_json()})
            self.on_result(unread, monotonic() - since)
            return None
        if spec is None:
            log.info("run %s, attempt %d, was replaced by another one", entry.run_id, entry.attempt)
            return None
        begun = _begun_before(entry, documents) + 1
        traced = tracing.span(f"run {spec.family}", span_attributes(spec), spec.traceparent)
        with about(**log_fields(spec)), traced, self.reporting.of_run(spec, config_map, begun) as reports:
            log.info("run %s of Dataset %s, attempt %d", spec.run_id, spec.dataset.claim, spec.attempt)
            left: PendingCleanup | None = None
            try:
                if begun > BEGUN_AT_MOST:
                    raise NeedsSpark(f"the committer ended {begun - 1} times during this run")
                left = self._work(spec, reports)
                done = left.result
            except Cancelled:
                raise
            except Exception as e:
                if not self.tables.jvm.answers():
                    raise JvmGone from e
                done = run_progress.failed(spec, _logged_error(spec, e))
            crash_point("before-result", spec.run_id)
            last = reports.ended(Phase.FAILED if done.outcome is RunOutcome.FAILED else Phase.SUCCEEDED, done.message)
            done = run_progress.of_this_process(done)
            run_progress.put(
                config_map, {PROGRESS: last.to_json(), "result.json": run_progress.for_config_map(done, spec.table)}
            )
            log.info("run %s: %s %s", spec.run_id, done.outcome, done.reason)
            tracing.describe({"lethe.run.outcome": done.outcome.value, "lethe.run.reason": done.reason})
            self.on_result(done, monotonic() - since)
        return left

    def _work(self, spec: RunSpec, reports: Reports) -> PendingCleanup:
        require_run_within(spec)
        require_fit(spec)
        properties = self.tables.properties(spec.table.catalog)
        context = Run(spec, reports, properties, self.hurry)
        table = self.tables.open(context)
        context.step("after-start")
        done: RunResult
        waiting: tuple[BatchRow, ...] | None = None
        match spec.kind:
            case RunKind.REANCHORING:
                assert spec.consolidation is not None
                masker = masker_of(context, table, spec.consolidation, self.columns)
                done = anchored(context, reanchor_and_mask(context, table, masker))
            case RunKind.RESTATEMENT:
                assert spec.restatement is not None
                done = restate(context, table, spec.restatement, self.columns)
            case RunKind.CONSOLIDATION:
                done, waiting = register_small_set(context, table)
            case RunKind.VACUUM | RunKind.ERASURE_CHECK:
                raise AssertionError(f"`require_fit` refuses a {spec.kind}")
            case _:
                assert_never(spec.kind)
        return PendingCleanup(Run(spec, LoggedPhases(), properties, self.leaving), table, done, waiting)


def _logged_error(run: RunSpec | MailboxEntry, error: Exception) -> LetheError:
    """The error as a LetheError. Logs it."""
    converted = understood(error)
    expected = isinstance(error, NeedsSpark)
    level = logging.INFO if expected else logging.ERROR
    log.log(level, "run %s: %s", run.run_id, converted, exc_info=None if expected else error)
    return converted


def _run_of(entry: MailboxEntry, text: str) -> RunSpec | None:
    """The run of an entry. None: the document is of another run or attempt.

    Raises:
        NeedsSpark: The document cannot be parsed, because a Job's image may be of another release.
        InputError: RunFileChanged.
        Exception: The errors of the storage.
    """
    try:
        spec = run_context.run_of(text, f"the run {entry.run_id}")
    except LetheError as e:
        if e.reason == "RunFileChanged":
            raise
        raise NeedsSpark(e.message.rstrip(".")) from e
    return spec if (spec.run_id, spec.family, spec.attempt) == (entry.run_id, entry.family, entry.attempt) else None


def _begun_before(entry: MailboxEntry, documents: dict[str, str]) -> int:
    """How many processes began this attempt without reporting its end."""
    try:
        progress = Progress.model_validate_json(documents.get(PROGRESS, ""))
    except ValidationError:
        return 0
    mine = (progress.run_id, progress.attempt) == (entry.run_id, entry.attempt)
    return progress.begun if mine and progress.phase not in (Phase.SUCCEEDED, Phase.FAILED) else 0


def restate(
    context: Run, table: IcebergTable, restatement: RestatementGroupSpec, columns: ColumnCache = NO_CACHE
) -> RestatementGroupResult:
    """Carry out the requests of a run in one commit. A refused request does not affect the others.

    Raises:
        NeedsSpark: A Job carries out the run.
        Exception: As `GroupCommit.carry_out`.
    """
    requests = tuple({r.key: r for r in restatement.requests}.values())
    masker = masker_of(context, table, restatement, columns)
    list_ids, find_waiting = partial(_list_ids, context), partial(_find_waiting, context)
    group = GroupCommit(context, table, requests, _write, _find, list_ids, find_waiting, _NoEraser(), masker)
    return result_of(context.spec, requests, group.carry_out(), masker.postponed)


def masker_of(
    context: Run,
    table: IcebergTable,
    work: ConsolidationSpec | RestatementGroupSpec,
    columns: ColumnCache = NO_CACHE,
) -> NativeMasker:
    """What writes the native deletes of this process, which searches few files.

    Args:
        work: Says which deletes, and how much to search.
        columns: Batch columns that earlier runs read.

    Raises:
        NeedsSpark: Files of the table must be moved before.
        InputError: `FormatVersionMismatch`.
    """
    native = native_kind(table, work.deletes)
    if native is not None and table.lost_specs():
        raise NeedsSpark(f"{table.full_name} has files of a partition field whose column was dropped")
    return NativeMasker(context, table, native, partial(_search, work.search_limits, columns))


def _write(adding: Sequence[RestatementRequest], _: Base) -> Replacements:
    raise NeedsSpark(f"Restatement {adding[0].name} writes data")


class _NoEraser:
    """Refuses to erase records, which needs a search in data files."""

    def erase(self, requests: Sequence[RestatementRequest], _: Base, __: Replacements) -> Erased:
        raise NeedsSpark(f"Restatement {requests[0].name} erases records")

    def still_right(self, erased: Erased, _: Base) -> bool:
        return not erased.rows


def _search(
    limits: SearchLimits, columns: ColumnCache, request: BatchSearch, files: Sequence[CandidateFile]
) -> Searched:
    """Search few data files.

    Raises:
        TooMuchToSearch: There is too much to read.
        NeedsSpark: A file cannot be read. A Job may have other credentials than this process.
    """
    try:
        return search_within(limits, request, files, columns)
    except SearchError as e:
        raise NeedsSpark(str(e)) from e


def _find(unknown_ids: Sequence[str], base: Base) -> frozenset[str]:
    assert base.facts.head_id is not None
    return held_ids(base.iceberg, base.facts.head_id, base.field_id, unknown_ids)


def _list_ids(context: Run) -> frozenset[str]:
    """The ids of the batches in a buffer with few objects.

    Raises:
        NeedsSpark: A Job lists the buffer.
        TransientError: The store does not answer.
    """
    with _job_for_buffer():
        return buffered_ids(context, _listing_limit())


def _find_waiting(context: Run, ledger: Ledger, references: Collection[str]) -> dict[str, set[str]]:
    """The batches of these runs in the buffer.

    Raises:
        NeedsSpark: The ledger or the buffer is large, or anything is wrong with the buffer.
        TransientError: The store does not answer.
    """
    if len(ledger.batches) > BATCHES_AT_MOST:
        raise NeedsSpark(
            f"the ledger has {len(ledger.batches)} batches, and the committer searches at most {BATCHES_AT_MOST}"
        )
    with _job_for_buffer():
        return waiting_deliveries(context, ledger, references, _listing_limit())

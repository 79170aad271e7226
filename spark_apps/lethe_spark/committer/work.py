"""Carry out one run of the mailbox, from its key to its result. I/O.

The order matters: the key is removed after the result was delivered. If the process dies in between, the next one repeats the
run and finds in the ledger that it is done.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, assert_never

from lethe import tracing
from lethe.base.errors import LetheError
from lethe.buffer.batch_rows import BatchRow
from lethe.contract.result import Phase, Progress, RunOutcome, RunResult
from lethe.contract.run import MailboxEntry, RestatementRequest, RunKind, RunSpec
from lethe.contract.run_fields import log_fields, span_attributes
from lethe.contract.settings import NativeDeletes
from lethe.files.native_deletes import plan_masking
from lethe.guards.boundary import require_run_within
from lethe.ledger.ledger import Delta
from lethe.logs import about
from lethe.search.held_ids import held_ids
from pydantic import ValidationError

from lethe_spark.commit.group_commit import Erased, GroupCommit, Replacements, result_of
from lethe_spark.commit.native_deletes import Lifts, Masks
from lethe_spark.commit.table_state import Base
from lethe_spark.committer.fitness import NeedsSpark, require_fit
from lethe_spark.committer.registration import register_small_set
from lethe_spark.committer.reports import KEY as PROGRESS
from lethe_spark.committer.reports import LoggedPhases, Reporting
from lethe_spark.committer.tables import OpenTables
from lethe_spark.jobs.finish.clean_up import finished
from lethe_spark.jobs.finish.reanchor import anchored, reanchor
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.mailbox.entries import Post
from lethe_spark.run import arguments, result
from lethe_spark.run.context import Cancelled, Reports, Run, crash_point
from lethe_spark.run.foreign_errors import understood
from lethe_spark.run.kube import Api, ApiError, StatusConfigMap

log = logging.getLogger(__name__)

MANAGER: Final = "lethe-committer"
# A run during which the process ended this many times is left to a Job, whose process serves no other runs.
BEGUN_AT_MOST: Final = 3


class JvmGone(Exception):
    """The JVM has ended, so this process must end. The next process repeats the run."""


@dataclass(frozen=True)
class Aftermath:
    """A finished run whose result was delivered, and its table, which still needs upkeep."""

    context: Run
    table: IcebergTable
    result: RunResult
    # The batches that still wait in the buffer. None: the run did not list it.
    waiting: tuple[BatchRow, ...] | None = None

    def clean_up(self) -> None:
        """Never raises, as `finished`."""
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

    api: Api
    # Name of the mailbox's ConfigMap.
    mailbox: str
    tables: OpenTables
    reporting: Reporting
    # When set, runs stop at their next step, and stay in the mailbox.
    hurry: threading.Event = field(default_factory=threading.Event)
    # When set, upkeep stops at its next step.
    leaving: threading.Event = field(default_factory=threading.Event)
    # Called after a result was delivered, with the seconds since the run began.
    on_result: Callable[[RunResult, float], object] = lambda _result, _seconds: None

    def carry_out(self, post: Post) -> Aftermath | None:
        """Carry out a run, deliver its result, and remove its key from the mailbox.

        Returns: the upkeep that remains.
        Raises: Cancelled; ApiError, OSError, HTTPException, if the result could not be delivered; JvmGone. The key then stays.
        """
        with about(namespace=self.api.namespace, run=post.entry.run_id, attempt=post.entry.attempt):
            return self._carry_out_and_drop(post)

    def _carry_out_and_drop(self, post: Post) -> Aftermath | None:
        entry = post.entry
        config_map = StatusConfigMap(self.api, entry.config_map, entry.prefix)
        left: Aftermath | None = None
        try:
            documents = config_map.documents()
            if "run.json" in documents:
                left = self._carry_out(entry, config_map, documents)
            else:
                log.info("run %s is no longer in ConfigMap %s, and is dropped", entry.run_id, entry.config_map)
        except ApiError as e:
            if e.status != 404:
                raise
            log.info("run %s: ConfigMap %s was deleted with its Dataset", entry.run_id, entry.config_map)
        self.drop(post.key)
        return left

    def drop(self, *keys: str) -> None:
        """Remove keys from the mailbox. Raises: ApiError, OSError, HTTPException."""
        try:
            data = dict.fromkeys(keys)
            self.api.merge(self.api.config_maps(self.mailbox), {"data": data}, MANAGER)
        except ApiError as e:
            if e.status != 404:  # the mailbox was deleted, with all its keys
                raise

    def _carry_out(
        self, entry: MailboxEntry, config_map: StatusConfigMap, documents: dict[str, str]
    ) -> Aftermath | None:
        since = monotonic()
        try:
            self.tables.learn_secrets()
            spec = _run_of(entry, documents["run.json"])
        except Exception as e:
            unread = result.failed(entry, _logged_error(entry, e))
            result.put(config_map, {"result.json": unread.to_json()})
            self.on_result(unread, monotonic() - since)
            return None
        if spec is None:
            log.info("run %s, attempt %d, was replaced by another one", entry.run_id, entry.attempt)
            return None
        begun = _begun_before(entry, documents) + 1
        traced = tracing.span(f"run {spec.family}", span_attributes(spec), spec.traceparent)
        with about(**log_fields(spec)), traced, self.reporting.of_run(spec, config_map, begun) as reports:
            log.info("run %s of Dataset %s, attempt %d", spec.run_id, spec.dataset.claim, spec.attempt)
            left: Aftermath | None = None
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
                done = result.failed(spec, _logged_error(spec, e))
            crash_point("before-result", spec.run_id)
            last = reports.ended(Phase.FAILED if done.outcome is RunOutcome.FAILED else Phase.SUCCEEDED, done.message)
            done = result.of_this_version(done)
            result.put(config_map, {PROGRESS: last.to_json(), "result.json": result.for_config_map(done, spec.table)})
            log.info("run %s: %s %s", spec.run_id, done.outcome, done.reason)
            tracing.describe({"lethe.run.outcome": done.outcome.value, "lethe.run.reason": done.reason})
            self.on_result(done, monotonic() - since)
        return left

    def _work(self, spec: RunSpec, reports: Reports) -> Aftermath:
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
                done = anchored(context, reanchor(context, table))
            case RunKind.RESTATEMENT:
                assert spec.restatement is not None
                requests = tuple({r.key: r for r in spec.restatement.requests}.values())
                done = result_of(
                    spec,
                    requests,
                    GroupCommit(
                        context, table, requests, _write, _find, _NoEraser(), _NoMasker(spec.restatement.deletes.native)
                    ).carry_out(),
                )
            case RunKind.CONSOLIDATION:
                done, waiting = register_small_set(context, table)
            case RunKind.VACUUM | RunKind.ERASURE_CHECK:
                raise AssertionError(f"`require_fit` refuses a {spec.kind}")
            case _:
                assert_never(spec.kind)
        return Aftermath(Run(spec, LoggedPhases(), properties, self.leaving), table, done, waiting)


def _logged_error(run: RunSpec | MailboxEntry, error: Exception) -> LetheError:
    """The error as a LetheError. Logs it."""
    known = understood(error)
    expected = isinstance(error, NeedsSpark)
    level = logging.INFO if expected else logging.ERROR
    log.log(level, "run %s: %s", run.run_id, known, exc_info=None if expected else error)
    return known


def _run_of(entry: MailboxEntry, text: str) -> RunSpec | None:
    """The run of an entry. None: the document is of another run or attempt.

    Raises: NeedsSpark, if the document cannot be parsed, because a Job's image may be of another release; InputError
        (RunFileChanged); the errors of the storage.
    """
    try:
        spec = arguments.run_of(text, f"the run {entry.run_id}")
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


def _write(adding: Sequence[RestatementRequest], _: Base) -> Replacements:
    raise NeedsSpark(f"Restatement {adding[0].name} writes data")


class _NoEraser:
    """Refuses to erase records, which needs a search in data files."""

    def erase(self, requests: Sequence[RestatementRequest], _: Base, __: Replacements) -> Erased:
        raise NeedsSpark(f"Restatement {requests[0].name} erases records")

    def still_right(self, erased: Erased, _: Base) -> bool:
        return not erased.rows


@dataclass
class _NoMasker:
    """Refuses to write native deletes, which needs a search in data files."""

    native: NativeDeletes | None  # as `spec.deletes`
    written: list[str] = field(default_factory=list)

    def masks(self, base: Base, delta: Delta, lifts: Lifts, mask: bool = True) -> Masks:  # noqa: ARG002
        masking = plan_masking(base.ledger, delta, base.field_id, self.native, base.is_masked)
        if not masking.is_empty:
            raise NeedsSpark("the run writes native deletes, or removes some")
        return Masks(delta)


def _find(unknown_ids: Sequence[str], base: Base) -> frozenset[str]:
    assert base.facts.head_id is not None
    return held_ids(base.iceberg, base.facts.head_id, base.field_id, unknown_ids)

"""What the supervisor reads and writes about a run: its document, that it began, and its end if the run cannot report it. I/O.

The order matters: a run begins only after that was recorded, and its key is removed only after its result was delivered. If the
supervisor ends in between, the next one finds a run that began and has no result, and does not repeat it: a Job does.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from lethe.base.errors import EXIT_INPUT, LetheError, TransientError
from lethe.contract.result import Phase, Progress, RunOutcome, RunResult
from lethe.contract.run import Document, MailboxEntry
from lethe.logs import about
from lethe.version import version
from pydantic import ConfigDict, ValidationError

from lethe_spark.run.kube import Api, ApiError, StatusConfigMap

log = logging.getLogger(__name__)

RESULT, PROGRESS, RUN = "result.json", "progress.json", "run.json"


def session_ended(code: int) -> LetheError:
    return TransientError(
        "WarmDriverEnded",
        f"the Spark session of the warm driver ended with exit code {code} during this run. A Job carries out the run.",
    )


def not_delivered() -> LetheError:
    return TransientError(
        "WarmDriverEnded", "the run ended, but its result could not be reported. A Job finds out what it committed."
    )


def over_limit(why: str) -> LetheError:
    return TransientError(
        "WarmDriverLimitExceeded",
        f"the warm driver stopped this run: {why}. A Job carries out the run.",
    )


def not_begun_again() -> LetheError:
    return TransientError(
        "WarmDriverEnded", "the warm driver ended during this run. It does not repeat a run; a Job carries it out."
    )


def was_cancelled() -> LetheError:
    return TransientError("Cancelled", "the run was stopped on request.")


class _AttemptName(Document):
    """The fields that a result and a pointer to a result have in common."""

    model_config = ConfigDict(extra="ignore")

    run_id: str
    attempt: int = 1


@dataclass(frozen=True)
class Delivery:
    """The documents of the runs of one mailbox."""

    api: Api
    # Name of the mailbox's ConfigMap.
    mailbox: str

    def begin(self, entry: MailboxEntry) -> str | None:
        """Record that a run begins. Returns: its document; None: there is nothing to carry out, and its key can go.

        Raises: ApiError, OSError, HTTPException. Whether the run has begun is then unknown.
        """
        documents = self._documents(entry)
        if documents is None or RUN not in documents:
            with about(namespace=self.api.namespace, run=entry.run_id, attempt=entry.attempt):
                log.info("run %s is no longer in ConfigMap %s, and is dropped", entry.run_id, entry.config_map)
            return None
        if _has_result(entry, documents):
            return None
        if _has_begun(entry, documents):
            self._put(entry, not_begun_again())
            return None
        first = _progress(entry, Phase.STARTING)
        self._config_map(entry).put(PROGRESS, first.to_json())
        return documents[RUN]

    def end(self, entry: MailboxEntry, error: LetheError) -> None:
        """Deliver a failure, unless the run has delivered a result. Raises: ApiError, OSError, HTTPException."""
        documents = self._documents(entry)
        if documents is not None and not _has_result(entry, documents):
            self._put(entry, error)

    def drop(self, *keys: str) -> None:
        """Remove keys from the mailbox. Raises: ApiError, OSError, HTTPException."""
        try:
            self.api.merge(self.api.config_maps(self.mailbox), {"data": dict.fromkeys(keys)}, self.mailbox)
        except ApiError as e:
            if e.status != 404:  # the mailbox was deleted, with all its keys
                raise

    def keys(self) -> frozenset[str]:
        """The keys that the mailbox has now. Raises: ApiError, OSError, HTTPException."""
        return frozenset(self.api.get(self.api.config_maps(self.mailbox)).get("data") or {})

    def _put(self, entry: MailboxEntry, error: LetheError) -> None:
        with about(namespace=self.api.namespace, run=entry.run_id, attempt=entry.attempt):
            log.warning("run %s: %s", entry.run_id, error)
        failed = RunResult(
            run_id=entry.run_id,
            family=entry.family,
            attempt=entry.attempt,
            outcome=RunOutcome.FAILED,
            reason=error.reason,
            permanent=error.exit_code == EXIT_INPUT,
            message=error.message,
            finished_time=datetime.now(UTC),
            version=version(),
        )
        last = _progress(entry, Phase.FAILED, error.message)
        try:
            self._config_map(entry).put_all({RESULT: failed.to_json(), PROGRESS: last.to_json()})
        except ApiError as e:
            if e.status != 404:  # the Dataset was deleted
                raise

    def _documents(self, entry: MailboxEntry) -> Mapping[str, str] | None:
        """None: the Dataset was deleted."""
        try:
            return self._config_map(entry).documents()
        except ApiError as e:
            if e.status != 404:
                raise
            return None

    def _config_map(self, entry: MailboxEntry) -> StatusConfigMap:
        return StatusConfigMap(self.api, entry.config_map, entry.prefix)


def _progress(entry: MailboxEntry, phase: Phase, message: str = "") -> Progress:
    now = datetime.now(UTC)
    return Progress(run_id=entry.run_id, attempt=entry.attempt, phase=phase, message=message, begun=1, updated_time=now)


def _has_begun(entry: MailboxEntry, documents: Mapping[str, str]) -> bool:
    """Whether a process has begun this attempt."""
    try:
        found = Progress.model_validate_json(documents.get(PROGRESS, ""))
    except ValidationError:
        return False
    return (found.run_id, found.attempt) == (entry.run_id, entry.attempt)


def _has_result(entry: MailboxEntry, documents: Mapping[str, str]) -> bool:
    """Whether the result of this attempt, or a pointer to it, was delivered."""
    text = documents.get(RESULT, "")
    try:
        found = _AttemptName.model_validate_json(text)
    except ValidationError:
        return False
    return (found.run_id, found.attempt) == (entry.run_id, entry.attempt)

"""Reports the result of a run: in a pod to the ConfigMap and as termination message, otherwise to stdout. I/O."""

import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Final, Protocol, TypeVar

from lethe.base.errors import EXIT_INPUT, LetheError
from lethe.contract.kind import RunFamily
from lethe.contract.result import RestatementGroupResult, RunOutcome, RunResult
from lethe.contract.run import INLINE_BYTES_AT_MOST, ResultPointer, TableRef
from lethe.iceberg import catalogs, run_documents
from lethe.version import version

from lethe_spark.run.kube import ApiError, StatusConfigMap

log = logging.getLogger(__name__)

TERMINATION_LOG: Final = "/dev/termination-log"
TERMINATION_LOG_ENV: Final = "LETHE_TERMINATION_LOG"
LARGEST: Final = INLINE_BYTES_AT_MOST
TRIES: Final = 5
R = TypeVar("R", bound=RunResult)


class Asked(Protocol):
    """Identifies a run: a `run.json`, or a document that points to one."""

    @property
    def run_id(self) -> str: ...
    @property
    def family(self) -> RunFamily: ...
    @property
    def attempt(self) -> int: ...


def failed(asked: Asked, error: LetheError) -> RunResult:
    """The result of a run that ended with an error: a reason and full sentences, no stack trace. Pure, except for the clock."""
    return RunResult(
        run_id=asked.run_id,
        family=asked.family,
        attempt=asked.attempt,
        outcome=RunOutcome.FAILED,
        reason=error.reason,
        permanent=error.exit_code == EXIT_INPUT,
        message=error.message[:2000],
        finished_time=datetime.now(UTC),
        version=version(),
    )


def of_this_version(result: R) -> R:
    """The result, with the version of this process."""
    return result.model_copy(update={"version": version()})


def deliver(result: RunResult, environ: Mapping[str, str], table: TableRef | None = None) -> bool:
    """Report the result, and return whether it was reported. Never raises, because the table already contains what was committed.

    Args:
        environ: Says where to report.
        table: A large result is written to this table's folder of runs. None: its lists are cut instead.
    """
    result = of_this_version(result)
    log_file = Path(environ.get(TERMINATION_LOG_ENV, TERMINATION_LOG))
    if log_file.exists():
        try:
            log_file.write_text(result.compact())
        except OSError as e:
            log.warning("the termination message could not be written: %s", e)
    config_map = StatusConfigMap.from_environment(environ)
    if config_map is None:
        print(result.to_json(), flush=True)
        return True
    try:
        put(config_map, {"result.json": for_config_map(result, table)})
    except (OSError, HTTPException) as e:
        log.warning("the result could not be reported: %s", e)
        return False
    return True


def put(config_map: StatusConfigMap, documents: Mapping[str, str]) -> None:
    """Put documents into a ConfigMap, with retries. Raises: ApiError (404: it does not exist), OSError, HTTPException."""
    for attempt in range(1, TRIES + 1):
        try:
            config_map.put_all(documents)
            return
        except (OSError, HTTPException) as e:
            if attempt == TRIES or (isinstance(e, ApiError) and e.status == 404):
                raise
            log.warning("attempt %d of %d to report the result failed: %s", attempt, TRIES, e)
            time.sleep(attempt)


def for_config_map(result: RunResult, table: TableRef | None) -> str:
    """The result as JSON, or a pointer to it if it is too large for the ConfigMap, which several results share. Never raises: if
    the large result cannot be written to the table's folder of runs, its lists are cut."""
    whole = result.to_json()
    if table is not None and len(whole.encode()) > LARGEST:
        try:
            folder = run_documents.folder(catalogs.load(table.catalog).load_table(table.name).location())
            uri = f"{folder}/{result.run_id}-result-{result.attempt}.json"
            digest = run_documents.write(table.catalog, uri, whole)
        except Exception as e:
            log.warning("the result could not be written to the table's folder and is truncated: %s", type(e).__name__)
        else:
            pointer = ResultPointer(
                catalog=table.catalog, uri=uri, sha256=digest, run_id=result.run_id, attempt=result.attempt
            )
            return pointer.to_json()
    return bounded(result)


def bounded(result: RunResult) -> str:
    """The result as JSON, small enough for the ConfigMap: lists are cut, counts stay. Pure.

    The list of requests keeps those that were not carried out, because the table's ledger contains the others.
    """
    whole = result.to_json()
    if len(whole.encode()) <= LARGEST:
        return whole
    if not isinstance(result, RestatementGroupResult):
        return result.compact()
    refused = tuple(r for r in result.requests if not r.succeeded)
    while True:
        document = result.model_copy(update={"requests": refused}).to_json()
        if len(document.encode()) <= LARGEST:
            return document
        if not refused:
            return result.compact()
        refused = refused[: len(refused) // 2]

"""Finds, checks and writes the replacements of a group of Replays together. I/O.

Invariant: no row of an unusable replacement is written, and it stops only its own request.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final
from urllib.parse import urlsplit

from lethe.base import names
from lethe.base.errors import InputError, LedgerError, TableError, TransientError
from lethe.buffer.batch import is_data
from lethe.contract.result import Phase, RequestResult
from lethe.contract.run import RestatementRequest
from lethe.guards import rejections as guards
from lethe.guards.table_files import is_table_metadata
from lethe.iceberg import catalogs
from lethe.ledger.ledger import BufferedObject
from lethe.restatement.group import set_aside
from lethe.restatement.plan import ReplacementRows
from lethe.storage.object_store import DENIED, NO_BUCKET, ObjectStore, StoreError, open_store
from lethe.storage.surroundings import PLACE_IN_TABLE, check_place, tables_around
from lethe.uri import overlap

from lethe_spark.commit.group_commit import Replacements
from lethe_spark.commit.table_state import Base
from lethe_spark.ingest.evolving import write_into
from lethe_spark.ingest.ingest import BatchSource
from lethe_spark.jobs.restatement.changes import keyed_of, unusable_keys
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext

LISTED_AT_ONCE: Final = 8
# Errors of a store that users can fix without a new request: the reason and the remedy.
_ADVICE: Final = {
    NO_BUCKET: ("ReplacementNotFound", "the bucket does not exist. Create it, or create a new Restatement"),
    DENIED: ("AccessDenied", "the store does not let this run list it. Grant the run's credentials access"),
}


def write_replacements(
    context: RunContext, table: SparkTable, requests: Sequence[RestatementRequest], base: Base
) -> Replacements:
    """Read the replacements of these requests and write their rows as data files. Commits nothing.

    Args:
        requests: Their replacements have distinct batch ids.
    Raises: as `write_into`; TransientError, if the store does not answer.
    """
    context.reporter.phase(Phase.READING, f"{len(requests)} replacements")
    aside = unusable_keys(requests, base)
    found = find_replacements(context, [r for r in requests if r.key not in aside])
    aside |= {r.key: result for r, result in found if isinstance(result, RequestResult)}
    sources = [(r, source) for r, source in found if isinstance(source, BatchSource)]
    context.step("after-list")
    if not sources:
        return Replacements(aside=aside)
    bytes_of = {s.id: sum(o.size for o in s.objects) for _, s in sources}
    context.reporter.phase(Phase.WRITING, f"{len(sources)} replacements, {sum(bytes_of.values())} bytes")
    try:
        done = write_into(context, table, [s for _, s in sources], base.batch_column, keyed=keyed_of(requests))
    except (LedgerError, TableError):
        raise
    except InputError as e:  # the table accepts none of the rows; requests that write no rows go on
        return Replacements(aside=aside | {r.key: set_aside(r, e) for r, _ in sources})
    context.reporter.rows(done.rows, sum(bytes_of.values()))
    asked = {s.id: r for r, s in sources}
    for bad in done.refused:
        aside[asked[bad.batch_id].key] = _refused(asked[bad.batch_id], bad.reason, bad.message)
    for bad in done.unread:
        aside[asked[bad.batch_id].key] = _not_now(asked[bad.batch_id], bad.reason, bad.message)
    context.step("after-write")
    rows = {asked[i].key: ReplacementRows(n, bytes_of[i]) for i, n in done.rows_per_batch.items()}
    keys = {asked[i].key: table_ for i, table_ in done.keys.items()}
    return Replacements(done.files, rows, aside, keys)


def find_replacements(
    context: RunContext, requests: Iterable[RestatementRequest]
) -> list[tuple[RestatementRequest, BatchSource | RequestResult]]:
    """Find the replacements of Replays. Returns: each request with its replacement, or with its result if that cannot be used."""

    @cache
    def around(folder: str) -> tuple[str, ...]:
        return tables_around(folder, context.catalog_properties)

    @cache
    def store(scheme: str) -> ObjectStore:
        return open_store(f"{scheme}:///", context.catalog_properties)

    def find(request: RestatementRequest) -> tuple[RestatementRequest, BatchSource | RequestResult]:
        assert request.replacement is not None
        uri = request.replacement.uri
        try:
            local = guards.local("it", uri, context.spec.table.catalog, catalogs.is_local(context.catalog_properties))
            if local is not None:
                raise InputError("PlaceLocal", local)
            check_place("it", uri, around)
            return request, _source(context, request, store(urlsplit(uri).scheme or "file"))
        except InputError as e:
            return request, _refused(request, e.reason, e.message)
        except StoreError as e:
            reason, text = _ADVICE.get(e.code, ("", ""))
            if not reason:
                raise
            return request, _not_now(request, reason, text)

    with ThreadPoolExecutor(LISTED_AT_ONCE, thread_name_prefix="lethe-list") as pool:
        return list(pool.map(find, requests))


def _source(context: RunContext, request: RestatementRequest, store: ObjectStore) -> BatchSource:
    """The replacement of a request. Raises: InputError (ReplacementInBuffer, PlaceInTable, ReplacementIncomplete,
    ReplacementEmpty)."""
    assert request.replacement is not None
    uri, buffer = request.replacement.uri, context.spec.buffer.uri
    if overlap(buffer, uri):
        raise InputError(
            "ReplacementInBuffer",
            f"it is in the buffer {buffer}, so consolidation would load it a second time. Put it elsewhere.",
        )
    listed = list(store.list(uri))
    if any(is_table_metadata(o.key) for o in listed):
        raise InputError(PLACE_IN_TABLE, "it holds files of an Iceberg table. Put the replacement elsewhere.")
    if f"{uri.rstrip('/')}/{names.SUCCESS_MARKER}" not in {o.key for o in listed}:
        raise InputError(
            "ReplacementIncomplete",
            f"it has no {names.SUCCESS_MARKER}. Write the data files first and {names.SUCCESS_MARKER} last. "
            "Then create a Restatement with a new name.",
        )
    objects = tuple(BufferedObject(o.key, o.size, o.etag) for o in listed if is_data(o.key, uri))
    if not objects:
        raise InputError(
            "ReplacementEmpty",
            f"it has {names.SUCCESS_MARKER} but no data file. To delete batches without a replacement, create "
            "a Revert. For a replacement without rows, write a data file without rows.",
        )
    return BatchSource(request.replacement.batch_id, objects)


def _refused(request: RestatementRequest, reason: str, message: str) -> RequestResult:
    return set_aside(request, InputError(reason, f"{_where(request)}: {message}"))


def _not_now(request: RestatementRequest, reason: str, message: str) -> RequestResult:
    return set_aside(request, TransientError(reason, f"{_where(request)}: {message}."), again=True)


def _where(request: RestatementRequest) -> str:
    assert request.replacement is not None
    return f"Restatement {request.name}: spec.replacement.uri {request.replacement.uri}"

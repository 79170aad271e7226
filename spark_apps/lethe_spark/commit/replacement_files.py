"""Finds the files of replacements, and reads lists of batch ids. I/O, with the credentials of the catalog.

A replacement or a list that cannot be used affects only its own request.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Final
from urllib.parse import urlsplit

from lethe.base import names
from lethe.base.errors import InputError, TransientError, Verdict
from lethe.base.objects import BufferedObject
from lethe.buffer.layout import is_data
from lethe.contract.result import RequestResult
from lethe.contract.run import RestatementRequest
from lethe.guards import claim
from lethe.guards.claim import is_table_metadata
from lethe.iceberg import catalogs
from lethe.ingest.shared_folders import PLACE_IN_TABLE, check_place, tables_around
from lethe.restatement.group import LIST_BYTES_AT_MOST, IdList, changed, parse_ids, set_aside
from lethe.storage.object_store import DENIED, NO_BUCKET, ObjectStore, StoreError, open_store
from lethe.uri import backend_of, is_local, overlap

READ_AT_ONCE: Final = 4

LISTED_AT_ONCE: Final = 8
_ADVICE: Final = {
    NO_BUCKET: ("ReplacementNotFound", "the bucket does not exist. Create it, or create a new Restatement"),
    DENIED: ("AccessDenied", "the store does not let this run list it. Grant the run's credentials access"),
}
"""Errors of a store that users can fix without a new request: the reason and the remedy."""


def with_ids(
    requests: Sequence[RestatementRequest], properties: Mapping[str, str], table_location: str
) -> tuple[tuple[RestatementRequest, ...], dict[str, RequestResult]]:
    """The requests, in their order, with the ids of their lists; and the results of requests whose list cannot be used, by key.

    Args:
        properties: PyIceberg's properties of the catalog.
        table_location: A list in a local file is allowed only if the table is local too, so that the author of a Restatement
            cannot read files of the driver.
    """

    def listed(request: RestatementRequest) -> tuple[RestatementRequest, RequestResult | None]:
        if not request.batch_ids_uri:
            return request, None
        try:
            lists = _read(request, properties, table_location)
        except (InputError, TransientError) as e:
            return request, set_aside(request, e.verdict)
        return request.model_copy(update={"batch_ids": lists.ids, "batch_ids_sha256": lists.sha256}), None

    with ThreadPoolExecutor(READ_AT_ONCE, thread_name_prefix="lethe-ids") as pool:
        lists = list(pool.map(listed, requests))
    return tuple(r for r, _ in lists), {r.key: out for r, out in lists if out is not None}


def _read(request: RestatementRequest, properties: Mapping[str, str], table_location: str) -> IdList:
    """Read the list of batch ids at a URI.

    Raises:
        InputError: InvalidIdList, ListChanged.
        TransientError: ListNotFound, AccessDenied, ListUnreadable.
    """
    uri = request.batch_ids_uri
    where = f"Restatement {request.name}: spec.batchIdsFrom.uri {uri}"
    ids = parse_ids(read_list(where, uri, "InvalidIdList", properties, table_location, LIST_BYTES_AT_MOST), where)
    if request.batch_ids_sha256 not in ("", ids.sha256):
        raise changed(where, request.batch_ids_sha256, ids.sha256)
    return ids


def read_list(
    where: str, uri: str, invalid: str, properties: Mapping[str, str], table_location: str, bytes_at_most: int
) -> bytes:
    """Read a list that a Restatement names by its URI, up to one byte more than it may have.

    Args:
        where: The field that names it, for messages.
        invalid: The reason if no list may be at the URI.
        properties: PyIceberg's properties of the catalog.
        table_location: A list in a local file is allowed only if the table is local too.

    Raises:
        InputError: The reason `invalid`, or `PlaceInTable`.
        TransientError: ListNotFound, AccessDenied, ListUnreadable.
    """
    if is_local(uri) and not is_local(table_location):
        raise InputError(
            invalid,
            f"{where}: local files are not supported, because the run may be on another machine. Store the "
            "list in the storage of the table.",
        )
    check_place(where, uri, lambda folder: tables_around(folder, properties))
    if backend_of(uri) is None:
        text = f"{where}: Lethe does not know this storage. Store the list in the storage of the table."
        raise InputError(invalid, text)
    denied = TransientError(
        "AccessDenied", f"{where}: the store does not let this run read it. Grant the run's credentials access."
    )
    try:
        content = open_store(uri, properties).read_range(uri, 0, bytes_at_most + 1)
    except StoreError as e:
        if e.code == DENIED:
            raise denied from None
        if e.code != NO_BUCKET:
            raise TransientError("ListUnreadable", f"{where}: it could not be read ({e.code}).") from None
        content = None
    except OSError as e:
        if isinstance(e, PermissionError):
            raise denied from None
        raise TransientError("ListUnreadable", f"{where}: it could not be read ({type(e).__name__}).") from None
    if content is None:
        raise TransientError("ListNotFound", f"{where}: the object does not exist. Create it.")
    return content


def find_replacements(
    requests: Iterable[RestatementRequest], catalog: str, properties: Mapping[str, str], buffer: str
) -> list[tuple[RestatementRequest, tuple[BufferedObject, ...] | RequestResult]]:
    """Find the replacements of Replays.

    Args:
        catalog: Its name.
        properties: PyIceberg's properties of the catalog.
        buffer: URI of the Dataset's buffer, in which no replacement may be.

    Returns:
        Each request with the data files of its replacement, or with its result if that cannot be used.

    Raises:
        StoreError: A store refused a request or did not answer.
    """

    @cache
    def around(folder: str) -> tuple[str, ...]:
        return tables_around(folder, properties)

    @cache
    def store(scheme: str) -> ObjectStore:
        return open_store(f"{scheme}:///", properties)

    def find(request: RestatementRequest) -> tuple[RestatementRequest, tuple[BufferedObject, ...] | RequestResult]:
        assert request.replacement is not None
        uri = request.replacement.uri
        try:
            local = claim.local("it", uri, catalog, catalogs.is_local(properties))
            if local is not None:
                raise InputError("PlaceLocal", local)
            check_place("it", uri, around)
            return request, _files(uri, buffer, store(urlsplit(uri).scheme or "file"))
        except InputError as e:
            return request, not_usable(request, e.verdict)
        except StoreError as e:
            reason, text = _ADVICE.get(e.code, ("", ""))
            if not reason:
                raise
            return request, not_usable(request, Verdict(reason, f"{text}.", transient=True))

    with ThreadPoolExecutor(LISTED_AT_ONCE, thread_name_prefix="lethe-list") as pool:
        return list(pool.map(find, requests))


def _files(uri: str, buffer: str, store: ObjectStore) -> tuple[BufferedObject, ...]:
    """The data files of a replacement's folder.

    Raises:
        InputError: ReplacementInBuffer, PlaceInTable, ReplacementIncomplete, ReplacementEmpty.
    """
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
    return objects


def not_usable(request: RestatementRequest, verdict: Verdict) -> RequestResult:
    """The result of a request whose replacement cannot be used: not now, or never."""
    assert request.replacement is not None
    where = f"Restatement {request.name}: spec.replacement.uri {request.replacement.uri}"
    return set_aside(request, replace(verdict, message=f"{where}: {verdict.message}"))

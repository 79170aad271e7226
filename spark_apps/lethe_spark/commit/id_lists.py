"""Read the lists of batch ids that requests name by URI. I/O, with the credentials of the catalog.

A list that cannot be used affects only its own request.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from lethe.base.errors import InputError, TransientError
from lethe.contract.result import RequestResult
from lethe.contract.run import RestatementRequest
from lethe.restatement.group import set_aside
from lethe.restatement.id_list import LIST_BYTES_AT_MOST, IdList, changed, parse_ids
from lethe.storage.object_store import DENIED, NO_BUCKET, StoreError, open_store
from lethe.storage.surroundings import check_place, tables_around
from lethe.uri import backend_of, is_local

READ_AT_ONCE: Final = 4


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
            found = _read(request, properties, table_location)
        except (InputError, TransientError) as e:
            return request, set_aside(request, e, again=isinstance(e, TransientError))
        return request.model_copy(update={"batch_ids": found.ids, "batch_ids_sha256": found.sha256}), None

    with ThreadPoolExecutor(READ_AT_ONCE, thread_name_prefix="lethe-ids") as pool:
        found = list(pool.map(listed, requests))
    return tuple(r for r, _ in found), {r.key: out for r, out in found if out is not None}


def _read(request: RestatementRequest, properties: Mapping[str, str], table_location: str) -> IdList:
    """Raises: InputError (InvalidIdList, ListChanged), TransientError (ListNotFound, AccessDenied, ListUnreadable)."""
    uri = request.batch_ids_uri
    where = f"Restatement {request.name}: spec.batchIdsFrom.uri {uri}"
    if is_local(uri) and not is_local(table_location):
        raise InputError(
            "InvalidIdList",
            f"{where}: local files are not supported, because the run may be on another machine. Store the "
            "list in the storage of the table.",
        )
    check_place(where, uri, lambda folder: tables_around(folder, properties))
    if backend_of(uri) is None:
        text = f"{where}: Lethe does not know this storage. Store the list in the storage of the table."
        raise InputError("InvalidIdList", text)
    denied = TransientError(
        "AccessDenied", f"{where}: the store does not let this run read it. Grant the run's credentials access."
    )
    try:
        content = open_store(uri, properties).read_range(uri, 0, LIST_BYTES_AT_MOST + 1)
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
    found = parse_ids(content, where)
    if request.batch_ids_sha256 not in ("", found.sha256):
        raise changed(where, request.batch_ids_sha256, found.sha256)
    return found

"""Batch ids that a request names by the URI of a list. I/O: reads the lists, with the FileIO of the table's catalog.

A list that cannot be used keeps out its own request and no other.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from urllib.parse import urlsplit

from lethe.base.errors import InputError, TransientError
from lethe.contract.result import RequestResult
from lethe.contract.run import RestatementRequest
from lethe.restatement.group import set_aside
from lethe.restatement.id_list import LIST_BYTES_AT_MOST, IdList, changed, parse_ids
from lethe.storage.surroundings import check_place, tables_around
from pyiceberg.io import load_file_io

READ_AT_ONCE: Final = 4
_LOCAL: Final = ("", "file")
_DENIED: Final = "ACCESS_DENIED"  # as Arrow says it, of S3, in an error that is no PermissionError


def with_ids(
    requests: Sequence[RestatementRequest], properties: Mapping[str, str], table_location: str
) -> tuple[tuple[RestatementRequest, ...], dict[str, RequestResult]]:
    """The requests with the ids of their lists, in their order, and results of those whose list cannot be used, by their keys.

    Args:
        properties: The catalog's.
        table_location: Only a table in local files may be restated by a list in one: whoever writes a Restatement is not to
            read what lies in the driver's own file system.
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
    if urlsplit(uri).scheme in _LOCAL and urlsplit(table_location).scheme not in _LOCAL:
        raise InputError(
            "InvalidIdList", f"{where}: a local file belongs to the driver. Put the list where the table lies."
        )
    check_place(where, uri, lambda folder: tables_around(folder, properties))
    try:
        with load_file_io(dict(properties), uri).new_input(uri).open() as stream:
            content = stream.read(LIST_BYTES_AT_MOST + 1)
    except FileNotFoundError:
        raise TransientError("ListNotFound", f"{where}: there is no such object. Put it there.") from None
    except ValueError:
        text = f"{where}: the catalog's FileIO cannot open it. Put the list where the table lies."
        raise InputError("InvalidIdList", text) from None
    except OSError as e:
        if isinstance(e, PermissionError) or _DENIED in str(e):
            text = f"{where}: the run's credentials may not read it. Grant them access."
            raise TransientError("AccessDenied", text) from None
        raise TransientError("ListUnreadable", f"{where}: it could not be read ({type(e).__name__}).") from None
    found = parse_ids(bytes(content), where)
    if request.batch_ids_sha256 not in ("", found.sha256):
        raise changed(where, request.batch_ids_sha256, found.sha256)
    return found

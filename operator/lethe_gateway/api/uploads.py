"""Routes of uploads: a batch comes into the buffer of a Dataset."""

from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Path, Request, Response
from starlette.concurrency import run_in_threadpool

from lethe_gateway import paging
from lethe_gateway.answers import NO_STORE, answer, changed, responses
from lethe_gateway.api.documents import (
    CallerOf,
    CompleteRequest,
    Cursor,
    DatasetName,
    Limit,
    Namespace,
    PartsRequest,
    ServicesOf,
    Upload,
    UploadPage,
    UploadParts,
    UploadRequest,
    parts_of,
    summary_of,
    upload_of,
)
from lethe_gateway.identity.caller import Caller, Right
from lethe_gateway.problems import Kind, Problem, field_error
from lethe_gateway.services import Services, dataset_resource, require
from lethe_gateway.uploads.buffers import Buffer, problem_of
from lethe_gateway.uploads.manifest import UPLOAD_ID

T = TypeVar("T")
router = APIRouter(tags=["uploads"])
_BASE: Final = "/v1/namespaces/{namespace}/datasets/{dataset}/uploads"
UploadId = Annotated[str, Path(pattern=UPLOAD_ID, description="The `id` of the upload.")]
FileIndex = Annotated[int, Path(ge=0, le=1_000_000, description="The `index` of the file.")]


def _problems(*kinds: Kind) -> dict[int | str, dict[str, Any]]:
    answers = responses(Kind.FORBIDDEN, Kind.BUFFER_UNUSABLE, Kind.CATALOG_AWAY, *kinds)
    return {k: v for k, v in answers.items() if k != 304}


@router.post(
    _BASE,
    status_code=201,
    responses={
        **_problems(Kind.UPLOAD_CONFLICT, Kind.BATCH_ID_USED),
        200: {"description": "The upload of these files is open or complete already.", "model": Upload},
    },
    response_model=Upload,
)
def open_upload(
    services: ServicesOf, caller: CallerOf, namespace: Namespace, dataset: DatasetName, body: UploadRequest
) -> Response:
    """Open the upload of a batch, and get a URL for each of its files.

    The same request again returns the same upload, with new URLs for the files that are missing. Needs the right to `create`
    `datasets/batches`.
    """
    buffer = _writable(services, caller, namespace, dataset)
    _require_files(services, body)
    view, new = _carried_out(
        lambda: services.uploads.open(buffer, body.batch_id, body.entries, caller.key, body.reference)
    )
    location = f"{_BASE.format(namespace=namespace, dataset=dataset)}/{view.id}"
    return changed(upload_of(view), 201 if new else 200, {"Location": location})


@router.get(_BASE, responses=responses(Kind.FORBIDDEN, Kind.BUFFER_UNUSABLE, Kind.CATALOG_AWAY, Kind.INVALID_CURSOR))
def list_uploads(
    request: Request,
    services: ServicesOf,
    caller: CallerOf,
    namespace: Namespace,
    dataset: DatasetName,
    limit: Limit = 100,
    cursor: Cursor = "",
) -> UploadPage:
    """List the uploads of a Dataset that are open or were completed lately."""
    buffer = _writable(services, caller, namespace, dataset)
    question = {"uploads": f"{namespace}/{dataset}", "uid": buffer.dataset.meta.uid}
    after = str(paging.decode(cursor, question, str)[0]) if cursor else ""
    found, more = _carried_out(lambda: services.uploads.page(buffer, after, limit))
    following = paging.encode([found[-1].id], question) if more and found else None
    page = UploadPage(items=[summary_of(v) for v in found], next_cursor=following)
    return answer(request, page)  # type: ignore[return-value]


@router.get(f"{_BASE}/{{upload}}", responses=_problems())
def get_upload(
    services: ServicesOf, caller: CallerOf, namespace: Namespace, dataset: DatasetName, upload: UploadId
) -> Upload:
    """Get an upload: which files are there, and new URLs for those that are missing."""
    buffer = _writable(services, caller, namespace, dataset)
    return changed(upload_of(_carried_out(lambda: services.uploads.view(buffer, upload))))  # type: ignore[return-value]


@router.put(
    f"{_BASE}/{{upload}}/files/{{index}}",
    status_code=204,
    responses=_problems(Kind.UPLOAD_ENDED, Kind.UPLOAD_CONFLICT, Kind.CONTENT_DIFFERS, Kind.BODY_TOO_SLOW),
    response_class=Response,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def put_file(
    request: Request,
    services: ServicesOf,
    caller: CallerOf,
    namespace: Namespace,
    dataset: DatasetName,
    upload: UploadId,
    index: FileIndex,
) -> Response:
    """Send a small file through the gateway. The same content again changes nothing.

    With `Content-Digest` or `Repr-Digest` (RFC 9530), other content is not accepted.
    """
    buffer = await run_in_threadpool(_writable, services, caller, namespace, dataset)
    content = await request.body()
    await run_in_threadpool(_carried_out, lambda: services.uploads.put(buffer, upload, index, content, request.headers))
    return Response(status_code=204, headers=NO_STORE)


@router.post(f"{_BASE}/{{upload}}/files/{{index}}/parts", responses=_problems(Kind.UPLOAD_ENDED))
def get_part_urls(
    services: ServicesOf,
    caller: CallerOf,
    namespace: Namespace,
    dataset: DatasetName,
    upload: UploadId,
    index: FileIndex,
    body: PartsRequest,
) -> UploadParts:
    """Get URLs for parts of a large file. A part may be sent again; the last one counts."""
    buffer = _writable(services, caller, namespace, dataset)
    wanted = [(p.number, p.sha256) for p in body.parts]
    urls = _carried_out(lambda: services.uploads.part_urls(buffer, upload, index, wanted))
    return changed(parts_of(urls))  # type: ignore[return-value]


@router.post(
    f"{_BASE}/{{upload}}:complete",
    responses=_problems(
        Kind.UPLOAD_ENDED,
        Kind.UPLOAD_INCOMPLETE,
        Kind.UPLOAD_CONFLICT,
        Kind.BATCH_ID_USED,
        Kind.BATCH_REFUSED,
        Kind.CONTENT_DIFFERS,
    ),
)
def complete_upload(
    services: ServicesOf,
    caller: CallerOf,
    namespace: Namespace,
    dataset: DatasetName,
    upload: UploadId,
    body: CompleteRequest | None = None,
) -> Upload:
    """Let Lethe promote the batch, if all files are there with the announced content and a consolidation would not refuse them.

    The answer comes when the batch is in the buffer. Completing it again changes nothing. After a problem, the upload stays open.
    """
    buffer = _writable(services, caller, namespace, dataset)
    given = {f.path: f.sha256 for f in body.files} if body is not None else {}
    return changed(upload_of(_carried_out(lambda: services.uploads.complete(buffer, upload, given))))  # type: ignore[return-value]


@router.delete(f"{_BASE}/{{upload}}", status_code=204, responses=_problems(Kind.UPLOAD_ENDED), response_class=Response)
def abandon_upload(
    services: ServicesOf, caller: CallerOf, namespace: Namespace, dataset: DatasetName, upload: UploadId
) -> Response:
    """Delete the files of an open upload, and forget it. Then the batch id can be used again."""
    buffer = _writable(services, caller, namespace, dataset)
    _carried_out(lambda: services.uploads.abandon(buffer, upload))
    return Response(status_code=204, headers=NO_STORE)


def _writable(services: Services, caller: Caller, namespace: str, dataset: str) -> Buffer:
    """The buffer of a Dataset, if the caller may see it and write batches.

    Raises:
        Problem: The request fails; the type of the problem says why.
    """
    resource = dataset_resource(services, caller, namespace, dataset)
    require(services, caller, Right.to_upload(namespace, dataset))
    return _carried_out(lambda: services.buffers.open(resource))


def _carried_out(work: Callable[[], T]) -> T:
    try:
        return work()
    except Exception as e:
        raise problem_of(e) from e


def _require_files(services: Services, body: UploadRequest) -> None:
    """Require a number of files, and paths, that an upload may have.

    Raises:
        Problem: `invalid-request`.
    """
    most = services.settings.uploads.files
    paths = [f.path for f in body.files]
    if len(paths) > most:
        raise _invalid(f"at most {most} files")
    if len(set(paths)) < len(paths):
        raise _invalid("a different path for each file")


def _invalid(expected: str) -> Problem:
    error = field_error(("body", "files"), f"expected {expected}")
    return Problem(Kind.INVALID_REQUEST, f"body.files: expected {expected}.", errors=(error,))

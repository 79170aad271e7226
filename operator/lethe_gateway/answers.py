"""Answers: JSON with an ETag, 304 for a client that has it already. Pure, apart from FastAPI's values."""

from collections.abc import Mapping
from typing import Any, Final

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from lethe.contract.schema import ApiModel

from lethe_gateway import etags
from lethe_gateway.problems import MEDIA_TYPE, Kind, Problem, ProblemDocument

NO_STORE: Final = {"Cache-Control": "no-store"}
"""Of answers that no cache may keep: URLs of the store are credentials."""
# A cache may keep an answer for its caller, and asks each time whether it is current.
_HEADERS: Final = {"Cache-Control": "private, no-cache", "Vary": "Authorization"}


def answer(request: Request, document: ApiModel) -> Response:
    """JSON with an ETag and without empty fields; 304 without a body if the request's If-None-Match names it."""
    body = document.model_dump(mode="json", by_alias=True, exclude_none=True)
    etag = etags.etag_of(body)
    headers = {**_HEADERS, "ETag": etag}
    if read_time := (body.get("freshness") or {}).get("readTime"):
        headers["Lethe-Read-Time"] = read_time
    given = request.headers.get("if-none-match")
    if given is not None and etags.is_current(given, etag):
        return Response(status_code=304, headers=headers)
    return JSONResponse(body, headers=headers)


def changed(document: ApiModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON without empty fields, for a change or for what no cache may keep."""
    body = document.model_dump(mode="json", by_alias=True, exclude_none=True)
    return JSONResponse(body, status, headers={**NO_STORE, **(headers or {})})


def problem_response(problem: Problem) -> Response:
    """The document as `application/problem+json`, with the status of its kind. No cache may keep it."""
    return JSONResponse(problem.document, problem.kind.status, headers=problem.headers, media_type=MEDIA_TYPE)


def responses(*kinds: Kind) -> dict[int | str, dict[str, Any]]:
    """The problems of a route, for the OpenAPI document: these, and those of all routes."""
    always = (
        Kind.INVALID_REQUEST,
        Kind.UNAUTHENTICATED,
        Kind.NOT_FOUND,
        Kind.BODY_TOO_LARGE,
        Kind.TOO_MANY_REQUESTS,
        Kind.API_SERVER_AWAY,
        Kind.OVERLOADED,
        Kind.TIMED_OUT,
    )
    by_status: dict[int, list[Kind]] = {}
    for kind in dict.fromkeys((*always, *kinds)):
        by_status.setdefault(kind.status, []).append(kind)
    answers: dict[int | str, dict[str, Any]] = {
        304: {"description": "The client has the current answer: If-None-Match names its ETag."}
    }
    for status, of in sorted(by_status.items()):
        answers[status] = {"description": "; ".join(f"`{k.slug}`: {k.title}" for k in of) + ".", "content": _PROBLEM}
    return answers


_PROBLEM: Final[Mapping[str, Any]] = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
PROBLEM_SCHEMA: Final = ProblemDocument.model_json_schema(ref_template="#/components/schemas/{model}")

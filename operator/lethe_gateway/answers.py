"""Answers: JSON with an ETag, 304 for a client that has it already. Pure, apart from FastAPI's values.

An ETag is weak: two answers are the same if they differ only in when they were read.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from lethe.contract.schema import ApiModel

from lethe_gateway.problems import MEDIA_TYPE, Kind, Problem, ProblemDocument

NO_STORE: Final = {"Cache-Control": "no-store"}
"""Of answers that no cache may keep: URLs of the store are credentials."""
# A cache may keep an answer for its caller, and asks each time whether it is current.
_HEADERS: Final = {"Cache-Control": "private, no-cache", "Vary": "Authorization"}

# Parts of `freshness` that change although nothing else does.
_CLOCK: Final = frozenset({"readTime"})


def etag_of(document: Mapping[str, Any]) -> str:
    """The ETag of an answer, which does not depend on its freshness.

    Args:
        document: The body of an answer, as JSON values.
    """
    kept = dict(document)
    if isinstance(freshness := kept.get("freshness"), Mapping):
        kept["freshness"] = {k: v for k, v in freshness.items() if k not in _CLOCK}
    content = json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()
    return f'W/"{hashlib.blake2b(content, digest_size=16).hexdigest()}"'


def is_current(if_none_match: str, etag: str) -> bool:
    """Whether a client that sends this header has the answer already."""
    known = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return "*" in known or etag.removeprefix("W/") in known


def answer(request: Request, document: ApiModel) -> Response:
    """JSON with an ETag and without empty fields; 304 without a body if the request's If-None-Match names it."""
    body = document.model_dump(mode="json", by_alias=True, exclude_none=True)
    etag = etag_of(body)
    headers = {**_HEADERS, "ETag": etag}
    if read_time := (body.get("freshness") or {}).get("readTime"):
        headers["Lethe-Read-Time"] = read_time
    given = request.headers.get("if-none-match")
    if given is not None and is_current(given, etag):
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

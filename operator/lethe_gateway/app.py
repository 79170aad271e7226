"""The application: routes, and how errors become problem documents."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from lethe.base import names
from lethe.version import version
from pydantic.alias_generators import to_camel
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse

from lethe_gateway.answers import PROBLEM_SCHEMA
from lethe_gateway.api import batches, datasets, restatements, uploads
from lethe_gateway.console import datasets as dataset_pages
from lethe_gateway.console import login, overview
from lethe_gateway.console import restatements as restatement_pages
from lethe_gateway.guard import Guard, failure
from lethe_gateway.problems import FieldError, Kind, Problem, field_error, not_found
from lethe_gateway.services import Services

API_VERSION = "1.0.0"
LENGTH_SHOWN = 100
"""Characters of an unknown name in an answer."""
ABOUT = (
    "Datasets, batches, Restatements, vacuums, runs and erasures, as far as your rights in Kubernetes go. docs/gateway.md "
    "explains tokens, rights, limits and freshness."
)
_ETAG = "Send it as If-None-Match, and the answer is 304 as long as nothing but the time of reading has changed."


def create_app(services: Services) -> FastAPI:
    """The application that serves all routes behind the guard, and the pages of the console if it is enabled."""
    app = routes()
    app.state.services = services
    if services.settings.console.enabled:
        for pages in (login, overview, dataset_pages, restatement_pages):
            app.include_router(pages.router, dependencies=[Depends(require_known_parameters)])
    app.add_middleware(Guard, services=services)
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _of_starlette)
    _add_open_routes(app)
    return app


def routes() -> FastAPI:
    """The application without services, for its OpenAPI document."""
    app = FastAPI(
        title="Lethe gateway",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: to_camel(route.name),
    )
    for router in (datasets.router, restatements.router, batches.router, uploads.router, datasets.changes_router):
        app.include_router(router, dependencies=[Depends(require_known_parameters), Depends(require_single_keys)])
    return app


def require_known_parameters(request: Request) -> None:
    """Require that the route has all parameters of the query. A misspelt filter would otherwise give everything.

    Raises:
        Problem: `INVALID_REQUEST`, with the most similar parameter.
    """
    route = request.scope["route"]
    known = frozenset(_parameters(route.dependant)) if request.query_params else frozenset[str]()
    errors = tuple(
        FieldError(field=f"query.{name[:LENGTH_SHOWN]}", message=names.unknown("parameter", name, known))
        for name in dict.fromkeys(request.query_params)
        if name not in known
    )
    if errors:
        text = f"Correct the parameters: {errors[0].message}."
        raise Problem(Kind.INVALID_REQUEST, text, errors=errors)


async def require_single_keys(request: Request) -> None:
    """Require that no object in a body has a key twice. One of the values would be ignored, such as one of two lists of batches.

    Raises:
        Problem: `INVALID_REQUEST`.
    """
    if request.method != "POST":
        return
    with suppress(RecursionError, ValueError):  # FastAPI has read the body before, and answers what it cannot read
        json.loads(await request.body(), object_pairs_hook=_of_single_keys)


def _of_single_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        shown = twice[:LENGTH_SHOWN].encode(errors="replace").decode()
        error = FieldError(field="body", message=f"the key {json.dumps(shown)} is given twice in one object")
        raise Problem(Kind.INVALID_REQUEST, f"Correct the body: {error.message}.", errors=(error,))
    return found


def _parameters(dependant: Dependant) -> Iterator[str]:
    """The names of the parameters in the query, also of what the route depends on."""
    yield from (p.alias for p in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _parameters(inner)


def openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document. Pure."""
    document = get_openapi(
        title=app.title, version=API_VERSION, openapi_version="3.1.0", description=ABOUT, routes=app.routes
    )
    schemas: dict[str, Any] = document["components"]["schemas"]
    for schema in schemas.values():
        _require_only_values(schema)
    problem = {k: v for k, v in PROBLEM_SCHEMA.items() if k != "$defs"}
    schemas |= {**PROBLEM_SCHEMA["$defs"], "Problem": problem}
    bearer = {"type": "http", "scheme": "bearer", "description": "A token of the cluster, such as of a ServiceAccount."}
    document["components"]["securitySchemes"] = {"bearer": bearer}
    document["security"] = [{"bearer": []}]
    for operations in document["paths"].values():
        for operation in operations.values():
            answers = operation["responses"]
            if "application/json" in answers.get("422", {}).get("content", ()):
                del answers["422"]  # FastAPI's own, which is a 400 with a problem document
            if "304" in answers:
                answers["200"]["headers"] = {"ETag": {"schema": {"type": "string"}, "description": _ETAG}}
            for parameter in operation.get("parameters", ()):
                parameter["schema"].pop("title", None)
                parameter["schema"].pop("description", None)
    _remove_unused(schemas, document)
    return document


def _require_only_values(schema: dict[str, Any]) -> None:
    """What may be null is left out of answers instead. Pydantic requires it, if it is computed."""
    properties = schema.get("properties", {})
    schema["required"] = [
        n for n in schema.get("required", ()) if {"type": "null"} not in properties[n].get("anyOf", ())
    ]
    if not schema["required"]:
        del schema["required"]


def _remove_unused(schemas: dict[str, Any], document: dict[str, Any]) -> None:
    """Remove schemas of fields that are left out, and of FastAPI's own answers to invalid requests."""
    text = json.dumps(document)
    unused = [name for name in schemas if f'"#/components/schemas/{name}"' not in text]
    for name in unused:
        del schemas[name]
    if unused:
        _remove_unused(schemas, document)


def _add_open_routes(app: FastAPI) -> None:
    described: list[bytes] = []

    @app.get("/openapi.json", include_in_schema=False)
    def describe() -> Response:
        if not described:
            described.append(json.dumps(openapi(app)).encode())
        return Response(described[0], media_type="application/json")

    @app.get("/healthz", include_in_schema=False)
    @app.get("/readyz", include_in_schema=False)
    def healthy() -> Response:
        """It waits for no other service: a restart would not mend those, and answers name them."""
        return PlainTextResponse("ok\n", headers={"Lethe-Version": version()})


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    request.scope["lethe.problem"] = error.kind.slug  # for the access log
    return _failure(request, error)


async def _invalid(request: Request, error: Exception) -> Response:
    """Names parameters and what was expected, and never repeats values."""
    assert isinstance(error, RequestValidationError)
    errors = tuple(field_error(e["loc"], str(e["msg"]).removeprefix("Value error, ")) for e in error.errors())
    first = f"{errors[0].field}: {errors[0].message}" if errors else "the request"
    return _failure(request, Problem(Kind.INVALID_REQUEST, f"Correct the parameters. {first}.", errors=errors))


async def _of_starlette(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if (problem := request.scope.get("lethe.body_problem")) is not None:
        return await _problem(request, problem)
    if error.status_code == 405:
        detail = f"{request.method} is not supported here. docs/gateway.md lists the routes."
        response = _failure(request, Problem(Kind.METHOD_NOT_ALLOWED, detail))
        response.headers.update(error.headers or {})
        return response
    if error.status_code == 404:
        return _failure(request, not_found())
    return _failure(request, Problem(Kind.INVALID_REQUEST, "The request cannot be read. Correct it."))


def _failure(request: Request, problem: Problem) -> Response:
    return failure(request.scope, problem, request.app.state.services)

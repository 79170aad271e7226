"""Makes pages from templates, with the headers that every page has, and reads forms. I/O: templates, which are read once.

A page works without JavaScript. With it, the part `#live` of a page that shows something in progress is fetched again.
"""

import hashlib
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from importlib.resources import files
from typing import Annotated, Any, Final
from urllib.parse import parse_qs, quote, urlencode

from fastapi import Depends, Request
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Scope

from lethe_gateway.api.documents import CallerOf, Cursor, Namespace, ServicesOf
from lethe_gateway.console import sessions, text
from lethe_gateway.identity.caller import Caller
from lethe_gateway.problems import Kind, Problem
from lethe_gateway.services import ListRequest, Services

Form = Mapping[str, Sequence[str]]
_TYPE: Final = "application/x-www-form-urlencoded"
FIELDS_AT_MOST: Final = 2_000
LIST_LENGTH: Final = 100  # items on a page of a list


async def form_of(request: Request) -> Form:
    """The fields of a form.

    Raises:
        Problem: `invalid-request`, `forbidden`.
    """
    caller: Caller | None = request.scope.get("lethe.caller")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind != _TYPE:
            raise ValueError
        body = (await request.body()).decode("ascii")
        form = parse_qs(body, keep_blank_values=True, errors="strict", max_num_fields=FIELDS_AT_MOST)
    except ValueError:
        raise Problem(Kind.INVALID_REQUEST, "The form cannot be read. Load the page again.") from None
    sessions.require_own_form(request.scope, form, caller.token if caller is not None else None)
    return form


FormOf = Annotated[Form, Depends(form_of)]


def console_list_request(
    services: ServicesOf, caller: CallerOf, namespace: Namespace, cursor: Cursor = ""
) -> ListRequest:
    """The parameters that all lists have."""
    return ListRequest(services, caller, namespace, LIST_LENGTH, cursor)


ConsoleListOf = Annotated[ListRequest, Depends(console_list_request)]

# Everything comes from this server, and nothing in a page is a script or a style.
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With `no-referrer`, browsers would send forms without their origin.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
STATIC: Final[Mapping[str, str]] = {
    "console.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "htmx.min.js": "text/javascript; charset=utf-8",
}
_FOLDER: Final = files("lethe_gateway.console") / "static"
CONTENT: Final = {name: (_FOLDER / name).read_bytes() for name in STATIC}
# In the address of a file, so that browsers may keep it for ever.
DIGEST: Final = hashlib.sha256(b"".join(CONTENT.values())).hexdigest()[:12]


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("lethe_gateway.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "visible": text.visible,
        "short": text.short,
        "account": text.account,
        "number": text.number,
        "size": text.size,
        "time": text.time,
        "machine_time": text.machine_time,
        "distance": text.distance,
        "encoded": text.encoded,
    }
    made.globals |= {"digest": DIGEST, "query": query}
    return made


def query(**values: Any) -> str:
    """The query of an address, with its question mark; without values that are empty."""
    given = {k: v for k, v in values.items() if v not in (None, "", [], ())}
    return f"?{urlencode(given, doseq=True)}" if given else ""


_TEMPLATES: Final = _environment()


def page(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Render a template with these values and those that every page has, such as the user and the address."""
    return made(request.scope, request.app.state.services, template, status, **values)


def list_page(
    request: Request,
    template: str,
    asked: ListRequest,
    next_cursor: str | None,
    filters: Mapping[str, Any],
    **values: Any,
) -> HTMLResponse:
    """Render a page of a list, with the addresses of the first and of the next page, which have the same filters."""
    path = quote(request.scope["path"])
    return page(
        request,
        template,
        namespace=asked.namespace,
        filters=filters,
        first_page=path + query(**filters) if asked.cursor else "",
        next_page=path + query(**filters, cursor=next_cursor) if next_cursor else "",
        **values,
    )


def made(scope: Scope, services: Services, template: str, status: int, **values: Any) -> HTMLResponse:
    """A page; without the application, for what fails before it."""
    caller: Caller | None = scope.get("lethe.caller")
    common = {
        "user": caller.username if caller is not None else "",
        "form_field": sessions.FORM_FIELD,
        "form_key": sessions.form_key(caller.token) if caller is not None else "",
        "by_proxy": bool(services.settings.console.token_header),
        "address": address_of(scope),
        "now": services.now(),
        "namespace": "",
        "section": "",
        "refresh_seconds": None,
        "q": "",
        "search_in": scope.get("path_params", {}).get("dataset", ""),
    }
    html = _TEMPLATES.get_template(template).render({**common, **values})
    return HTMLResponse(html, status, headers=dict(HEADERS))


def see(address: str) -> RedirectResponse:
    """Show another page, after a form was carried out."""
    return RedirectResponse(address, HTTPStatus.SEE_OTHER, headers=dict(HEADERS))


def address_of(scope: Scope) -> str:
    """The path and the query of a request."""
    asked = scope.get("query_string", b"").decode("latin-1")
    return quote(scope["path"]) + (f"?{asked}" if asked else "")


def failure(scope: Scope, problem: Problem, services: Services) -> Response:
    """What a person sees instead of a problem document: the login, or a page that says what to do."""
    header, is_get = services.settings.console.token_header, scope["method"] == "GET"
    is_known = problem.kind is not Kind.UNAUTHENTICATED
    if not is_known and not header and not sessions.is_open(scope["path"]):
        return see(f"{sessions.PREFIX}/-/login" + query(next=address_of(scope) if is_get else ""))
    answer = made(
        scope,
        services,
        "problem.html",
        problem.kind.status,
        title=problem.kind.title,
        detail=problem.detail if is_known else _no_token(header),
        refresh_seconds=5 if problem.retry_after_seconds is not None and is_get else None,
    )
    if problem.retry_after_seconds is not None:
        answer.headers["Retry-After"] = str(max(1, round(problem.retry_after_seconds)))
    return answer


def _no_token(header: str) -> str:
    return (
        f"The proxy in front of the gateway sent no valid token in the header {header}. Log in there again."
        if header
        else (
            "The token is invalid or has expired. Use a current token of this cluster, such as one of `kubectl create token`."
        )
    )

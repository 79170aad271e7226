"""The login with a token, and files that pages are made with."""

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Path, Query, Request, Response

from lethe_gateway.api.documents import ServicesOf
from lethe_gateway.console import pages, sessions
from lethe_gateway.console.pages import FormOf
from lethe_gateway.console.sessions import client_address
from lethe_gateway.problems import Kind, Problem, not_found
from lethe_gateway.services import Services, authenticated

router = APIRouter(include_in_schema=False)
HOME = f"{sessions.PREFIX}/"


@router.get("/")
@router.get("/console")
def redirect_to_home() -> Response:
    """Redirect to the first page of the console."""
    return pages.see(HOME)


@router.get("/console/-/login")
def show_login(
    request: Request, services: ServicesOf, wanted: Annotated[str, Query(alias="next", max_length=8192)] = ""
) -> Response:
    """The form for a token. `next` is the page to show after the login; other sites are ignored."""
    return _login(request, services, wanted)


@router.post("/console/-/login")
def log_in(request: Request, services: ServicesOf, form: FormOf) -> Response:
    """Set the session's cookies and redirect, if the token is valid; otherwise show the form again and say why."""
    token = (form.get("token") or ("",))[0].strip().removeprefix("Bearer ")
    wanted = (form.get("next") or ("",))[0]
    answer = pages.see(wanted if _is_here(wanted) else HOME)
    address = client_address(request.scope, services.settings.proxies)
    try:
        sessions.log_in(answer, request.scope, services.settings, token)
        authenticated(services, address, token)
    except Problem as e:
        return _login(request, services, wanted, e)
    return answer


@router.post("/console/-/logout")
def log_out(request: Request, services: ServicesOf, form: FormOf) -> Response:  # noqa: ARG001
    """Delete the session's cookies, and redirect to the login. The token itself stays valid."""
    answer = pages.see(f"{sessions.PREFIX}/-/login")
    sessions.log_out(answer, request.scope, services.settings)
    return answer


@router.get("/console/-/static/{digest}/{name}")
def send_static(digest: str, name: Annotated[str, Path(max_length=64)]) -> Response:  # noqa: ARG001
    """A file that pages need. Browsers may keep it for a year, because its address changes with its content.

    Raises:
        Problem: `not-found`, for any other name.
    """
    if name not in pages.CONTENT:
        raise not_found()
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
    return Response(pages.CONTENT[name], media_type=pages.STATIC[name], headers=headers)


def _login(request: Request, services: Services, wanted: str, problem: Problem | None = None) -> Response:
    message = problem.detail if problem is not None else ""
    if problem is not None and problem.kind is Kind.UNAUTHENTICATED:
        message = "This token is not valid, or has expired."
    return pages.page(
        request,
        "login.html",
        problem.kind.status if problem is not None else 200,
        wanted=wanted if _is_here(wanted) else "",
        message=message,
        is_safe=sessions.may_log_in(request.scope, services.settings),
        is_local=services.settings.token_file is not None,
        token_file=str(services.settings.token_file or ""),
    )


def _is_here(address: str) -> bool:
    """Whether an address is a page of the console, and of no other site."""
    parts = urlsplit(address)
    return not parts.scheme and not parts.netloc and sessions.is_page(parts.path) and "\\" not in address

"""The parameters that routes share, and the caller."""

from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import Depends, Path, Query, Request

from lethe_gateway.identity.caller import Caller
from lethe_gateway.problems import FieldError, Kind, Problem, unauthenticated
from lethe_gateway.services import Services

_DNS_LABEL: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_DNS_NAME: Final = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
MAX_PAGE: Final = 1000

Namespace = Annotated[str, Path(pattern=_DNS_LABEL, max_length=63, description="The Kubernetes namespace.")]
DatasetName = Annotated[str, Path(pattern=_DNS_NAME, max_length=253, description="The name of the Dataset.")]
ResourceName = Annotated[str, Path(pattern=_DNS_NAME, max_length=253, description="The name of the resource.")]
Limit = Annotated[
    int, Query(ge=1, le=MAX_PAGE, description="The largest number of items in the answer. A page may have fewer.")
]
Cursor = Annotated[
    str,
    Query(max_length=4096, description="The `nextCursor` of the page before. Leave it out for the first page."),
]


def services_of(request: Request) -> Services:
    found: Services = request.app.state.services
    return found


ServicesOf = Annotated[Services, Depends(services_of)]


def caller_of(request: Request) -> Caller:
    """The caller, as the middleware has found it."""
    found: Caller | None = request.scope.get("lethe.caller")
    if found is None:
        raise unauthenticated()
    return found


CallerOf = Annotated[Caller, Depends(caller_of)]


def utc(name: str, time: datetime | None) -> datetime | None:
    """Raises: Problem (`invalid-request`), for a time without an offset, or beyond the times of tables."""
    if time is None:
        return None
    if time.tzinfo is None:
        raise invalid(name, "a time with an offset, such as 2026-03-01T00:00:00Z")
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise invalid(name, "a time between the years 1 and 9999") from None


def invalid(name: str, expected: str) -> Problem:
    error = FieldError(field=f"query.{name}", message=f"expected {expected}")
    return Problem(Kind.INVALID_REQUEST, f"query.{name}: expected {expected}.", errors=(error,))

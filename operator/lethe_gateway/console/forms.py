"""Reads forms. I/O: the body of a request."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final
from urllib.parse import parse_qs

from fastapi import Depends, Request

from lethe_gateway.console import sessions
from lethe_gateway.identity.caller import Caller
from lethe_gateway.problems import Kind, Problem

Form = Mapping[str, Sequence[str]]
_TYPE: Final = "application/x-www-form-urlencoded"
FIELDS_AT_MOST: Final = 2_000


async def form_of(request: Request) -> Form:
    """The fields of a form. Raises: Problem (`invalid-request`, `forbidden`)."""
    caller: Caller | None = request.scope.get("lethe.caller")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind != _TYPE:
            raise ValueError
        body = (await request.body()).decode("ascii")
        found = parse_qs(body, keep_blank_values=True, errors="strict", max_num_fields=FIELDS_AT_MOST)
    except ValueError:
        raise Problem(Kind.INVALID_REQUEST, "The form cannot be read. Load the page again.") from None
    sessions.require_own_form(request.scope, found, caller.token if caller is not None else None)
    return found


FormOf = Annotated[Form, Depends(form_of)]

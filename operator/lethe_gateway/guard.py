"""What surrounds each request: limits, the caller, time, and the line in the access log. ASGI middleware.

The order: the size of the body, the token, the rate of its caller, the number of requests at the same time, then the route.

The access log has one line of JSON for each request, without tokens, values of the query, batch ids or names of people. The line
names the route as it is declared, such as /v1/namespaces/{namespace}/datasets, the namespace, and the Dataset and Restatement of
the path. A caller appears as a keyed digest that is different in each process, so lines of one caller can be counted, and no
caller can be named.
"""

import asyncio
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lethe_gateway.answers import problem_response
from lethe_gateway.console import pages, sessions
from lethe_gateway.console.sessions import client_address
from lethe_gateway.limits import AllBusy, CallerBusy, Concurrency
from lethe_gateway.problems import Kind, Problem, unauthenticated
from lethe_gateway.services import Services, authenticated

log = logging.getLogger(__name__)
_access_log = logging.getLogger("lethe_gateway.access")
_KEY: Final = os.urandom(16)


@dataclass
class LoggedRequest:
    """What the line says. The parts fill it in."""

    method: str
    route: str = ""
    """As declared; "": no route matched."""
    namespace: str = ""
    caller: str = ""
    """A key of the caller, which the line does not contain; "": not known."""
    status: int = 0
    """0: the connection ended without an answer."""
    problem: str = ""
    """The type of the problem; "": there is none."""
    seconds: float = 0
    sent_bytes: int = 0
    dataset: str = ""
    """In the path."""
    restatement: str = ""
    """In the path."""


def line(request: LoggedRequest, now: datetime) -> str:
    """Pure, apart from the key of the process."""
    entry = {
        "time": now.astimezone(UTC).isoformat(timespec="milliseconds"),
        "method": request.method,
        "route": request.route or "none",
        "namespace": request.namespace or None,
        "dataset": request.dataset or None,
        "restatement": request.restatement or None,
        "caller": _digest(request.caller) if request.caller else None,
        "status": request.status,
        "problem": request.problem or None,
        "seconds": round(request.seconds, 4),
        "bytes": request.sent_bytes,
    }
    return json.dumps({k: v for k, v in entry.items() if v is not None})


def write(request: LoggedRequest) -> None:
    """Write the line of a request, with the current time, to the logger `lethe_gateway.access`."""
    _access_log.info("%s", line(request, datetime.now(UTC)))


def _digest(caller: str) -> str:
    return hashlib.blake2b(caller.encode(), digest_size=6, key=_KEY).hexdigest()


# Paths that need no token.
OPEN: Final = frozenset({"/", "/healthz", "/readyz", "/openapi.json"})
# A stream, which lasts as long as its client wishes.
_STREAM: Final = re.compile(r"/v1/namespaces/[^/]+/changes")
# A file that is sent through the gateway.
_FILE: Final = re.compile(r".*/uploads/[0-9a-f]+/files/\d+")
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}")
# It looks at each file of the upload.
_COMPLETE: Final = re.compile(r"(/v1/namespaces/[^/]+/datasets/[^/]+)/uploads/[0-9a-f]+:complete")
_OF_NAMESPACE: Final = re.compile(r"/v1/namespaces/([^/]+)/.*")
BUSY_SECONDS: Final = 1.0
HEADER_BYTES: Final = 32_768
HEADERS_AT_MOST: Final = 100


@dataclass(frozen=True)
class _Bounds:
    """What one request may use."""

    places: Concurrency
    seconds: float | None
    """Until the answer is complete; None: as long as the client wishes."""
    body_bytes: int
    is_long: bool = False
    """It may take minutes, so it also counts for the namespace: a tenant may have many callers."""
    dataset: str = ""
    """The path of a Dataset, which may have a quarter of the places of a caller, because all of its uploads may take long."""


def _name(part: object) -> str:
    """A part of a path that can be the name of a resource; "": it cannot, so it may be anything that a client has written."""
    return part if isinstance(part, str) and _NAME.fullmatch(part) else ""


def failure(scope: Scope, problem: Problem, services: Services) -> Response:
    """A page if the console is enabled and the path is one of its pages; otherwise a problem document."""
    if services.settings.console.enabled and sessions.is_page(scope["path"]):
        return pages.failure(scope, problem, services)
    return problem_response(problem)


class Guard:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request within its limits, then log and count it. Paths in OPEN are neither limited nor logged."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        noted = LoggedRequest(scope["method"])
        started = self._services.monotonic()
        sending = _Sending(send, noted)
        try:
            await self._answer(scope, receive, sending, noted)
        finally:
            noted.seconds = self._services.monotonic() - started
            route = scope.get("route")
            noted.route = getattr(route, "path", "")
            parts = scope.get("path_params") or {}
            namespace = parts.get("namespace", "")
            noted.problem = noted.problem or scope.get("lethe.problem", "")
            if namespace in self._services.settings.namespaces:
                noted.namespace = namespace
                noted.dataset, noted.restatement = (_name(parts.get(k)) for k in ("dataset", "restatement"))
            write(noted)
            self._services.metrics.request_ended(noted.route, noted.method, noted.status, noted.seconds)

    async def _answer(self, scope: Scope, receive: Receive, sending: "_Sending", noted: LoggedRequest) -> None:
        try:
            limits = self._services.settings.limits
            _require_headers(scope)
            bounds = self._bounds(scope)
            body = _bounded(bounds.body_bytes, limits.body_idle_seconds, scope, receive)
            key = await self._key(scope)
            noted.caller = key
            self._require_rate(key, sending)
            await self._carry_out(scope, body, sending, bounds, key)
        except Problem as e:
            await self._problem(e, scope, sending, noted)
        except Exception:
            if sending.started:
                _abort(scope)
                raise
            log.exception("a request failed")
            failed = Problem(
                Kind.INTERNAL, "This is a bug of the gateway; its log has the cause. Report it to the administrator."
            )
            await self._problem(failed, scope, sending, noted)

    def _bounds(self, scope: Scope) -> _Bounds:
        services, limits = self._services, self._services.settings.limits
        if _STREAM.fullmatch(scope["path"]):
            return _Bounds(services.streams, None, limits.body_bytes)
        uploads = services.settings.uploads
        if scope["method"] == "PUT" and _FILE.fullmatch(scope["path"]):
            return _Bounds(services.sending, uploads.seconds, uploads.through_bytes, is_long=True)
        if scope["method"] == "POST" and (completed := _COMPLETE.fullmatch(scope["path"])):
            return _Bounds(services.completing, uploads.seconds, limits.body_bytes, True, completed[1])
        return _Bounds(services.requests, limits.request_seconds, limits.body_bytes)

    async def _carry_out(self, scope: Scope, receive: Receive, sending: "_Sending", bounds: _Bounds, key: str) -> None:
        keys = (key, *self._namespace_key(scope)) if bounds.is_long else (key,)
        fewer = {f"\0\0{bounds.dataset}": max(1, bounds.places.per_key // 4)} if bounds.dataset else {}
        keys = (*keys, *fewer)
        try:
            bounds.places.enter(*keys, fewer=fewer)
            # A task of its own: a thread cannot be stopped, so a request that takes too long keeps its place until it has ended.
            task = asyncio.ensure_future(self._app(scope, receive, sending))
            task.add_done_callback(lambda _: bounds.places.leave(*keys))
            try:
                await asyncio.wait({task}, timeout=bounds.seconds)
            except asyncio.CancelledError:
                task.cancel()
                raise
            if not task.done():
                raise TimeoutError
            task.result()
        except CallerBusy as e:
            raise Problem(
                Kind.TOO_MANY_REQUESTS,
                f"You have {e.most} requests of this kind at the same time, the most that one caller"
                f"{', one namespace or one Dataset' if len(keys) > 1 else ''} may have. Wait for one to end.",
                retry_after_seconds=BUSY_SECONDS,
            ) from None
        except AllBusy:
            raise Problem(
                Kind.OVERLOADED, "All places for requests are taken. Try again soon.", retry_after_seconds=BUSY_SECONDS
            ) from None
        except TimeoutError:
            sending.end()
            raise Problem(
                Kind.TIMED_OUT,
                f"The answer took longer than {bounds.seconds:g} s. Ask for less, or try again later.",
                retry_after_seconds=BUSY_SECONDS,
            ) from None

    def _namespace_key(self, scope: Scope) -> tuple[str, ...]:
        """Of a path, if the gateway serves several namespaces."""
        matched = _OF_NAMESPACE.fullmatch(scope["path"])
        served = self._services.settings.namespaces
        return (f"\0\0{matched[1]}",) if matched and len(served) > 1 and matched[1] in served else ()

    async def _problem(self, problem: Problem, scope: Scope, sending: "_Sending", noted: LoggedRequest) -> None:
        noted.problem = problem.kind.slug
        if sending.started:  # a client that reads too slowly: what it has is not a whole answer
            _abort(scope)
            return
        try:
            async with asyncio.timeout(self._services.settings.limits.request_seconds):
                await failure(scope, problem, self._services)(scope, _no_body, sending.direct)
        except (
            TimeoutError
        ):  # pipelined requests may be answered with nothing but problems, and their client may not read
            _abort(scope)

    async def _key(self, scope: Scope) -> str:
        """Whose limits count: those of the caller, who is then known to the routes; without one, those of the address."""
        services = self._services
        address = client_address(scope, services.settings.proxies)
        is_page = services.settings.console.enabled and sessions.is_page(scope["path"])
        if is_page and sessions.is_open(scope["path"]):
            return f"\0{address}"
        token = sessions.token_of(scope, services.settings) if is_page else _bearer(scope)
        caller = services.identity.remembered(token)
        if caller is None:
            caller = await run_in_threadpool(authenticated, services, address, token)
        scope["lethe.caller"] = caller
        return caller.key

    def _require_rate(self, key: str, sending: "_Sending") -> None:
        rates, now = self._services.rates, self._services.monotonic()
        wait = rates.wait_seconds(key, now)
        sending.headers = rates.headers(key, now)
        if wait:
            most = self._services.settings.limits.requests_per_second
            raise Problem(
                Kind.TOO_MANY_REQUESTS,
                f"You may send {most:g} requests per second on average.",
                retry_after_seconds=wait,
            )


def _bearer(scope: Scope) -> str:
    scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise unauthenticated()
    return token


class _Sending:
    """Counts what is sent, and lets nothing through any more once the time is over."""

    def __init__(self, send: Send, noted: LoggedRequest) -> None:
        self._send = send
        self._noted = noted
        self._ended = False
        self.headers: dict[str, str] = {}
        """Added to those of the answer."""

    @property
    def started(self) -> bool:
        return self._noted.status != 0

    def end(self) -> None:
        """Ignore what the application sends from now on."""
        self._ended = True

    async def __call__(self, message: Message) -> None:
        if not self._ended:
            await self.direct(message)

    async def direct(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._noted.status = message["status"]
            MutableHeaders(scope=message).update(self.headers)
        else:
            self._noted.sent_bytes += len(message.get("body", b""))
        await self._send(message)


def _bounded(most: int, idle_seconds: float, scope: Scope, receive: Receive) -> Receive:
    """The body, which raises a Problem once it is too large, or stops for too long.

    FastAPI replaces errors of reading a body by its own, so the Problem is in the scope, too.
    """
    declared = Headers(scope=scope).get("content-length", "0")
    if (declared.isdecimal() and len(declared) < 20 and int(declared) > most) or len(declared) >= 20:
        raise _too_large(most)
    got, is_whole = 0, False

    async def bounded() -> Message:
        nonlocal got, is_whole
        try:
            # After the body, the next message is that the client has left, for which a stream waits as long as it lasts.
            async with asyncio.timeout(None if is_whole else idle_seconds):
                message = await receive()
        except TimeoutError:
            late = f"Nothing of the body arrived for {idle_seconds:g} s. Send the request again."
            scope["lethe.body_problem"] = Problem(Kind.BODY_TOO_SLOW, late)
            raise scope["lethe.body_problem"] from None
        is_whole = message["type"] != "http.request" or not message.get("more_body", False)
        got += len(message.get("body", b""))
        if got > most:
            scope["lethe.body_problem"] = _too_large(most)
            raise scope["lethe.body_problem"]
        return message

    return bounded


def _require_headers(scope: Scope) -> None:
    """The server limits what it keeps of incomplete headers, and not those that arrive at once.

    Raises:
        Problem: `headers-too-large`, `invalid-request`.
    """
    size = sum(len(name) + len(value) for name, value in scope["headers"])
    if size > HEADER_BYTES or len(scope["headers"]) > HEADERS_AT_MOST:
        raise Problem(
            Kind.HEADERS_TOO_LARGE,
            f"A request may have {HEADERS_AT_MOST} headers, which together may have {HEADER_BYTES:,} bytes.",
        )
    names = [name for name, _ in scope["headers"]]
    if b"content-length" in names and b"transfer-encoding" in names:  # a proxy before the gateway may read another body
        raise Problem(Kind.INVALID_REQUEST, "Send Content-Length or Transfer-Encoding, not both.")


def _abort(scope: Scope) -> None:
    """End the connection without waiting for its client."""
    abort: Callable[[], None] | None = scope.get("lethe.abort")
    if abort is not None:
        abort()


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


def _too_large(most: int) -> Problem:
    return Problem(Kind.BODY_TOO_LARGE, f"The body of a request may have at most {most:,} bytes.")

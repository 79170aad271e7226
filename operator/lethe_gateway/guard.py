"""What surrounds each request: limits, the caller, time, and the line in the access log. ASGI middleware.

The order: the size of the body, the token, the rate of its caller, the number of requests at the same time, then the route.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lethe_gateway import access_log
from lethe_gateway.answers import problem_response
from lethe_gateway.identity.caller import Caller
from lethe_gateway.limits import AllBusy, CallerBusy
from lethe_gateway.problems import Kind, Problem, unauthenticated
from lethe_gateway.services import Services

log = logging.getLogger(__name__)
# Paths that need no token.
OPEN: Final = frozenset({"/healthz", "/readyz", "/openapi.json"})
# The endings of paths of streams, which last as long as their clients wish.
STREAMS: Final = ("/changes",)
BUSY_SECONDS: Final = 1.0


class Guard:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        noted = access_log.Request(scope["method"])
        started = self._services.monotonic()
        sending = _Sending(send, noted)
        try:
            await self._answer(scope, receive, sending, noted)
        finally:
            noted.seconds = self._services.monotonic() - started
            route = scope.get("route")
            noted.route = getattr(route, "path", "")
            namespace = (scope.get("path_params") or {}).get("namespace", "")
            noted.problem = noted.problem or scope.get("lethe.problem", "")
            noted.namespace = namespace if namespace in self._services.settings.namespaces else ""
            access_log.write(noted)

    async def _answer(self, scope: Scope, receive: Receive, sending: "_Sending", noted: access_log.Request) -> None:
        try:
            body = self._bounded(Headers(scope=scope), receive)
            caller = await self._caller(scope)
            noted.caller = caller.key
            scope["lethe.caller"] = caller
            self._require_rate(caller)
            await self._carry_out(scope, body, sending, caller)
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

    async def _carry_out(self, scope: Scope, receive: Receive, sending: "_Sending", caller: Caller) -> None:
        services, limits = self._services, self._services.settings.limits
        is_stream = scope["path"].endswith(STREAMS)
        places = services.streams if is_stream else services.requests
        try:
            places.enter(caller.key)
            # A task of its own: a thread cannot be stopped, so a request that takes too long keeps its place until it has ended.
            task = asyncio.ensure_future(self._app(scope, receive, sending))
            task.add_done_callback(lambda _: places.leave(caller.key))
            try:
                await asyncio.wait({task}, timeout=None if is_stream else limits.request_seconds)
            except asyncio.CancelledError:
                task.cancel()
                raise
            if not task.done():
                raise TimeoutError
            task.result()
        except CallerBusy:
            raise Problem(
                Kind.TOO_MANY_REQUESTS,
                f"You have {limits.streams_per_caller if is_stream else limits.concurrent_per_caller} requests at the same time, "
                "the most that one caller may have. Wait for one to end.",
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
                f"The answer took longer than {limits.request_seconds:g} s. Ask for less, or try again later.",
                retry_after_seconds=BUSY_SECONDS,
            ) from None

    async def _problem(self, problem: Problem, scope: Scope, sending: "_Sending", noted: access_log.Request) -> None:
        noted.problem = problem.kind.slug
        if sending.started:  # a client that reads too slowly: what it has is not a whole answer
            _abort(scope)
            return
        await problem_response(problem)(scope, _no_body, sending.direct)

    def _bounded(self, headers: Headers, receive: Receive) -> Receive:
        """The body, which raises a Problem once it is too large."""
        most = self._services.settings.limits.body_bytes
        declared = headers.get("content-length", "0")
        if (declared.isdecimal() and len(declared) < 20 and int(declared) > most) or len(declared) >= 20:
            raise _too_large(most)
        got = 0

        async def bounded() -> Message:
            nonlocal got
            message = await receive()
            got += len(message.get("body", b""))
            if got > most:
                raise _too_large(most)
            return message

        return bounded

    async def _caller(self, scope: Scope) -> Caller:
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise unauthenticated()
        services = self._services
        address = scope["client"][0] if scope.get("client") else ""
        known = services.identity.remembered(token)
        if known is not None:
            return known
        wait = services.failures.wait_seconds(address, services.monotonic(), take=0)
        if wait:
            raise Problem(
                Kind.TOO_MANY_REQUESTS, "Too many invalid tokens came from your address.", retry_after_seconds=wait
            )
        try:
            return await run_in_threadpool(services.identity.authenticate, token)
        except Problem as e:
            if e.kind is Kind.UNAUTHENTICATED:
                services.failures.wait_seconds(address, services.monotonic())
            raise

    def _require_rate(self, caller: Caller) -> None:
        wait = self._services.rates.wait_seconds(caller.key, self._services.monotonic())
        if wait:
            most = self._services.settings.limits.requests_per_second
            raise Problem(
                Kind.TOO_MANY_REQUESTS,
                f"You may send {most:g} requests per second on average.",
                retry_after_seconds=wait,
            )


class _Sending:
    """Counts what is sent, and lets nothing through any more once the time is over."""

    def __init__(self, send: Send, noted: access_log.Request) -> None:
        self._send = send
        self._noted = noted
        self._ended = False

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
        else:
            self._noted.sent_bytes += len(message.get("body", b""))
        await self._send(message)


def _abort(scope: Scope) -> None:
    """End the connection without waiting for its client."""
    abort: Callable[[], None] | None = scope.get("lethe.abort")
    if abort is not None:
        abort()


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


def _too_large(most: Any) -> Problem:
    return Problem(Kind.BODY_TOO_LARGE, f"The body of a request may have at most {most:,} bytes.")

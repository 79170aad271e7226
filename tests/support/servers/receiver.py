"""A receiver of CloudEvents (aiohttp), as a consumer would write it, with faults on request."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.http import HTTPMessage, from_http
from cloudevents.core.formats.json import JSONFormat

from tests.support.servers.postgres import free_port

HANG = "hang"  # answer nothing
RESET = "reset"  # close the connection without an answer
ENDLESS = "endless"  # take the event, and answer with a body that never ends
LOST = "lost"  # take the event, and close the connection without an answer


@dataclass(frozen=True)
class Answer:
    """What is answered instead of 204."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Receiver:
    """What it received, and how it answers next."""

    port: int
    events: list[BaseCloudEvent] = field(default_factory=list)  # taken
    headers: list[dict[str, str]] = field(default_factory=list)  # of all requests
    answers: list[Answer | str] = field(default_factory=list)  # to the next requests; afterwards 204
    connections: set[object] = field(default_factory=set)  # from which requests came

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/events"

    @property
    def subjects(self) -> list[str]:
        return [e.get_subject() or "" for e in self.events]

    async def take(self, request: web.Request) -> web.StreamResponse:
        self.headers.append({k.lower(): v for k, v in request.headers.items()})
        body = await request.read()
        assert request.transport is not None
        self.connections.add(request.transport.get_extra_info("peername"))
        answer = self.answers.pop(0) if self.answers else Answer(204)
        if isinstance(answer, Answer) and answer.status >= 300:
            return web.Response(status=answer.status, headers=answer.headers, text="a secret that must not be logged")
        if answer == HANG:
            await asyncio.sleep(3600)
        if answer != RESET:
            self.events.append(from_http(HTTPMessage(dict(request.headers), body), JSONFormat()))
        if answer == ENDLESS:
            response = web.StreamResponse(status=200)
            await response.prepare(request)
            while True:
                await response.write(b"x" * 1000)
        if not isinstance(answer, Answer):
            assert request.transport is not None
            request.transport.abort()
        return web.Response(status=204)

    @contextmanager
    def up(self) -> Iterator[None]:
        """It listens for as long as the block lasts."""
        loop, started = asyncio.new_event_loop(), threading.Event()
        ended = asyncio.Event()

        async def serve() -> None:
            app = web.Application(client_max_size=64 * 1024 * 1024)
            app.router.add_post("/events", self.take)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self.port).start()
            started.set()
            await ended.wait()
            await runner.cleanup()

        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
        thread.start()
        assert started.wait(10)
        try:
            yield
        finally:
            loop.call_soon_threadsafe(ended.set)
            thread.join(10)
            loop.close()


def a_receiver() -> Receiver:
    return Receiver(free_port())

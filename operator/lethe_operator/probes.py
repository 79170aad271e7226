"""Answers probes: /healthz, whether the process works, and /readyz, whether it acts or could take over. I/O: a port."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web


@dataclass(frozen=True)
class ProbeAnswer:
    ok: bool
    text: str  # one sentence


@asynccontextmanager
async def probes(
    port: int, healthy: Callable[[], ProbeAnswer], ready: Callable[[], ProbeAnswer]
) -> AsyncIterator[None]:
    """Answer until the context ends. Raises: OSError, if the port is in use."""

    questions = {"/healthz": healthy, "/readyz": ready}

    async def respond(request: web.Request) -> web.Response:
        found = questions[request.path]()
        return web.Response(status=200 if found.ok else 503, text=found.text + "\n")

    app = web.Application()
    app.add_routes([web.get(path, respond) for path in questions])
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=1.0, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, None, port).start()
        yield
    finally:
        await runner.cleanup()

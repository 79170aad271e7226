"""Answers probes: /healthz, whether watches and the work queue work, and /readyz, whether the process acts or could. I/O: a port.

If they do not work, Kubernetes restarts the operator. A restart loses nothing.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from lethe_operator.resources.common import is_newer

# If a watch has not reported a listed change after this time, it is dead.
WATCH_LAG_SECONDS: Final = 120.0
# Time limits bound each step of a reconcile, so one that takes this long hangs.
RECONCILE_SECONDS: Final = 900.0
RELIST_GRACE_SECONDS: Final = 120.0


@dataclass(frozen=True)
class _Unreported:
    """A version that a listing found and no watch has reported."""

    version: str
    since: float
    """By the clock."""


@dataclass
class OperatorHealth:
    """What listings have found and watches have reported, to find out whether the operator still works."""

    clock: Callable[[], float]
    """Monotonic, in seconds."""
    relist_seconds: float
    """How often everything is listed."""
    _unreported: dict[str, _Unreported] = field(default_factory=dict)
    """By UID."""
    _relisted: float | None = None

    def watched(self, uid: str, version: str) -> None:
        """Record that a watch reported an object."""
        waits = self._unreported.get(uid)
        if waits is not None and not is_newer(waits.version, version):
            self._unreported.pop(uid, None)

    def found(self, uid: str, version: str) -> None:
        """Record that a listing found a version that no watch had reported. A watch must soon report it, or a newer one."""
        since = self._unreported[uid].since if uid in self._unreported else self.clock()
        self._unreported[uid] = _Unreported(version, since)

    def relisted(self) -> None:
        """Record that everything was listed."""
        self._relisted = self.clock()

    def trouble(self, longest_reconcile_seconds: float, started: float) -> str | None:
        """What is wrong, as a sentence; None: nothing.

        Args:
            started: When the operator started, by the same clock.
        """
        now = self.clock()
        if longest_reconcile_seconds > RECONCILE_SECONDS:
            return f"A reconcile has been running for {longest_reconcile_seconds:.0f} seconds."
        quiet = now - (self._relisted if self._relisted is not None else started)
        if quiet > 3 * self.relist_seconds + RELIST_GRACE_SECONDS:
            return f"The last listing of all resources was {quiet:.0f} seconds ago."
        lag = max((now - u.since for u in list(self._unreported.values())), default=0.0)
        if lag > WATCH_LAG_SECONDS:
            return f"A change was listed {lag:.0f} seconds ago, and no watch has reported it."
        return None


@dataclass(frozen=True)
class ProbeAnswer:
    """What a probe gets: HTTP status 200 if it is ok, otherwise 503."""

    ok: bool
    text: str
    """One sentence."""


@asynccontextmanager
async def probes(
    port: int, healthy: Callable[[], ProbeAnswer], ready: Callable[[], ProbeAnswer]
) -> AsyncIterator[None]:
    """Answer until the context ends.

    Raises:
        OSError: The port is in use.
    """
    questions = {"/healthz": healthy, "/readyz": ready}

    async def respond(request: web.Request) -> web.Response:
        state = questions[request.path]()
        return web.Response(status=200 if state.ok else 503, text=state.text + "\n")

    app = web.Application()
    app.add_routes([web.get(path, respond) for path in questions])
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=1.0, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, None, port).start()
        yield
    finally:
        await runner.cleanup()

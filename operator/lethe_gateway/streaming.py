"""A stream of changes for one client: a thread for each watch, a bounded queue, and the answer. I/O.

The watches use the token of the caller and are renewed every few seconds, so the API server checks the rights again. A client
that reads so slowly that the queue is full is dropped; it may continue from the last id that it has.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from lethe.kube import ResourceKind
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lethe_gateway.identity.caller import Caller, Right
from lethe_gateway.problems import Kind, Problem, not_found
from lethe_gateway.resources.changes import KINDS, Reported, StreamPlace, events_of, heartbeat, text_of
from lethe_gateway.resources.client import Watched
from lethe_gateway.services import Services

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 15.0
RETRY_SECONDS: Final = 2.0
# After these the stream ends. Others, such as an API server that is away, pass.
_FINAL: Final = frozenset({Kind.NOT_FOUND, Kind.UNAUTHENTICATED})


class ChangeStream:
    """The watches of one client and what they have reported. Use `open` in an event loop."""

    def __init__(self, services: Services, caller: Caller, namespace: str, dataset: str, place: StreamPlace) -> None:
        """Create `ChangeStream`.

        Args:
            dataset: Only what concerns this Dataset; "": everything.
        """
        self._services = services
        self._caller = caller
        self._namespace = namespace
        self._dataset = dataset
        self._place = place
        self._reported = Reported()
        self._lock = threading.Lock()
        self._waiting: deque[bytes] = deque()
        self._ended = threading.Event()
        self._enders: dict[str, Callable[[], None]] = {}
        self._is_final = False  # the last event is in the queue
        self.lagging = asyncio.Event()
        self._news = asyncio.Event()

    def open(self) -> None:
        """Start a thread for each watch. The running event loop gets their events."""
        self._loop = asyncio.get_running_loop()
        for kind in KINDS:
            threading.Thread(target=self._watch, args=(kind,), name=f"watch {kind.plural}", daemon=True).start()

    def close(self) -> None:
        """End the watches. Does not wait for their threads."""
        self._ended.set()
        for end in list(self._enders.values()):
            with suppress(ValueError, RuntimeError):  # that watch has ended already
                end()

    async def next(self, seconds: float) -> list[bytes]:
        """What has happened; a heartbeat, if nothing did for so long. Empty: the stream has ended."""
        while True:
            try:
                async with asyncio.timeout(seconds):
                    await self._news.wait()
            except TimeoutError:
                with self._lock:  # its id must not be after events that are still in the queue
                    if not self._waiting and not self._is_final:
                        return [heartbeat(self._place.id)]
            with self._lock:
                found, is_final = list(self._waiting), self._is_final
                self._waiting.clear()
                if not is_final:
                    self._news.clear()
            if found or is_final:
                return found
            # Otherwise the events of this notice went with those of the one before.

    async def check(self) -> None:
        """End the stream if its caller lost the right to it."""
        try:
            await run_in_threadpool(self._services.identity.authenticate, self._caller.token)
            may = await run_in_threadpool(self._services.identity.may, self._caller, Right.to_list(self._namespace))
        except Problem as e:
            self._end(e)
            return
        if not may:
            self._end(not_found())

    @property
    def check_seconds(self) -> float:
        """How often to call `check`."""
        return max(1.0, self._services.settings.identity_seconds)

    def _watch(self, kind: ResourceKind) -> None:
        while not self._ended.is_set():
            try:
                self._follow(kind)
            except Problem as e:
                self._end(e)
                self._ended.wait(RETRY_SECONDS)
            except Exception:
                log.exception("a watch of %s failed and starts again", kind.plural)
                self._ended.wait(RETRY_SECONDS)

    def _follow(self, kind: ResourceKind) -> None:
        """One watch, until it ends.

        Raises:
            Problem: The request fails; the type of the problem says why.
        """
        watched = Watched(self._place.of(kind), self._dataset if kind is KINDS[0] else "")
        try:
            events = self._services.resources.watch(
                self._caller, kind, self._namespace, watched, lambda end: self._opened(kind, end)
            )
            for event in events:
                if self._ended.is_set():
                    return
                if event.get("type") == "ERROR":
                    self._reset(kind)
                    return
                self._take(kind, event)
        except Problem as e:
            if e.kind is not Kind.CURSOR_EXPIRED:
                raise
            self._reset(kind)

    def _opened(self, kind: ResourceKind, end: Callable[[], None]) -> None:
        self._enders[kind.plural] = end
        if self._ended.is_set():
            self.close()

    def _take(self, kind: ResourceKind, event: Any) -> None:
        version = str((event["object"].get("metadata") or {}).get("resourceVersion") or "")
        with self._lock:
            events = list(events_of(kind, event, self._reported, self._dataset))
            self._place = self._place.moved(kind, version)
            # Only the last event has the id: a client that gets a part of them gets all of them again.
            texts = [
                text_of(name, data, self._place.id if n == len(events) else "")
                for n, (name, data) in enumerate(events, 1)
            ]
            self._put(texts)

    def _reset(self, kind: ResourceKind) -> None:
        """The API server does not have the changes since then any more: go on from now, and say so."""
        version = self._services.resources.page(self._caller, kind, self._namespace, "", 1).version
        with self._lock:
            self._place = self._place.moved(kind, version)
            detail = "Changes may be missing. Read the lists again."
            self._put([text_of("reset", {"kind": kind.name, "detail": detail}, self._place.id)])

    def _end(self, problem: Problem) -> None:
        if problem.kind not in _FINAL:
            return
        with self._lock:
            if not self._is_final:
                self._is_final = True
                self._put([text_of("end", problem.document)])
        self._ended.set()

    def _put(self, texts: list[bytes]) -> None:
        """The caller holds the lock."""
        if not texts:
            return
        self._waiting.extend(texts)
        is_full = len(self._waiting) > self._services.settings.limits.stream_events
        if is_full:
            self._waiting.clear()
            self._ended.set()
        self._loop.call_soon_threadsafe((self.lagging if is_full else self._news).set)


class EventStreamResponse(Response):
    """Sends a stream until it ends, its client leaves, or lags behind."""

    media_type = "text/event-stream"

    def __init__(self, stream: ChangeStream, first: bytes) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._stream = stream
        self._first = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the first event and then the stream. Aborts the connection of a client that lags behind."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        self._stream.open()
        tasks = [
            asyncio.create_task(self._send(send)),
            asyncio.create_task(_until_gone(receive)),
            asyncio.create_task(self._stream.lagging.wait()),
            asyncio.create_task(self._check()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._stream.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._stream.lagging.is_set() and (abort := scope.get("lethe.abort")) is not None:
            abort()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        while texts := await self._stream.next(HEARTBEAT_SECONDS):
            await send({"type": "http.response.body", "body": b"".join(texts), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(self._stream.check_seconds)
            await self._stream.check()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

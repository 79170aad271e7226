"""A gateway that dies at any of the requests that it sends while it completes an upload, and what follows."""

import itertools
import os
import signal
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from lethe.contract.settings import BufferLayout
from lethe.ledger.ledger import BatchEntry, Ledger
from lethe.storage.object_store import open_store
from lethe_gateway.problems import Kind, Problem
from lethe_gateway.uploads import check
from lethe_gateway.uploads.buffers import Buffer, Buffers, KnownTable
from lethe_gateway.uploads.manifest import FileEntry, UploadState, upload_id
from lethe_gateway.uploads.store import Uploads

from tests.support.buffers import batches_in
from tests.support.builders import a_batch, a_ledger
from tests.support.upload_site import GOOD, Site, entries, parquet


class Killed(BaseException):
    """The process ends here."""


def _dies_in_this_process() -> None:
    raise Killed


def dies_by_signal() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Life:
    """Counts requests, and ends at one of them.

    Args:
        last: The number of the last request, from 0; None: it does not die.
        after: Whether the last request has its effect.
    """

    last: int | None = None
    after: bool = False
    die: Callable[[], None] = _dies_in_this_process
    requests: list[str] = field(default_factory=list)

    def request(self, name: str, send: Callable[[], Any]) -> Any:
        is_last = len(self.requests) == self.last
        self.requests.append(name)
        if is_last and not self.after:
            self.die()
        answer = send()
        if isinstance(answer, Generator):
            answer = iter(list(answer))
        if is_last:
            self.die()
        return answer


class Mortal:
    """A store, or another client, whose requests a `Life` counts."""

    def __init__(self, of: Any, life: Life) -> None:
        self._of = of
        self._life = life

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._of, name)

        def send(*args: Any, **named: Any) -> Any:
            about = next((str(getattr(a, "key", a)) for a in args), "")
            return self._life.request(f"{name} {about}", lambda: method(*args, **named))

        return send


class Sweepless(Uploads):
    """It sweeps when it is told to, and not in a thread."""

    def _sweep(self, buffer: Buffer) -> None:  # noqa: ARG002
        return


class MortalUploads(Sweepless):
    """A gateway that dies."""

    def __init__(self, life: Life, site: Site) -> None:
        super().__init__(site.settings)
        self._life = life

    def _s3(self, buffer: Buffer) -> Any:
        found = super()._s3(buffer)
        return Mortal(found, self._life) if found is not None else None


@dataclass
class Batch:
    """A batch that was sent and not completed, in a buffer of its own, and the ledger as a run would have written it."""

    site: Site
    files: Mapping[str, bytes]
    id: str = "b/1"
    promoted: BatchEntry | None = None

    @property
    def layout(self) -> BufferLayout:
        return BufferLayout(self.site.spec.get("buffer", {}).get("layout", "Directory"))

    def __post_init__(self) -> None:
        self._opened = Buffers(self.site.boundaries).open(self.site.resource())

    def buffer(self) -> Buffer:
        def table() -> KnownTable:
            assert self._opened.table is not None
            return KnownTable(self._opened.table.schema, self.ledger())

        return replace(self._opened, table=table(), reload=table)

    def copied_to(self, site: Site) -> "Batch":
        """The same objects in another buffer."""
        copy = Batch(site, self.files)
        for listed in self.buffer().store.list(self.site.uri):
            content = self.buffer().store.read(listed.key)
            assert content is not None
            copy.buffer().store.put(f"{site.uri}/{listed.key.removeprefix(f'{self.site.uri}/')}", content.data)
        return copy

    def ledger(self) -> Ledger:
        return a_ledger(batches=[self.promoted] if self.promoted is not None else [])

    def announced(self) -> list[FileEntry]:
        return entries(dict(self.files))

    def send(self) -> None:
        uploads = Sweepless(self.site.settings)
        uploads.open(self.buffer(), self.id, self.announced())
        for index, content in enumerate(self.files.values()):
            uploads.put(self.buffer(), upload_id(self.id), index, content)

    def complete(self, life: Life) -> None:
        """Complete it, in a gateway with this life. Raises: Killed."""
        buffer = self.buffer()
        mortal = replace(
            buffer,
            store=Mortal(buffer.store, life),  # type: ignore[arg-type]
            reload=lambda: life.request("reload", buffer.reload),
        )
        original = check.rejection
        check.rejection = lambda *args: life.request("check", lambda: original(*args))
        try:
            MortalUploads(life, self.site).complete(mortal, upload_id(self.id))
        finally:
            check.rejection = original

    def is_in_buffer(self) -> bool:
        """As a consolidation sees it."""
        found = batches_in(self.site.uri, self.buffer().properties, self.layout)
        return [(b.id, len(b.data_objects)) for b in found if b.complete] == [(self.id, len(self.files))]

    def promote(self) -> None:
        """As a run does, with a retention of 0 seconds."""
        (found,) = batches_in(self.site.uri, self.buffer().properties, self.layout)
        self.promoted = a_batch(self.id, objects=found.objects)
        for listed in found.objects:
            open_store(self.site.uri, self.buffer().properties).remove(listed.key)


def get(batch: Batch) -> bool:
    """Whether a client learns that the upload is complete; so do the other requests."""
    try:
        return Sweepless(batch.site.settings).view(batch.buffer(), upload_id(batch.id)).state is UploadState.COMPLETE
    except Problem as e:
        if e.kind is not Kind.NOT_FOUND:
            raise
        return False


def post(batch: Batch) -> bool:
    try:
        return (
            Sweepless(batch.site.settings).complete(batch.buffer(), upload_id(batch.id)).state is UploadState.COMPLETE
        )
    except Problem as e:
        if e.kind not in (Kind.NOT_FOUND, Kind.UPLOAD_ENDED):
            raise
        return False


def sweep(batch: Batch) -> bool:
    Sweepless(batch.site.settings).remove_old(batch.buffer(), datetime.now(UTC) + timedelta(days=2))
    return False


def follow(batch: Batch, actions: tuple[Callable[[Batch], bool], ...], promoting: bool, where: str) -> None:
    """Let other gateways act after a death, and require after each that nothing was said that is not so, and nothing is lost."""
    store = open_store(batch.site.uri, batch.buffer().properties)
    outcomes = [o for o in store.list(f"{batch.site.uri}/_uploads") if o.key.endswith(".outcome")]
    promised = bool(outcomes)
    for number, action in enumerate(actions):
        at = f"{where}, then {' '.join(a.__name__ for a in actions[: number + 1])}"
        if promoting and batch.promoted is None and batch.is_in_buffer():
            batch.promote()
        complete = action(batch)
        promised = promised or complete
        if batch.promoted is not None:
            assert not batch.is_in_buffer(), f"it would be promoted twice: {at}"
        else:
            assert batch.is_in_buffer() or not complete, f"Complete and absent: {at}"
            assert batch.is_in_buffer() or not promised, f"promised and not in the buffer: {at}"


ORDERS: Final = tuple(itertools.permutations((get, post, sweep)))


def kill_at_each_request(make: Callable[[str], Site], layout: str, thorough: bool) -> int:
    """Every point of a completion, before and after its effect, with every order of what follows. Returns: how many deaths.

    Args:
        make: Makes a Site whose buffer is empty, and ends with the name.
        thorough: All orders after each death; False: one of them, in turn.
    """
    files = GOOD if layout == "Directory" else {"part-0.parquet": parquet(1)}

    def site(name: str) -> Site:
        made = make(name)
        made.spec = {"buffer": {"uri": made.uri, "layout": layout}}
        return made

    sent, whole = Batch(site("sent"), files), Life()
    sent.send()
    first = sent.copied_to(site("whole"))
    first.complete(whole)
    assert first.is_in_buffer()
    deaths = 0
    for last, after in itertools.product(range(len(whole.requests)), (False, True)):
        life, killed = Life(last, after), sent.copied_to(site(f"{last}-{after}"))
        try:
            killed.complete(life)
        except Killed:
            deaths += 1
        where = f"killed {'after' if after else 'before'} {life.requests[last]}"
        cases = list(enumerate(itertools.product(ORDERS, (False, True))))
        for number, (actions, promoting) in cases if thorough else (cases[deaths % len(cases)],):
            follow(killed.copied_to(site(f"{last}-{after}-{number}")), actions, promoting, where)
    return deaths

"""Checks the files of an upload as a consolidation would. I/O: reads them.

Who may decode files now: few at once, and of one Dataset or namespace fewer, so that the others need not wait for it.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

from lethe.base.errors import InputError
from lethe.contract.result import RefusedBatch
from lethe.contract.settings import RFC_4180, ConsolidationMode, SchemaEvolution
from lethe.decoder.process import QUICK_SECONDS, NoDecoder
from lethe.ingest.buffer_files import ReadSettings
from lethe.ingest.buffer_store import BufferAway, FileTask
from lethe.ingest.check_conditions import checks_of
from lethe.ingest.checking import Whole, check_files, columns_of
from lethe.ingest.schema_fit import known_columns, named_folders, path_columns

from lethe_gateway.problems import Kind, Problem
from lethe_gateway.uploads.buffers import STORE_AWAY, Buffer

T = TypeVar("T")
# Called often while a turn lasts, with the processor time that it has taken so far, in seconds.
Require = Callable[[float], None]
# A turn that takes so many times as long as the processor time of a quick one is slow, too: it waits for a store.
_WAITING_FACTOR: Final = 20


class Busy(Exception):
    """No place became free in time."""


class _GiveWay(Exception):
    """Somebody else needs the place of this turn."""


@dataclass(eq=False)
class _Turn:
    """Work that has a place, or waits for one."""

    namespace: str
    dataset: str
    number: int
    """In the order in which turns were asked for."""
    began: float = 0.0
    """When it got its place, in the seconds of a monotonic clock."""
    is_slow: bool = False
    """It has taken longer than a quick one, now or before it gave way."""


@dataclass
class Turns:
    """Places, given in the order in which they are asked for. Threads may share it.

    Work may take as long as it wants, unless all places, or all those of its Dataset or namespace, are held by slow work while
    other work waits that is not known to be slow. Then the work of these holders that came last gives way: it loses what it has
    done, and begins again when a place is free. So quick work does not wait for slow work, and slow work ends in its order.
    """

    places: int
    of_namespace: int
    of_dataset: int
    quick_seconds: float
    """Of processor time."""
    clock: Callable[[], float] = time.monotonic
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _working: list[_Turn] = field(default_factory=list)
    _waiting: list[_Turn] = field(default_factory=list)
    _asked: int = 0

    def carry_out(self, namespace: str, dataset: str, seconds: float, work: Callable[[Require], T]) -> T:
        """Do work in its turn.

        Args:
            seconds: To wait for a place, altogether.
            work: Calls what it is given, and lets pass what that raises. It may be done again from its beginning.

        Raises:
            Busy: No place became free in time.
            Exception: What the work raises.
        """
        with self._changed:
            self._asked += 1
            mine = _Turn(namespace, dataset, self._asked)
        while True:
            since = self.clock()
            with self._place(mine, seconds):
                seconds -= self.clock() - since
                try:
                    return work(lambda cpu_seconds: self._require(mine, cpu_seconds))
                except _GiveWay:
                    pass

    @contextmanager
    def _place(self, mine: _Turn, seconds: float) -> Iterator[None]:
        with self._changed:
            self._waiting.append(mine)
            got = self._changed.wait_for(lambda: self._next() is mine, max(seconds, 0))
            self._waiting.remove(mine)
            if got:
                mine.began = self.clock()
                self._working.append(mine)
            self._changed.notify_all()
        if not got:
            raise Busy
        try:
            yield
        finally:
            with self._changed:
                self._working.remove(mine)
                self._changed.notify_all()

    def _next(self) -> _Turn | None:
        """The first that may work: what is not known to be slow, of Datasets that have no place, comes before the others."""
        fitting = [w for w in self._waiting if not any(self._full(w))]
        return min(fitting, key=lambda w: (w.is_slow, len(_of_dataset(self._working, w)), w.number), default=None)

    def _full(self, waiting: _Turn) -> Iterator[Sequence[_Turn]]:
        """Those that hold the places that a turn needs: one list for each limit that is reached."""
        of_namespace = [w for w in self._working if w.namespace == waiting.namespace]
        limited = (
            (self._working, self.places),
            (of_namespace, self.of_namespace),
            (_of_dataset(of_namespace, waiting), self.of_dataset),
        )
        return (holding for holding, most in limited if len(holding) >= most)

    def _require(self, mine: _Turn, cpu_seconds: float) -> None:
        """End a check that has used much processor time while others wait.

        Raises:
            _GiveWay: Others wait, and this check has taken long.
        """
        with self._changed:
            took = self.clock() - mine.began
            mine.is_slow |= cpu_seconds > self.quick_seconds or took > _WAITING_FACTOR * self.quick_seconds
            for waiting in self._waiting:
                for holding in self._full(waiting) if not waiting.is_slow else ():
                    if all(h.is_slow for h in holding) and mine is max(holding, key=lambda h: h.number):
                        raise _GiveWay


def _of_dataset(turns: Sequence[_Turn], of: _Turn) -> list[_Turn]:
    return [t for t in turns if (t.namespace, t.dataset) == (of.namespace, of.dataset)]


# Files up to this size are read completely, as many as have this size together. Of others only the columns are compared, which
# costs one or two requests.
WHOLE_BYTES: Final = 8 * 1024 * 1024
ALL_BYTES: Final = 64 * 1024 * 1024
# Uploads that are checked at once. Each has a decoder, with the memory of `lethe.decoder.limits`. A namespace leaves a place to
# the others. A check that takes longer than `quick_seconds` may have to give way and begin again, see `Turns`.
_TURNS: Final = Turns(places=3, of_namespace=2, of_dataset=2, quick_seconds=QUICK_SECONDS)
WAIT_SECONDS: Final = 60.0
log = logging.getLogger(__name__)


def rejection(buffer: Buffer, batch_id: str, files: Mapping[str, tuple[int, str]]) -> tuple[RefusedBatch | None, bool]:
    """With what a consolidation would refuse a batch, and whether that could be checked.

    Args:
        files: The size and the ETag of each object, by its URI.

    Raises:
        Problem: `catalog-away`, `overloaded`.
    """
    spec, table = buffer.dataset.spec, buffer.table
    if table is None:
        return None, False
    try:
        columns = columns_of(table.schema)
        checks = checks_of(spec.checks, table.schema, known_columns(columns))
    except InputError:
        return None, False  # a type that only Spark reads, or a check that runs report
    tasks = [
        FileTask(batch_id, uri, size, etag, named_folders(uri, _folder(spec.buffer.uri, uri)))
        for uri, (size, etag) in sorted(files.items())
    ]
    add_columns = spec.schema_evolution is SchemaEvolution.ADD_COLUMNS
    settings = ReadSettings(
        spec.batch_column,
        dict(buffer.properties),
        spec.buffer.format,
        add_columns,
        csv=spec.buffer.csv or RFC_4180,
        path_columns=path_columns(table.schema, table.spec),
        checks=checks,
    )
    of = buffer.dataset.meta
    try:
        checked = _TURNS.carry_out(
            of.namespace,
            of.name,
            WAIT_SECONDS,
            lambda require: check_files(columns, tasks, settings, Whole(WHOLE_BYTES, ALL_BYTES), on_wait=require),
        )
    except Busy:
        raise Problem(
            Kind.OVERLOADED,
            "Other uploads are being checked. Complete this one again soon.",
            retry_after_seconds=10,
        ) from None
    except BufferAway as e:
        raise Problem(Kind.CATALOG_AWAY, STORE_AWAY.format(kind="BufferAway"), retry_after_seconds=5) from e
    except NoDecoder as e:
        log.error("%s/%s: the files of batch %s were not checked: %s", of.namespace, of.name, batch_id, e)
        return None, False
    # Whether files can be registered unchanged is decided by the run.
    return checked.refusal, spec.consolidation.mode is ConsolidationMode.REWRITE or checked.refusal is not None


def _folder(buffer: str, uri: str) -> str:
    """The folder directly in the buffer that a file is in: with the layout Directory, that of its batch."""
    prefix = buffer.rstrip("/") + "/"
    return prefix + uri.removeprefix(prefix).partition("/")[0]

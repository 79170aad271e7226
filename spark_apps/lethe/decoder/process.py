"""Lets decoders decode units, such as files, one after another, whatever becomes of the decoders. I/O: starts processes.

A process has one server that forks its decoders (`lethe.decoder.child`). Processes that are forked share the server of their
parent. Invariant: the result of each unit is used once.
"""

import logging
import mmap
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Any, Final, TypeVar

from lethe.decoder.child import (
    MARK,
    MARK_BYTES,
    NOTHING,
    OUT_OF_MEMORY,
    REQUEST_BYTES,
    SEVERAL,
    STATUS,
    Closed,
    Content,
    Link,
    Message,
    Work,
    serve,
)
from lethe.decoder.limits import Limits
from lethe.process import without_pandas

log = logging.getLogger(__name__)

NOTICED_SECONDS: Final = 30.0
"""A decoder that works for longer is mentioned in the log, each time after as many seconds."""
ASKED_SECONDS: Final = 0.05
"""How often a caller that waits for a decoder is asked whether it still does."""
QUICK_SECONDS: Final = 0.3
"""Seconds of processor time. A decoder that has used more, and for which somebody waits, lets other processes go first."""
_LOWER_PRIORITY: Final = 19
_VARIABLES: Final = frozenset({"PATH", "LANG", "TZ", "TMPDIR"})
"""The variables that a decoder's server gets. Others may be credentials."""
_PREFIXES: Final = ("PYTHON", "LD_", "DYLD_", "LC_", "ARROW_")


OnWait = Callable[[float], object]
"""Called while a decoder works, with the seconds since it began."""

T = TypeVar("T")
UNITS_AT_ONCE: Final = 64
BYTES_AT_ONCE: Final = 4 * 1024**2
_IDLE_DEATHS_AT_MOST: Final = 3
"""Decoders in a row that end without having begun anything."""


class NoDecoder(RuntimeError):
    """No decoder can be started, or decoders end before they decode anything. No file is the cause."""


class DeathCause(Enum):
    """Why a decoder ended."""

    TIME = "time"
    """A limit of processor time, or of time."""
    MEMORY = "memory"
    CRASH = "crash"


@dataclass(eq=False)
class Death(Exception):
    """A decoder has ended before its work was done."""

    unit: int
    """The number of the unit that it was decoding, or NOTHING or SEVERAL."""
    cause: DeathCause
    signal: str = ""
    """The name of the signal that ended it."""

    def message(self, limits: Limits, size: int) -> str:
        """What it says about a unit of this size."""
        match self.cause:
            case DeathCause.TIME:
                return f"decoding its {size} bytes takes more than {limits.cpu_of(size):.0f} s of processor time"
            case DeathCause.MEMORY:
                return f"decoding it takes more than {limits.memory_bytes // 1024**2} MiB of memory"
            case DeathCause.CRASH:
                return f"it ends the decoder ({self.signal})"


class Process:
    """A decoder. Close it."""

    def __init__(self, work: Work) -> None:
        """Create `Process`.

        Raises:
            NoDecoder: No decoder can be started, or decoders end before they decode anything.
        """
        self._process = -1
        module = getattr(work, "module", "") or type(work).__module__
        self._link, self._status, self._mark = _requested(module)
        self._pid = self._read_status() or 0
        if not self._pid:
            self.close()
            raise NoDecoder("the process that decodes files cannot be started; see the log")
        with suppress(OSError, AttributeError):  # not on every system
            self._process = os.pidfd_open(self._pid)
        with suppress(Closed):  # the next call finds it
            self._link.send({}, [pickle.dumps(work)])

    def send(self, document: dict[str, Any], contents: Sequence[Content] = ()) -> None:
        """Send a document and contents to the decoder.

        Raises:
            Death: A decoder has ended before its work was done.
        """
        try:
            self._link.send(document, contents)
        except Closed:
            raise self._death() from None

    def receive(self, name: Any = None, on_wait: OnWait | None = None) -> Message:
        """The next message.

        Raises:
            Death: A decoder has ended before its work was done.
            NoDecoder: No decoder can be started, or decoders end before they decode anything.
            Exception: What `on_wait` raises.

        Args:
            name: Gives the name of a unit, for the log.
            on_wait: Called often while the decoder works, with the processor time that it has taken, in seconds.
        """
        begun = time.monotonic()
        noticed = begun + NOTICED_SECONDS
        waiting = select.poll()
        waiting.register(self._link.fileno(), select.POLLIN)
        while not waiting.poll(1000 * (NOTICED_SECONDS if on_wait is None else ASKED_SECONDS)):
            if on_wait is not None:
                cpu_seconds = self._cpu_seconds(begun)
                if cpu_seconds > QUICK_SECONDS:  # others share the processor with it
                    with suppress(OSError):
                        os.setpriority(os.PRIO_PROCESS, self._pid, _LOWER_PRIORITY)
                on_wait(cpu_seconds)
            if (now := time.monotonic()) < noticed:
                continue
            noticed = now + NOTICED_SECONDS
            unit, rows = MARK.unpack_from(self._mark)
            if name is not None and unit >= 0:
                log.info("%s: still decoding, %d rows, %d s", name(unit), rows, now - begun)
        try:
            document, contents = self._link.receive()
        except Closed:
            raise self._death() from None
        if document["kind"] == "failed":
            raise NoDecoder(f"the process that decodes files failed ({document['error']})")
        return document, contents

    def _cpu_seconds(self, begun: float) -> float:
        """The processor time of the decoder; where the system does not tell, the time since it was waited for."""
        try:
            with open(f"/proc/{self._pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            return time.monotonic() - begun
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End the decoder."""
        if self._process >= 0:
            with suppress(OSError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
            os.close(self._process)
            self._process = -1
        self._link.close()
        if self._status >= 0:
            os.close(self._status)
            self._status = -1

    def _death(self) -> Death:
        # It has closed its end, so it is ending.
        status = self._read_status()
        unit, _ = MARK.unpack_from(self._mark)
        if status is None:
            return Death(unit, DeathCause.CRASH, "unknown")
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if number in (signal.SIGXCPU, signal.SIGALRM):
                return Death(unit, DeathCause.TIME)
            return Death(unit, DeathCause.CRASH, signal.Signals(number).name)
        code = os.WEXITSTATUS(status)
        return (
            Death(unit, DeathCause.MEMORY)
            if code == OUT_OF_MEMORY
            else Death(unit, DeathCause.CRASH, f"exit code {code}")
        )

    def _read_status(self) -> int | None:
        content = os.read(self._status, STATUS.size)
        return STATUS.unpack(content)[0] if len(content) == STATUS.size else None


def prepare(module: str) -> None:
    """Start the server of this process and let it import a module, so that the first decoder need not wait for it.

    If that fails, the first decoder fails.
    """
    with suppress(NoDecoder, OSError):
        link, status, _ = _requested(module)  # a decoder that ends as it has no work
        link.close()
        os.close(status)


def _requested(module: str) -> tuple[Link, int, Any]:
    """Ask for a decoder.

    Returns:
        Its link, the pipe with its status, and its mark.

    Raises:
        NoDecoder: No decoder can be started, or decoders end before they decode anything.
    """
    ours, theirs = socket.socketpair()
    status, pipe = os.pipe()
    mark = _shared_file()
    try:
        _Server.request(module, (theirs.fileno(), mark, pipe))
        return Link(ours), status, mmap.mmap(mark, MARK_BYTES)
    except NoDecoder:
        ours.close()
        os.close(status)
        raise
    finally:
        os.close(mark)
        os.close(pipe)
        theirs.close()


class _Server:
    """The server of this process."""

    _lock = threading.Lock()
    _control: socket.socket | None = None
    _program: "subprocess.Popen[bytes] | None" = None

    @classmethod
    def request(cls, module: str, handles: Sequence[int]) -> None:
        """Ask for a decoder.

        Raises:
            NoDecoder: No decoder can be started, or decoders end before they decode anything.
        """
        message = module.encode().ljust(REQUEST_BYTES)
        with cls._lock:
            for _ in range(2):
                if cls._control is None:
                    cls._execute()
                assert cls._control is not None
                try:
                    socket.send_fds(cls._control, [message], handles)
                    return
                except OSError:  # somebody has ended it
                    cls._control.close()
                    cls._control = None
        raise NoDecoder("the process that starts decoders ends at once; see the log")

    @classmethod
    def _execute(cls) -> None:
        """A new program, because this process may have threads, which no fork of it would have."""
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "lethe.decoder", str(theirs.fileno())]
        environ = {k: v for k, v in os.environ.items() if k in _VARIABLES or k.startswith(_PREFIXES)}
        environ |= {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OPENBLAS_NUM_THREADS": "1"}
        cls._program = subprocess.Popen(
            command, env=environ, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        theirs.close()
        cls._control = ours

    @classmethod
    def fork(cls) -> None:
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            try:
                ours.close()
                nowhere = os.open(os.devnull, os.O_RDWR)
                os.dup2(nowhere, 0)
                os.dup2(nowhere, 1)
                without_pandas()
                serve(theirs)
            finally:
                os._exit(0)
        theirs.close()
        cls._control = ours


def fork_server() -> None:
    """Start the server as a fork of this process, which has one thread and has imported what decoders need.

    The processes that this process forks later share it.
    """
    _Server.fork()


def _shared_file() -> int:
    """A file in memory, or at least without a name."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("lethe-decoder")
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    os.truncate(handle, MARK_BYTES)
    os.pwrite(handle, MARK.pack(NOTHING, 0), 0)
    return handle


@dataclass(eq=False)
class Unit:
    """Something to decode."""

    document: dict[str, Any]
    """The document for the decoder."""
    content: Content | None
    """The bytes of the unit; None: the decoder asks for ranges."""
    size: int
    """Size in bytes."""
    name: str
    """The name of the unit in the log."""
    read: Callable[[int, int], bytes] | None = None
    """Reads a range: offset, size."""
    of: Any = None
    """What the caller knows of it."""
    alone: bool = False
    """No other unit is in the decoder's hands meanwhile."""
    deaths: int = 0
    number: int = field(default=NOTHING)


OnResult = Callable[[dict[str, Any], list[memoryview], dict[int, Unit]], Iterable[T]]
"""Uses a result: the document, its contents, and the units by number. What it returns is returned by `supervise`."""
OnRefusal = Callable[[Unit, str], None]
"""Uses a unit that has no result because it ends decoders. The text says how."""
Divide = Callable[[Unit], Sequence[Unit]]
"""The parts of a unit that has ended a decoder, to decode in its place; none: it cannot be divided."""


def limits_here() -> Limits:
    """The limits of decoders of this process."""
    return Limits.from_environment(os.environ)


def supervise(
    work: Work,
    units: Iterable[Unit],
    on_result: OnResult[T],
    on_refusal: OnRefusal,
    divide: Divide = lambda _: (),
    on_wait: OnWait | None = None,
) -> Iterator[T]:
    """Decode all units in their order.

    If a decoder ends, the units without a result go to the next decoder. The one that it was decoding is divided, or decoded once
    more, alone, or refused. If rows of several units were being converted together, these are decoded again, each alone.

    Args:
        units: Are asked for when they are needed.
        on_wait: Called often while a decoder works, with its processor time so far, in seconds. If it raises,
            the decoder is ended.

    Raises:
        NoDecoder: No decoder can be started, or decoders end before they decode anything.
        Exception: The errors of `Unit.read` and of the functions.
    """
    supervision = _Supervision(work, iter(units), on_refusal, divide, on_wait)
    try:
        while supervision.send():
            while (result := supervision.result()) is not None:
                document, contents = result
                yield from on_result(document, contents, supervision.sent)
                supervision.settle(document["settled"])
    finally:
        supervision.close()


class _Supervision:
    def __init__(
        self, work: Work, units: Iterator[Unit], on_refusal: OnRefusal, divide: Divide, on_wait: OnWait | None
    ) -> None:
        self._work, self._units, self._on_refusal, self._divide = work, units, on_refusal, divide
        self._on_wait = on_wait
        self._waiting: deque[Unit] = deque()
        self.sent: dict[int, Unit] = {}  # those without a result, in their order
        self._numbers = count()
        self._process: Process | None = None
        self._idle_deaths = 0
        self._flushed = False

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    def settle(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            del self.sent[number]
        self._idle_deaths = 0

    def send(self) -> bool:
        """Send the next units, or ask for the rest.

        Returns:
            False, if everything is done.
        """
        group, is_last = self._group()
        if not group and not self.sent:
            return False
        for unit in group:
            unit.number = next(self._numbers)
            self.sent[unit.number] = unit
        if self._process is None:
            self._process = Process(self._work)
        self._flushed = is_last
        document = {
            "units": [[u.number, u.size, u.content is not None, u.document] for u in group],
            "flush": is_last,
        }
        try:
            self._process.send(document, [u.content for u in group if u.content is not None])
        except Death as death:
            self._died(death)
        return True

    def result(self) -> tuple[dict[str, Any], list[memoryview]] | None:
        """The next result. None: the decoder needs more units, or another decoder does."""
        while self._process is not None:
            try:
                document, contents = self._process.receive(self._name, self._on_wait)
                match document["kind"]:
                    case "result":
                        return document, contents
                    case "ready":
                        if self._flushed and self.sent:
                            raise NoDecoder(f"{len(self.sent)} units have no result")
                        return None
                    case "read":
                        read = self.sent[document["unit"]].read
                        assert read is not None
                        self._process.send({}, [read(document["offset"], document["size"])])
            except Death as death:
                self._died(death)
        return None

    def _name(self, number: int) -> str:
        return self.sent[number].name if number in self.sent else "a file"

    def _group(self) -> tuple[list[Unit], bool]:
        """The next units, and whether all results are to be sent after them."""
        group: list[Unit] = []
        size = 0
        while len(group) < UNITS_AT_ONCE and size < BYTES_AT_ONCE:
            if not self._waiting:
                following = next(self._units, None)
                if following is None:
                    return group, True
                self._waiting.append(following)
            unit = self._waiting[0]
            if unit.alone and (group or self.sent):
                return group, True
            group.append(self._waiting.popleft())
            size += len(unit.content) if unit.content is not None else 0
            if unit.alone:
                return group, True
        return group, False

    def _died(self, death: Death) -> None:
        self.close()
        unsettled = list(self.sent.values())
        culprit = self.sent.get(death.unit)
        if death.unit == SEVERAL and len(unsettled) == 1:
            culprit = unsettled[0]
        self.sent.clear()
        if culprit is None and death.unit != SEVERAL:
            self._idle_deaths += 1
            if self._idle_deaths > _IDLE_DEATHS_AT_MOST:
                raise NoDecoder(f"the process that decodes files ends before it decodes any ({death.signal})")
        again: list[Unit] = []
        for unit in unsettled:
            if unit is culprit:
                again += self._after_death(unit, death)
            else:
                unit.alone = unit.alone or death.unit == SEVERAL
                again.append(unit)
        self._waiting.extendleft(reversed(again))

    def _after_death(self, unit: Unit, death: Death) -> Sequence[Unit]:
        """What to decode in the place of a unit that has ended a decoder."""
        unit.deaths += 1
        if parts := self._divide(unit):
            return parts
        # Somebody else may have killed the decoder, and other units may have had its memory, so a unit is decoded once more.
        if death.cause is not DeathCause.TIME and unit.deaths == 1:
            unit.alone = True
            return [unit]
        self._on_refusal(unit, death.message(self._work.limits, unit.size))
        return ()

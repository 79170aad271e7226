"""Starts decoders and learns how they end. I/O.

A process has one server that forks its decoders (`child`). Processes that are forked share the server of their parent.
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from lethe.base.imports import without_pandas
from lethe.decoder.child import (
    MARK,
    MARK_BYTES,
    NOTHING,
    OUT_OF_MEMORY,
    REQUEST_BYTES,
    STATUS,
    Work,
    serve,
)
from lethe.decoder.limits import Limits
from lethe.decoder.link import Closed, Content, Link, Message

log = logging.getLogger(__name__)

# A decoder that works for longer is mentioned in the log, each time after as many seconds.
NOTICED_SECONDS: Final = 30.0
# How often whoever waits for a decoder is asked whether it still does.
ASKED_SECONDS: Final = 0.05
# Of processor time. A decoder that has used more, and for which somebody waits, lets other processes go first.
QUICK_SECONDS: Final = 0.3
_LOWER_PRIORITY: Final = 19
# The variables that a decoder's server gets. Others may be credentials.
_VARIABLES: Final = frozenset({"PATH", "LANG", "TZ", "TMPDIR"})
_PREFIXES: Final = ("PYTHON", "LD_", "DYLD_", "LC_", "ARROW_")


# Called while a decoder works.
OnWait = Callable[[float], object]


class NoDecoder(RuntimeError):
    """No decoder can be started, or decoders end before they decode anything. No file is the cause."""


class Cause(Enum):
    """Why a decoder ended."""

    TIME = "time"  # a limit of processor time, or of time
    MEMORY = "memory"
    CRASH = "crash"


@dataclass(eq=False)
class Death(Exception):
    """A decoder has ended before its work was done."""

    unit: int  # that it was decoding: its number, NOTHING or SEVERAL
    cause: Cause
    signal: str = ""  # the name of the signal that ended it

    def message(self, limits: Limits, size: int) -> str:
        """What it says about a unit of this size."""
        match self.cause:
            case Cause.TIME:
                return f"decoding its {size} bytes takes more than {limits.cpu_of(size):.0f} s of processor time"
            case Cause.MEMORY:
                return f"decoding it takes more than {limits.memory_bytes // 1024**2} MiB of memory"
            case Cause.CRASH:
                return f"it ends the decoder ({self.signal})"


class Process:
    """A decoder. Close it."""

    def __init__(self, work: Work) -> None:
        """Raises: NoDecoder."""
        self._process = -1
        self._link, self._status, self._mark = _requested(type(work).__module__)
        self._pid = self._read_status() or 0
        if not self._pid:
            self.close()
            raise NoDecoder("the process that decodes files cannot be started; see the log")
        with suppress(OSError, AttributeError):  # not on every system
            self._process = os.pidfd_open(self._pid)
        with suppress(Closed):  # the next call finds it
            self._link.send({}, [pickle.dumps(work)])

    def send(self, document: dict[str, Any], contents: Sequence[Content] = ()) -> None:
        """Raises: Death."""
        try:
            self._link.send(document, contents)
        except Closed:
            raise self._death() from None

    def receive(self, name: Any = None, on_wait: OnWait | None = None) -> Message:
        """The next message. Raises: Death, NoDecoder; what `on_wait` raises.

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
            return Death(unit, Cause.CRASH, "unknown")
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if number in (signal.SIGXCPU, signal.SIGALRM):
                return Death(unit, Cause.TIME)
            return Death(unit, Cause.CRASH, signal.Signals(number).name)
        code = os.WEXITSTATUS(status)
        return Death(unit, Cause.MEMORY) if code == OUT_OF_MEMORY else Death(unit, Cause.CRASH, f"exit code {code}")

    def _read_status(self) -> int | None:
        content = os.read(self._status, STATUS.size)
        return STATUS.unpack(content)[0] if len(content) == STATUS.size else None


def prepare(module: str) -> None:
    """Start the server of this process and let it import a module, so that the first decoder need not wait for it. If that fails,
    the first decoder fails."""
    with suppress(NoDecoder, OSError):
        link, status, _ = _requested(module)  # a decoder that ends as it has no work
        link.close()
        os.close(status)


def _requested(module: str) -> tuple[Link, int, Any]:
    """Ask for a decoder. Returns: its link, the pipe with its status, and its mark. Raises: NoDecoder."""
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
        """Ask for a decoder. Raises: NoDecoder."""
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
    """Start the server as a fork of this process, which has one thread and has imported what decoders need. The processes that
    this process forks later share it."""
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

"""The decoder, and the server that forks it: `python -P -m lethe.decoder FD`. I/O.

The server has one thread, imports modules once and never reads a byte from outside. For each request it forks a decoder, which
limits itself, decodes what its parent sends, and ends when the parent closes the link. The server reports how each decoder ended,
and ends with the last process that has its socket.
"""

import gc
import importlib
import json
import math
import mmap
import os
import pickle
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final, NoReturn, Protocol, TypeAlias

import numpy as np

from lethe.base.ranged_file import RangedFile
from lethe.decoder.limits import Limits

Content: TypeAlias = bytes | bytearray | memoryview
Message: TypeAlias = tuple[dict[str, Any], list[memoryview]]
_PARTS_AT_ONCE: Final = 256
_SOCKET_BYTES: Final = 1024**2

REQUEST_BYTES: Final = 128
"""A request: the name of a module that the decoder needs.

With it come the link, the file of the mark, and the pipe of the status.
"""
STATUS: Final = struct.Struct(
    "=q"
)  # in the pipe: first the pid (0: none could be started), last the status of `waitpid`
MARK: Final = struct.Struct("=qq")
"""The unit that is being decoded, and how many of its rows are."""
MARK_BYTES: Final = 4096
NOTHING: Final = -1
"""In the mark: no unit is being decoded."""
SEVERAL: Final = -2
"""In the mark: rows of several units are being converted together."""
OUT_OF_MEMORY: Final = 77
"""The exit code of a decoder that has used up its memory."""


class Closed(Exception):
    """The other side has closed the link, or has ended."""


class Link:
    """One end of the socket. One thread at a time may use it.

    What comes from the decoder is never unpickled: it has read bytes from outside.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connected.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BYTES)

    def fileno(self) -> int:
        """The file descriptor of the socket, to wait for messages with `select` or `poll`; -1: the link is closed."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end. The other side gets `Closed` once it has read what was sent; a decoder then ends."""
        self._socket.close()

    def send(self, document: dict[str, Any], contents: Sequence[Content] = ()) -> None:
        """Send a document and contents.

        Raises:
            Closed: The other side has closed the link, or has ended.
        """
        text = json.dumps([document, [len(c) for c in contents]]).encode()
        parts = [memoryview(p) for p in (len(text).to_bytes(4, "big"), text, *contents) if len(p)]
        try:
            # With one call for many parts, so that the other side wakes once.
            while parts:
                sent = self._socket.sendmsg(parts[:_PARTS_AT_ONCE])
                while parts and sent >= len(parts[0]):
                    sent -= len(parts.pop(0))
                if sent:
                    parts[0] = parts[0][sent:]
        except OSError as e:
            raise Closed from e

    def receive(self) -> Message:
        """Receive the next message of the other side.

        Raises:
            Closed: The other side has closed the link, or has ended.
        """
        text = self._exactly(int.from_bytes(self._exactly(4), "big"))
        document, sizes = json.loads(bytes(text))
        content = self._exactly(sum(sizes))
        pieces, start = [], 0
        for size in sizes:
            pieces.append(content[start : start + size])
            start += size
        return document, pieces

    def _exactly(self, size: int) -> memoryview:
        content = np.empty(size, np.uint8).data if size else memoryview(b"")
        done = 0
        while done < size:
            try:
                count = self._socket.recv_into(content[done:], size - done, socket.MSG_WAITALL)
            except OSError as e:
                raise Closed from e
            if not count:
                raise Closed
            done += count
        return content


class Work(Protocol):
    """What a decoder does. It is pickled and sent to the decoder.

    The server imports the module of its class before it forks the decoder, or the one that its attribute `module` names.
    """

    @property
    def limits(self) -> Limits:
        """What one unit may cost. The decoder limits its own memory by this before it decodes anything."""
        ...

    def run(self, link: "ChildLink") -> None:
        """Decode what comes over the link, until Closed is raised."""
        ...


class ChildLink(Link):
    """The decoder's end. It marks what is being decoded, for the parent to find when the decoder has ended."""

    def __init__(self, connected: socket.socket, mark: Any) -> None:
        super().__init__(connected)
        self.limits = Limits()
        self._mark = mark
        self._soft = resource.RLIM_INFINITY
        self._seconds = 0.0  # of the unit
        self.rest()

    def begin(self, unit: int, size: int) -> None:
        """Begin the time of a unit, or of `SEVERAL`, before it is decoded, also if it was begun before.

        Args:
            size: Of all bytes.
        """
        MARK.pack_into(self._mark, 0, unit, 0)
        soft = math.ceil(time.process_time() + self.limits.cpu_of(size))
        if soft != self._soft:
            resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))
            self._soft = soft
        self._seconds = self.limits.wall_of(size)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def mark(self, unit: int) -> None:
        """Go on with another unit, or with `SEVERAL`, in the time of the one that was begun."""
        MARK.pack_into(self._mark, 0, unit, 0)

    def advance(self, rows: int) -> None:
        """Show how far the unit is decoded."""
        unit, _ = MARK.unpack_from(self._mark)
        MARK.pack_into(self._mark, 0, unit, rows)

    def rest(self) -> None:
        """Show that nothing is being decoded, and stop the limit of time."""
        MARK.pack_into(self._mark, 0, NOTHING, 0)
        self._seconds = 0.0
        signal.setitimer(signal.ITIMER_REAL, 0)

    def send(self, document: dict[str, Any], contents: Any = ()) -> None:
        """Send a message. The time limit of the unit stops meanwhile, and begins again afterwards.

        Raises:
            Closed: The parent has closed the link, or has ended.
        """
        signal.setitimer(signal.ITIMER_REAL, 0)  # the parent may take its time
        super().send(document, contents)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def receive(self) -> Message:
        """Wait for a message, however long it takes. The time limit of the unit begins again afterwards.

        Raises:
            Closed: The parent has closed the link, or has ended.
        """
        signal.setitimer(signal.ITIMER_REAL, 0)
        message = super().receive()
        signal.setitimer(signal.ITIMER_REAL, self._seconds)
        return message


class RemoteFile(RangedFile):
    """A file of which the parent reads ranges."""

    def __init__(self, link: ChildLink, unit: int, size: int) -> None:
        super().__init__(size)
        self._link, self._unit = link, unit

    def read_part(self, start: int, size: int) -> memoryview:
        """Read a range of the file from the parent.

        Raises:
            Closed: The other side has closed the link, or has ended.
        """
        self._link.send({"kind": "read", "unit": self._unit, "offset": start, "size": size})
        _, (content,) = self._link.receive()
        return content


def serve(control: socket.socket) -> None:
    """Fork decoders until the last process that has the other end of this socket ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption means
    signal.signal(signal.SIGCHLD, lambda *_: None)  # not ignored, so that it wakes this process, and the status is kept
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(awake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    pipes: dict[int, int] = {}  # by the pid of a decoder, where to report its status
    while True:
        ready, _, _ = select.select([control.fileno(), awake], [], [])
        if awake in ready:
            with suppress(BlockingIOError):
                os.read(awake, 65536)
            _report(pipes)
        if control.fileno() in ready:
            request, handles, _, _ = socket.recv_fds(control, REQUEST_BYTES, 3)
            if not request:
                break
            _start(request.decode().strip(), handles, control, (awake, wake), pipes)
    for pid in pipes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _report(pipes: dict[int, int]) -> None:
    for pid in list(pipes):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            pipe = pipes.pop(pid)
            with suppress(OSError):
                os.write(pipe, STATUS.pack(status))
            os.close(pipe)


def _start(
    module: str, handles: list[int], control: socket.socket, wakeup: tuple[int, int], pipes: dict[int, int]
) -> None:
    link, mark, pipe = handles
    pid = 0
    try:
        _warm_up(module)
        pid = os.fork()
        if pid == 0:
            for descriptor in (*wakeup, *pipes.values(), pipe):
                os.close(descriptor)
            control.close()
            _decode(link, mark)
        pipes[pid] = pipe
    except (OSError, ImportError) as e:
        print(f"lethe: no decoder can be started ({type(e).__name__})", file=sys.stderr, flush=True)
    finally:
        os.close(link)
        os.close(mark)
        with suppress(OSError):
            os.write(pipe, STATUS.pack(pid))
        if not pid:
            os.close(pipe)


@cache
def _warm_up(module: str) -> None:
    """Let the server do once what each decoder would do first: import a module, and call its `warm_up` if it has one."""
    loaded = importlib.import_module(module)
    if hasattr(loaded, "warm_up"):
        loaded.warm_up()
    gc.collect()
    gc.freeze()  # so that a collection in a decoder does not copy the pages of these objects


def _decode(link_handle: int, mark_handle: int) -> NoReturn:
    """Decode what the parent sends, until it closes the link."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _silence()
        mark = mmap.mmap(mark_handle, MARK_BYTES)
        os.close(mark_handle)
        link = ChildLink(socket.socket(fileno=link_handle), mark)
        code = _worked(link)
    except MemoryError:
        code = OUT_OF_MEMORY
    finally:
        os._exit(code)


def _worked(link: ChildLink) -> int:
    """The result of the work.

    Returns:
        The exit code.
    """
    try:
        _, (pickled,) = link.receive()
        work: Work = pickle.loads(pickled)
        link.limits = work.limits
        _restrict(work.limits)
        work.run(link)
    except Closed:
        pass
    except MemoryError:
        raise
    except Exception as e:  # an error of Lethe, not of a unit; its text may contain values
        frame = e.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        where = f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}" if frame is not None else ""
        with suppress(Closed):
            link.send({"kind": "failed", "error": f"{type(e).__name__} at {where}"})
        return 1
    return 0


def _silence() -> None:
    """What libraries print when they give up may contain values."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1, 2):
        os.dup2(nowhere, handle)
    os.close(nowhere)


def _restrict(limits: Limits) -> None:
    """Limit this process: no core dump, no files, no more memory than allowed. The processor time is limited for each unit."""
    os.environ.clear()
    sys.dont_write_bytecode = True
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # rather than the parent
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    used = _data_bytes()
    if used is not None:
        most = used + limits.memory_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _data_bytes() -> int | None:
    """The memory that RLIMIT_DATA counts. None: this system does not tell."""
    try:
        with open("/proc/self/status") as file:
            facts: Mapping[str, str] = dict(line.split(":", 1) for line in file if ":" in line)
        return int(facts["VmData"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None

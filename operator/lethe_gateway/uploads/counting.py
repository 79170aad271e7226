"""Limits the number of open uploads of a Dataset and of a caller. I/O: the object store, when a limit seems to be reached.

Each process counts what it opens and ends. Before it refuses an upload, it looks at the store, which shows what other processes
opened and ended. So counting costs one listing when a buffer is used for the first time, and when a limit is near.
"""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from lethe_gateway.problems import Kind, Problem
from lethe_gateway.uploads import opening
from lethe_gateway.uploads.buffers import Buffer
from lethe_gateway.uploads.opening import Record

# The store is looked at this often at most for one buffer, apart from the first time.
COUNTED_SECONDS: Final = 5.0
BUFFERS_AT_MOST: Final = 10_000
READ_AT_ONCE: Final = 16
RETRY_SECONDS: Final = 60.0


@dataclass
class _Counts:
    counted: float  # when the store was looked at, by the clock
    of: Counter[str] = field(default_factory=Counter)  # open uploads, by who opened them


class OpenUploads:
    """The numbers of open uploads, by buffer. Threads may share it."""

    def __init__(self, per_dataset: int, per_caller: int, clock: Callable[[], float]) -> None:
        self._per_dataset = per_dataset
        self._per_caller = per_caller
        self._clock = clock
        self._lock = threading.Lock()
        self._buffers: dict[str, _Counts] = {}

    def enter(self, record: Record) -> None:
        """Count an upload that was just opened. Raises: Problem (`too-many-requests`): remove it; StoreError."""
        uri, caller = record.buffer.uri, record.manifest.opened_by
        with self._lock:
            counts = self._buffers.get(uri)
            if counts is not None:
                counts.of[caller] += 1
                near = self._excess(counts, caller) and counts.counted + COUNTED_SECONDS < self._clock()
        if counts is None or near:
            counts = self._counted(record.buffer)
        with self._lock:
            if why := self._excess(counts, caller):
                counts.of[caller] -= 1
                raise Problem(
                    Kind.TOO_MANY_REQUESTS,
                    f"{why} Complete or abandon some of them first: GET …/uploads lists them.",
                    retry_after_seconds=RETRY_SECONDS,
                )

    def leave(self, record: Record) -> None:
        """Count an upload as ended."""
        with self._lock:
            counts = self._buffers.get(record.buffer.uri)
            if counts is not None and counts.of[record.manifest.opened_by] > 0:
                counts.of[record.manifest.opened_by] -= 1

    def _excess(self, counts: _Counts, caller: str) -> str:
        if caller and counts.of[caller] > self._per_caller:
            return f"You have {self._per_caller} open uploads of this Dataset, the most that one caller may have."
        if counts.of.total() > self._per_dataset:
            return f"The Dataset has {self._per_dataset} open uploads, the most that it may have."
        return ""

    def _counted(self, buffer: Buffer) -> _Counts:
        """What the store shows, with the upload that is being opened."""
        uploads = [upload for upload, listed in opening.known(buffer).items() if listed.is_open]
        some = uploads[: self._per_dataset]  # with more than these, nothing is opened, whoever asks
        with ThreadPoolExecutor(READ_AT_ONCE, "open uploads") as pool:
            callers = [r.manifest.opened_by for r in pool.map(lambda u: opening.read(buffer, u), some) if r is not None]
        of = Counter(callers)
        of[""] += len(uploads) - len(callers)
        counts = _Counts(self._clock(), of)
        with self._lock:
            if len(self._buffers) >= BUFFERS_AT_MOST:
                self._buffers.clear()
            self._buffers[buffer.uri] = counts
        return counts

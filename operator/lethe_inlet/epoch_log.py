"""The epoch log in `_inlet/` of a buffer. I/O: the object store of the buffer.

Invariant: of two processes that write the same epoch only one succeeds, and the other one reads it. So each offset is part of one
batch, however many processes read the topic.
"""

import json
from typing import Final

from lethe.storage.object_store import Folder, ObjectStore

from lethe_inlet.epochs import Counts, Epoch, UnreadableLog, decode, encode

FOLDER: Final = "_inlet"
_DIGITS: Final = 12
_EPOCH: Final = "epoch-"
_DONE: Final = "done-"
# Entries that are kept below the newest one, for people who look.
KEPT: Final = 10


class EpochLog:
    """The log of one Dataset."""

    def __init__(self, store: ObjectStore, buffer_uri: str) -> None:
        self._folder = Folder(store, f"{buffer_uri.rstrip('/')}/{FOLDER}")

    @property
    def uri(self) -> str:
        return self._folder.uri

    def newest(self) -> Epoch | None:
        """The epoch with the highest number; None: nothing was ever read. Raises: UnreadableLog, StoreError."""
        while True:
            numbers = self._numbers(_EPOCH)
            if not numbers:
                return None
            name = _name(_EPOCH, max(numbers))
            content = self._folder.read(name)
            if content is not None:
                return decode(content, f"{self.uri}/{name}")
            # Another process has removed it after it wrote many others: look again.

    def create(self, epoch: Epoch) -> bool:
        """Add an epoch. Returns: whether it is the newest one. If not, another process reads the topic. Raises: StoreError."""
        if not self._folder.create(_name(_EPOCH, epoch.number), encode(epoch)):
            return False
        if max(self._numbers(_EPOCH)) == epoch.number:
            return True
        # This process was stopped for so long that others have removed the entry of this number.
        self._folder.delete(_name(_EPOCH, epoch.number))
        return False

    def counts(self, number: int) -> Counts | None:
        """What was read up to this epoch; None: the epoch is not complete. Raises: UnreadableLog, StoreError."""
        name = _name(_DONE, number)
        content = self._folder.read(name)
        if content is None:
            return None
        try:
            found = json.loads(content)
            return Counts(int(found["rows"]), int(found["refused"]), int(found["lost"]))
        except (ValueError, KeyError, TypeError) as e:
            raise UnreadableLog(f"{self.uri}/{name} does not count what was read. Delete it.") from e

    def complete(self, number: int, counts: Counts) -> None:
        """Record that all batches of an epoch are written, and remove old entries. Raises: StoreError."""
        self._folder.create(_name(_DONE, number), (json.dumps(counts.as_document()) + "\n").encode())
        for prefix in (_EPOCH, _DONE):
            for old in self._numbers(prefix):
                if old < number - KEPT:
                    self._folder.delete(_name(prefix, old))

    def _numbers(self, prefix: str) -> list[int]:
        names = (n.removeprefix(prefix).removesuffix(".json") for n in self._folder.names(prefix))
        return [int(n) for n in names if n.isdigit()]


def _name(prefix: str, number: int) -> str:
    return f"{prefix}{number:0{_DIGITS}d}.json"

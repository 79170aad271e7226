"""Keeps the cursor of a table: numbered files beside it. I/O.

A cursor is `<table location>/_events/<number>.json`, and the greatest number counts. Each change creates the next number if it is
absent, which every store that Lethe supports does atomically. So two processes never overwrite each other's cursor.
"""

import logging
from dataclasses import dataclass
from typing import Final

from lethe.base import names
from lethe.storage.object_store import ObjectStore, StoreError, WriteUnknown

from lethe_operator.decide.publishing.cursor import Cursor, decode, encode

log = logging.getLogger(__name__)

_SUFFIX: Final = ".json"
_DIGITS: Final = 16
# Older ones are deleted. The one before the newest stays, in case that one is damaged.
KEPT: Final = 2


class CursorMoved(Exception):
    """Another process has changed the cursor, so this one must read it again."""


@dataclass(frozen=True)
class Numbered:
    """A cursor as it was read or written."""

    number: int
    cursor: Cursor


class CursorFiles:
    """The cursor of one table."""

    def __init__(
        self, store: ObjectStore, table_location: str, dataset: str, folder: str = names.EVENTS_FOLDER
    ) -> None:
        """Args:
        dataset: `namespace/name`, which the files name for people.
        folder: Below the table's location.
        """
        self.folder = f"{table_location.rstrip('/')}/{folder}"
        self._store = store
        self._dataset = dataset

    def load(self) -> Numbered | None:
        """The current cursor; None: there is none. Raises: StoreError, UnreadableCursor."""
        found = self._numbers()
        if not found:
            return None
        number = found[-1]
        uri = self._uri(number)
        content = self._store.read(uri)
        if content is None:  # another process has deleted it, because there is a newer one
            raise CursorMoved
        self._remove(found[:-KEPT])
        return Numbered(number, decode(content.data, uri))

    def create(self, cursor: Cursor, after: Numbered | None) -> Numbered:
        """Set the cursor, unless another process did.

        Args:
            after: The cursor that it follows; None: there was none.
        Raises: CursorMoved; StoreError, UnsupportedStorage.
        """
        number = after.number + 1 if after is not None else 1
        uri, content = self._uri(number), encode(cursor, self._dataset)
        try:
            created = self._store.put_if_absent(uri, content)
        except WriteUnknown as e:
            raise CursorMoved from e  # it may have been created: the next read shows it
        if not created:
            raise CursorMoved
        if number > KEPT:
            self._remove([number - KEPT])
        return Numbered(number, cursor)

    def _numbers(self) -> list[int]:
        """Of the files, in order. Others are ignored."""
        stems = (n.removesuffix(_SUFFIX) for n in self._store.names(self.folder) if n.endswith(_SUFFIX))
        return sorted(int(s) for s in stems if len(s) == _DIGITS and s.isdecimal())

    def _uri(self, number: int) -> str:
        return f"{self.folder}/{number:0{_DIGITS}d}{_SUFFIX}"

    def _remove(self, numbers: list[int]) -> None:
        for number in numbers:
            try:
                self._store.remove(self._uri(number))
            except StoreError as e:
                log.debug("%s is not deleted: %s", self._uri(number), e)

"""Keeps the cursor of a table: numbered files beside it. I/O.

A cursor is `<table location>/_events/<table UUID>/<namespace>.<Dataset>/<number>.json`, and the greatest number counts. Each
change creates the next number if it is absent, which every store that Lethe supports does atomically. So two processes never
overwrite each other's cursor. A table that was put at the location of another one has a cursor of its own, and does not move that
of the other; nor does another Dataset, whatever UUID its table says that it has.
"""

import logging
from dataclasses import dataclass
from typing import Final

from lethe.base import names
from lethe.storage.object_store import ObjectStore, StoreError, WriteUnknown

from lethe_operator.publish.cursor import Cursor, UnreadableCursor, decode, encode

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
    """The cursor of one table, for the Dataset that claims it."""

    def __init__(
        self,
        store: ObjectStore,
        table_location: str,
        table_uuid: str,
        dataset: str,
        folder: str = names.EVENTS_FOLDER,
    ) -> None:
        """Create `CursorFiles`.

        Args:
            dataset: `namespace/name`.
            folder: Below the table's location, for the cursors of all tables that are or were there.
        """
        self._all = f"{table_location.rstrip('/')}/{folder}"
        self._name = dataset.replace("/", ".")  # a namespace has no dots
        self.folder = f"{self._all}/{table_uuid}/{self._name}"
        self._store = store
        self._table_uuid = table_uuid
        self._dataset = dataset

    def load(self) -> Numbered | None:
        """The current cursor; None: there is none.

        Raises:
            StoreError: A store refused a request or did not answer.
            UnreadableCursor: A cursor has an unknown format; the message says which.
        """
        numbers = self._numbers()
        if not numbers:
            return None
        number = numbers[-1]
        uri = self._uri(number)
        content = self._store.read(uri)
        if content is None:  # another process has deleted it, because there is a newer one
            raise CursorMoved
        cursor = decode(content.data, uri)
        if cursor.table_uuid != self._table_uuid:
            raise UnreadableCursor(
                f"{uri} is a cursor of the table {cursor.table_uuid}, and the folder is that of {self._table_uuid}. Delete it: "
                "publishing then starts again from the file before it, or as for a table without a cursor."
            )
        self._remove(numbers[:-KEPT])
        return Numbered(number, cursor)

    def of_replaced(self) -> Cursor | None:
        """The last cursor of another table of the same Dataset that was at this location; None: there was none."""
        newest: dict[str, str] = {}  # by table UUID
        for listed in self._store.list(self._all):
            table, _, rest = listed.key.removeprefix(f"{self._all}/").partition("/")
            dataset, _, name = rest.partition("/")
            if table != self._table_uuid and dataset == self._name and _number_of(name) is not None:
                newest[table] = max(newest.get(table, ""), listed.key)
        cursors = []
        for uri in newest.values():
            content = self._store.read(uri)
            try:
                cursors += [decode(content.data, uri)] if content is not None else []
            except UnreadableCursor as e:  # of a table that is gone
                log.warning("%s", e)
        return max(cursors, key=lambda c: c.epoch, default=None)

    def create(self, cursor: Cursor, after: Numbered | None) -> Numbered:
        """Set the cursor, unless another process did.

        Args:
            after: The cursor that it follows; None: there was none.

        Raises:
            CursorMoved: Another process has changed the cursor, so this one must read it again.
            StoreError: UnsupportedStorage.
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
        return sorted(n for name in self._store.names(self.folder) if (n := _number_of(name)) is not None)

    def _uri(self, number: int) -> str:
        return f"{self.folder}/{number:0{_DIGITS}d}{_SUFFIX}"

    def _remove(self, numbers: list[int]) -> None:
        for number in numbers:
            try:
                self._store.remove(self._uri(number))
            except StoreError as e:
                log.debug("%s is not deleted: %s", self._uri(number), e)


def _number_of(name: str) -> int | None:
    """None: it is not the name of a cursor."""
    stem = name.removesuffix(_SUFFIX)
    return int(stem) if name != stem and len(stem) == _DIGITS and stem.isdecimal() else None

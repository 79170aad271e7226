"""The objects of the API and their latest changes, in one SQLite file. I/O.

Each write is one transaction, so the process may be killed at any moment. Versions of objects are the numbers of their changes.

A Secret may hold values of an Erase. When it is changed or deleted, its former content leaves the file, too: the earlier changes
of it are emptied, and SQLite overwrites what it frees.
"""

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

Json = dict[str, Any]
# Changes that are kept for watches. An older watch must list again.
KEPT_CHANGES: Final = 20_000
SECRETS: Final = "secrets"  # the key of the kind
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS objects (
  kind TEXT, namespace TEXT, name TEXT, uid TEXT, body TEXT, PRIMARY KEY (kind, namespace, name)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS objects_by_uid ON objects (uid);
CREATE TABLE IF NOT EXISTS changes (
  version INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT, namespace TEXT, type TEXT, body TEXT
);
"""


class ChangeType(StrEnum):
    """What happened to an object, in the words of a watch event."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True)
class ObjectChange:
    """A change of an object."""

    version: int
    namespace: str
    type: ChangeType
    body: str
    """The object after the change, as JSON; of a deleted one, its last state."""


class StoreClosed(Exception):
    """`lethe local up` ends. What a client still asks for gets no answer."""


class LocalApiStore:
    """One per folder, shared by threads."""

    def __init__(self, path: Path) -> None:
        """Create `LocalApiStore`.

        Raises:
            sqlite3.Error: the file cannot be opened or written.
        """
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute("PRAGMA secure_delete = ON")
        self._connection.executescript(_SCHEMA)
        self._truncate_log()  # a process that was killed may have left it
        self._changed = threading.Condition(threading.RLock())
        self._closed = False

    @contextmanager
    def transaction(self) -> Iterator["Transaction"]:
        """All reads and writes in it happen at once, or none of them.

        Raises:
            StoreClosed: `lethe local up` ends.
        """
        with self._changed:
            self._require_open()
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                writing = Transaction(self._connection)
                yield writing
                self._connection.execute("COMMIT")
                if writing.forgets:  # the log of the database has the former content, too
                    self._truncate_log()
            except BaseException:
                if self._connection.in_transaction:  # SQLite itself ends one for which there is no space
                    self._connection.execute("ROLLBACK")
                raise
            self._changed.notify_all()

    def version(self) -> int:
        """The number of the latest change.

        Raises:
            StoreClosed: `lethe local up` ends.
        """
        with self._changed:
            self._require_open()
            return _version(self._connection)

    def changes(self, kind: str, after: int, wait_seconds: float) -> tuple[Sequence[ObjectChange], int] | None:
        """The changes of a kind after a version, and the version that they lead to; waits for the first change.

        None: the version is too old.

        Raises:
            StoreClosed: Also if it is closed meanwhile.
        """
        with self._changed:
            self._require_open()
            if self._is_too_old(after):
                return None
            news = self._after(kind, after)
            if not news:
                self._changed.wait_for(lambda: self._closed or self._after(kind, after), wait_seconds)
                self._require_open()
                news = self._after(kind, after)
            return news, _version(self._connection)

    def before(self, kind: str, change: ObjectChange) -> str | None:
        """The object before a change, as JSON. None: the change that made it so is not kept any more.

        Raises:
            StoreClosed: `lethe local up` ends.
        """
        uid = json.loads(change.body)["metadata"]["uid"]
        with self._changed:
            self._require_open()
            rows = self._connection.execute(
                "SELECT body FROM changes WHERE version < ? AND kind = ? AND body LIKE ? ORDER BY version DESC",
                (change.version, kind, f'%"uid": "{uid}"%'),
            )
            # Others may have the object as their owner.
            return next((body for (body,) in rows if json.loads(body)["metadata"]["uid"] == uid), None)

    def close(self) -> None:
        """End all waits and close the file."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._connection.close()

    def _truncate_log(self) -> None:
        """Write the log of the database into its file, and empty it."""
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosed

    def _is_too_old(self, after: int) -> bool:
        (oldest,) = self._connection.execute("SELECT min(version) FROM changes").fetchone()
        return after < _version(self._connection) and (oldest is None or after < oldest - 1)

    def _after(self, kind: str, after: int) -> list[ObjectChange]:
        rows = self._connection.execute(
            "SELECT version, namespace, type, body FROM changes WHERE version > ? AND kind = ? ORDER BY version",
            (after, kind),
        )
        return [ObjectChange(version, namespace, ChangeType(type), body) for version, namespace, type, body in rows]


class Transaction:
    """The objects as of a transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.forgets = False  # whether it removes content that must not stay in the file

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """The object, also as this transaction has left it; None: there is none. `kind` is the key of the kind."""
        row = self._connection.execute(
            "SELECT body FROM objects WHERE kind = ? AND namespace = ? AND name = ?", (kind, namespace, name)
        ).fetchone()
        return None if row is None else json.loads(row[0])

    def list(self, kind: str, namespace: str) -> Sequence[Json]:
        """All objects of a kind, by namespace and name; of all namespaces, if `namespace` is empty."""
        rows = self._connection.execute(
            "SELECT body FROM objects WHERE kind = ? AND (namespace = ? OR ? = '') ORDER BY namespace, name",
            (kind, namespace, namespace),
        )
        return [json.loads(body) for (body,) in rows]

    def owned_by(self, uid: str) -> Sequence[tuple[str, Json]]:
        """The objects with an owner, with their kinds."""
        rows = self._connection.execute(
            "SELECT kind, body FROM objects WHERE body LIKE ? ORDER BY kind, name", (f'%"uid": "{uid}"%',)
        )
        objects = [(kind, json.loads(body)) for kind, body in rows]
        return [
            (k, b) for k, b in objects if any(o.get("uid") == uid for o in b["metadata"].get("ownerReferences") or ())
        ]

    def owned(self) -> Sequence[tuple[str, Json]]:
        """The objects that name owners, with their kinds."""
        rows = self._connection.execute(
            "SELECT kind, body FROM objects WHERE body LIKE '%\"ownerReferences\": [{%' ORDER BY kind, name"
        )
        objects = [(kind, json.loads(body)) for kind, body in rows]
        return [(k, b) for k, b in objects if b["metadata"].get("ownerReferences")]

    def has(self, uid: str) -> bool:
        """Whether there is an object with a UID."""
        return self._connection.execute("SELECT 1 FROM objects WHERE uid = ?", (uid,)).fetchone() is not None

    def version(self) -> int:
        """The number of the latest change of any object; 0: nothing was ever stored."""
        return _version(self._connection)

    def put(self, kind: str, body: Mapping[str, Any], type: ChangeType) -> Json:
        """Store an object with a new version. Return it."""
        metadata = {**body["metadata"], "resourceVersion": str(_version(self._connection) + 1)}
        stored = {**body, "metadata": metadata}
        text = json.dumps(stored)
        namespace = metadata.get("namespace", "")
        if kind == SECRETS and type is not ChangeType.ADDED:
            self._forget(kind, namespace, metadata["name"])
        self._connection.execute(
            "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)",
            (kind, namespace, metadata["name"], metadata["uid"], text),
        )
        self._note(kind, namespace, type, text)
        return stored

    def remove(self, kind: str, body: Mapping[str, Any]) -> None:
        """Delete an object with a new version, for watches. All kept changes of a Secret lose its content."""
        metadata = {**body["metadata"], "resourceVersion": str(_version(self._connection) + 1)}
        namespace = metadata.get("namespace", "")
        self._connection.execute(
            "DELETE FROM objects WHERE kind = ? AND namespace = ? AND name = ?", (kind, namespace, metadata["name"])
        )
        last = {**body, "metadata": metadata}
        if kind == SECRETS:
            self._forget(kind, namespace, metadata["name"])
            last = _emptied(last)
        self._note(kind, namespace, ChangeType.DELETED, json.dumps(last))

    def _forget(self, kind: str, namespace: str, name: str) -> None:
        """Empty the earlier changes of an object."""
        self.forgets = True
        rows = self._connection.execute(
            "SELECT version, body FROM changes WHERE kind = ? AND namespace = ?", (kind, namespace)
        ).fetchall()
        for version, text in rows:
            body = json.loads(text)
            if body["metadata"]["name"] == name:
                emptied = json.dumps(_emptied(body))
                self._connection.execute("UPDATE changes SET body = ? WHERE version = ?", (emptied, version))

    def _note(self, kind: str, namespace: str, type: ChangeType, text: str) -> None:
        cursor = self._connection.execute(
            "INSERT INTO changes (kind, namespace, type, body) VALUES (?, ?, ?, ?)", (kind, namespace, type.value, text)
        )
        self._connection.execute("DELETE FROM changes WHERE version <= ?", ((cursor.lastrowid or 0) - KEPT_CHANGES,))


def _emptied(secret: Mapping[str, Any]) -> Json:
    """A Secret without its content. Annotations may have a copy of it: that of `kubectl apply`."""
    metadata = {k: v for k, v in secret["metadata"].items() if k != "annotations"}
    return {**{k: v for k, v in secret.items() if k not in ("data", "stringData")}, "metadata": metadata}


def _version(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'changes'").fetchone()
    return 0 if row is None else int(row[0])

"""Decides which runs may still write rows of an erasure. Each attempt of a run writes a note before it reads the ledger. Pure.

The note of an attempt says nothing about another attempt: on a node that is cut off, an attempt may still write when a later one
has ended. So each attempt has a note of its own.

A run whose note is newer than the purge reads a table without the rows; if it adds batches, the ledger says which of them were
erased. So, if there is no note of an earlier run, no run will write such rows.
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from lethe.base import names
from lethe.erasure.progress import OpenErasure
from lethe.ledger.erasure import BlockerKind, ErasureBlocker
from lethe.vacuum.ledger_files import UNPUBLISHED_FOR

FORMAT_VERSION = 1
_NOTE: Final = re.compile(rf"(.+?)(?:-(\d+)-[0-9a-f]{{8}})?{re.escape(names.WRITER_SUFFIX)}")


@dataclass(frozen=True)
class Writer:
    """An attempt of a run that writes data files."""

    run: str  # its id
    folder: str  # URI of the folder of its data files; empty: the note is unreadable
    since: (
        int  # the last sequence number of the table when the note was written: the run reads that state or a later one
    )
    batch_ids: (
        frozenset[str] | None
    )  # the batches that it may add from the buffer; None: it may write any row of the table
    attempt: int = 0  # from 1; 0: unknown, or a Spark job of a user

    def to_json(self) -> bytes:
        ids = None if self.batch_ids is None else sorted(self.batch_ids)
        document = {
            "format-version": FORMAT_VERSION,
            "run": self.run,
            "attempt": self.attempt,
            "folder": self.folder,
            "sequence-number": self.since,
            "batch-ids": ids,
        }
        return json.dumps(document).encode()

    @classmethod
    def of_json(cls, content: bytes, name: str) -> "Writer":
        """Parse a note. An unreadable note is of an attempt that may write any row.

        Args:
            name: Of its file.
        """
        try:
            found = json.loads(content)
            ids = found["batch-ids"]
            return cls(
                str(found["run"]),
                str(found["folder"]),
                int(found["sequence-number"]),
                None if ids is None else frozenset(map(str, ids)),
                int(found.get("attempt", 0)),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls(run_of_note(name), "", 0, None)

    def may_write(self, open_erasure: OpenErasure) -> bool:
        """Whether the run may write rows of an erasure, or has written some."""
        if self.batch_ids is not None:
            return not open_erasure.by_records and not self.batch_ids.isdisjoint(open_erasure.result.batch_ids)
        return open_erasure.erasure.purged_at is None or self.since < open_erasure.erasure.purged_at


def note_name(run: str, attempt: int, token: str) -> str:
    """The name of the file of a note.

    Args:
        token: Eight hexadecimal digits, different in each process: two processes may carry out one attempt.
    """
    return f"{run}-{attempt}-{token}{names.WRITER_SUFFIX}"


def run_of_note(name: str) -> str:
    """The id of the run, from the name of the file of a note."""
    found = _NOTE.fullmatch(name)
    return found[1] if found is not None else name


def writer_blockers(
    writers: Collection[tuple[Writer, datetime]], open_erasure: OpenErasure, now: datetime
) -> list[ErasureBlocker]:
    """The runs that keep an erasure open. Each writer has the time of its note, by the storage's clock; after a day its run has
    ended."""
    return [
        ErasureBlocker(
            BlockerKind.RUN,
            w.run,
            (noted + UNPUBLISHED_FOR).replace(microsecond=0),
            f"{f'attempt {w.attempt}' if w.attempt else 'it'} may write such rows",
        )
        for w, noted in sorted(writers, key=lambda found: (found[0].run, found[0].attempt))
        if noted + UNPUBLISHED_FOR > now and w.may_write(open_erasure)
    ]

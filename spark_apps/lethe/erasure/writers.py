"""Decides which runs may still write rows of an erasure. Each run writes a note before it reads the ledger. Pure.

A run whose note is newer than the purge reads a table without the rows; if it adds batches, the ledger says which of them were
erased. So, if there is no note of an earlier run, no run will write such rows.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from lethe.erasure.progress import OpenErasure
from lethe.ledger.erasure import BlockerKind, ErasureBlocker
from lethe.vacuum.ledger_files import UNPUBLISHED_FOR

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Writer:
    """A run that writes data files."""

    run: str  # its id
    folder: str  # URI of the folder of its data files; empty: the note is unreadable
    since: (
        int  # the last sequence number of the table when the note was written: the run reads that state or a later one
    )
    batch_ids: (
        frozenset[str] | None
    )  # the batches that it may add from the buffer; None: it may write any row of the table

    def to_json(self) -> bytes:
        ids = None if self.batch_ids is None else sorted(self.batch_ids)
        document = {
            "format-version": FORMAT_VERSION,
            "run": self.run,
            "folder": self.folder,
            "sequence-number": self.since,
            "batch-ids": ids,
        }
        return json.dumps(document).encode()

    @classmethod
    def of_json(cls, content: bytes, run: str) -> "Writer":
        """Parse a note. An unreadable note is of a run that may write any row."""
        try:
            found = json.loads(content)
            ids = found["batch-ids"]
            return cls(
                str(found["run"]),
                str(found["folder"]),
                int(found["sequence-number"]),
                None if ids is None else frozenset(map(str, ids)),
            )
        except (ValueError, KeyError, TypeError):
            return cls(run, "", 0, None)

    def may_write(self, open_erasure: OpenErasure) -> bool:
        """Whether the run may write rows of an erasure, or has written some."""
        if self.batch_ids is not None:
            return not open_erasure.by_records and not self.batch_ids.isdisjoint(open_erasure.result.batch_ids)
        return open_erasure.erasure.purged_at is None or self.since < open_erasure.erasure.purged_at


def writer_blockers(
    writers: Collection[tuple[Writer, datetime]], open_erasure: OpenErasure, now: datetime
) -> list[ErasureBlocker]:
    """The runs that keep an erasure open. Each writer has the time of its note, by the storage's clock; after a day its run has
    ended."""
    return [
        ErasureBlocker(
            BlockerKind.RUN, w.run, (noted + UNPUBLISHED_FOR).replace(microsecond=0), "it may write such rows"
        )
        for w, noted in sorted(writers, key=lambda found: found[0].run)
        if noted + UNPUBLISHED_FOR > now and w.may_write(open_erasure)
    ]

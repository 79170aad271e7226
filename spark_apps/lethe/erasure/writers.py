"""Runs that may still write rows of an erasure, by the note that each of them leaves before it looks at the ledger. Pure.

A run that noted itself after the rows were purged reads a table without them; one that brings in batches finds in the ledger
which of them were erased. So a look that finds no note of an earlier run knows that none will write such rows.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from lethe.erasure.progress import Claim
from lethe.ledger.erasure import Blocker, Holder
from lethe.vacuum.ledger_files import UNPUBLISHED_FOR

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Writer:
    """A run that writes data files."""

    # Its id.
    run: str
    # URI of the folder of its data files; "" in a note that nobody can read.
    folder: str
    # The last sequence number of the table when the run noted itself: it looks at that state or a later one.
    since: int
    # The batches that it may bring in, and reads from the buffer alone; None: it reads the table, and may write any row of it.
    batch_ids: frozenset[str] | None

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
        """What a note says. One that cannot be read is of a run that may do anything."""
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

    def may_write(self, claim: Claim) -> bool:
        """Whether the run may write rows of an erasure, or did."""
        if self.batch_ids is not None:
            return not claim.by_records and not self.batch_ids.isdisjoint(claim.result.batch_ids)
        return claim.erasure.purged_at is None or self.since < claim.erasure.purged_at


def writer_blockers(writers: Collection[tuple[Writer, datetime]], claim: Claim, now: datetime) -> list[Blocker]:
    """What keeps an erasure open of runs that noted themselves at these times, by the storage's clock. One that did so a day ago
    has ended, however it did."""
    return [
        Blocker(Holder.RUN, w.run, (noted + UNPUBLISHED_FOR).replace(microsecond=0), "it may write such rows")
        for w, noted in sorted(writers, key=lambda found: found[0].run)
        if noted + UNPUBLISHED_FOR > now and w.may_write(claim)
    ]

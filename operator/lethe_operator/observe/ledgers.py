"""Reads what decisions need of a ledger: its statistics, and the entries with the keys that they may look up. I/O.

A ledger may have a million entries in many files, so the operator never reads all of it. Decisions get plain values, so they need
no I/O.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from lethe.buffer.digest import BufferDigest
from lethe.ledger.ledger import BatchEntry, Ledger, RequestEntry
from lethe.ledger.parts import get_many

from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import NotListed, ObservedRun, Unavailable
from lethe_operator.resources.restatement import Restatement

E = TypeVar("E")


@dataclass(frozen=True)
class LedgerKeys:
    """Keys that a decision may look up."""

    batch_ids: frozenset[str] = frozenset()
    request_keys: frozenset[str] = frozenset()


def asked_by(
    dataset: Dataset,
    restatements: Collection[Restatement],
    runs: Collection[ObservedRun],
    buffer: BufferDigest | NotListed | Unavailable,
) -> LedgerKeys:
    """The keys that the decision may look up: batches that a run may take, that are deleted from the buffer, shown as refused,
    restated or promoted; and all requests. Refused batches leave the buffer, so the status remembers them."""
    shown = (dataset.status.get("batches") or {}).get("refusedBatches") or ()
    batch_ids = {str(b["batchId"]) for b in shown}
    if isinstance(buffer, BufferDigest):
        batch_ids |= {b.id for b in buffer.oldest} | {b.id for b in buffer.expired} | set(buffer.refused_ids)
    keys = {r.key for r in restatements}
    for r in restatements:
        if r.brings is not None:  # the size of its run depends on the replaced batches
            batch_ids |= set(r.sized_by)
    for run in runs:
        batch_ids |= set(run.intent.consolidation.batch_ids if run.intent and run.intent.consolidation else ())
        keys |= {request.key for request in run.requests}
    return LedgerKeys(frozenset(batch_ids), frozenset(keys))


@dataclass
class Lookup:
    """A cache of entries of one ledger. The ledger of one metadata location never changes."""

    batches: dict[str, BatchEntry | None] = field(default_factory=dict)
    requests: dict[str, RequestEntry | None] = field(default_factory=dict)

    def has(self, asked: LedgerKeys) -> bool:
        """Whether `known` reads nothing."""
        return asked.batch_ids <= self.batches.keys() and asked.request_keys <= self.requests.keys()

    def known(self, ledger: Ledger, asked: LedgerKeys) -> Ledger:
        """The ledger with only these batches and requests, and with the statistics of all.

        Raises: LedgerError, and the store's errors.
        """
        batches = _looked_up(self.batches, ledger.batches, asked.batch_ids)
        requests = _looked_up(self.requests, ledger.requests, asked.request_keys)
        return replace(ledger, batches=batches, requests=requests, recorded=ledger.statistics)


def _looked_up(kept: dict[str, E | None], part: Mapping[str, E], keys: Collection[str]) -> dict[str, E]:
    new = [k for k in keys if k not in kept]
    if new:
        found = get_many(part, new)
        kept.update({k: found.get(k) for k in new})
    for k in kept.keys() - set(keys):
        del kept[k]
    return {k: e for k in keys if (e := kept[k]) is not None}

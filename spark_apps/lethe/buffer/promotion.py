"""Decides which batches of a run may be promoted on the current ledger. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from lethe.contract.refusal import Refusal
from lethe.ledger.ledger import BatchEntry, BatchState, BufferedObject, Delta, Ledger
from lethe.ledger.parts import get_many


@dataclass(frozen=True)
class Promotion:
    """The requested batches, by what happens to them."""

    promote: tuple[str, ...]  # in the requested order
    already: tuple[str, ...]  # in the table
    withheld: tuple[str, ...]  # reverted or replaced


def plan_promotion(ledger: Ledger, batch_ids: Iterable[str]) -> Promotion:
    """Decide for each batch whether it may be promoted now. Reads only the entries of these batches."""
    wanted = tuple(dict.fromkeys(batch_ids))
    known = get_many(ledger.batches, wanted)
    promote: list[str] = []
    already: list[str] = []
    withheld: list[str] = []
    for i in wanted:
        entry = known.get(i)
        if entry is None or not entry.blocks_promotion:
            promote.append(i)
        elif entry.state is BatchState.PROMOTED:
            already.append(i)
        else:
            withheld.append(i)
    return Promotion(tuple(promote), tuple(already), tuple(withheld))


@dataclass(frozen=True)
class WrittenBatch:
    """A batch whose rows are in files that are written and not yet committed."""

    id: str
    rows: int
    bytes: int
    objects: tuple[BufferedObject, ...]
    registered: bool = False  # True: these files are its objects in the buffer, registered without a rewrite


@dataclass(frozen=True)
class WrittenFiles:
    """Files with the rows of batches, not yet committed by Lethe."""

    batches: Mapping[str, WrittenBatch]  # by id
    # The partitions that may contain rows of each batch. None, or no entry for a batch: any partition.
    partitions: Mapping[str, tuple[str, ...] | None] | None = None
    in_table: bool = (
        False  # another writer has already added the files to the table, and only the ledger entries are missing
    )


@dataclass(frozen=True)
class JudgedBatch:
    """A batch that is refused."""

    refusal: Refusal
    objects: tuple[BufferedObject, ...]  # that were checked


@dataclass(frozen=True)
class Publish:
    """Commit the written files with this delta."""

    delta: Delta


@dataclass(frozen=True)
class WriteAgain:
    """Abandon the written files and write these batches again.

    Some batches of the files were promoted, reverted or replaced meanwhile. Batches share files: committing the files would
    duplicate rows, and dropping the files would lose rows of other batches."""

    batch_ids: tuple[str, ...]


def plan_publication(
    ledger: Ledger, written: WrittenFiles, refused: Mapping[str, JudgedBatch], run: str, now: datetime
) -> Publish | WriteAgain:
    """Decide whether written files may be committed on this ledger.

    Args:
        refused: The refused batches, by id.
    """
    promotion = plan_promotion(ledger, written.batches)
    if not written.in_table and (promotion.already or promotion.withheld):
        return WriteAgain(promotion.promote)
    entries = [
        BatchEntry(
            b.id,
            BatchState.PROMOTED,
            run,
            now,
            rows=b.rows,
            bytes=b.bytes,
            objects=b.objects,
            partitions=(written.partitions or {}).get(b.id),
            registered=b.registered,
        )
        for b in (written.batches[i] for i in promotion.promote)
    ]
    judged = get_many(ledger.batches, refused)
    entries += [
        BatchEntry(i, BatchState.REFUSED, run, now, refusal=found.refusal, objects=found.objects)
        for i, found in refused.items()
        if _is_news(judged.get(i), found)
    ]
    return Publish(Delta(run, set_batches=tuple(entries)))


def _is_news(known: BatchEntry | None, found: JudgedBatch) -> bool:
    """Whether to record a refusal: not if the batch was promoted, reverted or replaced, and not if it is already recorded."""
    if known is None:
        return True
    return not known.blocks_promotion and (known.refusal, known.objects) != (found.refusal, found.objects)

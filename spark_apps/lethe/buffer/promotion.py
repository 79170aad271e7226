"""Which of the batches a run was told to promote it may promote, on the ledger of this moment. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from lethe.contract.refusal import Refusal
from lethe.ledger.ledger import BatchEntry, BatchState, BufferedObject, Delta, Ledger
from lethe.ledger.parts import get_many


@dataclass(frozen=True)
class Promotion:
    """`promote` in the order asked; `already` are in the table; `withheld` were reverted or replaced before they came."""

    promote: tuple[str, ...]
    already: tuple[str, ...]
    withheld: tuple[str, ...]


def plan_promotion(ledger: Ledger, batch_ids: Iterable[str]) -> Promotion:
    """Say of each batch whether it may be promoted now. Looks up only these."""
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
    """A batch whose rows lie in files that are written and not yet committed. `registered`: these files are its objects."""

    id: str
    rows: int
    bytes: int
    objects: tuple[BufferedObject, ...]
    registered: bool = False


@dataclass(frozen=True)
class JudgedBatch:
    """A batch that is refused."""

    refusal: Refusal
    objects: tuple[BufferedObject, ...]  # by which it was judged


@dataclass(frozen=True)
class Publish:
    """Commit the written files with this delta."""

    delta: Delta


@dataclass(frozen=True)
class WriteAnew:
    """Abandon the written files: some of their batches are in the table already, or were taken back, and files are
    shared by batches, so that publishing would double those rows and dropping would lose the others."""

    batch_ids: tuple[str, ...]


def plan_publication(
    ledger: Ledger,
    written: Mapping[str, WrittenBatch],
    refused: Mapping[str, JudgedBatch],
    run: str,
    now: datetime,
    in_table: bool = False,
    partitions: Mapping[str, tuple[str, ...] | None] | None = None,
) -> Publish | WriteAnew:
    """Say whether written files may be committed on this ledger.

    Args:
        written: The batches in the files, by id.
        refused: Batches set aside, by id.
        in_table: The files are part of the table already, published by somebody else: only the records are wanting.
        partitions: That the rows of each batch may lie in; anywhere, of a batch not named.
    """
    promotion = plan_promotion(ledger, written)
    if not in_table and (promotion.already or promotion.withheld):
        return WriteAnew(promotion.promote)
    entries = [
        BatchEntry(
            b.id,
            BatchState.PROMOTED,
            run,
            now,
            rows=b.rows,
            bytes=b.bytes,
            objects=b.objects,
            partitions=(partitions or {}).get(b.id),
            registered=b.registered,
        )
        for b in (written[i] for i in promotion.promote)
    ]
    judged = get_many(ledger.batches, refused)
    entries += [
        BatchEntry(i, BatchState.REFUSED, run, now, refusal=found.refusal, objects=found.objects)
        for i, found in refused.items()
        if _is_news(judged.get(i), found)
    ]
    return Publish(Delta(run, set_batches=tuple(entries)))


def _is_news(known: BatchEntry | None, found: JudgedBatch) -> bool:
    """Whether a refusal is to be recorded: not over what became of the batch, and not the same one again."""
    if known is None:
        return True
    return not known.blocks_promotion and (known.refusal, known.objects) != (found.refusal, found.objects)

"""When buffered batches are moved into the table, and which. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from lethe.ledger.ledger import EMPTY, BatchEntry, Ledger
from lethe.plan.batches import BufferedBatch, fingerprint, is_data
from lethe.run import RunKind

from lethe_operator.decide import run_specs
from lethe_operator.decide.actions import Launch, earliest
from lethe_operator.decide.retry import Again, Ended, Fresh, GivenUp, Going, Verdict, back_off_seconds, judge
from lethe_operator.resources.dataset import ConsolidationSpec, Dataset
from lethe_operator.resources.observed import BufferView, Run, TableView, World
from lethe_operator.settings import Settings

_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class ConsolidationVerdict:
    """`launch` may start when no other run commits; `latest` is how the newest run stands, for the Dataset's conditions;
    `abandoned`: run ids whose stored intent nobody needs any more."""

    launch: Launch | None = None
    latest: Verdict | None = None
    latest_run: Run | None = None
    look_again: datetime | None = None
    abandoned: tuple[str, ...] = ()


def ledger_of(world: World) -> Ledger:
    return world.table.ledger if isinstance(world.table, TableView) else EMPTY


def promotable(batches: Iterable[BufferedBatch], ledger: Ledger) -> tuple[BufferedBatch, ...]:
    """Complete batches that the ledger does not know, the oldest first; a refused one only if its objects changed."""

    def waits(batch: BufferedBatch) -> bool:
        known = ledger.batches.get(batch.id)
        if not batch.complete or (known is not None and known.blocks_promotion):
            return False
        return known is None or _changed(batch, known)

    return tuple(sorted((b for b in batches if waits(b)), key=lambda b: (b.oldest_time, b.id)))


def _changed(batch: BufferedBatch, refused: BatchEntry) -> bool:
    judged = [o for o in refused.objects if is_data(o.key)]
    return bool(judged) and fingerprint(judged) != batch.fingerprint


def due(waiting: Sequence[BufferedBatch], spec: ConsolidationSpec, now: datetime) -> tuple[str, datetime | None]:
    """Why a run is due, "" when it is not; and when it will be by age alone."""
    if not waiting:
        return "", None
    total = sum(b.bytes for b in waiting)
    ripe = waiting[0].oldest_time + timedelta(seconds=spec.max_age_seconds)
    if len(waiting) >= spec.min_batches:
        return f"{len(waiting)} batches wait, minBatches is {spec.min_batches}", None
    if total >= spec.min_bytes:
        return f"{total} bytes wait, minBytes is {spec.min_bytes}", None
    if ripe <= now:
        return f"a batch waits since {waiting[0].oldest_time:%Y-%m-%dT%H:%M:%SZ}, maxAgeSeconds has passed", None
    return "", ripe


def chosen(waiting: Sequence[BufferedBatch], spec: ConsolidationSpec) -> tuple[BufferedBatch, ...]:
    """The oldest ones within the limits of one run; a single larger one is taken alone."""
    taken: list[BufferedBatch] = []
    size = 0
    for batch in waiting[: spec.max_batches_per_run]:
        if taken and size + batch.bytes > spec.max_bytes_per_run:
            break
        taken.append(batch)
        size += batch.bytes
    return tuple(taken)


def decide_consolidation(dataset: Dataset, world: World, now: datetime, settings: Settings) -> ConsolidationVerdict:
    """Say which consolidation is to start, or when to look again.

    A stored intent goes before a new one: whatever its last attempt staged or committed is found again by its run id.
    """
    generation = dataset.meta.generation
    ledger = ledger_of(world)
    runs = sorted((r for r in world.runs if r.kind is RunKind.CONSOLIDATION and not r.reanchors), key=age)
    latest = runs[-1] if runs else None
    stands = judge(latest, generation, settings) if latest else None
    if isinstance(stands, Going) or not isinstance(world.buffer, BufferView):
        return ConsolidationVerdict(None, stands, latest)
    if latest is not None and isinstance(stands, Fresh | Again):
        unfinished = _unfinished(dataset, world, latest, stands, ledger, now)
        if unfinished is not None:
            return unfinished
        abandoned: tuple[str, ...] = (latest.run_id,)
        latest, stands = None, None
    else:
        abandoned = ()
    waiting = promotable(world.buffer.batches, ledger)
    why, ripe = due(waiting, dataset.spec.consolidation, now)
    if not why or dataset.spec.consolidation.suspend:
        return ConsolidationVerdict(None, stands, latest, ripe, abandoned)
    batches = chosen(waiting, dataset.spec.consolidation)
    run = run_specs.consolidation(dataset, batches)
    not_before = pause(runs, run.run_id, stands, settings)
    if not_before is None or not_before > now:
        return ConsolidationVerdict(None, stands, latest, earliest(not_before, ripe), abandoned)
    earlier = next((r for r in runs if r.run_id == run.run_id), None)
    number = max((a.number for a in earlier.attempts), default=0) + 1 if earlier else 1
    launch = Launch(
        run.model_copy(update={"attempt": number}),
        bytes=sum(b.bytes for b in batches),
        generation=generation,
        why=f"{len(batches)} batches: {why}",
    )
    return ConsolidationVerdict(launch, stands, latest, None, abandoned)


def _unfinished(
    dataset: Dataset, world: World, run: Run, stands: Fresh | Again, ledger: Ledger, now: datetime
) -> ConsolidationVerdict | None:
    """The stored intent goes on, or None when there is nothing left of it to do."""
    intent = run.intent
    if intent is None or intent.consolidation is None:
        return None
    left = {i for i in intent.consolidation.batch_ids if not _settled(ledger, i, run.run_id)}
    if not left:
        return None
    at = stands.at if isinstance(stands, Again) else now
    if dataset.spec.consolidation.suspend or at > now:
        return ConsolidationVerdict(None, stands, run, at if at > now else None)
    assert isinstance(world.buffer, BufferView)
    launch = Launch(
        intent.model_copy(update={"attempt": stands.number}),
        bytes=sum(b.bytes for b in world.buffer.batches if b.id in left),
        generation=dataset.meta.generation,
        why=f"attempt {stands.number} over {len(left)} batches",
    )
    return ConsolidationVerdict(launch, stands, run)


def _settled(ledger: Ledger, batch_id: str, run_id: str) -> bool:
    known = ledger.batches.get(batch_id)
    return known is not None and (known.blocks_promotion or known.run == run_id)


def pause(runs: Sequence[Run], run_id: str, stands: Verdict | None, settings: Settings) -> datetime | None:
    """From when on a new intent may start: at once, but for what failed for good or ended without settling its batches.
    None: not before something changes."""
    same = next((r for r in runs if r.run_id == run_id), None)
    if isinstance(stands, GivenUp):
        if stands.attempt.run_id == run_id:
            return None
        return (stands.attempt.finished or stands.attempt.created) + timedelta(seconds=settings.retry_max_seconds)
    if same is not None and isinstance(stands, Ended) and stands.attempt.run_id == run_id:
        ended = stands.attempt.finished or stands.attempt.created
        return ended + timedelta(seconds=back_off_seconds(stands.attempt.number, settings))
    return _BEGINNING


def age(run: Run) -> tuple[bool, datetime]:
    """By the last attempt; an intent without one is the newest, since it is stored just before its Job."""
    return (run.last is None, run.last.created if run.last else _BEGINNING)

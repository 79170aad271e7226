"""Promotes batches, each exactly once: writes or registers their files, in a Job or in the committer. I/O.

`lethe.buffer.promotion` decides which batches may be promoted. Each attempt continues earlier attempts of its run: batches that
are in the ledger are done; files that an earlier attempt staged are published; only other batches are written, or registered.
Refused batches leave the buffer after the ledger records their refusal.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, TypeAlias

from lethe.base import names
from lethe.base.errors import InputError, LetheError
from lethe.buffer.batch_rows import BatchRow
from lethe.buffer.layout import BufferedBatch, is_of_batch, layout_of
from lethe.buffer.promotion import (
    JudgedBatch,
    Publish,
    StageNote,
    WrittenBatch,
    WrittenFiles,
    folder_of,
    is_file,
    is_judged,
    plan_promotion,
    plan_publication,
    plan_removal,
)
from lethe.contract.result import LISTED_AT_MOST, ConsolidationResult, RefusedBatch, RunOutcome
from lethe.contract.settings import FileFormat, SchemaEvolution
from lethe.ingest.buffer_files import check_some_were_read, refusal_of, why_unread
from lethe.ingest.buffer_store import FileTask
from lethe.ingest.registrable import Footer, FooterReader, RegisterTarget
from lethe.ingest.schema_fit import mapping_to_set, named_folders
from lethe.ledger.ledger import BatchEntry, BatchState, get_many
from lethe.ledger.lineage import is_published
from lethe.storage.object_store import ObjectStore, open_store
from lethe.uri import place
from lethe.vacuum.housekeeping import KEEPS_FILES, keeps_files
from pyiceberg.io import FileIO

from lethe_spark.commit.ledger_commit import Attempts, Intent, NothingToCommit, commit_on_ledger, noted_run
from lethe_spark.commit.table_state import Base, observe_base
from lethe_spark.jobs.consolidation.gather import GatheredBatches, WrittenBatches, gather, ignored, require_claim
from lethe_spark.jvm.commit import LedgerOnly, find_staged
from lethe_spark.jvm.data_files import DataFile, data_files
from lethe_spark.jvm.metadata import expire
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Cancelled, Run

log = logging.getLogger(__name__)

ReadFooters: TypeAlias = Callable[[FooterReader, Sequence[FileTask]], Sequence[Footer]]
"""Reads the footers of these files, in any order."""
JUDGED: Final = (
    "hold files that were refused before; write the whole batch again, _SUCCESS last, or use another id if "
    "no byte of it changes"
)
ADDED_BY_OTHERS: Final = "cannot be registered, but another writer has already added some of their files to the table"

WRITES: Final = 4
"""How often a run writes its batches, if other runs promote or revert some of them before it commits."""
Write: TypeAlias = Callable[[Base, Iterable[str]], WrittenBatches]
"""Writes or registers these batches, as planned on a state of the table, and commits nothing."""


def set_aside(context: Run, table: IcebergTable, judged: Iterable[str], left: Iterable[str]) -> None:
    """Move batches to the buffer's folder for refused batches, if the ledger says that they are refused.

    A batch that cannot be moved stays, and the next run tries again.

    Args:
        judged: Ids of batches that this run has refused.
        left: Ids of batches that earlier runs have refused, and of which the buffer still holds objects.

    Raises:
        Cancelled: The process received SIGTERM.
    """
    mine, others = dict.fromkeys(judged), dict.fromkeys(left)
    if not mine and not others:
        return
    try:
        entries = get_many(observe_base(context, table).ledger.batches, (*mine, *others))
        uri = context.spec.buffer.uri
        require_claim(context, table)
        store = open_store(uri, context.catalog_properties)
        for entry in entries.values():
            set_one_aside(context, store, entry, was_judged=entry.id in mine)
    except Cancelled:
        raise
    except Exception as e:
        log.warning("refused batches stay in the buffer until the next run (%s)", type(e).__name__)


def set_one_aside(context: Run, store: ObjectStore, entry: BatchEntry, was_judged: bool) -> None:
    """Move one batch. Each step is safe to repeat."""
    if not entry.objects:
        return
    uri = context.spec.buffer.uri
    layout = layout_of(context.spec.buffer.layout, context.spec.batch_column)
    if not all(is_of_batch(o.key, uri, layout) for o in entry.objects):
        return  # only an earlier version of Lethe took these objects for a batch
    place = folder_of(uri, entry)
    listed = filter(None, [store.head(place)]) if is_file(uri, entry) else store.list(place)
    removal = plan_removal(uri, entry, listed, until=None if was_judged else entry.time)
    if removal is None:
        return
    for source, target in removal.copies:
        if not store.copy(source, target):
            return  # the producer has changed the object
    context.step("refused-copied")
    store.put(removal.reason_uri, removal.reason.encode())
    context.step("refused-explained")
    if removal.marker is not None and not store.delete_unchanged(removal.marker):
        return
    context.step("refused-unmarked")
    for o in removal.objects:
        store.delete_unchanged(o)
    log.info("moved the refused batch %r to %s", entry.id, removal.reason_uri.rpartition("/")[0])


def register(
    context: Run,
    table: IcebergTable,
    read: ReadFooters,
    base: Base,
    batch_ids: Iterable[str],
    on_object: Callable[[], None] = ignored,
) -> WrittenBatches:
    """Read the footers of the batches' files and describe the files to Iceberg. Adds nothing to the table.

    The producers' Parquet files become data files of the table as they are; the caller reads their footers. A run
    writes no files, so it has nothing to stage, and nothing to delete after a conflict.

    Invariants: all files of a batch are added, or none; a file that is in the table is not added again; a batch whose objects
    were refused before is never registered, because another run may be moving these objects out of the buffer.

    Args:
        on_object: As in `list_buffer`.

    Raises:
        Exception: The errors of `read`.
        InputError: `FormatNotRegistrable`, `ChecksNeedRewrite`, `NameMappingIncomplete`.
        TransientError: The buffer cannot be read.
    """
    spec = context.spec
    if spec.buffer.format is not FileFormat.PARQUET:
        raise InputError(
            "FormatNotRegistrable",
            "spec.consolidation.mode Register requires spec.buffer.format parquet, found "
            f"{spec.buffer.format}. Only Parquet files can be added to a table without rewriting them. Set "
            "the mode to Rewrite.",
        )
    if spec.consolidation is not None and spec.consolidation.checks:
        raise InputError(
            "ChecksNeedRewrite",
            "spec.consolidation.mode Register does not read rows, so it cannot apply spec.checks. Set the mode to Rewrite, or "
            "remove the checks.",
        )
    if properties := mapping_to_set(base.iceberg.schema(), table.properties, table.full_name):
        table.set_properties(properties)
    gathered = gather(context, base, batch_ids, on_object)
    judged = {i for i, b in gathered.batches.items() if is_judged(b, gathered.found.entries.get(i))}
    batches = {i: b for i, b in gathered.batches.items() if i not in judged}
    footers = _by_batch(read, _reader(context, base), batches.values())
    context.step("after-read")
    return _written(table, base, gathered, batches, judged, footers)


def is_outdated(base: Base, written: WrittenBatches) -> bool:
    """Whether the footers must be read again.

    Another writer has added one of the files in the meantime, or another run has refused one of the batches.
    """
    entries = get_many(base.ledger.batches, written.batches)
    if any(e.state is BatchState.REFUSED and e != written.refused_before.get(i) for i, e in entries.items()):
        return True
    live = _live(base)
    return bool(live) and any(place(f.path) in live for f in written.files)


def _reader(context: Run, base: Base) -> FooterReader:
    may_lack = context.spec.schema_evolution is SchemaEvolution.ADD_COLUMNS
    return FooterReader(RegisterTarget.of(base.iceberg, base.field_id, may_lack), dict(context.catalog_properties))


def _by_batch(
    read: ReadFooters, reader: FooterReader, batches: Iterable[BufferedBatch]
) -> Mapping[str, Sequence[Footer]]:
    """The footers of all files, by batch.

    Raises:
        Exception: The errors of `read`.
    """
    tasks = [
        FileTask(b.id, o.key, o.size, o.etag, named_folders(o.key, b.folder)) for b in batches for o in b.data_objects
    ]
    footers = read(reader, tasks)
    if len(footers) != len(tasks):
        raise RuntimeError(f"expected {len(tasks)} footers, found {len(footers)}")
    found: dict[str, list[Footer]] = defaultdict(list)
    for footer in footers:
        found[footer.batch_id].append(footer)
    return found


def _written(
    table: IcebergTable,
    base: Base,
    gathered: GatheredBatches,
    batches: Mapping[str, BufferedBatch],
    judged: set[str],
    footers: Mapping[str, Sequence[Footer]],
) -> WrittenBatches:
    live = _live(base)
    missing = dict(gathered.missing) | dict.fromkeys(sorted(judged), JUDGED)
    refused: dict[str, JudgedBatch] = dict(gathered.unusable)
    good: dict[str, WrittenBatch] = {}
    files: list[DataFile] = []
    documents: list[str] = []
    unread: list[RefusedBatch] = []
    for i, batch in batches.items():
        errors = [f.error for f in footers[i] if f.error is not None]
        if errors:
            refusal = refusal_of(i, errors)
            if any(e.unread for e in errors):
                unread.append(refusal)
                missing[i] = why_unread(refusal)
            elif any(place(f.uri) in live for f in footers[i]):
                missing[i] = ADDED_BY_OTHERS  # a refusal would move files of the table out of the buffer
            else:
                refused[i] = JudgedBatch(refusal.verdict, batch.data_objects)
            continue
        rows = 0
        for f in sorted(footers[i], key=lambda f: f.uri):
            assert f.described is not None
            rows += f.described.records
            if f.described.document and place(f.uri) not in live:
                files.append(DataFile(f.uri, f.described.records, f.size, None, f.described.partition, i, i))
                documents.append(f.described.document)
        good[i] = WrittenBatch(i, rows, batch.bytes, batch.data_objects, registered=True)
    check_some_were_read(unread, len(batches))
    log.info("registering %d files of %d batches", len(files), len(good))
    return WrittenBatches(
        tuple(files),
        good,
        refused,
        missing=missing,
        left=(*gathered.found.left, *sorted(judged)),
        registers=data_files(table, documents),
        references=gathered.references,
        refused_before=gathered.found.entries,
        waiting=gathered.found.waiting_but(good, refused),
    )


def _live(base: Base) -> frozenset[tuple[str, tuple[str, ...]]]:
    """The places of all files of the table, if other writers may have added some; otherwise empty.

    For files that Lethe added the ledger is enough: the path names the batch.
    """
    return frozenset(place(f.path) for f in base.files()) if base.has_foreign_files else frozenset()


def promote(
    context: Run, table: IcebergTable, batch_ids: tuple[str, ...], write: Write
) -> tuple[ConsolidationResult, tuple[BatchRow, ...] | None]:
    """Promote the batches of a run.

    Returns:
        The result, and the batches that still wait in the buffer; None: it was not listed.

    Raises:
        Exception: As `commit_on_ledger`, and the errors of `write`.
    """
    with noted_run(context, table, batch_ids):
        return _promoted(context, table, batch_ids, write)


def _promoted(
    context: Run, table: IcebergTable, batch_ids: tuple[str, ...], write: Write
) -> tuple[ConsolidationResult, tuple[BatchRow, ...] | None]:
    staged: WrittenBatches | None = _staged(context, table)
    waiting: tuple[BatchRow, ...] | None = None
    for _ in range(WRITES):
        base = observe_base(context, table)
        promotion = plan_promotion(base.ledger, batch_ids)
        if not promotion.promote:
            return _nothing(context, len(promotion.withheld)), waiting
        if staged is not None and not staged.covers(promotion.promote) and not _is_published(base, staged):
            log.info(
                "some batches that the earlier attempt did not write may be promoted now; all batches are written again"
            )
            _drop(table, staged, Attempts())
            staged = None
        written = staged or write(base, promotion.promote)
        if written.is_lost:
            log.info(
                "some batches were promoted or deleted while they were written; the other batches are written again"
            )
            staged = None
            continue
        staged, waiting, attempts = None, written.waiting, Attempts()
        done = commit_on_ledger(context, table, lambda base, w=written: _publish(context, base, w), attempts)  # type: ignore[misc]
        if done.outcome is not None:
            set_aside(context, table, done.outcome.refused, done.outcome.left)
            message = _missing(done.outcome.missing)
            return _result(context, done.outcome, done.snapshot_id, len(promotion.withheld), message), waiting
        log.info(
            "some batches in the written files were promoted or deleted in the meantime; the other batches are "
            "written again"
        )
        _drop(table, written, attempts)
    return _result(
        context, WrittenBatches((), {}, {}), None, 0, "other writers promoted its batches in each attempt"
    ), waiting


def _drop(table: IcebergTable, written: WrittenBatches, attempts: Attempts) -> None:
    """Remove staged files that must not be published. They may contain rows of an erased batch."""
    if written.staged is None or attempts.in_doubt:
        return
    if keeps_files(table.properties):  # Iceberg then refuses to expire any snapshot
        log.warning("the staged snapshot %d was not removed: %s", written.staged, KEEPS_FILES)
        return
    try:
        expire(table, [written.staged])
    except LetheError as e:  # the ordinary expiry removes it later; until then its files may contain erased rows
        log.warning("the staged snapshot %d was not removed: %s", written.staged, e)


def _publish(
    context: Run, base: Base, written: WrittenBatches
) -> Intent[WrittenBatches | None] | NothingToCommit[WrittenBatches | None]:
    published = _is_published(base, written)
    if written.staged is not None and written.staged not in base.facts.snapshots and not published:
        return NothingToCommit(None)  # the staged snapshot was expired together with its files
    if written.registers is not None and is_outdated(base, written):
        return NothingToCommit(None)
    partitions = base.partitions_of(written.files, written.batches, written.partitions)
    files = WrittenFiles(written.batches, partitions, published, written.references)
    planned = plan_publication(base.ledger, files, written.refused, context.spec.run_id, datetime.now(UTC))
    if not isinstance(planned, Publish):
        return NothingToCommit(None)
    if planned.delta.is_empty:
        return NothingToCommit(written)
    if not written.files or published:
        return Intent(planned.delta, LedgerOnly(), written)
    staged_as = context.spec.run_id if written.staged is not None else None
    return Intent(planned.delta, written.change, written, publishes=staged_as, staged=written.staged)


def _is_published(base: Base, written: WrittenBatches) -> bool:
    """Whether another tool made the staged files part of the table."""
    return written.staged is not None and is_published(base.facts.snapshots, base.facts.head_id, written.staged)


def _missing(missing: Mapping[str, str]) -> str:
    """The message about missing batches: one part for each cause, with the first ids."""
    parts = []
    for why in dict.fromkeys(missing.values()):
        ids = [i for i, w in missing.items() if w == why]
        parts.append(
            f"{len(ids)} batches {why}: " + ", ".join(repr(i) for i in ids[:5]) + (", …" if len(ids) > 5 else "")
        )
    return "; ".join(parts[:LISTED_AT_MOST])


def _staged(context: Run, table: IcebergTable) -> WrittenBatches | None:
    """The files that an earlier attempt of this run staged; None: there are none."""
    staged = find_staged(table, context.spec.run_id)
    if staged is None or names.STAGE not in staged.summary:
        return None
    io: FileIO = observe_base(context, table).iceberg.io
    with io.new_input(staged.summary[names.STAGE]).open() as stream:
        note = StageNote.of(stream.read())
    log.info("found %d batches staged by an earlier attempt", len(note.batches))
    return WrittenBatches(
        staged.files, note.batches, note.refused, staged.snapshot_id, note.missing, references=note.references
    )


def _nothing(context: Run, withheld: int) -> ConsolidationResult:
    spec = context.spec
    return ConsolidationResult(
        run_id=spec.run_id,
        family=spec.family,
        attempt=spec.attempt,
        outcome=RunOutcome.ALREADY_COMMITTED,
        message="every batch of this run is already in the table, or was deleted before it was promoted",
        batches_withheld=withheld,
        finished_time=datetime.now(UTC),
    )


def _result(
    context: Run, written: WrittenBatches, snapshot_id: int | None, withheld: int, message: str = ""
) -> ConsolidationResult:
    spec = context.spec
    held = [i for i, judged in written.refused.items() if judged.is_held]
    refused = {i: judged for i, judged in written.refused.items() if not judged.is_held}
    read = [*(b.objects for b in written.batches.values()), *(j.objects for j in written.refused.values())]
    return ConsolidationResult(
        run_id=spec.run_id,
        family=spec.family,
        attempt=spec.attempt,
        outcome=RunOutcome.COMMITTED if snapshot_id is not None else RunOutcome.NOTHING_TO_DO,
        message=message,
        snapshot_id=snapshot_id,
        batches_promoted=len(written.batches) if snapshot_id is not None else 0,
        batches_withheld=withheld,
        refused_count=len(refused),
        refused=tuple(RefusedBatch.of(i, judged.refusal) for i, judged in refused.items())[:LISTED_AT_MOST],
        held_count=len(held),
        files_read=sum(len(objects) for objects in read),
        rows_added=sum(f.records for f in written.files),
        files_added=len(written.files),
        bytes_added=sum(f.bytes for f in written.files),
        finished_time=datetime.now(UTC),
    )

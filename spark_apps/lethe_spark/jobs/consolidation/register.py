"""Register mode: adds the producers' Parquet files to the table without rewriting them, and reads only their footers.

I/O, without a Spark session: the caller reads the footers. A run writes no files, so it has nothing to stage, and nothing to
delete after a conflict.
Invariants: all files of a batch are added, or none; a file that is in the table is not added again; a batch whose objects were
refused before is never registered, because another run may be moving these objects out of the buffer.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from lethe.base.errors import InputError
from lethe.buffer.batch import BufferedBatch
from lethe.buffer.promotion import JudgedBatch, WrittenBatch
from lethe.buffer.refusals import is_judged
from lethe.contract.result import RefusedBatch
from lethe.contract.settings import FileFormat, SchemaEvolution
from lethe.ingest.buffer_files import refusal_of
from lethe.ingest.buffer_store import FileTask
from lethe.ingest.folder_values import named_folders
from lethe.ingest.footers import Footer, FooterReader
from lethe.ingest.name_mapping import mapping_to_set
from lethe.ingest.reading_errors import check_some_were_read, why_unread
from lethe.ingest.registrable import Target
from lethe.ledger.ledger import BatchState
from lethe.ledger.parts import get_many
from lethe.uri import place

from lethe_spark.commit.table_state import Base
from lethe_spark.jobs.consolidation.gather import GatheredBatches, WrittenBatches, gather
from lethe_spark.jobs.consolidation.listing import ignored
from lethe_spark.jvm.data_files import DataFile
from lethe_spark.jvm.registration import data_files
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Run

log = logging.getLogger(__name__)
# Reads the footers of these files, in any order.
ReadFooters: TypeAlias = Callable[[FooterReader, Sequence[FileTask]], Sequence[Footer]]
JUDGED: Final = (
    "hold files that were refused before; write the whole batch again, _SUCCESS last, or use another id if "
    "no byte of it changes"
)
ADDED_BY_OTHERS: Final = "cannot be registered, but another writer has already added some of their files to the table"


def register(
    context: Run,
    table: IcebergTable,
    read: ReadFooters,
    base: Base,
    batch_ids: Iterable[str],
    on_object: Callable[[], None] = ignored,
) -> WrittenBatches:
    """Read the footers of the batches' files and describe the files to Iceberg. Adds nothing to the table.

    Args:
        on_object: As in `list_buffer`.
    Raises: the errors of `read`; InputError (`FormatNotRegistrable`, `NameMappingIncomplete`); TransientError, if the buffer
        cannot be read.
    """
    spec = context.spec
    if spec.buffer.format is not FileFormat.PARQUET:
        raise InputError(
            "FormatNotRegistrable",
            "spec.consolidation.mode Register requires spec.buffer.format parquet, found "
            f"{spec.buffer.format}. Only Parquet files can be added to a table without rewriting them. Set "
            "the mode to Rewrite.",
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
    """Whether the footers must be read again, because another writer has added one of the files in the meantime, or another run
    has refused one of the batches."""
    known = get_many(base.ledger.batches, written.batches)
    if any(e.state is BatchState.REFUSED and e != written.refused_before.get(i) for i, e in known.items()):
        return True
    live = _live(base)
    return bool(live) and any(place(f.path) in live for f in written.files)


def _reader(context: Run, base: Base) -> FooterReader:
    may_lack = context.spec.schema_evolution is SchemaEvolution.ADD_COLUMNS
    return FooterReader(Target.of(base.iceberg, base.field_id, may_lack), dict(context.catalog_properties))


def _by_batch(
    read: ReadFooters, reader: FooterReader, batches: Iterable[BufferedBatch]
) -> Mapping[str, Sequence[Footer]]:
    """The footers of all files, by batch. Raises: the errors of `read`."""
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
    refused: dict[str, JudgedBatch] = dict(gathered.mixed)
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
                refused[i] = JudgedBatch(refusal.refusal, batch.data_objects)
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
        refused_before=gathered.found.entries,
        waiting=gathered.found.waiting_but(good, refused),
    )


def _live(base: Base) -> frozenset[tuple[str, tuple[str, ...]]]:
    """The places of all files of the table, if other writers may have added some; otherwise empty. For files that Lethe added
    the ledger is enough: the path names the batch."""
    return frozenset(place(f.path) for f in base.files()) if base.has_foreign_files else frozenset()

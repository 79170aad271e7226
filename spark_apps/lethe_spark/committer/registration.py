"""Carry out a consolidation of mode Register whose set of files is small, with the code of a Job. I/O.

The process also serves other runs, so everything that grows with the buffer, the table or the files has a limit here. With four
runs at a time, the limits keep the process and its JVM within their memory. Above a limit, a Job carries out the run.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Final

from lethe.base.errors import InputError, LedgerError, TableError, TransientError
from lethe.buffer.batch_rows import BatchRow
from lethe.buffer.small_sets import FILES_AT_MOST, OBJECTS_AT_MOST
from lethe.contract.result import ConsolidationResult
from lethe.decoder.process import NoDecoder
from lethe.ingest.buffer_store import BufferAway, FileTask
from lethe.ingest.footers import FOOTER_TOO_LARGE, Footer, FooterReader
from lethe.ingest.reading_errors import reading_failure

from lethe_spark.commit.table_state import Base
from lethe_spark.committer.fitness import NeedsSpark
from lethe_spark.jobs.consolidation.claiming import claim_buffer
from lethe_spark.jobs.consolidation.gather import WrittenBatches
from lethe_spark.jobs.consolidation.promote import promote
from lethe_spark.jobs.consolidation.register import register
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Run

# 32 footers are read at a time, and pyarrow needs several times as much for a parsed one.
FOOTER_BYTES_AT_MOST: Final = 256 * 1024
# Characters of JSON that describe the files to Iceberg. Java keeps about as many bytes until the commit.
DOCUMENTS_AT_MOST: Final = 4 * 1024 * 1024
# Live files of a table that other writers may have written to: the run compares its files with all of them.
LIVE_FILES_AT_MOST: Final = 10_000
# Bytes of refused files, which the run copies out of the buffer before it ends.
REFUSED_BYTES_AT_MOST: Final = 1024**3
# Reasons that the pod's credentials may have caused. A Job's pod may have others.
_OF_CREDENTIALS: Final = frozenset({"AccessDenied", "BufferNotFound", "StorageRefused"})


def register_small_set(context: Run, table: IcebergTable) -> tuple[ConsolidationResult, tuple[BatchRow, ...] | None]:
    """Register the batches of a run. The result, and the batches that still wait, as `promote` returns them.

    Raises: NeedsSpark, if the set is too large, or if anything is wrong with the buffer: this process may have other credentials
        than a Job, so a Job decides whether that is permanent. TableError, LedgerError; otherwise as `promote`.
    """
    spec = context.spec.consolidation
    assert spec is not None
    try:
        claim_buffer(context, table, _listing_limit())
        return promote(context, table, spec.batch_ids, partial(_register, context, table))
    except (TableError, LedgerError):
        raise
    except InputError as e:
        raise NeedsSpark(e.message.rstrip(".")) from e
    except TransientError as e:
        if e.reason not in _OF_CREDENTIALS:
            raise
        raise NeedsSpark(e.message.removesuffix(" Nothing was changed.").rstrip(".")) from e


def _register(context: Run, table: IcebergTable, base: Base, batch_ids: Iterable[str]) -> WrittenBatches:
    require_few_live_files(base)
    written = register(context, table, read_few, base, batch_ids, _listing_limit())
    refused = sum(o.size for judged in written.refused.values() for o in judged.objects)
    if refused > REFUSED_BYTES_AT_MOST:
        raise NeedsSpark(f"{refused} bytes are refused, and the committer moves at most {REFUSED_BYTES_AT_MOST}")
    return written


def require_few_live_files(base: Base) -> None:
    """Raises: NeedsSpark, if the run would have to look at too many files of the table."""
    head = base.facts.snapshots.get(base.facts.head_id) if base.facts.head_id is not None else None
    if head is None or not base.has_foreign_files:
        return
    total = head.summary.get("total-data-files", "")
    if not total.isdecimal() or int(total) > LIVE_FILES_AT_MOST:
        raise NeedsSpark(
            f"other writers may have added files to {base.facts.name}, and the committer compares with at most "
            f"{LIVE_FILES_AT_MOST} live files; the table has {total or 'an unknown number of'}"
        )


def read_few(reader: FooterReader, tasks: Sequence[FileTask]) -> list[Footer]:
    """Read the footers of files. Raises: NeedsSpark; TransientError (`BufferAway`)."""
    if len(tasks) > FILES_AT_MOST:
        raise NeedsSpark(f"{len(tasks)} files wait, and the committer registers at most {FILES_AT_MOST}")
    found: list[Footer] = []
    size = 0
    try:
        # Closed at once, so that no further footers are read after an error.
        with closing(replace(reader, footer_bytes_at_most=FOOTER_BYTES_AT_MOST).footers(tasks)) as footers:
            for footer in footers:
                if footer.error is not None and footer.error.reason in (*_OF_CREDENTIALS, FOOTER_TOO_LARGE):
                    raise NeedsSpark(f"{footer.uri}: {footer.error.message}")
                size += len(footer.described.document) if footer.described is not None else 0
                if size > DOCUMENTS_AT_MOST:
                    raise NeedsSpark(
                        f"the metadata of the {len(tasks)} files has more than {DOCUMENTS_AT_MOST} characters"
                    )
                found.append(footer)
    except (BufferAway, NoDecoder) as e:
        raise reading_failure(e) from e
    return found


def _listing_limit() -> Callable[[], None]:
    """To be called for each object of a listing. Raises: NeedsSpark, after OBJECTS_AT_MOST calls."""
    count = 0

    def seen() -> None:
        nonlocal count
        count += 1
        if count > OBJECTS_AT_MOST:
            raise NeedsSpark(f"the buffer holds more than {OBJECTS_AT_MOST} objects")

    return seen

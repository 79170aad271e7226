"""Checks the files of an upload as a consolidation would. I/O: reads them."""

import logging
from collections.abc import Mapping
from typing import Final

from lethe.base.errors import InputError
from lethe.contract.csv_dialect import RFC_4180
from lethe.contract.result import RefusedBatch
from lethe.contract.settings import ConsolidationMode, SchemaEvolution
from lethe.decoder.process import QUICK_SECONDS, NoDecoder
from lethe.ingest.buffer_files import ReadSettings
from lethe.ingest.buffer_store import BufferAway, FileTask
from lethe.ingest.checking import Whole, check_files, columns_of
from lethe.ingest.folder_values import named_folders
from lethe.ingest.path_limits import path_columns

from lethe_gateway.problems import Kind, Problem
from lethe_gateway.uploads.buffers import STORE_AWAY, Buffer
from lethe_gateway.uploads.turns import Busy, Turns

# Files up to this size are read completely, as many as have this size together. Of others only the columns are compared, which
# costs one or two requests.
WHOLE_BYTES: Final = 8 * 1024 * 1024
ALL_BYTES: Final = 64 * 1024 * 1024
# Uploads that are checked at once. Each has a decoder, with the memory of `lethe.decoder.limits`. A namespace leaves a place to
# the others. A check that takes longer than `quick_seconds` may have to give way and begin again, see `Turns`.
_TURNS: Final = Turns(places=3, of_namespace=2, of_dataset=2, quick_seconds=QUICK_SECONDS)
WAIT_SECONDS: Final = 60.0
log = logging.getLogger(__name__)


def rejection(buffer: Buffer, batch_id: str, files: Mapping[str, tuple[int, str]]) -> tuple[RefusedBatch | None, bool]:
    """With what a consolidation would refuse a batch, and whether that could be checked.

    Args:
        files: The size and the ETag of each object, by its URI.
    Raises: Problem (`catalog-away`, `overloaded`).
    """
    spec, table = buffer.dataset.spec, buffer.table
    if table is None:
        return None, False
    try:
        columns = columns_of(table.schema)
    except InputError:
        return None, False  # a type that only Spark reads
    tasks = [
        FileTask(batch_id, uri, size, etag, named_folders(uri, _folder(spec.buffer.uri, uri)))
        for uri, (size, etag) in sorted(files.items())
    ]
    add_columns = spec.schema_evolution is SchemaEvolution.ADD_COLUMNS
    settings = ReadSettings(
        spec.batch_column,
        dict(buffer.properties),
        spec.buffer.format,
        add_columns,
        csv=spec.buffer.csv or RFC_4180,
        path_columns=path_columns(table.schema, table.spec),
    )
    of = buffer.dataset.meta
    try:
        checked = _TURNS.carry_out(
            of.namespace,
            of.name,
            WAIT_SECONDS,
            lambda require: check_files(columns, tasks, settings, Whole(WHOLE_BYTES, ALL_BYTES), on_wait=require),
        )
    except Busy:
        raise Problem(
            Kind.OVERLOADED,
            "Other uploads are being checked. Complete this one again soon.",
            retry_after_seconds=10,
        ) from None
    except BufferAway as e:
        raise Problem(Kind.CATALOG_AWAY, STORE_AWAY.format(kind="BufferAway"), retry_after_seconds=5) from e
    except NoDecoder as e:
        log.error("%s/%s: the files of batch %s were not checked: %s", of.namespace, of.name, batch_id, e)
        return None, False
    # Whether files can be registered unchanged is decided by the run.
    return checked.refusal, spec.consolidation.mode is ConsolidationMode.REWRITE or checked.refusal is not None


def _folder(buffer: str, uri: str) -> str:
    """The folder directly in the buffer that a file is in: with the layout Directory, that of its batch."""
    prefix = buffer.rstrip("/") + "/"
    return prefix + uri.removeprefix(prefix).partition("/")[0]

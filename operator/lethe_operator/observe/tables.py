"""The table and the buffer of a Dataset, through PyIceberg and the object store. I/O.

An idle table costs one request to the catalog and one small file: facts and ledger are kept by metadata location, which
names immutable content.
"""

import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from lethe import names
from lethe.buffer import Buffer, open_buffer
from lethe.run import RunPointer
from lethe.table import catalogs, facts, ledger_store
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import load_file_io

from lethe_operator.observe.failures import unavailable
from lethe_operator.observe.time_limit import Limiter
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import BufferView, NoTable, TableView, Unavailable

TABLE_SECONDS: Final = 25.0
BUFFER_SECONDS: Final = 60.0
# Events come in bursts; a listing of thousands of objects need not be repeated for each.
LISTING_KEPT_SECONDS: Final = 5.0


@dataclass(frozen=True)
class _Kept:
    uid: str
    at: float
    view: BufferView


class Tables:
    """Reads tables and buffers. One per operator, shared by its threads."""

    def __init__(self, limiter: Limiter | None = None) -> None:
        self._limiter = limiter or Limiter()
        self._lock = threading.Lock()
        self._catalogs: dict[str, tuple[dict[str, str], Catalog]] = {}
        self._views: dict[str, tuple[tuple[str, str], TableView]] = {}
        self._listings: dict[str, _Kept] = {}

    def view(self, dataset: Dataset) -> TableView | NoTable | Unavailable:
        """The table now. Never raises: what went wrong is part of what is observed."""
        spec = dataset.spec.table
        properties: dict[str, str] = {}
        try:
            properties = catalogs.properties(spec.catalog)
            return self._limiter.call(
                f"table of {dataset.meta.full_name}", TABLE_SECONDS, lambda: self._load(dataset, properties)
            )
        except Exception as e:
            self._forget(spec.catalog)
            return unavailable(e, f"Table {spec.name} of catalog {spec.catalog}", properties, storage=False)

    def buffer(self, dataset: Dataset, fresh: bool) -> BufferView | Unavailable:
        """The buffer now, or as it was some seconds ago unless `fresh`. Never raises."""
        uri = dataset.spec.buffer.uri
        kept = self._listings.get(dataset.meta.full_name)
        current = kept is not None and kept.uid == dataset.meta.uid
        if kept is not None and current and not fresh and time.monotonic() - kept.at < LISTING_KEPT_SECONDS:
            return kept.view
        properties: dict[str, str] = {}
        try:
            properties = catalogs.properties(dataset.spec.table.catalog)
            view = self._limiter.call(
                f"buffer of {dataset.meta.full_name}", BUFFER_SECONDS, lambda: self._list(dataset, properties)
            )
        except Exception as e:
            return unavailable(e, f"Buffer {uri}", properties, storage=True)
        self._listings[dataset.meta.full_name] = _Kept(dataset.meta.uid, time.monotonic(), view)
        return view

    def read_pointer(self, pointer: RunPointer) -> bytes:
        """The document that a pointer names. Raises whatever the store raises."""
        properties = catalogs.properties(pointer.catalog)

        def read() -> bytes:
            with load_file_io(dict(properties), pointer.uri).new_input(pointer.uri).open() as stream:
                return bytes(stream.read())

        return self._limiter.call(f"run {pointer.uri}", TABLE_SECONDS, read)

    def forget(self, dataset: str) -> None:
        """A Dataset, as `namespace/name`, is gone."""
        self._listings.pop(dataset, None)
        self._views.pop(dataset, None)

    def _load(self, dataset: Dataset, properties: dict[str, str]) -> TableView | NoTable:
        try:
            table = self._catalog(dataset.spec.table.catalog, properties).load_table(dataset.spec.table.name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return NoTable(properties.get("warehouse", ""))
        found = (dataset.meta.uid, table.metadata_location)
        kept = self._views.get(dataset.meta.full_name)
        if kept is not None and kept[0] == found:
            return kept[1]
        view = view_of(facts.observe(table, dataset.spec.batch_column), table.io)
        self._views[dataset.meta.full_name] = (found, view)
        return view

    def _list(self, dataset: Dataset, properties: dict[str, str]) -> BufferView:
        buffer: Buffer = open_buffer(dataset.spec.buffer.uri, dataset.spec.batch_column, properties)
        batches = buffer.list()
        return BufferView(batches, buffer.invalid)

    def _catalog(self, name: str, properties: dict[str, str]) -> Catalog:
        with self._lock:
            kept = self._catalogs.get(name)
        if kept is not None and kept[0] == properties:
            return kept[1]
        opened = catalogs.load(name)
        with self._lock:
            self._catalogs[name] = (properties, opened)
        return opened

    def _forget(self, name: str) -> None:
        """After any error: a pool may hold connections to a server that is gone."""
        with self._lock:
            self._catalogs.pop(name, None)


def view_of(found: facts.TableFacts, io: Any) -> TableView:
    """What decisions need of a table. Reads its ledger. Raises: LedgerError; what the store raises."""
    head = found.snapshots.get(found.head_id) if found.head_id is not None else None
    return TableView(
        uuid=found.uuid,
        location=found.location,
        format_version=found.format_version,
        head_id=found.head_id,
        head_time=found.head_time,
        claim=found.claim,
        batch_field_id=found.batch_field_id,
        prepared=found.sorted_by_batch and found.metrics_full,
        ledger=ledger_store.load(io, found).ledger,
        run_ids=_run_ids(found),
        total_bytes=int(head.summary.get("total-files-size", 0)) if head is not None else 0,
    )


def _run_ids(found: facts.TableFacts) -> frozenset[str]:
    """Of the head and its ancestors only: a staged snapshot names its run too, and is not committed."""
    ids: set[str] = set()
    current = found.head_id
    while current is not None and (snapshot := found.snapshots.get(current)) is not None:
        if run := snapshot.summary.get(names.RUN_ID):
            ids.add(run)
        current = snapshot.parent_id
    return frozenset(ids)

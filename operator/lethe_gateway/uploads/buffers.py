"""The buffers of Datasets: whether the gateway may write there, and what is known of their tables. I/O.

A Dataset is a document that its author writes, and the gateway writes with its own credentials. So it writes only into a buffer
inside the namespace's boundary that no other Dataset and no table occupies: the checks of the operator and of runs.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lethe import ledger_store
from lethe.base import names
from lethe.base.errors import InputError, LetheError
from lethe.guards import claim
from lethe.guards.boundary import Outside, outside_names, outside_uri
from lethe.guards.claim import Around, Contents, Owner, buffer_rejection
from lethe.iceberg import catalogs
from lethe.iceberg.catalogs import TableIsView
from lethe.iceberg.facts import observe
from lethe.ingest.shared_folders import around
from lethe.ledger.ledger import BatchEntry, Ledger, get_many
from lethe.storage.object_store import ObjectStore, open_store
from lethe.uri import names_place
from lethe_operator.conditions import READY
from lethe_operator.resources.boundaries import Boundaries
from lethe_operator.resources.common import InvalidSpec
from lethe_operator.resources.dataset import Dataset, parse_dataset
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema

from lethe_gateway.problems import Kind, Problem

log = logging.getLogger(__name__)

# How long a buffer that may be used is not checked again, and how long what was read of a table counts as current.
CHECKED_SECONDS: Final = 60.0
TABLE_SECONDS: Final = 3.0
KEPT_AT_MOST: Final = 256
STORE_AWAY: Final = (
    "The catalog or the store of the Dataset does not answer ({kind}). Try again later; nothing is lost."
)


@dataclass(frozen=True)
class KnownTable:
    """What uploads need to know of a table."""

    schema: Schema
    ledger: Ledger
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC

    def entry(self, batch_id: str) -> BatchEntry | None:
        """What the ledger says of a batch. None: the ledger does not know this id."""
        return get_many(self.ledger.batches, [batch_id]).get(batch_id)


@dataclass(frozen=True)
class Buffer:
    """A buffer that the gateway may write into."""

    dataset: Dataset
    properties: Mapping[str, str]
    """Of the catalog."""
    store: ObjectStore
    table: KnownTable | None
    """None: no run has created or claimed it yet."""
    reload: Callable[[], KnownTable | None]
    """Reads the table again; raises what `Buffers.open` raises."""

    @property
    def uri(self) -> str:
        """The folder of the batches, `spec.buffer.uri` of the Dataset."""
        return self.dataset.spec.buffer.uri


class Buffers:
    """Opens buffers, and remembers for a short time what was found."""

    def __init__(self, boundaries: Boundaries, clock: Callable[[], float] = time.monotonic) -> None:
        self._boundaries = boundaries
        self._clock = clock
        self._lock = threading.Lock()
        self._checked: dict[tuple[str, str, str], float] = {}  # until when; by UID, buffer and table UUID
        self._tables: dict[tuple[str, str, str], tuple[float, tuple[str, KnownTable] | None]] = {}

    def open(self, resource: Mapping[str, Any]) -> Buffer:
        """The buffer of a Dataset.

        Raises:
            Problem: `buffer-unusable`.
            LetheError: Another error of Lethe; its reason says which.
            Exception: What catalogs and stores raise.
        """
        try:
            dataset = parse_dataset(resource)
        except InvalidSpec as e:
            raise unusable(f"The Dataset is invalid: {e}") from None
        spec = dataset.spec
        outside = self._outside(dataset)
        if outside is not None:
            raise unusable(outside.message(dataset.meta.namespace))
        properties = catalogs.properties(spec.table.catalog)
        local = claim.local("spec.buffer.uri", spec.buffer.uri, spec.table.catalog, catalogs.is_local(properties))
        if local is not None:
            raise unusable(local)
        table = self._table(dataset)
        self._check(dataset, properties, table[0] if table else "")
        return Buffer(
            dataset,
            properties,
            open_store(spec.buffer.uri, properties),
            _known(table),
            lambda: _known(self._loaded(dataset)),
        )

    def _outside(self, dataset: Dataset) -> Outside | None:
        boundary, spec = self._boundaries.of(dataset.meta.namespace).of_runs, dataset.spec
        if boundary is None:
            return None
        outside = outside_names(boundary, spec.table.catalog, spec.table.name)
        return outside or outside_uri(boundary, "spec.buffer.uri", spec.buffer.uri)

    def _check(self, dataset: Dataset, properties: Mapping[str, str], table_uuid: str) -> None:
        uri, key = dataset.spec.buffer.uri, (dataset.meta.uid, dataset.spec.buffer.uri, table_uuid)
        with self._lock:
            if self._checked.get(key, 0.0) > self._clock():
                return
        warehouse = properties.get("warehouse", "")
        found = around(uri, properties)
        rejection = buffer_rejection(
            uri,
            Owner(dataset.meta.namespace, dataset.meta.name, dataset.meta.uid, table_uuid, _cluster(dataset, found)),
            found,
            Contents(),
            dataset.spec.buffer.adopt,
            (warehouse,) if names_place(warehouse) else (),
        )
        if rejection is not None:
            raise unusable(str(rejection))
        with self._lock:
            _bound(self._checked)
            self._checked[key] = self._clock() + CHECKED_SECONDS

    def _table(self, dataset: Dataset) -> tuple[str, KnownTable] | None:
        """The UUID of the table and what is known of it; None: it does not exist, or no run has claimed it yet."""
        key = (dataset.claim, dataset.spec.table.catalog, dataset.spec.table.name)
        with self._lock:
            until, known = self._tables.get(key, (0.0, None))
            if until > self._clock():
                return known
        loaded = self._loaded(dataset)
        with self._lock:
            _bound(self._tables)
            self._tables[key] = self._clock() + TABLE_SECONDS, loaded
        return loaded

    def _loaded(self, dataset: Dataset) -> tuple[str, KnownTable] | None:
        spec = dataset.spec
        try:
            table = catalogs.load(spec.table.catalog).load_table(spec.table.name)
        except (NoSuchTableError, NoSuchNamespaceError, TableIsView):
            return None
        held = table.properties.get(names.CLAIM)
        if held is None:
            return None  # the author of a Dataset may name any table: nothing is said about it
        if held != dataset.claim:
            raise unusable(
                f"The table {spec.table.catalog}.{spec.table.name} belongs to another Dataset (table property lethe.dataset)."
            )
        facts = observe(table, spec.batch_column, spec.table.name)
        ledger = ledger_store.load(table.io, facts).ledger
        return facts.uuid, KnownTable(table.schema(), ledger, table.spec())


def _cluster(dataset: Dataset, found: Around) -> str:
    """The cluster that the claim names, if the operator has accepted the claimed buffer; "": unknown.

    Only the operator knows its cluster. A Dataset that was created again takes over the claim of the deleted one with its next
    run, which needs a batch.
    """
    status, held = dataset.status, found.claim.owner if found.claim is not None else None
    is_current = status.observed_generation == dataset.meta.generation and status.buffer is not None
    return held.cluster if held is not None and is_current and status.is_true(READY) else ""


def _known(looked_up: tuple[str, KnownTable] | None) -> KnownTable | None:
    return looked_up[1] if looked_up is not None else None


def unusable(why: str) -> Problem:
    """The problem `buffer-unusable`. `why` is the detail: what is wrong, and what to do."""
    return Problem(Kind.BUFFER_UNUSABLE, why)


def problem_of(error: Exception) -> Problem:
    """What an error of a catalog or a store means for the caller. Messages of foreign errors may contain credentials."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, InputError) and error.reason == "UnknownCatalog":  # its message names all others
        return unusable(
            "The gateway has no such catalog. Correct spec.table.catalog, or ask the administrator to add it."
        )
    if isinstance(error, InputError):
        return unusable(str(error))
    kind = error.reason if isinstance(error, LetheError) else type(error).__name__
    log.warning("a catalog or a store failed: %s", kind)  # not the message
    return Problem(Kind.CATALOG_AWAY, STORE_AWAY.format(kind=kind), retry_after_seconds=5)


def _bound(kept: dict[Any, Any]) -> None:
    if len(kept) >= KEPT_AT_MOST:
        kept.clear()

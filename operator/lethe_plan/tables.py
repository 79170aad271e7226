"""Reads the tables and buffers of Datasets, from the place of the command line. I/O: catalogs and stores, reads only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path

from lethe import ledger_store
from lethe.base.errors import InputError
from lethe.buffer.digest import BufferDigest, digest
from lethe.contract.dataset import HoldSpec
from lethe.contract.result import VacuumPlanned
from lethe.contract.run import VacuumSpec
from lethe.files.bounds import FileBounds
from lethe.guards import claim
from lethe.iceberg import catalogs
from lethe.iceberg.facts import TableFacts, data_files, observe
from lethe.iceberg.holds import Holds
from lethe.ingest import shared_folders
from lethe.ingest.references import find_waiting
from lethe.ingest.shared_folders import open_buffer
from lethe.ledger.ledger import EMPTY, BatchEntry, Ledger, get_many
from lethe.ledger.lineage import Resolution
from lethe.search.candidates import held_ids, plan_now
from lethe.search.covered import HeldTable
from lethe_operator.cluster.time_limit import unavailable
from lethe_operator.dataset.observe import catalog_places
from lethe_operator.dataset.tables import view_of
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import CatalogPlace, NoTable, NotListed, TableView, Unavailable
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

_RETRIES = " The operator retries."


@dataclass(frozen=True)
class ReadTable:
    """A table as the catalog shows it now."""

    table: Table
    facts: TableFacts
    resolution: Resolution
    view: TableView
    properties: Mapping[str, str] = field(repr=False)
    """Of the catalog."""

    @property
    def ledger(self) -> Ledger:
        """The ledger of the table's head, as this view has it."""
        return self.view.ledger

    @cached_property
    def files(self) -> Sequence[FileBounds]:
        """The live data files. Reads manifests, once."""
        if self.view.batch_field_id is None:
            return ()
        return data_files(self.table, self.facts.head_id, self.view.batch_field_id)

    def in_files(self, ids: Sequence[str]) -> frozenset[str]:
        """The batch ids that the ledger does not know and of which data files hold rows.

        Reads manifests, and the batch column up to a limit, if the ledger does not know all of them.
        """
        known = get_many(self.ledger.batches, ids)
        unknown = sorted({i for i in ids if i not in known})
        head_id, field_id = self.facts.head_id, self.view.batch_field_id
        if head_id is None or field_id is None or not unknown:
            return frozenset()
        return held_ids(self.table, head_id, field_id, unknown)

    def vacuum(self, spec: VacuumSpec, now: datetime, holds: Sequence[HoldSpec] = ()) -> VacuumPlanned | None:
        """What a vacuum would do now; None: nothing. Reads manifests and the ledger.

        Args:
            holds: The active ones. With an invalid one, no vacuum starts, and they are not considered.
        """
        head_id, field_id, held = self.facts.head_id, self.view.batch_field_id, None
        if holds and self.view.invalid_hold is None and head_id is not None and field_id is not None:
            held = HeldTable(self.table, head_id, field_id, Holds.of(holds, self.table.schema())).count
        return plan_now(self.table, self.facts, self.resolution, self.ledger, spec, now, held)


Observed = ReadTable | NoTable | Unavailable


class Tables:
    """The tables of Datasets. Each is read once."""

    def __init__(self, catalogs_file: Path | None) -> None:
        """`catalogs_file`: PyIceberg's configuration; None: where PyIceberg looks for it."""
        self._file = catalogs_file
        self._known: dict[tuple[str, str, str], Observed] = {}

    def of(self, dataset: Dataset) -> Observed:
        """Never raises: an error is part of the observation."""
        spec = dataset.spec.table
        key = (spec.catalog, spec.name, dataset.spec.batch_column)
        if key not in self._known:
            self._known[key] = self._read(dataset)
        return _as_the_operator_sees(dataset, self._known[key])

    def places(self) -> Mapping[str, CatalogPlace]:
        """Where the catalogs of the configuration keep their tables."""
        return catalog_places(self._file)

    def buffer(self, dataset: Dataset, table: Observed, now: datetime) -> BufferDigest | NotListed | Unavailable:
        """The buffer, compared with the table's ledger. Never raises."""
        if isinstance(table, Unavailable):
            return NotListed()  # promoted batches could not be recognized
        spec = dataset.spec
        where = f"Dataset {dataset.meta.name}: spec.buffer.uri"
        properties: Mapping[str, str] = {}
        try:
            properties = catalogs.properties(spec.table.catalog, self._file)
            local = claim.local(where, spec.buffer.uri, spec.table.catalog, catalogs.is_local(properties))
            if local is not None:
                return Unavailable("BufferLocal", local, transient=False)
            known = table.ledger.batches if isinstance(table, ReadTable) else EMPTY.batches
            listed = digest(
                open_buffer(spec.buffer.uri, spec.batch_column, properties, spec.buffer.layout).folders(lambda: None),
                lambda ids: get_many(known, ids),
                spec.consolidation.max_batches_per_run,
                spec.buffer.retention_seconds,
                now,
            )
            around = shared_folders.around(spec.buffer.uri, properties)
        except Exception as e:
            return unreadable(e, f"buffer {spec.buffer.uri}", properties, storage=True)
        head_id = table.facts.head_id if isinstance(table, ReadTable) else None
        return replace(listed, head_id=head_id, around=around)

    def buffered_ids(self, dataset: Dataset) -> frozenset[str]:
        """The ids of the batches in a buffer that could be listed before, complete or not.

        Raises:
            Exception: Errors of the catalog and of the store.
        """
        spec = dataset.spec
        properties = catalogs.properties(spec.table.catalog, self._file)
        return open_buffer(spec.buffer.uri, spec.batch_column, properties, spec.buffer.layout).ids(lambda: None)

    def waiting(self, dataset: Dataset, batches: Mapping[str, BatchEntry], reference: str) -> dict[str, set[str]]:
        """The batches of a run in a buffer that could be listed before, by its reference.

        Args:
            batches: Of the ledger.

        Raises:
            Exception: Errors of the catalog and of the store.
        """
        spec = dataset.spec
        properties = catalogs.properties(spec.table.catalog, self._file)
        buffer = open_buffer(spec.buffer.uri, spec.batch_column, properties, spec.buffer.layout)
        return find_waiting(buffer, batches, (reference,))

    def _read(self, dataset: Dataset) -> Observed:
        spec = dataset.spec.table
        properties: Mapping[str, str] = {}
        try:
            properties = catalogs.properties(spec.catalog, self._file)
            table = catalogs.load(spec.catalog, self._file).load_table(spec.name)
            facts = observe(table, dataset.spec.batch_column, f"{spec.catalog}.{spec.name}")
            resolution = ledger_store.load(table.io, facts).resolution
            return ReadTable(table, facts, resolution, view_of(facts, table.io), properties)
        except (NoSuchTableError, NoSuchNamespaceError):
            return NoTable(properties.get("warehouse", ""))
        except Exception as e:
            if isinstance(e, InputError) and e.reason == "UnknownCatalog":
                text = f"the catalog {spec.catalog} is not in {catalogs.CONFIG_FILE} of this machine. Add it to see the effects"
                return Unavailable(e.reason, f"{text}.", transient=False)
            return unreadable(e, f"table {spec.name} of catalog {spec.catalog}", properties, storage=False)


def view(table: Observed) -> TableView | NoTable | Unavailable:
    """What decisions see of the table."""
    return table.view if isinstance(table, ReadTable) else table


def _as_the_operator_sees(dataset: Dataset, observed: Observed) -> Observed:
    """The table, unless the catalog of this name is another one here than in the cluster."""
    uuid = dataset.status.table.uuid if dataset.status.table is not None else None
    here = observed.facts.uuid if isinstance(observed, ReadTable) else None
    if uuid is None or isinstance(observed, Unavailable) or here == uuid:
        return observed
    spec = dataset.spec.table
    shown = f"table {here}" if here else "no such table"
    text = (
        f"the operator sees table {uuid} as {spec.name}, and the catalog {spec.catalog} of this machine shows {shown}. Either "
        f"{catalogs.CONFIG_FILE} names another catalog, or the table was replaced."
    )
    return Unavailable("AnotherTable", text, transient=False)


def unreadable(error: Exception, what: str, properties: Mapping[str, str], storage: bool) -> Unavailable:
    """What could not be read, and why, without secrets."""
    failure = unavailable(error, what, properties, storage)
    return replace(failure, message=failure.message.removesuffix(_RETRIES))

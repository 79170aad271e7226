"""Opens a table for its publisher. I/O."""

from dataclasses import dataclass

from lethe.base import names
from lethe.base.errors import InputError
from lethe.iceberg import catalogs
from lethe.iceberg.facts import observe
from lethe.ledger_store import store as ledger_store
from lethe.storage.object_store import open_store
from lethe.storage.vended import of_table
from lethe.uri import backend_of
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from lethe_operator.decide.publishing.event_types import TableOf
from lethe_operator.decide.publishing.moves import line_of
from lethe_operator.observe.open_catalogs import OpenCatalogs
from lethe_operator.observe.pointers import service_of
from lethe_operator.observe.tables import TABLE_SECONDS
from lethe_operator.observe.time_limit import Limiter
from lethe_operator.publish.cursor_files import CursorFiles
from lethe_operator.publish.feed import OpenTable
from lethe_operator.publish.ledger_changes import LedgerVersions
from lethe_operator.publish.lineage import FOLDER, LineageVersions


@dataclass(frozen=True)
class Target:
    """A Dataset whose events are published."""

    namespace: str
    name: str
    catalog: str
    table: str  # namespace.table
    batch_column: str
    claim: str  # the value of the table property by which the Dataset claims its table
    location: str  # URI of the table, as last seen
    uuid: str  # of the table, as last seen
    buffer: str  # URI

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class TableOpener:
    """Opens tables, with the catalogs of the operator."""

    opened: OpenCatalogs
    limiter: Limiter  # of its own: a catalog that hangs must not use up the calls of reconciles
    max_event_bytes: int
    lineage: str | None = None  # the namespace of jobs in OpenLineage; None: status events

    def __call__(self, target: Target) -> OpenTable | None:
        """None: there is no such table, or another Dataset has claimed it.

        Raises: LedgerError, if the head has lost its ledger; InputError, UnsupportedStorage among them; TookTooLong; what the
            catalog raises.
        """
        call = f"events of {target.full_name}"
        return self.limiter.call(call, TABLE_SECONDS, lambda: self._open(target), service_of(target.catalog))

    def _open(self, target: Target) -> OpenTable | None:
        properties = catalogs.properties(target.catalog)
        try:
            table = self.opened.get(target.catalog, properties).load_table(target.table)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        facts = observe(table, target.batch_column)
        if facts.claim != target.claim:
            return None
        loaded = ledger_store.load(table.io, facts)
        name = TableOf(catalog=target.catalog, name=target.table, uuid=facts.uuid)
        versions = LedgerVersions(table.io, facts, name, self.max_event_bytes)
        return OpenTable(
            facts.uuid,
            line_of(facts.snapshots, facts.head_id, loaded.resolution),
            versions,
            versions if self.lineage is None else LineageVersions(versions, self.lineage, target.buffer),
            self._cursors(target, facts.location, facts.uuid),
        )

    def cursors(self, target: Target) -> CursorFiles:
        """The cursor of the table where it was last seen. Raises: InputError."""
        return self._cursors(target, target.location, target.uuid)

    def _cursors(self, target: Target, location: str, uuid: str) -> CursorFiles:
        if backend_of(location) is None:
            raise InputError(
                "UnsupportedStorage",
                f"{location}: status events need a store in which Lethe creates files atomically: S3, Google Cloud Storage, "
                "Azure, or local folders.",
            )
        store = open_store(location, of_table(catalogs.properties(target.catalog), target.table))
        folder = names.EVENTS_FOLDER if self.lineage is None else FOLDER
        return CursorFiles(store, location, uuid, target.full_name, folder)

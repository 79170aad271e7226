"""A real table on SQLite and local files, ledger commits on it without Spark, and the command as a user runs it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from lethe import ledger_store
from lethe.cli.main import cli
from lethe.iceberg.facts import observe
from lethe.ledger.ledger import BatchEntry, Delta, RequestEntry
from lethe.ledger.lineage import needed_carriers, summary
from lethe.ledger.tombstone import Tombstone
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from tests.support.builders import RUN, a_tombstone
from tests.support.tables import SCHEMA, catalog_in, new_table

NAME = "lite.air.flights"


@dataclass(frozen=True)
class Kept:
    """One table and what happens to it."""

    table: Table

    def append(self, *batches: str | None, start: int = 0) -> int:
        """A row of each batch, by a writer that knows no ledger."""
        rows = {"v": range(start, start + len(batches)), "batch_id": list(batches)}
        self.table.append(pa.table(rows, SCHEMA))
        return self.head

    def commit(
        self,
        *tombstoned: str,
        batches: Sequence[BatchEntry] = (),
        requests: Sequence[RequestEntry] = (),
        removed: Sequence[str] = (),
        vacuumed: Sequence[Tombstone] | None = None,
        kind: str = "Restatement",
    ) -> int:
        """A ledger commit: a snapshot of a summary and no rows."""
        facts = observe(self.table, "batch_id")
        base = ledger_store.load(self.table.io, facts)
        field_id = facts.batch_field_id
        assert field_id is not None
        delta = Delta(
            RUN,
            add_tombstones=tuple(a_tombstone(i, namespace=field_id) for i in tombstoned),
            remove_tombstones=frozenset((field_id, i) for i in removed),
            set_batches=tuple(batches),
            set_requests=tuple(requests),
        )
        carriers = needed_carriers(facts.snapshots, base.ledger.carriers)
        written = ledger_store.write(self.table.io, facts, base, delta, carriers, vacuumed)
        self.table.append(SCHEMA.empty_table(), snapshot_properties=summary(written, RUN, kind))
        return self.head

    @property
    def head(self) -> int:
        snapshot = self.table.current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    @property
    def folder(self) -> Path:
        """Where its ledgers lie."""
        return Path(self.table.location().removeprefix("file://")) / "_tombstones"

    def ledger_file(self, pattern: str) -> Path:
        """The only ledger file of that name."""
        (found,) = self.folder.glob(pattern)
        return found


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.delenv("LETHE_DEBUG", raising=False)
    return catalog_in(tmp_path)


@pytest.fixture
def flights(catalog: Catalog) -> Kept:
    return Kept(new_table(catalog))


@pytest.fixture
def lethe() -> Callable[..., Result]:
    """Runs the command: arguments and a text for its standard input in, exit code and output out."""
    return lambda *arguments, told=None: CliRunner().invoke(cli, [str(a) for a in arguments], input=told)

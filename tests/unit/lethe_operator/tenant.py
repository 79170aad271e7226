"""A namespace with an operator: tables and buffers are real, drivers are played."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from lethe.base import names
from lethe.contract.result import Phase, Progress, RunResult
from lethe.contract.run import RunSpec, parse_run
from lethe.kube import CONFIG_MAPS, DATASETS, EVENTS, JOBS, Document, RequestRefused, ResourceKind
from lethe.ledger.ledger import BatchEntry, BatchState, Delta
from lethe_operator.cluster.queue import Key
from lethe_operator.dataset.listing import Listings
from lethe_operator.dataset.tables import TableReader
from lethe_operator.resources.common import RUN_KEY
from lethe_operator.settings import Settings
from pyiceberg.catalog import Catalog

from tests.support.fake_cluster import FakeCluster, an_operator
from tests.support.small_lake import claimed_table, eager_dataset, put_batches
from tests.support.tables import SCHEMA, summary_of


class Unreliable(FakeCluster):
    """Refuses Jobs as often as `refuses` says."""

    refuses = 0

    def create(self, kind: ResourceKind, namespace: str, document: Mapping[str, Any]) -> Document:
        if kind is JOBS and self.refuses:
            self.refuses -= 1
            raise RequestRefused(403, "Forbidden", "exceeded quota")
        return super().create(kind, namespace, document)


@dataclass
class Tenant:
    """A namespace with an operator, whose clock moves only when the test moves it."""

    catalog: Catalog
    home: Path
    cluster: Unreliable = field(default_factory=Unreliable)
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        self.start_operator()

    def start_operator(self) -> None:
        """A new one, which remembers nothing."""
        tables = TableReader(listings=Listings(clock=lambda: self.now.timestamp()))
        self.reconcile = an_operator(self.cluster, tables, self.settings, clock=lambda: self.now)

    def dataset(self, name: str, *batches: str, **spec: Any) -> None:
        """One that promotes whatever waits, with a table and batches in its buffer."""
        claimed_table(self.catalog, name)
        self.put(name, *batches)
        self.cluster.create(DATASETS, "ns", eager_dataset(name, f"file://{self.home}/buffers/{name}", **spec))

    def put(self, name: str, *batches: str) -> None:
        put_batches(self.home / "buffers" / name, *batches)

    def look_at(self, *datasets: str) -> None:
        for name in datasets:
            self.reconcile(Key("Dataset", "ns", name))

    def wait(self, time: timedelta) -> None:
        self.now += time

    def jobs(self) -> list[Document]:
        return self.cluster.list(JOBS, "ns")

    def job(self) -> Document:
        (only,) = self.jobs()
        return only

    def run(self, name: str) -> RunSpec:
        """What the Dataset's ConfigMap says is to be done."""
        data = self.cluster.get(CONFIG_MAPS, "ns", f"{name}-runs")["data"]
        (text,) = [v for k, v in data.items() if k.endswith(RUN_KEY)]
        return parse_run(text)

    def status(self, name: str) -> Document:
        found: Document = self.cluster.get(DATASETS, "ns", name)["status"]
        return found

    def shown(self, name: str) -> list[tuple[str, str]]:
        return [(r["name"], r["phase"]) for r in self.status(name)["runs"]]

    def reasons(self, name: str) -> set[str]:
        return {e["reason"] for e in self.cluster.list(EVENTS, "ns") if e["regarding"]["name"] == name}

    # --- what a driver does ---

    def begin(self, name: str) -> None:
        run = self.run(name)
        told = Progress(run_id=run.run_id, attempt=run.attempt, phase=Phase.READING, updated_time=self.now)
        self._tell(name, "progress.json", told.to_json())

    def finish(self, name: str, **failure: Any) -> None:
        """Commit the run and tell its result; or, with a reason, tell that it failed."""
        run = self.run(name)
        assert run.consolidation is not None
        if not failure:
            table = self.catalog.load_table(f"air.{name}")
            entries = tuple(
                BatchEntry(i, BatchState.PROMOTED, run=run.run_id, time=self.now, rows=1, bytes=4)
                for i in run.consolidation.batch_ids
            )
            keys = {**summary_of(table, Delta(run.run_id, set_batches=entries)), names.RUN_ID: run.run_id}
            table.append(SCHEMA.empty_table(), snapshot_properties=keys)
        self.begin(name)
        result = RunResult(
            run_id=run.run_id,
            family=run.family,
            attempt=run.attempt,
            outcome="Failed" if failure else "Committed",
            finished_time=self.now,
            **failure,
        )
        self._tell(name, "result.json", result.to_json())

    def _tell(self, name: str, suffix: str, document: str) -> None:
        prefix = self.run(name).run_id[:12]
        self.cluster.patch(CONFIG_MAPS, "ns", f"{name}-runs", {"data": {f"{prefix}.{suffix}": document}})

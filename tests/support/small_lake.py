"""A Dataset with a real table and a real buffer, on SQLite and local files, and an API server in memory. What runs do is
stood in for by commits of a ledger."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from lethe import ledger_store
from lethe.base import names
from lethe.buffer.layout import BufferedBatch
from lethe.contract.result import AffectedFiles, RequestResult
from lethe.contract.run import RunPointer, RunSpec, is_pointer, parse_run
from lethe.iceberg import run_documents
from lethe.iceberg.facts import observe
from lethe.kube import CONFIG_MAPS, DATASETS, JOBS, RESTATEMENTS, Document
from lethe.ledger.ledger import BatchEntry, Ledger
from lethe_operator.cluster.queue import Key
from lethe_operator.reconcile import Reconciler, utc_now
from lethe_operator.resources.common import KEY_PREFIX_LENGTH, LABEL_RUN_ID, RESULT_KEY, RUN_KEY
from lethe_operator.runs.names import shared
from lethe_spark.run.progress import for_config_map
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from tests.support.buffers import batches_in
from tests.support.builders import RUN, a_batch, a_request_entry
from tests.support.fake_cluster import Client, FakeCluster, an_operator
from tests.support.resources import a_dataset_body, a_restatement_body, a_result
from tests.support.tables import catalog_in, commit_delta, new_table

FLIGHTS = Key("Dataset", "ns", "flights")


def claimed_table(catalog: Catalog, dataset: str = "flights") -> Table:
    """The table of a Dataset, empty."""
    return new_table(catalog, f"air.{dataset}", **{names.CLAIM: f"ns/{dataset}"})


def eager_dataset(name: str, buffer: str, **spec: Any) -> dict[str, Any]:
    """One whose batches are consolidated as soon as there is one. `buffer` is its URI."""
    wanted: Any = {
        "table": {"catalog": "lite", "name": f"air.{name}"},
        "buffer": {"uri": buffer},
        "consolidation": {"minBatches": 1},
        **spec,
    }
    return a_dataset_body(name, **wanted)


def put_batches(buffer: Path, *ids: str) -> None:
    for id in ids:
        folder = buffer / f"batch_id={id}"
        folder.mkdir(parents=True)
        (folder / "p.parquet").write_text("rows")
        (folder / names.SUCCESS_MARKER).touch()


@dataclass(frozen=True)
class SmallLake:
    home: Path
    catalog: Catalog
    cluster: FakeCluster

    @classmethod
    def make(cls, home: Path) -> Self:
        """PYICEBERG_HOME has to be `home`. The Dataset's batches are consolidated as soon as there is one."""
        catalog = catalog_in(home)
        return cls(home, catalog, FakeCluster((DATASETS, eager_dataset("flights", f"file://{home}/buffer"))))

    # --- the table and the buffer -------------------------------------------------------------------------------------

    def create_table(self) -> Table:
        return claimed_table(self.catalog)

    @property
    def table(self) -> Table:
        return self.catalog.load_table("air.flights")

    def put(self, *batch_ids: str) -> None:
        put_batches(self.home / "buffer", *batch_ids)

    def buffered(self) -> dict[str, BufferedBatch]:
        buffer = self.cluster.get(DATASETS, "ns", "flights")["spec"]["buffer"]
        layout = buffer.get("layout", "Directory")
        return {b.id: b for b in batches_in(buffer["uri"], layout=layout)}

    def promoted(self, id: str, run: str = RUN) -> BatchEntry:
        """The entry of a batch of the buffer that was promoted long ago."""
        long_ago = datetime.now(UTC) - timedelta(days=9)
        return a_batch(id, time=long_ago, objects=self.buffered()[id].data_objects, run=run)

    def commit(self, *entries: BatchEntry, run: str = RUN) -> None:
        """A ledger commit: a snapshot of a summary and no rows."""
        commit_delta(self.table, run, "Consolidation", set_batches=entries)

    @property
    def ledger(self) -> Ledger:
        table = self.table
        return ledger_store.load(table.io, observe(table, "batch_id")).ledger

    def states(self) -> dict[str, str]:
        return {i: str(b.state) for i, b in self.ledger.batches.items()}

    # --- operators and runs -------------------------------------------------------------------------------------------

    def operator(self, client: Client | None = None, clock: Callable[[], datetime] = utc_now) -> Reconciler:
        """One that has just been started: it remembers nothing."""
        return an_operator(client or self.cluster, clock=clock)

    def jobs(self) -> list[Document]:
        return self.cluster.list(JOBS, "ns")

    def runs(self) -> list[RunSpec]:
        """What is stored of runs, whether or not there is a Job."""
        found = self.cluster.list(CONFIG_MAPS, "ns")
        stored = [v for m in found for k, v in (m.get("data") or {}).items() if k.endswith(RUN_KEY)]
        return [parse_run(_whole(text)) for text in stored]

    def end(self, job: Document) -> None:
        """Let a Job's run do its work: promote what of its batches is not promoted yet, remember the requests of its group and
        refuse those whose reason is "refuse". It ended a minute ago."""
        (run,) = [r for r in self.runs() if r.run_id == job["metadata"]["labels"][LABEL_RUN_ID]]
        if run.consolidation is not None:
            known = self.states()
            left = [i for i in run.consolidation.batch_ids if i not in known]
            if left:
                self.commit(*(self.promoted(i, run.run_id) for i in left), run=run.run_id)
        else:
            self._restate(run)
        ended = (utc_now() - timedelta(minutes=1)).isoformat()
        complete = {"type": "Complete", "status": "True", "lastTransitionTime": ended}
        status = {"succeeded": 1, "completionTime": ended, "conditions": [complete]}
        self.cluster.patch(JOBS, "ns", job["metadata"]["name"], {"status": status})

    def _restate(self, run: RunSpec) -> None:
        assert run.restatement is not None
        requests = run.restatement.requests
        granted = [r for r in requests if r.reason != "refuse"]
        known = self.ledger.requests
        entries = [
            replace(a_request_entry(r.key, group_size=len(granted)), run=run.run_id)
            for r in granted
            if r.key not in known
        ]
        dry = run.restatement.dry_run
        if entries and not dry:
            commit_delta(self.table, run.run_id, set_requests=tuple(entries))
        reported = [
            RequestResult(
                key=r.key,
                name=r.name,
                succeeded=r in granted,
                reason="" if r in granted else "AlreadyReplaced",
                plan=AffectedFiles(files=2, bytes=30, whole_files=1) if dry and r in granted else None,
            )
            for r in requests
        ]
        result = a_result(run, "Planned" if dry else "Committed", requests=reported, attempt=run.attempt)
        data = {run.run_id[:KEY_PREFIX_LENGTH] + RESULT_KEY: for_config_map(result, run.table)}
        self.cluster.patch(CONFIG_MAPS, "ns", shared("flights"), {"data": data})

    # --- Restatements -------------------------------------------------------------------------------------------------

    def ask(self, *names: str, **spec: Any) -> None:
        """Restatements that each revert a batch of their own name, unless it says otherwise."""
        for name in names:
            self.cluster.create(RESTATEMENTS, "ns", a_restatement_body(name, **{"batchIds": [name], **spec}))

    def phases(self) -> dict[str, str]:
        found = self.cluster.list(RESTATEMENTS, "ns")
        return {r["metadata"]["name"]: (r.get("status") or {}).get("phase", "") for r in found}

    def status(self) -> Document:
        found: Document = self.cluster.get(DATASETS, "ns", "flights")["status"]
        return found


def _whole(text: str) -> str:
    """A document, or what its pointer names."""
    if not is_pointer(json.loads(text)):
        return text
    content = run_documents.read(RunPointer.model_validate_json(text))
    assert content is not None
    return content.decode()

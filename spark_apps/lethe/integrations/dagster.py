"""Lethe in Dagster: a resource that delivers batches, and a sensor that shows the batches of a Dataset as partitions. I/O: HTTP.

An asset is a Dataset, and its partitions are batches. What a run delivers has the run's id as the reference.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq

from lethe.client import Document, GatewayClient

SENSED_AT_MOST: Final = 1000
"""The most batches that one evaluation of the sensor reports."""
OVERLAP: Final = timedelta(minutes=5)
_SENSED: Final = ("promoted", "reverted", "replaced", "erased")


class LetheResource(dg.ConfigurableResource):
    """The gateway. `token` is best an `EnvVar`."""

    url: str
    """Of the gateway."""
    token: str
    """A token of the cluster."""
    namespace: str = "default"
    """Of the Datasets and Restatements."""
    ca_file: str | None = None
    """The certificates to trust, in PEM; None: the system's."""

    @contextmanager
    def client(self) -> Iterator[GatewayClient]:
        """A client of the gateway, for as long as the block."""
        with GatewayClient(self.url, self.token, self.namespace, self.ca_file) as gateway:
            yield gateway

    def deliver(
        self,
        context: dg.AssetExecutionContext,
        rows: Any,
        *,
        dataset: str = "",
        batch_id: str = "",
        wait_seconds: float = 600,
    ) -> dg.MaterializeResult:
        """Deliver rows as one batch, wait until it is promoted, and return what the asset returns.

        Args:
            context: Of the asset.
            rows: A folder with files, or what `pyarrow.table` takes: a table, a frame of Polars or pandas, a DuckDB relation.
            dataset: "": the last part of the asset's key, with `-` instead of `_`.
            batch_id: "": the partition's key, or else the run's id.
            wait_seconds: How long to wait at most; 0: only until it is in the buffer.

        Raises:
            InputError: NotPromoted, and those of `GatewayClient.put`.
            TransientError: NotPromotedYet, or the gateway is away.
        """
        dataset = dataset or context.asset_key.path[-1].replace("_", "-")
        batch_id = batch_id or (context.partition_key if context.has_partition_key else context.run_id)
        with self.client() as gateway, tempfile.TemporaryDirectory(prefix="lethe-batch-") as written:
            folder = rows if isinstance(rows, str | Path) else written
            if folder is written:
                pq.write_table(pa.table(rows), f"{written}/part-0.parquet")
            gateway.put(dataset, batch_id, folder, reference=context.run_id)
            batch = gateway.wait_for_batch(dataset, batch_id, wait_seconds) if wait_seconds else {}
        return dg.MaterializeResult(metadata=_metadata({"dataset": dataset, "id": batch_id, **batch}))

    def revert_run(self, dataset: str, run_id: str, reason: str = "", wait_seconds: float = 600) -> Document:
        """Take back all batches of a Dataset that a run delivered, and return the Restatement.

        Raises:
            InputError: NotRestated, and those of `GatewayClient.restate`.
            TransientError: NotRestatedYet, or the gateway is away.
        """
        spec = {"datasetRef": {"name": dataset}, "operation": "Revert", "selector": {"reference": run_id}}
        with self.client() as gateway:
            name = gateway.restate({**spec, "reason": reason} if reason else spec)["name"]
            return gateway.wait(name, wait_seconds)


def batch_sensor(
    dataset: str, partitions: dg.DynamicPartitionsDefinition, asset_key: str | Sequence[str], **options: Any
) -> dg.SensorDefinition:
    """A sensor that reports each promoted batch of a Dataset, also of other programs, as a materialization of its partition.

    A batch that is taken back is reported as an observation. It needs the resource `lethe`.

    Args:
        dataset: The name of the Dataset.
        partitions: The partitions of the asset.
        asset_key: The key of the asset.
        options: Those of `dagster.sensor`, such as `minimum_interval_seconds`.
    """
    key = dg.AssetKey(asset_key)

    @dg.sensor(name=f"batches_of_{dataset.replace('-', '_')}", **options)
    def look(context: dg.SensorEvaluationContext, lethe: LetheResource) -> dg.SensorResult | dg.SkipReason:
        seen = _Cursor.of(context.cursor)
        with lethe.client() as gateway:
            listed = gateway.batches(dataset, states=_SENSED, since=seen.since)
            batches = sorted((b for b in listed if seen.states.get(_state(b)) != b["stateTime"]), key=_time)
            batches = batches[:SENSED_AT_MOST]
        if not batches:
            return dg.SkipReason("no batch changed")
        promoted = [b["id"] for b in batches if b["state"] == "promoted"]
        return dg.SensorResult(
            dynamic_partitions_requests=[partitions.build_add_request(promoted)] if promoted else [],
            asset_events=[_event(key, b) for b in batches],
            cursor=seen.after(batches).to_json(),
        )

    return look


@dataclass(frozen=True)
class _Cursor:
    """What was reported. The last minutes are read again, because the clocks of the processes that commit may differ."""

    since: datetime | None = None
    states: Mapping[str, str] = field(default_factory=dict)
    """What was reported of these minutes: states, each with its time."""

    @staticmethod
    def of(text: str | None) -> "_Cursor":
        document = json.loads(text) if text else {}
        since = document.get("since")
        return _Cursor(datetime.fromisoformat(since) if since else None, document.get("states", {}))

    def after(self, batches: Sequence[Document]) -> "_Cursor":
        since = _time(batches[-1]) - OVERLAP
        states = {**self.states, **{_state(b): b["stateTime"] for b in batches}}
        return _Cursor(since, {s: t for s, t in states.items() if datetime.fromisoformat(t) >= since})

    def to_json(self) -> str:
        return json.dumps({"since": self.since.isoformat() if self.since else None, "states": self.states})


def _state(batch: Document) -> str:
    return f"{batch['state']} {batch['id']}"


def _event(key: dg.AssetKey, batch: Document) -> dg.AssetMaterialization | dg.AssetObservation:
    kind = dg.AssetMaterialization if batch["state"] == "promoted" else dg.AssetObservation
    return kind(asset_key=key, partition=batch["id"], metadata=_metadata(batch))


def _metadata(batch: Document) -> dict[str, Any]:
    said = {
        name: batch.get(name)
        for name in ("dataset", "id", "state", "rows", "snapshotIdText", "reference", "restatement")
    }
    return {f"lethe/{name}": value for name, value in said.items() if value is not None}


def _time(batch: Document) -> datetime:
    return datetime.fromisoformat(batch["stateTime"])

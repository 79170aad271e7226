"""One Dataset of the benchmark on a cluster: its batches, its Restatements, and a check of the result. I/O."""

import io
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import lethe
import pyarrow as pa
import pyarrow.parquet as pq
from lethe import ledger_store
from lethe.base import names

from bench.site import Site
from bench.timing import say

BATCH_COLUMN: Final = "batch_id"
COLUMNS: Final = "id BIGINT, at TIMESTAMP, value DOUBLE"
SCHEMA: Final = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("value", pa.float64())])
ROWS: Final = 10  # of each batch
DAYS: Final = 10
CREATORS: Final = 8
PROMOTED_WITHIN_SECONDS: Final = 1800.0


@dataclass(frozen=True)
class Subject:
    """`name` is the Dataset's, and the label of all that belongs to it."""

    site: Site
    name: str

    @property
    def table(self) -> str:
        return f"bench.{self.name.replace('-', '_')}"

    @property
    def buffer(self) -> str:
        return f"s3://lake/bench/{self.name}/buffer"

    @property
    def label(self) -> str:
        return f"bench={self.name}"

    def replacement(self, index: int) -> str:
        return f"s3://lake/bench/{self.name}/restated/{index}"

    # --- before ---

    def clean(self) -> None:
        """Remove what an earlier run left."""
        for kind in ("VacuumPolicy", "Restatement", "Dataset"):
            self.site.delete_all(kind, self.label)
        while self.site.get("Dataset", self.name) is not None:
            time.sleep(1)
        self.site.drop_table(self.table)
        self.site.clear(f"s3://lake/bench/{self.name}")

    def put_batches(self, indexes: Sequence[int]) -> None:
        folders = [f"{self.buffer}/{BATCH_COLUMN}={batch_id(i)}" for i in indexes]
        self._put(folders, indexes)

    def put_replacements(self, indexes: Sequence[int]) -> None:
        self._put([self.replacement(i) for i in indexes], indexes)

    def _put(self, folders: Sequence[str], indexes: Sequence[int]) -> None:
        self.site.put_all((f"{folder}/part-0.parquet", parquet(i)) for folder, i in zip(folders, indexes, strict=True))
        self.site.put_all((f"{folder}/{names.SUCCESS_MARKER}", b"") for folder in folders)

    def begin(self, batches: int) -> None:
        """Make the Dataset, and wait until its first batches are promoted. Raises: RuntimeError, if that takes half an hour."""
        self.site.create(
            "Dataset",
            self.name,
            {
                "table": {
                    "catalog": "main",
                    "name": self.table,
                    "create": {"schema": COLUMNS, "partitionBy": ["days(at)"]},
                },
                "batchColumn": BATCH_COLUMN,
                "buffer": {"uri": self.buffer},
                "consolidation": {"minBatches": min(100, batches), "maxAgeSeconds": 120},
            },
            {"bench": self.name},
        )
        self.await_promoted(batches, PROMOTED_WITHIN_SECONDS)

    def await_promoted(self, batches: int, within_seconds: float) -> float:
        """Wait until so many batches are promoted. Returns: the seconds that it took. Raises: RuntimeError, after the limit."""
        since = time.monotonic()
        while (promoted := self._promoted()) < batches:
            if time.monotonic() - since > within_seconds:
                raise RuntimeError(f"{promoted:,} of {batches:,} batches were promoted within {within_seconds:.0f} s")
            time.sleep(0.5)
        seconds = time.monotonic() - since
        say(f"  {batches:,} batches are promoted after {seconds:.0f} s")
        return seconds

    def _promoted(self) -> int:
        found = self.site.get("Dataset", self.name) or {}
        return int(((found.get("status") or {}).get("batches") or {}).get("promoted", 0))

    # --- asking ---

    def ask(self, index: int, replay: bool) -> float:
        """Create a Restatement of one batch. Returns: the time, in seconds since the epoch."""
        spec: dict[str, Any] = {
            "datasetRef": {"name": self.name},
            "operation": "Replay" if replay else "Revert",
            "batchIds": [batch_id(index)],
            "reason": "measured",
        }
        if replay:
            spec["replacement"] = {"batchId": f"{batch_id(index)}.2", "uri": self.replacement(index)}
        at = time.time()
        self.site.create("Restatement", self.request(index), spec, {"bench": self.name})
        return at

    def request(self, index: int) -> str:
        return f"{self.name}-{index:06d}"

    def ask_all(self, indexes: Sequence[int], replays: frozenset[int]) -> dict[str, float]:
        """Create Restatements as fast as the API server accepts them. Returns: the time of each, by name."""
        with ThreadPoolExecutor(CREATORS) as pool:
            times = pool.map(lambda i: self.ask(i, i in replays), indexes)
            return {self.request(i): at for i, at in zip(indexes, times, strict=True)}

    # --- after ---

    def wrong(self, promoted: Sequence[int], asked: Sequence[int], replays: frozenset[int]) -> str:
        """Check that each remaining row exists once and the ledger has each request. Returns: the difference; empty if none."""
        view = lethe.scan(self.table, columns=[BATCH_COLUMN, "id"], catalog=self.site.catalog)
        found = view.to_arrow()
        rows = Counter(zip(found[BATCH_COLUMN].to_pylist(), found["id"].to_pylist(), strict=True))
        left = {batch_id(i): i for i in set(promoted) - set(asked)}
        left |= {f"{batch_id(i)}.2": i for i in asked if i in replays}
        wanted = Counter((name, n) for name, i in left.items() for n in ids(i))
        known = len(ledger_store.load(view.table.io, view.facts).ledger.requests)
        if known != len(asked):
            return f"the ledger holds {known} requests, expected {len(asked)}"
        return "" if rows == wanted else f"{(rows - wanted).total()} rows too many, {(wanted - rows).total()} too few"

    def commits(self) -> dict[str, int]:
        """How many snapshots each kind of run has made, of those that are retained."""
        table = self.site.catalog.load_table(self.table)
        kinds = [s.summary.additional_properties.get(names.RUN_KIND, "other") for s in table.snapshots() if s.summary]
        return dict(Counter(kinds))


def batch_id(index: int) -> str:
    return f"b-{index:06d}"


def ids(index: int) -> range:
    return range(index * ROWS, (index + 1) * ROWS)


def parquet(index: int) -> bytes:
    midnight = datetime(2024, 1, 1 + index % DAYS, tzinfo=UTC)
    times = [midnight + timedelta(minutes=n) for n in range(ROWS)]
    rows = pa.table({"id": list(ids(index)), "at": times, "value": [float(n) for n in ids(index)]}, schema=SCHEMA)
    sink = io.BytesIO()
    pq.write_table(rows, sink)
    return sink.getvalue()

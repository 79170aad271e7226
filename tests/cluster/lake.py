"""The cluster's bucket and catalog seen from outside: writing batches as a producer does, reading tables without Lethe.

The reader shares no code with Lethe: PyIceberg scans the snapshot, fastavro reads the tombstone file that its summary names,
and the rows that match are left out here. I/O only.
"""

import base64
import io
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlsplit

import boto3
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from botocore.config import Config
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table.snapshots import Snapshot

from tests.cluster.kube import Cluster

SERVICES = "lethe-services"
CATALOG = "main"
# The same database and bucket, with the gate (servers/gate.py) before S3.
GATED = "gated"
# The same behind relays (servers/outage.py), which a test can stop: by service, the name and the port of its relay.
RELAYED = "relayed"
RELAYS = {"postgres": ("postgres-relay", 5432), "s3": ("s3-relay", 7070)}
GATE, GATE_PORT = "s3-gate", 7071
QUEUE, QUEUE_PORT = "queue", 9324
MOST_KEYS = 1000  # of a request
WAREHOUSE = "s3://lake/warehouse"
SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("value", pa.float64())])
COLUMNS = "id BIGINT, at TIMESTAMP, value DOUBLE"
# A row as the tests compare it: its batch and its id.
Rows = Counter[tuple[str, int]]


@dataclass(frozen=True)
class Services:
    """Addresses and credentials of PostgreSQL and S3. `inside`: as pods reach them."""

    node: str
    secret: dict[str, str] = field(repr=False)

    def catalog_properties(self, *, inside: bool, relayed: bool = False) -> dict[str, str]:
        suffix = "-relay" if relayed else ""
        postgres = f"postgres{suffix}.{SERVICES}:5432" if inside else f"{self.node}:30432"
        user, password = self.secret["POSTGRES_USER"], self.secret["POSTGRES_PASSWORD"]
        return {
            "type": "sql",
            "uri": f"postgresql+psycopg2://{user}:{password}@{postgres}/lake",
            "init_catalog_tables": "false",
            "warehouse": WAREHOUSE,
            "s3.endpoint": f"http://s3{suffix}.{SERVICES}:7070" if inside else f"http://{self.node}:30070",
            "s3.access-key-id": self.secret["AWS_ACCESS_KEY_ID"],
            "s3.secret-access-key": self.secret["AWS_SECRET_ACCESS_KEY"],
            "s3.region": "us-east-1",
            "s3.path-style-access": "true",
        }

    def catalogs(self) -> dict[str, dict[str, str]]:
        """What the chart is installed with. No server needs to be there for a catalog that no Dataset names."""
        main = self.catalog_properties(inside=True)
        queues = {"endpoint": f"http://{QUEUE}.{SERVICES}:{QUEUE_PORT}", "region": "us-east-1"}
        queues |= {"access-key-id": "anyone", "secret-access-key": "anything"}
        return {
            CATALOG: {**main, **{f"sqs.{key}": value for key, value in queues.items()}},
            GATED: {**main, "s3.endpoint": f"http://{GATE}.{SERVICES}:{GATE_PORT}"},
            RELAYED: self.catalog_properties(inside=True, relayed=True),
        }


def find_services(cluster: Cluster) -> Services:
    node = cluster.list("nodes")[0]
    address = next(a["address"] for a in node["status"]["addresses"] if a["type"] == "InternalIP")
    secret = cluster.in_namespace(SERVICES).get(f"secret/{SERVICES}")
    assert secret is not None, f"the Secret {SERVICES}/{SERVICES} is not there: `make test-up` installs the services"
    return Services(address, {k: base64.b64decode(v).decode() for k, v in secret["data"].items()})


def a_table_of(rows: int, first_id: int = 0, day: int = 1) -> pa.Table:
    """Rows with ids from `first_id` on, all on one day of January 2024."""
    midnight = datetime(2024, 1, day, tzinfo=UTC)
    times = [midnight + timedelta(minutes=n % 1440) for n in range(rows)]
    return pa.table(
        {"id": range(first_id, first_id + rows), "at": times, "value": [float(n) for n in range(rows)]}, schema=SCHEMA
    )


def rows_of(batch_id: str, table: pa.Table) -> Rows:
    return Counter((batch_id, n) for n in table["id"].to_pylist())


@dataclass(frozen=True)
class ClusterLake:
    services: Services
    s3: Any
    catalog: Catalog = field(repr=False)

    # --- as a producer ---

    def put(self, uri: str, content: bytes = b"") -> None:
        bucket, key = split(uri)
        self.s3.put_object(Bucket=bucket, Key=key, Body=content)

    def put_batch(self, folder: str, table: pa.Table, *, complete: bool = True) -> None:
        """A folder with one Parquet file, and then _SUCCESS."""
        sink = io.BytesIO()
        pq.write_table(table, sink)
        self.put(f"{folder}/part-0.parquet", sink.getvalue())
        if complete:
            self.put(f"{folder}/_SUCCESS")

    def keys(self, folder: str) -> set[str]:
        """The objects below a folder, or in a whole bucket."""
        bucket, prefix = split(folder)
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/" if prefix else "")
        return {f"s3://{bucket}/{one['Key']}" for page in pages for one in page.get("Contents", ())}

    def clear(self, folder: str) -> None:
        bucket, _ = split(folder)
        keys = [{"Key": split(uri)[1]} for uri in self.keys(folder)]
        for first in range(0, len(keys), MOST_KEYS):
            self.s3.delete_objects(Bucket=bucket, Delete={"Objects": keys[first : first + MOST_KEYS], "Quiet": True})

    def drop(self, table: str) -> None:
        try:
            location = self.catalog.load_table(table).location()
        except (NoSuchTableError, NoSuchNamespaceError):
            return
        self.catalog.drop_table(table)
        self.clear(location)

    # --- as another writer ---

    def append(self, table: str, batch_id: str, rows: pa.Table) -> Rows:
        """A commit of PyIceberg, with one data file for each day, of rows that came through no buffer."""
        column = pa.array([batch_id] * rows.num_rows, pa.string())
        self.catalog.load_table(table).append(rows.append_column("batch_id", column))
        return rows_of(batch_id, rows)

    # --- as a reader that has the format's page and nothing of Lethe ---

    def head(self, table: str) -> Snapshot:
        snapshot = self.catalog.load_table(table).current_snapshot()
        assert snapshot is not None, f"{table} has no snapshot"
        return snapshot

    def rows(self, table: str, key: str = "id") -> Rows:
        """Every row that is not deleted, as often as it is there: its batch and its key."""
        column = self.catalog.load_table(table).schema().find_field("batch_id").field_id
        deleted = {t["id"] for t in self.tombstones(table) if t["namespace"] == column}
        return Counter({row: n for row, n in self.plain_rows(table, key).items() if row[0] not in deleted})

    def plain_rows(self, table: str, key: str = "id") -> Rows:
        """The same as whoever sees it that knows only Iceberg: PyIceberg's scan, and no tombstones."""
        loaded = self.catalog.load_table(table)
        if loaded.current_snapshot() is None:
            return Counter()
        arrow = loaded.scan(selected_fields=("batch_id", key)).to_arrow()
        return Counter(zip(arrow["batch_id"].to_pylist(), arrow[key].to_pylist(), strict=True))

    def tombstones(self, table: str) -> list[dict[str, Any]]:
        """The active tombstones: those of the nearest ancestor whose summary names a file."""
        for snapshot in self.history(table):
            if uri := summary(snapshot).get("tombstone.file"):
                return self.avro(uri)
        return []

    def get(self, uri: str) -> bytes:
        bucket, key = split(uri)
        return bytes(self.s3.get_object(Bucket=bucket, Key=key)["Body"].read())

    def avro(self, uri: str) -> list[dict[str, Any]]:
        return [dict(one) for one in fastavro.reader(io.BytesIO(self.get(uri))) if isinstance(one, dict)]

    def data_files(self, table: str) -> set[str]:
        return set(self.catalog.load_table(table).inspect.files()["file_path"].to_pylist())

    def manifests(self, table: str) -> set[str]:
        return set(self.catalog.load_table(table).inspect.manifests()["path"].to_pylist())

    def run_ids(self, table: str) -> list[str]:
        """The runs that committed, the newest first: what a run only staged is not among the head's ancestors."""
        return [run for snapshot in self.history(table) if (run := summary(snapshot).get("lethe.run-id"))]

    def history(self, table: str) -> Iterator[Snapshot]:
        """The head and its ancestors, as far as they are there."""
        loaded = self.catalog.load_table(table)
        snapshot = loaded.current_snapshot()
        while snapshot is not None:
            yield snapshot
            parent = snapshot.parent_snapshot_id
            snapshot = loaded.snapshot_by_id(parent) if parent is not None else None


def summary(snapshot: Snapshot) -> dict[str, str]:
    return dict(snapshot.summary.additional_properties) if snapshot.summary else {}


def connect(services: Services, catalog: str = CATALOG) -> ClusterLake:
    config = Config(
        retries={"max_attempts": 5, "mode": "standard"},
        s3={"addressing_style": "path"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    properties = services.catalog_properties(inside=False)
    s3 = boto3.client(
        "s3",
        endpoint_url=properties["s3.endpoint"],
        aws_access_key_id=properties["s3.access-key-id"],
        aws_secret_access_key=properties["s3.secret-access-key"],
        region_name="us-east-1",
        config=config,
    )
    # A connection of the pool may be older than the last restart of PostgreSQL.
    return ClusterLake(services, s3, load_catalog(catalog, **properties, pool_pre_ping="true"))


def batch_folder(buffer: str, batch_id: str) -> str:
    return f"{buffer}/batch_id={quote(batch_id, safe='')}"


def split(uri: str) -> tuple[str, str]:
    parts = urlsplit(uri)
    return parts.netloc, parts.path.strip("/")


def total(parts: Iterable[Rows]) -> Rows:
    """All rows of some batches together."""
    together: Rows = Counter()
    for part in parts:
        together += part
    return together

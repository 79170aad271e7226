"""A cluster with Lethe, its bucket and its catalog, as a user sees them. I/O.

Needs the exports of `make env`. The measured runs do not use a Spark session of the benchmark.
"""

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import boto3
import kubernetes.client
import kubernetes.config
from botocore.config import Config
from kubernetes.client import ApiException
from prometheus_client.parser import text_string_to_metric_families
from pyarrow.fs import FileSelector, S3FileSystem
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

GROUP: Final = "lethe.dev"
VERSION: Final = "v1alpha1"
NAMESPACE: Final = "default"
SYSTEM: Final = "lethe-system"
METRICS_PORT: Final = 9090
AT_ONCE: Final = 16
WANTED: Final = (
    *("KUBECONFIG", "LETHE_S3_ENDPOINT", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"),
    *("LETHE_CATALOG_NAME", "LETHE_CATALOG_URI", "LETHE_WAREHOUSE"),
)
Object = dict[str, Any]


@dataclass(frozen=True)
class Site:
    """`objects` are those of lethe.dev, in `NAMESPACE`; safe to share between threads."""

    objects: kubernetes.client.CustomObjectsApi
    core: kubernetes.client.CoreV1Api
    s3: Any
    files: S3FileSystem
    catalog: Catalog = field(repr=False)

    # --- resources ---

    def create(self, kind: str, name: str, spec: Mapping[str, Any], labels: Mapping[str, str] | None = None) -> None:
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": kind,
            "metadata": {"name": name, "labels": dict(labels or {})},
            "spec": dict(spec),
        }
        self.objects.create_namespaced_custom_object(GROUP, VERSION, NAMESPACE, plural(kind), body)

    def get(self, kind: str, name: str) -> Object | None:
        try:
            found: Object = self.objects.get_namespaced_custom_object(GROUP, VERSION, NAMESPACE, plural(kind), name)
        except ApiException as e:
            if e.status == 404:
                return None
            raise
        return found

    def delete_all(self, kind: str, label: str = "") -> None:
        """Delete those with a label, or all; the API server does it in one request."""
        self.objects.delete_collection_namespaced_custom_object(
            GROUP, VERSION, NAMESPACE, plural(kind), label_selector=label
        )

    def has_any(self, kind: str) -> bool:
        found = self.objects.list_namespaced_custom_object(GROUP, VERSION, NAMESPACE, plural(kind), limit=1)
        return bool(found["items"])

    # --- numbers ---

    def operator(self) -> dict[str, float]:
        """Of the operator's process: `memory_bytes`, `cpu_seconds`, `api_requests` since its start."""
        pods = self.core.list_namespaced_pod(SYSTEM, label_selector="app.kubernetes.io/component=operator").items
        (running,) = (p.metadata.name for p in pods if p.status.phase == "Running")
        path = f"{running}:{METRICS_PORT}"
        text = self.core.connect_get_namespaced_pod_proxy_with_path(path, SYSTEM, "metrics")
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
        return {
            "memory_bytes": _sum(samples, "process_resident_memory_bytes"),
            "cpu_seconds": _sum(samples, "process_cpu_seconds_total"),
            "api_requests": _sum(samples, "lethe_api_requests_total"),
        }

    def operator_memory(self) -> float:
        """Bytes of the operator's process."""
        return self.operator()["memory_bytes"]

    def requests_served(self) -> float:
        """By the API server, since its start, for whomever."""
        return self.server_metric("apiserver_request_total")

    def server_metric(self, name: str, labels: Mapping[str, str] | None = None) -> float:
        """The sum of the API server's samples of a name that have these labels."""
        client = self.core.api_client
        answer = client.call_api(*client.param_serialize("GET", "/metrics", auth_settings=["BearerToken"]))
        text = "\n".join(line for line in answer.read().decode().splitlines() if line.startswith(name)) + "\n"
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
        wanted = (labels or {}).items()
        return _sum((s for s in samples if wanted <= s.labels.items()), name)

    # --- the lake ---

    def put_all(self, contents: Iterable[tuple[str, bytes]]) -> None:
        """Write objects, many at a time, in no order."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for _ in pool.map(lambda item: self.put(*item), contents):
                pass

    def put(self, uri: str, content: bytes) -> None:
        with self.files.open_output_stream(uri.removeprefix("s3://")) as stream:
            stream.write(content)

    def read(self, uri: str) -> bytes:
        with self.files.open_input_file(uri.removeprefix("s3://")) as stream:
            return bytes(stream.read())

    def names_in(self, folder: str) -> list[str]:
        """The names of the objects directly below a folder."""
        selector = FileSelector(folder.removeprefix("s3://"))
        return [one.base_name for one in self.files.get_file_info(selector)]

    def clear(self, folder: str) -> None:
        parts = urlsplit(folder)
        pages = self.s3.get_paginator("list_objects_v2").paginate(
            Bucket=parts.netloc, Prefix=f"{parts.path.strip('/')}/"
        )
        for page in pages:
            if keys := [{"Key": one["Key"]} for one in page.get("Contents", ())]:
                self.s3.delete_objects(Bucket=parts.netloc, Delete={"Objects": keys, "Quiet": True})

    def drop_table(self, name: str) -> None:
        """Drop the table, if it exists, and delete everything below its location."""
        try:
            location = self.catalog.load_table(name).location()
        except (NoSuchTableError, NoSuchNamespaceError):
            return
        self.catalog.drop_table(name)
        self.clear(location)


def connect() -> Site:
    """The cluster that the environment names. Raises: RuntimeError, if it names none."""
    missing = [name for name in WANTED if not os.environ.get(name)]
    if missing:
        raise RuntimeError(f'{", ".join(missing)} not set: run `make up install`, then `eval "$(make -s env)"`')
    kubernetes.config.load_kube_config(os.environ["KUBECONFIG"])
    configuration = kubernetes.client.Configuration.get_default_copy()
    configuration.connection_pool_maxsize = 2 * AT_ONCE
    client = kubernetes.client.ApiClient(configuration)
    endpoint, region = os.environ["LETHE_S3_ENDPOINT"], os.environ["AWS_REGION"]
    config = Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required")
    catalog = load_catalog(
        os.environ["LETHE_CATALOG_NAME"],
        **{
            "type": "sql",
            "uri": os.environ["LETHE_CATALOG_URI"],
            "warehouse": os.environ["LETHE_WAREHOUSE"],
            "init_catalog_tables": "false",
            "s3.endpoint": endpoint,
            "s3.region": region,
            "s3.access-key-id": os.environ["AWS_ACCESS_KEY_ID"],
            "s3.secret-access-key": os.environ["AWS_SECRET_ACCESS_KEY"],
        },
    )
    return Site(
        kubernetes.client.CustomObjectsApi(client),
        kubernetes.client.CoreV1Api(client),
        boto3.client("s3", endpoint_url=endpoint, region_name=region, config=config),
        # Without these two an object takes three requests instead of one, and a thread more.
        S3FileSystem(endpoint_override=endpoint, region=region, allow_delayed_open=True, background_writes=False),
        catalog,
    )


def plural(kind: str) -> str:
    return {"Dataset": "datasets", "Restatement": "restatements", "VacuumPolicy": "vacuumpolicies"}[kind]


def _sum(samples: Iterable[Any], name: str) -> float:
    return float(sum(s.value for s in samples if s.name == name))

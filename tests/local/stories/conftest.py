"""`lethe local` with an S3 server, for the tests of tests/cluster that need no cluster. Each module here runs one of theirs."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from pyiceberg.catalog import load_catalog

from tests.cluster.lake import CATALOG, ClusterLake, Services
from tests.cluster.story import ClusterStory, telling
from tests.local.cluster import LocalCluster
from tests.support.servers import s3 as s3_server

BUCKET = "lake"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterLake]:
    """A bucket, and a catalog in a file."""
    with s3_server.running() as s3:
        s3.bucket(BUCKET)
        file = tmp_path_factory.mktemp("catalog") / "catalog.db"
        properties = {
            **s3.properties(),
            "type": "sql",
            "uri": f"sqlite:///{file}",
            "warehouse": f"s3://{BUCKET}/warehouse",
            "init_catalog_tables": "true",
        }
        yield ClusterLake(Services("127.0.0.1", {}), s3.client, load_catalog(CATALOG, **properties))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, lake: ClusterLake) -> Iterator[LocalCluster]:
    """A running `lethe local up`."""
    folder = tmp_path_factory.mktemp("stories") / "lethe"
    folder.mkdir()
    (folder / ".pyiceberg.yaml").write_text(yaml.safe_dump({"catalog": {CATALOG: dict(lake.catalog.properties)}}))
    command = [sys.executable, "-m", "lethe.cli", "local", "up", "--dir", str(folder)]
    with subprocess.Popen(command, env=dict(os.environ), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "Lethe runs in" in process.stdout.readline()
        yield LocalCluster(folder / "kubeconfig")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0


@pytest.fixture(scope="module")
def stories(cluster: LocalCluster, lake: ClusterLake) -> Iterator[Callable[[str], ClusterStory]]:
    """As on a cluster."""
    with telling(cluster, lake) as begin:
        yield begin


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[object]):  # type: ignore[no-untyped-def]
    """A failure carries the logs of that moment."""
    report = yield
    cluster = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and isinstance(cluster, LocalCluster) and call.when != "teardown":
        folder: Path = cluster.kubeconfig.parent
        logs = [*folder.glob("parts/*/log"), *folder.glob("runs/*/log")]
        text = "".join(f"\n== {f}\n{f.read_text(errors='replace')[-2000:]}" for f in logs)
        report.sections.append(("logs of lethe local", text))
    return report

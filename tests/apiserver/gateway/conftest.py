"""A real API server with Lethe's definitions, callers with real tokens, a table, and a gateway that may only ask."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from lethe.kube import DATASETS, NAMESPACES, SERVICE_ACCOUNTS
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from tests.support import gateway_lake
from tests.support.commands import definitions
from tests.support.servers.gateway import (
    REVIEWS,
    GatewayProcess,
    binding,
    kubeconfig_of,
    role,
    running,
    token_of,
)
from tests.support.servers.kubernetes import ApiServerProcess, api_server, apply_definitions, kubectl
from tests.support.tables import catalog_in

SHOWN = ("default", "secret-project", "absent")
READ = "get,list,watch"


@dataclass
class Site:
    """Everything around a gateway."""

    server: ApiServerProcess
    gateway: GatewayProcess
    catalog: Catalog
    table: Table
    folder: Path
    kubeconfig: Path  # of the gateway

    def token(self, account: str, **spec: object) -> str:
        return token_of(self.server.kube, account, **spec)

    def client(self, account: str) -> httpx.Client:
        """A client with the token of a ServiceAccount."""
        return self.gateway.client(self.token(account))

    @property
    def environ(self) -> dict[str, str]:
        """Settings of another gateway of the same site."""
        return settings(self.kubeconfig, self.folder / "home")


def settings(kubeconfig: Path, home: Path) -> dict[str, str]:
    return {
        "KUBECONFIG": str(kubeconfig),
        "PYICEBERG_HOME": str(home),
        "LETHE_WATCH_NAMESPACES": ",".join(SHOWN),
        "LETHE_GATEWAY_INDEX": '{"freshSeconds": 0}',
        "LETHE_GATEWAY_IDENTITY_SECONDS": "1",
        "LETHE_GATEWAY_LIMITS": '{"requestsPerSecond": 1000, "burst": 10000, "failuresPerMinute": 100000}',
    }


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The analyst may see Datasets and batches; the planner no batches; the outsider nothing."""
    folder = tmp_path_factory.mktemp("gateway")
    home = folder / "home"
    with api_server(folder / "cluster") as server:
        apply_definitions(server, definitions())
        _accounts(server)
        catalog = catalog_in(home)
        table = gateway_lake.flights_table(catalog)
        gateway_lake.fill(catalog, table)
        kubectl(server, "apply", gateway_lake.dataset(), gateway_lake.restatement())
        server.kube.patch(DATASETS, "default", "flights", {"status": gateway_lake.DATASET_STATUS}, "status")
        kubeconfig = kubeconfig_of(server, folder / "kubeconfig", token_of(server.kube, "lethe-gateway"))
        with running(folder / "gateway", **settings(kubeconfig, home)) as gateway:
            yield Site(server, gateway, catalog, table, folder, kubeconfig)


def _accounts(server: ApiServerProcess) -> None:
    server.kube.create(
        NAMESPACES, "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "secret-project"}}
    )
    for name in ("lethe-gateway", "analyst", "planner", "outsider", "leaver"):
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
        server.kube.create(SERVICE_ACCOUNTS, "default", account)
    lists = [(r, READ) for r in ("datasets", "restatements", "vacuumpolicies")]
    everything = role("reader", "default", *lists, ("datasets/batches", "get"))
    resources = role("planner", "default", *lists)
    hidden = gateway_lake.dataset("hidden")
    kubectl(
        server,
        "apply",
        REVIEWS,
        everything,
        resources,
        {**hidden, "metadata": {"name": "hidden", "namespace": "secret-project"}},
    )
    kubectl(
        server,
        "apply",
        binding(REVIEWS, "lethe-gateway"),
        binding(everything, "analyst"),
        binding(everything, "leaver"),
        binding(resources, "planner"),
    )


@pytest.fixture
def analyst(site: Site) -> Iterator[httpx.Client]:
    with site.client("analyst") as client:
        yield client

"""A real API server with Lethe's definitions, people with real tokens, the table of `gateway_lake`, and a gateway. I/O."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from lethe.kube import NAMESPACES, SERVICE_ACCOUNTS
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from tests.support import gateway_lake
from tests.support.commands import definitions
from tests.support.documents import Document
from tests.support.servers.gateway import REVIEWS, GatewayProcess, binding, kubeconfig_of, running, token_of
from tests.support.servers.kubernetes import ApiServerProcess, api_server, apply_definitions, kubectl
from tests.support.tables import catalog_in

ACCOUNT = "lethe-gateway"
READS = [(kind, "get,list,watch") for kind in ("datasets", "restatements", "vacuumpolicies")]
"""What one who sees everything but batches may do."""


@dataclass
class Site:
    """Everything around a gateway."""

    server: ApiServerProcess
    gateway: GatewayProcess
    catalog: Catalog
    table: Table
    folder: Path
    environ: dict[str, str]
    """Settings of the gateway, and of another one of the same site."""

    def token(self, account: str, **spec: Any) -> str:
        return token_of(self.server.kube, account, **spec)

    def client(self, account: str) -> httpx.Client:
        """A client with the token of a ServiceAccount."""
        return self.gateway.client(self.token(account))


def create_people(server: ApiServerProcess, people: Mapping[str, Sequence[Document]]) -> None:
    """ServiceAccounts with their Roles."""
    for name in people:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
        server.kube.create(SERVICE_ACCOUNTS, "default", account)
    roles = {r["metadata"]["name"]: r for granted in people.values() for r in granted}
    kubectl(server, "apply", *roles.values(), *(binding(r, name) for name, granted in people.items() for r in granted))


@contextmanager
def running_site(
    folder: Path,
    people: Mapping[str, Sequence[Document]],
    documents: Sequence[Document],
    namespaces: Sequence[str] = (),
    **environ: str,
) -> Iterator[Site]:
    """A site for as long as the block lasts.

    Args:
        people: Accounts and their Roles.
        documents: Resources beside the Dataset and the Restatement of `gateway_lake`.
        namespaces: Those to create beside `default`.
        environ: Settings of the gateway.
    """
    with api_server(folder / "cluster") as server:
        apply_definitions(server, definitions())
        for name in namespaces:
            server.kube.create(NAMESPACES, "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        create_people(server, {ACCOUNT: [REVIEWS], **people})
        kubectl(server, "apply", gateway_lake.dataset(), gateway_lake.restatement(), *documents)
        catalog = catalog_in(folder / "home")
        table = gateway_lake.flights_table(catalog)
        gateway_lake.fill(catalog, table)
        settings = {
            "KUBECONFIG": str(kubeconfig_of(server, folder / "kubeconfig", token_of(server.kube, ACCOUNT))),
            "PYICEBERG_HOME": str(folder / "home"),
            "LETHE_GATEWAY_INDEX": '{"freshSeconds": 0}',
            "LETHE_GATEWAY_LIMITS": '{"requestsPerSecond": 1000, "burst": 10000, "failuresPerMinute": 100000}',
            **environ,
        }
        with running(folder / "gateway", **settings) as gateway:
            yield Site(server, gateway, catalog, table, folder, settings)

"""A gateway that may only ask, and callers with rights of their own."""

from collections.abc import Iterator

import httpx
import pytest
from lethe.kube import DATASETS

from tests.support import gateway_lake
from tests.support.gateway_site import READS, Site, running_site
from tests.support.servers.gateway import role

HIDDEN = "secret-project"
SHOWN = ("default", HIDDEN, "absent")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The analyst may see Datasets and batches; the planner no batches; the outsider nothing."""
    reader = role("reader", "default", *READS, ("datasets/batches", "get"))
    people = {"analyst": [reader], "leaver": [reader], "planner": [role("planner", "default", *READS)], "outsider": []}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HIDDEN}}
    hidden = {**gateway_lake.dataset(), "metadata": {"name": "hidden", "namespace": HIDDEN}}
    environ = {"LETHE_WATCH_NAMESPACES": ",".join(SHOWN), "LETHE_GATEWAY_IDENTITY_SECONDS": "1"}
    with running_site(tmp_path_factory.mktemp("gateway"), people, [namespace, hidden], **environ) as found:
        found.server.kube.patch(DATASETS, "default", "flights", {"status": gateway_lake.DATASET_STATUS}, "status")
        yield found


@pytest.fixture
def analyst(site: Site) -> Iterator[httpx.Client]:
    with site.client("analyst") as client:
        yield client

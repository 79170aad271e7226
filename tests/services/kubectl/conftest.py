"""The API of `lethe local` without its processes, and the commands as a user runs them on it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from lethe.cli.main import cli
from lethe.iceberg import catalogs
from lethe.kube import DATASETS, NAMESPACES, Kube
from lethe_local.folder import NAMESPACE, Folder

from tests.support import api_server
from tests.support.documents import resource
from tests.support.tables import new_table
from tests.tables.lethe.cli.conftest import Kept


@dataclass(frozen=True)
class LocalApi:
    """A folder of `lethe local` whose API runs in this process. No operator acts on its objects."""

    folder: Folder
    kube: Kube

    def lethe(self, *arguments: str, told: str = "") -> Result:
        """A command on this folder."""
        return CliRunner().invoke(cli, [*arguments, "--dir", str(self.folder.path)], input=told)

    def on_table(self, *arguments: str) -> Result:
        """A command on a table, with the catalogs of this folder."""
        return CliRunner(env={"PYICEBERG_HOME": str(self.folder.path)}).invoke(cli, arguments)

    def dataset(self, name: str, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
        """Create a Dataset of the table `local.air.<name>`."""
        table = {"catalog": "local", "name": f"air.{name}"}
        whole = {
            "table": table,
            "batchColumn": "batch_id",
            "buffer": {"uri": f"file://{self.folder.path}/buffer"},
            **spec,
        }
        made = self.kube.create(DATASETS, NAMESPACE, resource("Dataset", name, whole))
        return self.kube.patch(DATASETS, NAMESPACE, name, {"status": status}, "status") if status else made


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalApi]:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))  # the commands set it; this restores it
    monkeypatch.delenv("LETHE_DEBUG", raising=False)
    with api_server.running(tmp_path / "lethe") as server:
        kube = server.kube
        kube.create(NAMESPACES, "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        yield LocalApi(server.folder, kube)


@pytest.fixture
def kept(local: LocalApi) -> Kept:
    """The table air.flights, with the columns v (long) and batch_id."""
    catalog = catalogs.load("local", local.folder.catalogs)
    catalog.create_namespace("air")
    return Kept(new_table(catalog))

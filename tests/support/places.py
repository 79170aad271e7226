"""Places at which Lethe looks for catalogs and Datasets, and nothing of the machine that runs the tests."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lethe.base.errors import InputError
from lethe.kube import DATASETS
from lethe_kubectl import programs
from lethe_kubectl.errors import ResourcePlace
from lethe_kubectl.target import Connection
from pyiceberg.catalog import Catalog

from tests.support.fake_cluster import FakeCluster
from tests.support.tables import catalog_in

NAMESPACE = "air"


@dataclass
class Places:
    home: Path
    """The home directory, in which there is no configuration."""
    patch: pytest.MonkeyPatch

    @classmethod
    def none(cls, home: Path, patch: pytest.MonkeyPatch) -> "Places":
        """No configuration, no `lethe local`, no kubeconfig."""
        home.mkdir(parents=True, exist_ok=True)
        patch.delenv("PYICEBERG_HOME", raising=False)
        patch.setenv("HOME", str(home))
        patch.setenv("LETHE_LOCAL", str(home / ".lethe"))
        patch.chdir(home)
        places = cls(home, patch)
        places.use(None)
        return places

    def configured(self, folder: str = "mine") -> Catalog:
        """A catalog `lite` in PyIceberg's configuration."""
        self.patch.setenv("PYICEBERG_HOME", str(self.home / folder))
        return catalog_in(self.home / folder)

    @contextmanager
    def lethe_local(self, name: str = "lite") -> Iterator[Catalog]:
        """A catalog of `lethe local`, which runs."""
        folder = self.home / ".lethe"
        catalog = catalog_in(folder, name)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield catalog

    def cluster(self, *datasets: dict[str, Any]) -> FakeCluster:
        """A cluster with these Datasets."""
        cluster = FakeCluster(
            *((DATASETS, {**d, "metadata": {**d["metadata"], "namespace": NAMESPACE}}) for d in datasets)
        )
        self.use(cluster)
        return cluster

    def use(self, cluster: FakeCluster | None) -> None:
        """Let commands and programs talk to this server; None: there is none."""

        @contextmanager
        def connected(*_: Any) -> Iterator[Connection]:
            if cluster is None:
                raise InputError("NoCluster", "no cluster is chosen.")
            place = ResourcePlace("context tests", "https://127.0.0.1:1", NAMESPACE, "kubectl", "lethe {}")
            yield Connection(cluster, place)  # type: ignore[arg-type]

        connect: Callable[..., Any] = connected
        self.patch.setattr(programs, "connected", connect)

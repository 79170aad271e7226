"""Lists of batches that are too long for a Restatement, against a real API server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from lethe.kube import CONFIG_MAPS, DATASETS, RESTATEMENTS

from tests.support.commands import definitions, lethe
from tests.support.documents import resource
from tests.support.servers.kubernetes import ApiServerProcess, api_server, apply_definitions
from tests.support.tables import catalog_in

COUNT = 20_000
SHORT = [f"2026-11-28.{n:06}" for n in range(COUNT)]
LONG = [f"{id}.{'x' * 40}" for id in SHORT]
"""More than a ConfigMap can have."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServerProcess]:
    with api_server(tmp_path_factory.mktemp("server")) as running:
        apply_definitions(running, definitions())
        yield running


@pytest.fixture
def dataset(server: ApiServerProcess, tmp_path: Path) -> Iterator[Path]:
    """A Dataset whose buffer is in the returned folder. Its table does not exist yet."""
    catalog_in(tmp_path)
    table = {"catalog": "lite", "name": "air.flights"}
    spec = {"table": table, "batchColumn": "batch_id", "buffer": {"uri": f"file://{tmp_path}/buffer"}}
    server.kube.create(DATASETS, "default", resource("Dataset", "flights", spec))
    yield tmp_path
    server.kube.delete(DATASETS, "default", "flights")


def revert(server: ApiServerProcess, folder: Path, ids: list[str], *options: str) -> str:
    """What `lethe revert --batches-from` of these ids prints."""
    (folder / "ids.txt").write_text("".join(f"{id}\n" for id in ids))
    named = ("revert", "flights", "--batches-from", str(folder / "ids.txt"), "--yes", "--name", "many", *options)
    done = lethe(server.kubeconfig, *named, HOME=str(folder), PYICEBERG_HOME=str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_list_is_in_a_config_map_that_goes_with_its_restatement(server: ApiServerProcess, dataset: Path) -> None:
    first, again = revert(server, dataset, SHORT), revert(server, dataset, SHORT)

    created = server.kube.get(RESTATEMENTS, "default", "many")
    reference = created["spec"]["batchIdsFrom"]["configMapKeyRef"]
    stored = server.kube.get(CONFIG_MAPS, "default", reference["name"])
    (owner,) = stored["metadata"]["ownerReferences"]
    server.kube.delete(RESTATEMENTS, "default", "many")
    server.kube.delete(CONFIG_MAPS, "default", reference["name"])
    assert (first, again) == ("restatement/many created\n", "restatement/many unchanged\n")
    assert stored["data"][reference["key"]].split() == SHORT
    assert (stored["immutable"], stored["metadata"]["labels"]) == (True, {"lethe.dev/batch-ids": "true"})
    assert (owner["kind"], owner["uid"]) == ("Restatement", created["metadata"]["uid"])
    assert "batchIds" not in created["spec"]


def test_a_longer_list_is_beside_the_buffer(server: ApiServerProcess, dataset: Path) -> None:
    first, again = revert(server, dataset, LONG), revert(server, dataset, LONG)

    created = server.kube.get(RESTATEMENTS, "default", "many")
    server.kube.delete(RESTATEMENTS, "default", "many")
    uri = created["spec"]["batchIdsFrom"]["uri"]
    assert (first, again) == ("restatement/many created\n", "restatement/many unchanged\n")
    assert uri == f"file://{dataset}/buffer-restatements/lists/many.txt"
    assert Path(uri.removeprefix("file://")).read_text().split() == LONG


def test_a_list_is_printed_for_git_as_both_objects(server: ApiServerProcess, dataset: Path) -> None:
    listed, restatement = yaml.safe_load(revert(server, dataset, SHORT, "-o", "yaml"))["items"]

    reference = restatement["spec"]["batchIdsFrom"]["configMapKeyRef"]
    assert (listed["kind"], listed["metadata"]["name"]) == ("ConfigMap", reference["name"])
    assert listed["data"][reference["key"]].split() == SHORT

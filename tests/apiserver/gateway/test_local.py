"""The gateway as a part of `lethe local up`."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from lethe.cli.main import cli as lethe_command
from lethe.iceberg import catalogs
from lethe.kube import DATASETS, RESTATEMENTS
from lethe_local.folder import NAMESPACE, Folder
from lethe_local.up import Local, LocalProcess

from tests.apiserver.gateway.test_changes import follow
from tests.support import gateway_lake
from tests.support.buffers import batches_in
from tests.support.clock import wait_until
from tests.support.gateway_lake import STATES
from tests.support.servers.gateway import GatewayProcess

DATASET = "/v1/namespaces/default/datasets/flights"


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Local]:
    """Its API, with a Dataset whose table is there. Nothing else runs."""
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    with Local(Folder(tmp_path), gateway_port=0) as local:
        catalog = catalogs.load("local")
        catalog.create_namespace("air")
        gateway_lake.fill(catalog, gateway_lake.flights_table(catalog))
        kinds = {k.resource: k for k in local.objects.kinds.values()}
        spec = {"catalog": "local", "buffer": {"uri": f"file://{tmp_path}/buffer"}}
        local.objects.create(kinds[DATASETS], NAMESPACE, gateway_lake.dataset(**spec))
        local.objects.create(kinds[RESTATEMENTS], NAMESPACE, gateway_lake.restatement())
        yield local


def _gateway(local: Local) -> LocalProcess:
    (part,) = [p for p in local._parts if p.name == "gateway"]
    return part


def _client(local: Local, token: str) -> httpx.Client:
    process = GatewayProcess(local.gateway_port or 0, None, Path())  # type: ignore[arg-type]
    return process.client(token)


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_it_shows_the_datasets_of_the_folder_to_whoever_has_its_token(local: Local) -> None:
    part = _gateway(local)
    part.look()
    with _client(local, local.folder.token) as client, _client(local, "another") as stranger:
        wait_until(lambda: _answers(client), 60)

        assert {b["id"]: b["state"] for b in client.get(f"{DATASET}/batches").json()["items"]} == STATES
        assert client.get("/v1/namespaces").json() == {"items": ["default"]}
        assert client.get("/v1/namespaces/default/restatements/revert-b").json()["operation"] == "Revert"
        assert client.get("/v1/namespaces/kube-system/datasets").status_code == 404
        assert stranger.get(DATASET).status_code == 401
        with follow(client) as stream:
            stream.until("ready")
            kind = next(k for k in local.objects.kinds.values() if k.resource == RESTATEMENTS)
            local.objects.create(kind, NAMESPACE, gateway_lake.restatement("later"))
            stream.until("restatement added later")
    assert part.running is not None


def test_a_gateway_that_ends_is_started_again(local: Local) -> None:
    part = _gateway(local)
    part.look()
    with _client(local, local.folder.token) as client:
        wait_until(lambda: _answers(client), 60)
        assert part.running is not None
        part.running.kill()

        wait_until(lambda: not _answers(client), 30)
        wait_until(lambda: _answers(client), 60, before_each=part.look)
        assert client.get(DATASET).status_code == 200


def test_a_folder_is_uploaded_through_it(local: Local, tmp_path: Path) -> None:
    """The buffer is a folder too, so files go through the gateway."""
    part, account = _gateway(local), local.folder.account
    part.look()
    with _client(local, local.folder.token) as client:
        wait_until(lambda: _answers(client), 60)
    (tmp_path / "new").mkdir()
    pq.write_table(pa.table({"v": pa.array([1, 2], pa.int64())}), tmp_path / "new/part-0.parquet")
    where = ["--gateway", f"http://127.0.0.1:{local.gateway_port}", "--token-file", str(account / "token")]

    done = CliRunner().invoke(lethe_command, ["put", "flights", str(tmp_path / "new"), *where])

    assert done.exit_code == 0, done.output
    (batch,) = batches_in(f"file://{tmp_path}/buffer")
    assert (batch.id, batch.complete, len(batch.data_objects)) == ("new", True, 1)


def test_only_its_user_can_read_the_token(local: Local) -> None:
    assert (local.folder.account / "token").stat().st_mode & 0o077 == 0

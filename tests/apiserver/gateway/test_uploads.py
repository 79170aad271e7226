"""Uploads to a real S3 server, through a real gateway, with real tokens."""

import hashlib
import io
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import lethe
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from lethe.base.errors import InputError
from lethe.cli.main import cli as lethe_command
from lethe.kube import DATASETS
from pyiceberg.catalog import Catalog

from tests.support import gateway_lake
from tests.support.buffers import batches_in
from tests.support.gateway_site import Site, create_people
from tests.support.servers.gateway import GatewayProcess, role, running
from tests.support.servers.kubernetes import kubectl
from tests.support.servers.s3 import S3
from tests.support.tables import catalog_in

MIB = 1 << 20
SMALL_PARTS = '{"wholeBytes": "5Mi", "partBytes": "5Mi", "throughBytes": "1Mi"}'


def parquet(*values: int, column: str = "v") -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({column: pa.array(values, pa.int64())}), out)
    return out.getvalue()


@dataclass
class Lake:
    """A Dataset `uploads` whose buffer is on S3, and two gateways that serve it."""

    site: Site
    s3: S3
    bucket: str
    catalog: Catalog
    gateways: tuple[GatewayProcess, GatewayProcess]

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/buffer"

    @property
    def path(self) -> str:
        return "/v1/namespaces/default/datasets/uploads/uploads"

    def client(self, account: str = "producer", replica: int = 0) -> httpx.Client:
        return self.gateways[replica].client(self.site.token(account))

    def gateway(self, replica: int = 0) -> lethe.GatewayClient:
        return lethe.GatewayClient(self.gateways[replica].url, self.site.token("producer"))

    def batches(self) -> list[Any]:
        return batches_in(self.uri, self.s3.properties())

    def new_id(self) -> str:
        return f"b/{uuid.uuid4().hex[:8]}"

    def open(self, client: httpx.Client, batch_id: str, files: dict[str, bytes]) -> dict[str, Any]:
        announced = [{"path": p, "size": len(c), "sha256": hashlib.sha256(c).hexdigest()} for p, c in files.items()]
        answer = client.post(self.path, json={"batchId": batch_id, "files": announced})
        assert answer.status_code in (200, 201), answer.text
        return dict(answer.json())


@pytest.fixture(scope="module")
def lake(site: Site, tmp_path_factory: pytest.TempPathFactory, s3: S3) -> Iterator[Lake]:
    folder = tmp_path_factory.mktemp("uploads")
    bucket = s3.bucket(f"lake-{uuid.uuid4().hex[:8]}")
    catalog = catalog_in(folder / "home", **s3.properties())
    gateway_lake.flights_table(catalog, "default/uploads")
    kubectl(site.server, "apply", gateway_lake.dataset("uploads", buffer={"uri": f"s3://{bucket}/buffer"}))
    writer = role("writer", "default", ("datasets", "get"), ("datasets/batches", "create"))
    create_people(site.server, {"producer": [writer]})
    environ = {**site.environ, "PYICEBERG_HOME": str(folder / "home"), "LETHE_GATEWAY_UPLOADS": SMALL_PARTS}
    with ExitStack() as stack:
        gateways = [stack.enter_context(running(folder / f"gateway-{n}", **environ)) for n in range(2)]
        yield Lake(site, s3, bucket, catalog, (gateways[0], gateways[1]))
    site.server.kube.delete(DATASETS, "default", "uploads")


def put(request: dict[str, Any], content: bytes) -> httpx.Response:
    return httpx.put(request["url"], content=content, headers=request["headers"])


def test_files_go_to_the_store_and_completing_them_makes_a_batch(lake: Lake) -> None:
    batch_id, files = lake.new_id(), {"a.parquet": parquet(1, 2), "day-1/b c.parquet": parquet(3)}
    with lake.client() as client:
        upload = lake.open(client, batch_id, files)
        for file in upload["files"]:
            assert put(file["put"], files[file["path"]]).status_code == 200
        done = client.post(f"{lake.path}/{upload['id']}:complete")

        assert (done.status_code, done.json()["state"], done.json()["checked"]) == (200, "Complete", True)
        assert client.post(f"{lake.path}/{upload['id']}:complete").json()["state"] == "Complete"
    (batch,) = [b for b in lake.batches() if b.id == batch_id]
    assert (batch.complete, batch.bytes) == (True, sum(map(len, files.values())))


def test_a_url_takes_only_what_was_announced_and_only_once(lake: Lake) -> None:
    batch_id, content = lake.new_id(), parquet(1, 2)
    with lake.client() as client:
        (file,) = lake.open(client, batch_id, {"a.parquet": content})["files"]
    other = parquet(8, 9)
    assert len(other) == len(content)

    refused = [put(file["put"], c).status_code for c in (other, content[:-1])]
    longer = put(file["put"], content + b"x").status_code
    first, again = put(file["put"], content).status_code, put(file["put"], content).status_code
    # Each header is signed, also the one by which an existing object is kept.
    url, headers = file["put"]["url"], file["put"]["headers"]
    without = [
        httpx.put(url, content=content, headers={k: v for k, v in headers.items() if k != left_out}).status_code
        for left_out in headers
    ]

    assert "If-None-Match" in headers
    assert all(400 <= status < 500 for status in (*refused, longer, *without))
    assert (first, again) == (200, 412)
    found = lake.s3.client.get_object(
        Bucket=lake.bucket, Key=f"buffer/batch_id={batch_id.replace('/', '%2F')}/a.parquet"
    )
    assert found["Body"].read() == content


def test_a_large_file_goes_in_parts_and_continues_where_it_ended(lake: Lake) -> None:
    batch_id, content = lake.new_id(), parquet(*range(3_000_000))
    assert len(content) > 11 * MIB
    with lake.client() as client, lake.client(replica=1) as other:
        upload = lake.open(client, batch_id, {"a.parquet": content})
        (file,) = upload["files"]
        assert (file["multipart"]["parts"], file["multipart"]["partSize"]) == (-(-len(content) // (5 * MIB)), 5 * MIB)

        def part(at: httpx.Client, number: int) -> None:
            piece = content[(number - 1) * 5 * MIB : number * 5 * MIB]
            asked = {"parts": [{"number": number, "sha256": hashlib.sha256(piece).hexdigest()}]}
            (url,) = at.post(f"{lake.path}/{upload['id']}/files/0/parts", json=asked).json()["items"]
            assert (url["offset"], url["size"]) == ((number - 1) * 5 * MIB, len(piece))
            assert put(url, piece).status_code == 200

        part(client, 2)
        again = other.get(f"{lake.path}/{upload['id']}").json()
        assert again["files"][0]["multipart"]["uploaded"] == [2]
        incomplete = other.post(f"{lake.path}/{upload['id']}:complete")
        assert (incomplete.status_code, incomplete.json()["errors"][0]["field"]) == (409, "a.parquet")
        for number in range(1, file["multipart"]["parts"] + 1):
            if number != 2:
                part(other, number)
        done = client.post(f"{lake.path}/{upload['id']}:complete")
        assert done.status_code == 200, done.text
    (batch,) = [b for b in lake.batches() if b.id == batch_id]
    assert (batch.complete, batch.bytes) == (True, len(content))


def test_an_abandoned_upload_leaves_nothing_in_the_store(lake: Lake) -> None:
    batch_id, large = lake.new_id(), parquet(*range(1_500_000))
    before = lake.s3.keys(lake.bucket)
    with lake.client() as client:
        upload = lake.open(client, batch_id, {"a.parquet": large, "b.parquet": parquet(1)})
        put(upload["files"][1]["put"], parquet(1))
        client.post(f"{lake.path}/{upload['id']}/files/0/parts", json={"parts": [{"number": 1}]})
        assert lake.s3.client.list_multipart_uploads(Bucket=lake.bucket).get("Uploads")

        assert client.delete(f"{lake.path}/{upload['id']}").status_code == 204
        assert client.get(f"{lake.path}/{upload['id']}").status_code == 404

    assert lake.s3.keys(lake.bucket) == before
    assert not lake.s3.client.list_multipart_uploads(Bucket=lake.bucket).get("Uploads")


def test_small_files_may_go_through_the_gateway(lake: Lake) -> None:
    batch_id, content = lake.new_id(), parquet(1, 2)
    with lake.client() as client, lake.client(replica=1) as other:
        upload = lake.open(client, batch_id, {"a.parquet": content})
        at = f"{lake.path}/{upload['id']}/files/0"

        assert other.put(at, content=content[:-1]).json()["type"].endswith("/content-differs")
        assert other.put(at, content=content).status_code == 204
        assert client.put(at, content=content).status_code == 204
        assert client.put(at, content=b"x" * (MIB + 1)).json()["type"].endswith("/body-too-large")
        assert client.put(f"{lake.path}/{upload['id']}/files/1", content=content).status_code == 404
        assert client.post(f"{lake.path}/{upload['id']}:complete").status_code == 200


def test_the_python_client_uploads_a_folder_and_repeats_it_safely(lake: Lake, tmp_path: Path) -> None:
    batch_id, sent = lake.new_id(), []
    (tmp_path / "day-1").mkdir()
    (tmp_path / "a.parquet").write_bytes(parquet(*range(2_000_000)))
    (tmp_path / "day-1/b.parquet").write_bytes(parquet(1))
    (tmp_path / "_SUCCESS").touch()
    with lake.gateway() as gateway:
        done = gateway.put("uploads", batch_id, tmp_path, sent.append)
        again = gateway.put("uploads", batch_id, str(tmp_path))

    assert (done.files, done.checked, sum(sent)) == (2, True, done.bytes)
    assert again.bytes == done.bytes
    (batch,) = [b for b in lake.batches() if b.id == batch_id]
    assert (batch.complete, batch.bytes, len(batch.data_objects)) == (True, done.bytes, 2)


def test_the_python_client_continues_after_an_interruption(lake: Lake, tmp_path: Path) -> None:
    """With another replica, because the first one is gone for it."""
    batch_id = lake.new_id()
    for n in range(6):
        (tmp_path / f"{n}.parquet").write_bytes(parquet(n))

    class Killed(Exception):
        pass

    def die(_: int) -> None:
        if len([k for k in lake.s3.keys(lake.bucket) if batch_id.replace("/", "%2F") in k]) >= 3:
            raise Killed

    with lake.gateway() as gateway, pytest.raises(Killed):
        gateway.put("uploads", batch_id, tmp_path, die)
    with lake.gateway(replica=1) as gateway:
        assert gateway.put("uploads", batch_id, tmp_path).files == 6

    (batch,) = [b for b in lake.batches() if b.id == batch_id]
    assert (batch.complete, len(batch.data_objects)) == (True, 6)


def test_the_python_client_asks_for_new_urls_when_they_have_expired(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id, asked = lake.new_id(), []
    (tmp_path / "a.parquet").write_bytes(parquet(1))
    with lake.gateway() as gateway:
        call = gateway._call

        def late(method: str, url: str, *args: Any, **named: Any) -> dict[str, Any]:
            found = call(method, url, *args, **named)
            if method == "POST" and url.endswith("/uploads"):
                found["files"][0]["put"]["url"] = found["files"][0]["put"]["url"].replace(
                    "X-Amz-Expires=3600", "X-Amz-Expires=1"
                )
            asked.append(method)
            return found

        monkeypatch.setattr(gateway, "_call", late)
        assert gateway.put("uploads", batch_id, tmp_path).files == 1

    assert asked == ["POST", "GET", "POST"]


def test_the_python_client_says_what_is_wrong(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(parquet(1, column="w"))
    batch_id = lake.new_id()
    with lake.gateway() as gateway:
        with pytest.raises(InputError, match=r"BatchRefused: SchemaMismatch: .*column v \(int64\) is missing"):
            gateway.put("uploads", batch_id, tmp_path)
        (tmp_path / "a.parquet").write_bytes(parquet(1))
        with pytest.raises(InputError, match="UploadConflict"):
            gateway.put("uploads", batch_id, tmp_path)
        gateway.abandon("uploads", batch_id)
        gateway.abandon("uploads", batch_id)
        assert gateway.put("uploads", batch_id, tmp_path).files == 1
        with pytest.raises(InputError, match="UploadEnded"):
            gateway.abandon("uploads", batch_id)


def test_the_command_needs_a_url_and_a_token(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no access to the cluster's API."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("LETHE_GATEWAY_TOKEN", raising=False)
    folder, token = tmp_path / f"batch_id={uuid.uuid4().hex}%2Fa", tmp_path / "token"
    folder.mkdir()
    (folder / "a.parquet").write_bytes(parquet(1, 2))
    asked = ["put", "uploads", str(folder), "--gateway", lake.gateways[0].url, "-o", "json"]

    without = CliRunner().invoke(lethe_command, asked)
    token.write_text(lake.site.token("producer") + "\n")
    done = CliRunner().invoke(lethe_command, [*asked, "--token-file", str(token)])
    checked = CliRunner().invoke(lethe_command, [*asked, "--dry-run"])

    assert (without.exit_code, "NoToken" in without.output) == (10, True), without.output
    assert done.exit_code == 0, done.output
    batch_id = folder.name.removeprefix("batch_id=").replace("%2F", "/")
    assert json.loads(done.stdout)["batch"] == batch_id
    assert [b.complete for b in lake.batches() if b.id == batch_id] == [True]
    assert (checked.exit_code, "do not work with --gateway" in checked.output) == (2, True)


@pytest.mark.parametrize(("account", "status"), [("analyst", 403), ("outsider", 404)])
def test_whoever_may_not_write_batches_can_do_nothing(lake: Lake, account: str, status: int) -> None:
    with lake.client() as client:
        upload = lake.open(client, lake.new_id(), {"a.parquet": parquet(1)})
    body = {"batchId": "x", "files": [{"path": "a", "size": 1}]}
    at = f"{lake.path}/{upload['id']}"
    with lake.client(account) as client:
        answers = [
            client.post(lake.path, json=body),
            client.get(lake.path),
            client.get(at),
            client.put(f"{at}/files/0", content=parquet(1)),
            client.post(f"{at}/files/0/parts", json={"parts": [{"number": 1}]}),
            client.post(f"{at}:complete"),
            client.delete(at),
        ]

    assert {a.status_code for a in answers} == {status}


@pytest.mark.parametrize(
    "path",
    ["../a", "/a", "a/../b", "a//b", "_SUCCESS", ".a", "a/_b", "%2e%2e%2fa", "a%2f..%2f..%2fb", "", "a\n", "x" * 513],
)
def test_paths_that_lead_elsewhere_are_refused(lake: Lake, path: str) -> None:
    with lake.client() as client:
        answer = client.post(lake.path, json={"batchId": "x", "files": [{"path": path, "size": 1}]})

    assert (answer.status_code, answer.json()["type"]) == (400, "https://lethe.dev/problems/invalid-request")


def test_urls_are_not_kept_by_caches_and_not_in_the_log(lake: Lake) -> None:
    with lake.client() as client:
        announced = {"batchId": lake.new_id(), "files": [{"path": "a.parquet", "size": 1}]}
        answer = client.post(lake.path, json=announced)
        location = answer.headers["location"]

        assert answer.headers["cache-control"] == "no-store"
        assert client.get(location).headers["cache-control"] == "no-store"
    log = lake.gateways[0].log.read_text()
    assert "X-Amz-Signature" not in log
    assert announced["batchId"] not in log
    assert os.path.basename(location) == answer.json()["id"]
